"""Runs that share a folder, options that are wrong, results that are printed, and the clock."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedshift as fs
from fedshift import cli

RECIPE = """
name = "pair"
title = "Two Gaussians"
[data]
shift = "mean-shift"
train_rows = 60
test_rows = 30
[plan]
iterations = 6
[train]
model = "linear"
device = "cpu"
[[method]]
name = "FTW"
ratio = "exact"
"""
#: what a process does that holds a folder until a line comes on its standard input
HOLD = """
import sys
from pathlib import Path
from fedshift.core.files import locked
with locked(Path(sys.argv[1]), advice=""):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def federation() -> fs.Federation:
    rng = np.random.default_rng(0)

    def client(shift: float) -> tuple[Any, ...]:
        x = rng.normal(size=(60, 2))
        return x, (x[:, 0] > 0).astype(int), rng.normal(shift, 1, size=(40, 2))

    return fs.Federation.of({"north": client(0.0), "south": client(0.5)})


class Holder:
    """Another process that works in a folder."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", HOLD, str(folder)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> int:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"
        return self.process.pid

    def __exit__(self, *_: object) -> None:
        self.process.communicate("\n")


def test_a_second_run_on_a_folder_names_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = tmp_path / "pair.toml", tmp_path / "runs"
    recipe.write_text(RECIPE)
    command = ["run", str(recipe), "--out", str(out)]
    with Holder(out / "pair/FTW/seed-0") as pid:
        for words in (command, [*command, "--fresh"]):
            assert cli.main(words) == 1
            error = capsys.readouterr().err
            assert re.search(rf"seed-0 is in use by process {pid} on \S+ since 2\d\d\d-", error)
            assert "choose another folder with --out" in error
    assert cli.main(command) == 0
    assert cli.main([*command, "--fresh"]) == 0
    assert cli.main(command) == 0
    assert "finished before" in capsys.readouterr().out


def test_a_killed_run_leaves_no_lock(tmp_path: Path, federation: fs.Federation) -> None:
    holder = Holder(tmp_path)
    holder.__enter__()
    model = fs.FederatedClassifier(
        "linear", ratio="logistic", plan=fs.FedSGD(iterations=3), folder=tmp_path
    )
    with pytest.raises(fs.errors.InUseError, match=f"process {holder.process.pid} on"):
        model.fit(federation)
    holder.process.kill()
    holder.process.communicate()
    model.fit(federation)
    with pytest.raises(fs.errors.OutputError, match="cannot write"):
        model.set_params(folder=tmp_path / "lock" / "below").fit(federation)


def test_nothing_that_most_users_need_imports_fcntl() -> None:
    code = (
        "import sys; sys.modules['fcntl'] = None  # as on Windows\n"
        "import fedshift as fs\n"
        "fs.FederatedClassifier, fs.train, fs.load, fs.run, fs.diagnose, fs.ratio.Auto\n"
        "import fedshift.cli, fedshift.experiments.runner, fedshift.federation.record\n"
        "import fedshift.federation.site_state\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


RNG = np.random.default_rng(0)
SOURCE, TARGET = RNG.normal(size=(2000, 3)), RNG.normal(0.5, 1, size=(2000, 3))
NEURAL: list[dict[str, Any]] = [
    {"divergence": "kl"},
    {"bound": "none"},
    {"bound": None, "divergence": "pu"},
    {"model": "mlp"},
    {"device": "abacus"},
    {"strength": -1.0},
    {"weight_decay": "little"},
    {"lr": 0},
    {"slack": 0.5},
    {"seed": None},
]


@pytest.mark.parametrize("options", NEURAL, ids=str)
def test_options_of_a_network_are_checked_before_any_work(options: dict[str, Any]) -> None:
    begin = time.process_time()
    with pytest.raises(fs.errors.InputError, match=next(reversed(options))):
        fs.ratio.Neural(**options).fit(source=SOURCE, target=TARGET)
    assert time.process_time() - begin < 0.5  # its bound alone takes seconds


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": fs.ratio.Neural(divergence="kl")},
        {"ratio": fs.ratio.CrossFit(fs.ratio.Neural(divergence="kl"))},
        {"ratio": fs.MultiSource(lr=-1.0)},
        {"ratio": fs.FederatedAuto(seed="one")},
        {"model": "perceptron"},
        {"model": lambda shape, classes: __import__("torch").nn.Linear(shape[0], classes + 1)},
        {"validation": 0.999},
    ],
    ids=["kl", "cross-fitted kl", "lr", "seed", "model name", "model outputs", "validation"],
)
def test_options_of_a_run_are_checked_before_ratios(
    options: dict[str, Any], federation: fs.Federation
) -> None:
    events: list[Any] = []
    with pytest.raises(fs.errors.InputError):
        fs.run(federation, fs.Settings(**options), watch=events.append)
    assert events == [] or "ratio" in options
    begin = time.process_time()
    with pytest.raises(fs.errors.InputError):
        fs.FederatedClassifier(**options).fit(federation)
    assert time.process_time() - begin < 0.5


def test_options_of_a_ratio_are_checked_when_the_recipe_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "pair.toml"
    recipe.write_text(RECIPE.replace('"exact"', '{ kind = "neural", divergence = "kl" }'))
    assert cli.main(["run", str(recipe), "--out", str(tmp_path / "runs")]) == 1
    error = capsys.readouterr().err
    assert "pair.toml" in error
    assert "divergence must be one of" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("clients", [1, 2, 12, 13, 500])
def test_a_printed_federation_is_a_short_table(clients: int) -> None:
    x = np.zeros((7, 3))
    parts = {f"client-{i}" + "x" * (40 * (i == 0)): (x, x[:, 0], x[:5]) for i in range(clients)}
    text = repr(fs.Federation.of(parts))
    lines = text.splitlines()
    assert len(lines) < 20
    assert max(map(len, lines)) <= 79
    assert f"{clients} client" in lines[0]
    assert re.search(r"client-0x+…? +7 +5 +no", lines[2])
    assert ("and " in lines[-1]) == (clients > 12)
    assert "array" not in text


def test_ratios_and_training_have_their_own_clocks(federation: fs.Federation) -> None:
    shared: dict[str, Any] = {}
    settings = fs.Settings(ratio="auto", model="linear", plan=fs.FedSGD(iterations=2))
    begin = time.perf_counter()
    first = fs.run(federation, settings, shared=shared)
    took = time.perf_counter() - begin
    assert first.ratio_seconds > 0
    assert first.seconds + first.ratio_seconds <= took
    begin = time.perf_counter()
    second = fs.run(federation, settings, shared=shared)
    assert second.seconds <= time.perf_counter() - begin  # as long as this run took
    assert second.ratio_seconds == first.ratio_seconds  # in the run that estimated them
    settings = fs.Settings(objective="erm", model="linear", plan=fs.FedSGD(iterations=2))
    assert fs.run(federation, settings).ratio_seconds == 0


def test_a_result_has_both_clocks_and_compare_adds_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = tmp_path / "pair.toml", tmp_path / "runs"
    recipe.write_text(RECIPE.replace('"exact"', '"logistic"'))
    assert cli.main(["run", str(recipe), "--out", str(out)]) == 0
    path = out / "pair/FTW/seed-0/result.json"
    result = json.loads(path.read_text())
    assert result["ratio_seconds"] > 0
    path.write_text(json.dumps({**result, "seconds": 2.0, "ratio_seconds": 5.5}))
    capsys.readouterr()
    assert cli.main(["compare", str(out)]) == 0
    assert " 7.5" in capsys.readouterr().out
    path.write_text(json.dumps({k: v for k, v in result.items() if k != "ratio_seconds"}))
    assert cli.main(["compare", str(out)]) == 0  # as earlier versions wrote it


def shown(code: str) -> str:
    """What a terminal shows while code runs in it."""
    pty = pytest.importorskip("pty")
    main, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.Popen([sys.executable, "-c", code], stderr=terminal, env=env)
    os.close(terminal)
    out = b""
    while True:
        try:
            part = os.read(main, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        out += part
    os.close(main)
    assert done.wait() == 0
    return out.decode()


FIT = """
import numpy as np, fedshift as fs
rng = np.random.default_rng(0)
x = rng.normal(size=(80, 3))
client = (x, (x[:, 0] > 0).astype(int), x + 0.5)
federation = fs.Federation.of({"a": client, "b": client})
plan = fs.FedSGD(iterations=40)
ratio = fs.FederatedAuto(plan=fs.FedSGD(iterations=200), folds=2)
fs.FederatedClassifier(plan=plan, ratio=ratio).fit(federation)
"""


def test_training_shows_its_progress_on_a_terminal_only() -> None:
    text = shown(FIT)
    for word in ("density ratios", "label distributions: rounds", "networks", "training: rounds"):
        assert word in text
    done = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
