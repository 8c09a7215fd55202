"""Runs: what they leave, what is skipped, what a kill cannot hurt.

Run as a script (`python test_runner.py FOLDER`) this file kills its own forked children: a
process of its own, so that no thread of the test runner is forked.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from fedshift import __version__
from fedshift.data.sources import Images, available
from fedshift.errors import InputError, OutputError, TrainingDiverged
from fedshift.experiments import records, runner, shifts
from fedshift.experiments.compare import compare
from fedshift.experiments.recipe import Recipe, recipes
from fedshift.experiments.records import RunFolder, read_history
from fedshift.experiments.study import load_any
from fedshift.federation.plan import FedAvg
from fedshift.ratio import Logistic, MultiSource

TEXT = """
title = "A small one"
[data]
source = "digits"
shift = "one-class-each"
clients = 3
train = [60, 3]
test = [30, 3]
[plan]
iterations = 120
batch_size = 16
norm = "local"
participation = 2
[train]
model = {kind = "mlp", hidden = [24], batch_norm = true}
validation = 0.1
choose = "best"
check_every = 4
device = "cpu"
[[method]]
name = "ERM"
objective = "erm"
[[method]]
name = "FTW"
ratio = "exact"
"""


def small(*changes: str) -> Recipe:
    return Recipe.recorded(f'name = "test/small"\n{TEXT}', file="recipe").changed(changes)


def run(recipe: Recipe, out: Path, **options: Any) -> tuple[list[dict[str, Any]], str]:
    """Results, and what was printed."""
    file = io.StringIO()
    results = runner.run(recipe, out, console=Console(file=file, width=120), **options)
    return results, file.getvalue()


# -- records -------------------------------------------------------------------------------------


def test_a_ratio_that_erm_does_not_use_changes_nothing(tmp_path: Path) -> None:
    recipe = small("plan.iterations=4")
    run(recipe, tmp_path)
    other = small("plan.iterations=4", "method.ERM.ratio=logistic", "method.FTW.ratio=logistic")
    assert "finished before" in run(other, tmp_path, methods=["ERM"])[1]
    (found,) = compare([tmp_path], known=[other])
    assert [r for r in found.remarks if "ratio" in r] == [
        "FTW: settings differ from the recipe: ratio.kind is exact (recipe: logistic)"
    ]
    with pytest.raises(
        InputError, match=r"method\.ratio is 'logistic' here and 'exact' in the folder"
    ):
        run(other, tmp_path, methods=["FTW"])


def count_fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the multi-source ratios that are really estimated."""
    fits: list[int] = []
    fit = MultiSource.fit

    def counted(self: MultiSource, **distributions: Any) -> MultiSource:
        fits.append(self.seed)
        return fit(self, **distributions)

    monkeypatch.setattr(MultiSource, "fit", counted)
    return fits


def several() -> Recipe:
    """Two methods that need the same ratios, and one that needs others."""
    text = TEXT.replace('ratio = "exact"', 'ratio = {kind = "multi-source", max_epochs = 2}')
    text += """
    [[method]]
    name = "clipped"
    ratio = {kind = "multi-source", max_epochs = 2}
    weighting.clip = 5.0
    [[method]]
    name = "longer"
    ratio = {kind = "multi-source", max_epochs = 3}
    """
    return Recipe.recorded(f'name = "test/small"\n{text}', file="recipe")


def test_methods_of_a_seed_share_log_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = count_fits(monkeypatch)
    recipe = several().changed(["plan.iterations=4"])
    results, _ = run(recipe, tmp_path, seeds=[0, 1])
    assert fits == [0, 0, 1, 1]  # each seed: once for both of two epochs, once for that of three
    by_name = {(r["method"], r["seed"]): r for r in results}
    ratios = [e for e in by_name["clipped", 1]["ledger"] if e["phase"] == "train.ratio"]
    assert ratios  # shared ratios are in the ledger as well
    assert ratios == [e for e in by_name["FTW", 1]["ledger"] if e["phase"] == "train.ratio"]
    run(recipe, tmp_path, seeds=[1], methods=["clipped"], fresh=True)
    assert fits[4:] == [1]  # of runs that were there before nothing is left


def test_a_run_leaves_evidence(tmp_path: Path) -> None:
    recipe = small("plan.iterations=8")
    results, printed = run(recipe, tmp_path)
    assert [r["method"] for r in results] == ["ERM", "FTW"]
    folder = tmp_path / "test/small/FTW/seed-0"
    assert sorted(p.name for p in folder.iterdir()) == [
        "environment.json",
        "history.jsonl",
        "lock",
        "model.json",
        "model.safetensors",
        "recipe.toml",
        "result.json",
    ]

    asked = Recipe.load(folder / "recipe.toml")  # runs again
    assert asked == recipe.narrow("FTW", 0)
    assert asked.settings("FTW", 0) == recipe.settings("FTW", 0)

    told = json.loads((folder / "environment.json").read_text())
    assert told["fedshift"] == __version__
    assert told["packages"]["torch"] == records.version("torch")
    assert str(tmp_path) not in (folder / "environment.json").read_text()

    history = read_history(folder)
    assert [line["round"] for line in history] == [4, 8]
    assert {"loss", "seconds", "validation_loss", "validation_accuracy"} <= history[0].keys()

    result = json.loads((folder / "result.json").read_text())
    assert result == results[1]
    assert [c["client"] for c in result["clients"]] == ["client-1", "client-2", "client-3"]
    assert result["mean"] == pytest.approx(np.mean([c["accuracy"] for c in result["clients"]]))
    weights = result["weights"]["client-1"]
    assert {"n", "mean", "max", "ess", "coverage"} <= weights.keys()
    assert weights["mean"] == pytest.approx(
        3.0
    )  # Σ_l p_l^te / p_k^tr over three test distributions
    assert sum(entry["up"] for entry in result["ledger"]) > 0

    model = load_file(str(folder / "model.safetensors"))
    net = recipe.settings("FTW", 0).model
    assert callable(net)
    made = net((1, 8, 8), 10)
    made.load_state_dict({n: t for n, t in model.items() if "/" not in n})
    assert "client-1/layers.2.weight" in model  # a client's own BatchNorm
    assert "client-1/layers.1.weight" not in model

    assert "FTW seed 0: accuracy" in printed
    assert re.search(r"^client-1 +57 +\.", printed, re.MULTILINE)  # one seed: by client, with n


def test_two_seeds_give_an_interval_and_no_clients(tmp_path: Path) -> None:
    _, printed = run(small("plan.iterations=4", "seeds=0:2"), tmp_path)
    assert "±" in printed
    assert "client-1" not in printed


def test_parameters_of_the_estimator_are_in_the_result(tmp_path: Path) -> None:
    recipe = small("plan.iterations=4", "method.FTW.ratio=logistic")
    erm, ftw = run(recipe, tmp_path)[0]
    kept = json.loads((tmp_path / "test/small/FTW/seed-0/result.json").read_text())
    # defaults too, as they may change
    spelled = {name: repr(value) for name, value in Logistic(seed=0).get_params().items()}
    assert kept["estimator"] == ftw["estimator"] == spelled
    assert erm["estimator"] == {}


# -- what runs and what does not -----------------------------------------------------------------


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Runs that were really made, and federations that were built."""
    made: list[str] = []
    workflow, build = runner.run_workflow, shifts.Data.federation

    def counting_run(federation: Any, settings: Any, **options: Any) -> Any:
        made.append(f"run {settings.objective} {settings.seed}")
        return workflow(federation, settings, **options)

    def counting_build(self: Any, images: Any, *, seed: int) -> Any:
        made.append(f"build {seed}")
        return build(self, images, seed=seed)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "run_workflow", counting_run)
        patch.setattr(shifts.Data, "federation", counting_build)
        yield made


def test_finished_runs_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small("plan.iterations=4")
    with counted(monkeypatch) as made:
        first, _ = run(recipe, tmp_path, methods=["FTW"])
        assert made == ["build 0", "run ftw 0"]
        results, printed = run(recipe, tmp_path, seeds=[0, 1])
        # the federation of a seed is built once
        assert made[2:] == ["build 0", "run erm 0", "build 1", "run erm 1", "run ftw 1"]
        assert results[1] == first[0]
        assert "finished before: FTW seed 0" in printed
        made.clear()
        # another device, title or description is the same run
        again = recipe.changed(["title=Other", "description=words"])
        run(again, tmp_path, seeds=[0, 1])
        assert made == []
        run(recipe, tmp_path, fresh=True)
        assert made == ["build 0", "run erm 0", "run ftw 0"]


def test_a_run_with_other_settings_is_not_overwritten(tmp_path: Path) -> None:
    run(small("plan.iterations=4"), tmp_path, methods=["FTW"])
    with pytest.raises(
        InputError, match=r"plan\.iterations is 5 here and 4 in the folder; .*--out.*--fresh"
    ):
        run(small("plan.iterations=5"), tmp_path)
    assert not (tmp_path / "test/small/ERM").exists()  # said before anything ran
    results, _ = run(small("plan.iterations=5"), tmp_path, methods=["FTW"], fresh=True)
    assert results[0]["rounds"] in (4, 5)
    assert [x["round"] for x in read_history(tmp_path / "test/small/FTW/seed-0")] == [4, 5]


def test_data_of_a_method(tmp_path: Path) -> None:
    recipe = small("plan.iterations=4", "method.ERM.data.train=[40, 2]")
    results, _ = run(recipe, tmp_path)
    assert Recipe.load(tmp_path / "test/small/ERM/seed-0/recipe.toml").data.options["train"] == [
        40,
        2,
    ]
    assert results[1]["weights"]["client-1"]["n"] == 60 + 9 * 3


def test_one_that_diverges_does_not_stop_the_others(tmp_path: Path) -> None:
    recipe = small("plan.iterations=8", "method.ERM.plan.lr=1e30", "method.ERM.plan.optimizer=sgd")
    file = io.StringIO()
    with pytest.raises(TrainingDiverged, match="1 of 2 runs diverged: ERM seed 0: the loss became"):
        runner.run(recipe, tmp_path, console=Console(file=file, width=200))
    assert "FTW seed 0: accuracy" in file.getvalue()
    assert not (tmp_path / "test/small/ERM/seed-0/result.json").exists()


def test_warnings_are_notes(tmp_path: Path) -> None:
    results, printed = run(
        small("plan.iterations=4", "method.FTW.weighting.clip=1.0"), tmp_path, methods=["FTW"]
    )
    assert results[0]["notes"][0].startswith("ClippedWeights: ")
    assert "ClippedWeights" in printed


def test_why_ratios_were_chosen_is_a_note(tmp_path: Path) -> None:
    """By default labels or inputs are chosen; a run with shared ratios says so too."""
    ratio = "{kind='federated-auto', model='linear', folds=2, plan={iterations=50}}"
    recipe = small("plan.iterations=4", f"method.FTW.ratio={ratio}")
    results, printed = run(recipe, tmp_path, methods=["FTW"])
    assert "nats a row relative to" in results[0]["notes"][0]
    assert results[0]["notes"][0].startswith("ratios: ")
    assert "nats a row relative to" in " ".join(printed.split())
    assert not any(e["rows"] for e in results[0]["ledger"])


def test_wrong_names_and_places(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'FTW'"):
        run(small(), tmp_path, methods=["FWT"])
    with pytest.raises(InputError, match="methods must differ from each other; got"):
        run(small(), tmp_path, methods=["FTW", "FTW"])
    with pytest.raises(InputError, match="seeds must differ from each other; got"):
        run(small(), tmp_path, seeds=[3, 3])
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="needs a GPU"):
            run(small("train.device=cuda"), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        run(small(), tmp_path / "file")


def test_describe(tmp_path: Path) -> None:
    run(small("plan.iterations=4"), tmp_path, methods=["FTW"])
    file = io.StringIO()
    runner.describe(small("plan.iterations=4"), tmp_path, console=Console(file=file, width=200))
    lines = file.getvalue().splitlines()
    assert any("ERM" in line and "(new)" in line for line in lines)
    assert any("FTW" in line and "(finished)" in line for line in lines)
    assert not (tmp_path / "test/small/ERM").exists()


# -- interruptions -------------------------------------------------------------------------------


def test_interrupted_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small("plan.iterations=20")
    whole, _ = run(recipe, tmp_path / "whole")
    watch = RunFolder.watch

    def stop(self: RunFolder, event: dict[str, Any]) -> None:
        watch(self, event)  # the line is written, its checkpoint is not
        if event.get("round") == 12 and event["phase"] == "check":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "watch", stop)
        with pytest.raises(KeyboardInterrupt):
            run(recipe, tmp_path / "cut", methods=["FTW"])
    folder = tmp_path / "cut/test/small/FTW/seed-0"
    assert [x["round"] for x in read_history(folder)] == [4, 8, 12]
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"round": 16, "lo')  # and a line is torn
    for torn in (
        ".history.jsonl.a1b2c3_d",
        "checkpoints/.checkpoint-00000004.safetensors.abcdefgh",
    ):
        (folder / torn).write_text("torn")
    (folder / ".ipynb_checkpoints/.result.json.12345678").mkdir(parents=True)
    (folder / ".notes.settings").write_text("somebody's own")
    results, _ = run(recipe, tmp_path / "cut", methods=["FTW"])
    assert same(tmp_path / "cut", tmp_path / "whole")
    assert results[0]["ledger"] == whole[1]["ledger"]
    kept = sorted(p.name for p in folder.rglob(".*"))
    assert kept == [".ipynb_checkpoints", ".notes.settings", ".result.json.12345678"]


def test_after_a_kill_ratios_are_estimated_once_more_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run goes on with its own ratios, and methods after it have them from it."""
    fits = count_fits(monkeypatch)
    recipe = several().changed(["plan.iterations=12"])
    watch = RunFolder.watch

    def stop(self: RunFolder, event: dict[str, Any]) -> None:
        watch(self, event)
        if self.method == where and event["phase"] == "check":
            raise KeyboardInterrupt

    def ratios() -> list[str]:
        return sorted(p.parts[-4] for p in tmp_path.rglob("log-ratios"))

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "watch", stop)
        for where, estimated in (("FTW", 1), ("FTW", 1), ("clipped", 1)):
            with pytest.raises(KeyboardInterrupt):
                run(recipe, tmp_path)
            assert len(fits) == estimated
            assert ratios() == [where]  # those of a finished run are gone
    results, _ = run(recipe, tmp_path)
    assert len(fits) == 2  # three epochs
    assert ratios() == []
    assert results[1]["seconds"] > 0


def test_ratios_of_another_run_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = count_fits(monkeypatch)
    recipe = several().changed(["plan.iterations=4"])
    run(recipe, tmp_path, methods=["FTW"])
    run(recipe, tmp_path, methods=["clipped"])
    assert fits == [0, 0]


def same(cut: Path, whole: Path, method: str = "FTW") -> bool:
    """Two runs with the same model, bit for bit, and the same history."""
    a, b = (root / f"test/small/{method}/seed-0" for root in (cut, whole))
    models = [(f / "model.safetensors").read_bytes() for f in (a, b)]
    lines = [[{**x, "seconds": 0} for x in read_history(f)] for f in (a, b)]
    assert lines[0] == lines[1]
    return models[0] == models[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] == 8
    assert max(told["lines"]) > 4  # some while it trained
    assert told["same"]


def kill_at_random(folder: Path, kills: int = 8) -> dict[str, Any]:
    recipe = small()
    start = time.perf_counter()
    whole, _ = run(recipe, folder / "whole", methods=["FTW"])
    longest = (time.perf_counter() - start) / 3
    rng = np.random.default_rng(0)
    cut, round_ = folder / "cut", 0
    told: dict[str, Any] = {"kills": 0, "lines": [], "same": True}
    while True:
        child = os.fork()
        if child == 0:
            run(recipe, cut / str(round_), methods=["FTW"])
            os._exit(0)
        if told["kills"] < kills:
            time.sleep(rng.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        lines = read_history(cut / str(round_) / "test/small/FTW/seed-0")
        assert [x["round"] for x in lines] == [4 * (i + 1) for i in range(len(lines))]
        if os.WIFSIGNALED(status):
            told["kills"] += 1
            told["lines"].append(len(lines))
            continue
        assert os.WEXITSTATUS(status) == 0
        told["same"] &= same(cut / str(round_), folder / "whole")
        found = json.loads((cut / str(round_) / "test/small/FTW/seed-0/result.json").read_text())
        told["same"] &= found["ledger"] == whole[0]["ledger"]
        if told["kills"] == kills:
            return told
        round_ += 1  # it was faster than the kill


# -- shipped recipes -----------------------------------------------------------------------------


QUICK = [n for n in recipes() if n.startswith("smoke/") or n == "small/compression"]


@pytest.mark.parametrize("name", QUICK)
def test_quick_recipe_runs(name: str, tmp_path: Path) -> None:
    recipe = Recipe.load(name).changed(["seeds=[0]"])
    changes = [f"plan.{'rounds' if isinstance(recipe.plan, FedAvg) else 'iterations'}=4"]
    if name == "smoke/flower":
        changes.append("method.FTW.ratio={kind='multi-source', folds=1, max_epochs=2}")
    if name == "smoke/digits":
        changes.append("method.FTW-multi-source.ratio={kind='multi-source', folds=1, max_epochs=2}")
    results, _ = run(recipe.changed(changes), tmp_path)
    assert [r["method"] for r in results] == [m.name for m in recipe.methods]
    assert all(np.isfinite(r["mean"]) for r in results)


def test_smoke_digits_shows_the_gain(tmp_path: Path) -> None:
    recipe = Recipe.load("smoke/digits").changed(["plan.iterations=300"])
    results, _ = run(recipe, tmp_path, methods=["ERM", "FTW"])
    erm, ftw = (r["mean"] for r in results)
    assert ftw > erm + 0.04


def tiny(name: str, data_dir: Any = None) -> Images:
    """As the real set, but twelve noisy images a class."""
    shape = (3, 32, 32) if name == "cifar10" else (28, 28)
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(10), 24)
    return Images(name, rng.integers(1, 256, (240, *shape), dtype=np.uint8), y, 120)


PAPER = [n for n in recipes() if n.startswith("paper/") and isinstance(load_any(n), Recipe)]


@pytest.mark.parametrize("name", PAPER)
def test_paper_recipe_takes_a_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shifts, "load", tiny)
    recipe = Recipe.load(name)
    changes = ["plan.iterations=1", "plan.batch_size=2"]
    if "cifar" in name:
        changes.append("train.model={kind='resnet18', width=4}")
    quick = [m.name for m in recipe.methods if m.ratio.kind == "exact" or m.objective == "erm"]
    if "hundred" in name:
        quick = ["ERM", "FTW"]
        # its table needs all of CIFAR-10
        changes += ["data.shift=dirichlet", "data.clients=100", "data.alpha=1", "data.short=reuse"]
        changes += ["data.train_rows=6", "data.test_rows=4"]
    changes += [
        f"method.{m.name}.plan.{key}=1"
        for m in recipe.methods
        for key in ("rounds", "local_steps", "iterations")
        if key in m.plan
    ]
    results, _ = run(recipe.changed(changes), tmp_path, methods=quick, seeds=[0])
    assert len(results) == len(quick) >= 2
    assert (
        len(results[0]["clients"])
        == {"five": 5, "two": 2, "mnist": 2, "hundred": 100}[name.rpartition("-")[2]]
    )


@pytest.mark.data("fashion-mnist")
def test_real_images_take_a_step(tmp_path: Path) -> None:
    assert available("fashion-mnist")
    recipe = Recipe.load("paper/fmnist-five").changed(["plan.iterations=2"])
    results, _ = run(recipe, tmp_path, methods=["FTW"], seeds=[0])
    assert sum(c["n"] for c in results[0]["clients"]) == 5 * (977 + 9 * 5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(kill_at_random(Path(sys.argv[1]))))
