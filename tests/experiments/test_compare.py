"""Finished runs compared: numbers known by hand, verdicts at their edges, the command line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedshift.cli import main
from fedshift.core.files import write_json
from fedshift.errors import InputError
from fedshift.experiments.archive import write
from fedshift.experiments.compare import MethodComparison, compare, find, mean_interval
from fedshift.experiments.published import ordering, verdict
from fedshift.experiments.recipe import Published, Recipe
from fedshift.experiments.records import RunFolder, fingerprint, write_history

TEXT = """
title = "Mine | yours <b>"
seeds = "0:3"
[data]
source = "digits"
shift = "one-class-each"
clients = 3
train = [60, 3]
test = [30, 3]
[[method]]
name = "ERM"
objective = "erm"
[[method]]
name = "FTW"
ratio = "exact"
"""
PUBLISHED = """
[published]
FTW = { mean = 0.82, sd = 0.01, source = "TomlTable 2" }
ERM = { mean = 0.50, worst = 0.35 }
"""


def mine(text: str = TEXT + PUBLISHED) -> Recipe:
    return Recipe.recorded(f'name = "my/own"\n{text}', file="mine.toml")


def made(
    out: Path,
    recipe: Recipe,
    method: str,
    seed: int,
    clients: Sequence[float],
    *,
    figure: str = "accuracy",
    history: Sequence[tuple[int, float]] = (),
) -> Path:
    """A finished run's folder, as `RunFolder` leaves it, with given figures."""
    one = recipe.narrow(method, seed)
    folder = RunFolder(out, one)
    folder.begin()
    rows = [
        {"client": f"c{i}", "n": 50, figure: v, "low": v - 0.1, "high": v + 0.1, "loss": 1.0}
        for i, v in enumerate(clients)
    ]
    mean = sum(clients) / len(clients) if clients else None
    result: dict[str, Any] = {
        "fingerprint": fingerprint(one),
        "recipe": one.name,
        "method": method,
        "objective": one.methods[0].objective,
        "ratio": None,
        "seed": seed,
        "stopped": "done",
        "rounds": 5,
        "seconds": 2.0 + seed,
        "figure": figure if clients else None,
        "mean": mean,
        "interval": None if mean is None else [mean - 0.1, mean + 0.1],
        "clients": rows,
        "weights": {},
        "ledger": [],
        "notes": [],
    }
    lines = [{"round": r, "seconds": 0.1, "test_accuracy": a} for r, a in history]
    write_history(folder.path, lines)
    write_json(folder.path / "result.json", result)
    return folder.path


def three_seeds(out: Path, **options: Any) -> None:
    for seed, ftw in enumerate((0.80, 0.82, 0.84)):
        made(out, mine(), "FTW", seed, (ftw - 0.1, ftw, ftw + 0.1), **options)
        made(out, mine(), "ERM", seed, (0.3, 0.5, 0.7))


def one(out: Path, **options: Any) -> MethodComparison:
    found = compare([out], **options)
    assert len(found) == 1
    return found[0]


# -- known truth ---------------------------------------------------------------------------------


def test_cells_of_a_published_best_iterate_are_of_ours(tmp_path: Path) -> None:
    told = """
    [published.FTW]
    mean = 0.6
    worst = 0.4
    best = 0.8
    iterate = "best"
    clients = { c0 = [0.4, 0], c2 = [0.9, 0] }
    """
    folder = made(tmp_path, mine(TEXT + told), "FTW", 0, (0.3, 0.5, 0.7))
    lines = [
        {"round": 10, "seconds": 0.1, "test_accuracy": 0.6, "test_clients": [0.4, 0.6, 0.8]},
        {"round": 20, "seconds": 0.1, "test_accuracy": 0.5, "test_clients": [0.3, 0.5, 0.7]},
    ]
    write_history(folder, lines)
    row = one(tmp_path, published=True)["FTW"]
    assert row.verdicts == {
        "mean": "below by .100",
        "best iterate": "reached",
        "worst": "reached",
        "best": "reached",
        "c0": "reached",
        "c2": "below by .100",
    }
    assert (row.worst, row.best) == (0.3, 0.7)  # the result stays the last iterate
    for line in lines:
        del line["test_clients"]  # older runs did not record them
    write_history(folder, lines)
    found = one(tmp_path, published=True)["FTW"].verdicts
    assert [found[c] for c in ("worst", "best", "c0")] == ["below by .100"] * 3


def test_runs_of_another_machine_are_named(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    for method, seed, device in (
        ("FTW", 0, "X"),
        ("FTW", 1, "X"),
        ("FTW", 2, "X"),
        ("ERM", 1, "Y"),
    ):
        path = tmp_path / "my/own" / method / f"seed-{seed}" / "environment.json"
        write_json(path, {"device": device, "fedshift": "1"})
    for seed in (0, 2):
        (tmp_path / f"my/own/ERM/seed-{seed}/environment.json").unlink()
    remarks = one(tmp_path).remarks
    assert remarks[-2:] == ("run on X (fedshift 1) unless noted", "ERM: run on Y (fedshift 1)")


def test_mean_and_interval_by_hand(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    row = one(tmp_path)["FTW"]
    mean, half = row.ours
    assert mean == pytest.approx(0.82)
    assert half == pytest.approx(4.30265273 * 0.02 / math.sqrt(3))  # t(.975, 2), sd .02
    assert (row.worst, row.best) == pytest.approx((0.72, 0.92))
    assert row.seconds == 3.0
    assert len(row.runs) == 3
    assert row.best_iterate is None


def test_one_seed_has_no_interval_over_seeds(tmp_path: Path) -> None:
    made(tmp_path, mine(), "ERM", 0, (0.3, 0.5))
    row = one(tmp_path)["ERM"]
    assert row.ours == (0.4, None)
    assert "±" not in one(tmp_path).sheet().rows[0][1]


def test_worst_and_best_of_an_error_are_the_other_way_round(tmp_path: Path) -> None:
    made(tmp_path, mine(), "ERM", 0, (0.3, 0.5), figure="mse")
    row = one(tmp_path)["ERM"]
    assert (row.worst, row.best) == (0.5, 0.3)


def test_best_iterate_is_beside_the_last_and_marked(tmp_path: Path) -> None:
    for seed, top in enumerate((0.9, 0.8)):
        history = [(5, 0.1), (10, top), (15, 0.6)]
        made(tmp_path, mine(), "FTW", seed, (0.6, 0.6), history=history)
        made(tmp_path, mine(), "ERM", seed, (0.5, 0.5))
    comparison = one(tmp_path)
    best = comparison["FTW"].best_iterate
    assert best is not None
    assert best[0] == pytest.approx(0.85)
    assert comparison["FTW"].ours[0] == pytest.approx(0.6)
    assert comparison["FTW"].curves == ([5, 10, 15], pytest.approx([0.1, 0.85, 0.6]), [0.1, 0.8, 0.6], [0.1, 0.9, 0.6])  # fmt: skip  # noqa: E501
    assert comparison["ERM"].best_iterate is None
    sheet = comparison.sheet()
    assert "best iterate*" in sheet.header
    assert any("chosen on test labels" in note for note in sheet.notes)
    assert list(sheet.curves) == ["FTW"]


@pytest.mark.parametrize(
    ("ours", "published", "sd", "said"),
    [
        (0.8025, 0.8245, 0.011, "reached"),  # exactly two sd
        (0.8024, 0.8245, 0.011, "below by .022"),
        (0.76, 0.76, 0.0, "reached"),
        (0.748, 0.76, 0.0, "below by .012"),
        (0.755, 0.76, 0.0, "reached"),  # rounds to .76
        (0.7549, 0.76, 0.0, "below by .005"),
        (0.7657, 0.7658, 0.0, "below by less than .001"),
        (0.76576, 0.7658, 0.0, "reached"),
        (0.7453, 0.76, 0.005, "reached"),  # two sd, and half a digit
        (0.79, 0.8, 0.0, "below by .010"),  # .80: floats forget the zero
        (0.9, 0.76, 0.0, "reached"),
    ],
)
def test_verdicts_at_the_boundary(ours: float, published: float, sd: float, said: str) -> None:
    assert verdict(ours, published, sd) == said


def test_verdict_of_an_error_is_the_other_way_round() -> None:
    assert verdict(0.1, 0.2, figure="mse") == "reached"
    assert verdict(0.204, 0.2, figure="mse") == "reached"
    assert verdict(0.3, 0.2, figure="mse") == "above by .100"


def test_ordering() -> None:
    told = {"FTW": 0.82, "FITW": 0.76, "ERM": 0.76}
    said = ordering(told, {"FTW": 0.9, "FITW": 0.1, "ERM": 0.2})
    assert said == "published ordering FTW > FITW = ERM: holds"  # what ties in print is free here
    said = ordering(told, {"FTW": 0.9, "FITW": 0.9, "ERM": 0.2})
    assert said is not None
    assert said.endswith("does not hold, FTW .9000 is not above FITW .9000")
    said = ordering(told, {"FTW": 0.9, "ERM": 0.2})
    assert said is not None
    assert said.endswith("holds (not run: FITW)")
    said = ordering(told, {"FITW": 0.9, "ERM": 0.2})
    assert said is not None
    assert "inconclusive" in said
    assert ordering({"FTW": 0.8}, {"FTW": 0.9}) is None
    said = ordering({"A": 0.1, "B": 0.2}, {"A": 0.3, "B": 0.4}, figure="mse")
    assert said == "published ordering A < B: holds"


def test_a_verdict_for_every_published_cell(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    comparison = one(tmp_path, published=True)
    assert comparison["FTW"].verdicts == {"mean": "reached"}
    assert comparison["ERM"].verdicts == {"mean": "reached", "worst": "below by .050"}
    assert comparison.ordering == "published ordering FTW > ERM: holds"
    sheet = comparison.sheet()
    cells = {r[0]: dict(zip(sheet.header, r, strict=True)) for r in sheet.rows}
    assert cells["FTW"]["published"] == ".82 ± .01"
    assert cells["ERM"]["published worst"] == ".35"
    assert cells["ERM"]["verdict"] == "mean reached; worst below by .050"
    assert "published for FTW: TomlTable 2" in sheet.notes
    assert "published" not in one(tmp_path).sheet().header  # only if asked for


CLIENTS = """
[published.FTW]
mean = 0.80
iterate = "best"
clients = { c0 = [0.70, 0.01], c1 = [0.9, 0.0123], c7 = [0.5, 0.0] }
"""


def test_a_verdict_for_every_published_client(tmp_path: Path) -> None:
    for seed, shift in enumerate((-0.01, 0.0, 0.01)):
        made(tmp_path, mine(TEXT + CLIENTS), "FTW", seed, (0.68 + shift, 0.9 + shift, 0.1))
    row = one(tmp_path, published=True)["FTW"]
    # c0 is two sd below; nobody ran c7, and nobody reported c2; no check saw test labels
    assert row.verdicts == {"mean": "below by .240", "c0": "reached", "c1": "reached"}
    told = mine((TEXT + CLIENTS).replace("0.70, 0.01", "0.7, 0.0092"))
    row = compare([tmp_path], published=True, known=[told])[0]["FTW"]
    assert row.verdicts["c0"] == "below by .020"  # four digits here: .7 is .7000


def test_clients_are_counted_in_the_table(tmp_path: Path) -> None:
    made(tmp_path, mine(TEXT + CLIENTS), "FTW", 0, (0.6, 0.9), history=[(1, 0.8), (2, 0.7)])
    sheet = one(tmp_path, published=True).sheet()
    (cells,) = [dict(zip(sheet.header, row, strict=True)) for row in sheet.rows]
    assert cells["verdict"] == (
        "mean below by .050; best iterate reached; 1 of 2 clients reached (c0 below by .100)"
    )
    assert "published for FTW: best iterate by test accuracy" in sheet.notes


def test_the_best_iterate_counts_where_it_is_published(tmp_path: Path) -> None:
    for seed in (0, 1):
        history = [(1, 0.80 + seed / 100), (2, 0.7)]
        made(tmp_path, mine(TEXT + CLIENTS), "FTW", seed, (0.7,), history=history)
        made(tmp_path, mine(TEXT + CLIENTS), "ERM", seed, (0.7,), history=history)
    row = one(tmp_path, published=True)["FTW"]
    assert row.verdicts == {"mean": "below by .100", "best iterate": "reached", "c0": "reached"}
    last = compare([tmp_path], published=True, known=[mine(TEXT + PUBLISHED)])[0]["ERM"]
    assert "best iterate" not in last.verdicts  # what is published of it is the last one


def test_by_client(tmp_path: Path) -> None:
    made(tmp_path, mine(), "ERM", 0, [i / 100 for i in range(25)])
    made(tmp_path, mine(), "FTW", 0, (0.5, 0.6))
    sheet = one(tmp_path).by_client()
    assert sheet.header == ("client", "n", "ERM", "FTW")
    assert sheet.rows[1:3] == (("c1", "50", ".0100", ".6000"), ("c2", "50", ".0200", ""))
    assert len(sheet.rows) == 20
    assert sheet.notes == ("5 more in result.json",)


def test_mean_interval() -> None:
    mean, half = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert half == pytest.approx(3.182446 * np.std([1, 2, 3, 4], ddof=1) / 2, rel=1e-5)
    assert mean_interval([0.5]) == (0.5, None)


REMOVED = ("[train]\n", "[train]\nflattenings = {}\n")


def test_a_removed_setting_at_its_old_default_is_dropped(tmp_path: Path) -> None:
    folder = made(tmp_path, mine(), "FTW", 0, (0.5,))
    path, plain = folder / "recipe.toml", one(tmp_path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(REMOVED[0], REMOVED[1].format("[]")), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text
    assert one(tmp_path).sheet() == plain.sheet()
    assert RunFolder(tmp_path, mine().narrow("FTW", 0)).result() is not None


def test_a_removed_setting_that_did_something_is_named(tmp_path: Path) -> None:
    folder = made(tmp_path, mine(), "FTW", 0, (0.5,))
    path = folder / "recipe.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(REMOVED[0], REMOVED[1].format("[1.0, 0.5]")), encoding="utf-8")
    said = "FTW: run with train.flattenings = [1.0, 0.5], which fedshift no longer has"
    assert said in one(tmp_path).remarks
    folder = RunFolder(tmp_path, mine().narrow("FTW", 0))
    assert folder.clash() == ["train.flattenings is 'not set' here and [1.0, 0.5] in the folder"]
    with pytest.raises(InputError, match="flattenings was removed"):  # to run it again
        Recipe.load(path)


def test_shipped_numbers_for_runs_that_have_kept_none(tmp_path: Path) -> None:
    recipe = Recipe.load("paper/fmnist-five")
    for method, accuracy in (("FTW", 0.8025), ("FITW", 0.77), ("ERM", 0.4975)):
        folder = made(tmp_path, recipe, method, 0, (accuracy,))
        text = (folder / "recipe.toml").read_text(encoding="utf-8")
        (folder / "recipe.toml").write_text(text.partition("[published")[0], encoding="utf-8")
    comparison = one(tmp_path, published=True)
    said = {row.method: row.verdicts["mean"] for row in comparison.rows}
    assert said == {"ERM": "below by .050", "FITW": "below by .024", "FTW": "reached"}
    assert comparison.ordering == "published ordering FTW > FITW > ERM: holds"
    assert not any("settings differ" in remark for remark in comparison.remarks)


def test_a_ratio_of_other_options_is_told_by_option(tmp_path: Path) -> None:
    method = Recipe.load("paper/fmnist-five").narrow("FTW-federated-mlls", 0).methods[0]
    options = dict(method.ratio.options)
    options |= {"calibration": "bcts", "plan": {**options["plan"], "iterations": 7}}
    other = replace(method, ratio=replace(method.ratio, options=options))
    recipe = replace(Recipe.load("paper/fmnist-five"), methods=(other,), published={})
    made(tmp_path, recipe, method.name, 0, (0.8,))
    (said,) = [r for r in one(tmp_path).remarks if "settings differ" in r]
    assert said == (
        "FTW-federated-mlls: settings differ from the recipe: ratio.calibration is bcts "
        "(recipe: not set), ratio.plan.iterations is 7 (recipe: 2000)"
    )


def test_a_default_that_changed_since_is_said(tmp_path: Path) -> None:
    recipe = Recipe.load("paper/fmnist-five")
    for method in ("FTW-federated-auto", "FTW-federated-mlls", "FTW"):
        folder = made(tmp_path, recipe, method, 0, (0.8,))
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        result["estimator"] = recipe.narrow(method, 0).methods[0].ratio.parameters(0)
        if method == "FTW-federated-auto":
            result["estimator"] |= {"folds": "5"}
        write_json(folder / "result.json", result)
    assert [r for r in one(tmp_path).remarks if "settings differ" in r] == [
        "FTW-federated-auto: settings differ from the recipe: ratio.folds is 5 (recipe: None)"
    ]


def test_other_settings_are_said(tmp_path: Path) -> None:
    recipe = Recipe.load("paper/fmnist-two")
    made(tmp_path, recipe.changed(["plan.iterations=50"]), "FTW", 0, (0.8,))
    made(tmp_path, recipe, "FTW", 1, (0.8,))
    remarks = " ".join(one(tmp_path).remarks)
    assert "FTW: seeds differ in plan.iterations" in remarks
    assert "plan.iterations is 50 (recipe: 5000)" in remarks


# -- the table of a recipe -----------------------------------------------------------------------


def test_published_numbers_change_no_run(tmp_path: Path) -> None:
    plain, told = mine(TEXT), mine()
    assert fingerprint(plain) == fingerprint(told)
    made(tmp_path, plain, "FTW", 0, (0.8,))
    assert RunFolder(tmp_path, told.narrow("FTW", 0)).result() is not None
    assert RunFolder(tmp_path, told.narrow("FTW", 0)).clash() == []


def test_published_numbers_are_written_and_read() -> None:
    told = mine()
    assert told.published["FTW"] == Published(mean=0.82, sd=0.01, source="TomlTable 2")
    assert Recipe.recorded(told.to_toml(), file="recipe") == told
    assert told.changed(["plan.iterations=5"]).published == told.published
    assert list(told.narrow("ERM", 0).published) == ["ERM"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("FTV = { mean = 0.5 }", r"\[published\]: unknown key 'FTV'.*'FTW'"),
        ("FTW = { maen = 0.5 }", r"\[published.FTW\]: unknown key 'maen'.*'mean'"),
        ("FTW = { sd = 0.5 }", r"'mean' must be given"),
        ("FTW = { mean = 0.5, sd = -1 }", r"sd ≥ 0"),
        ("FTW = { mean = nan }", r"finite"),
        ("FTW = { mean = 0.5, clients = { c0 = [0.5, -0.1] } }", r"sd ≥ 0"),
        ("FTW = { mean = 0.5, clients = { c0 = [0.5] } }", r"c0 must be a list of 2 values"),
        ("FTW = { mean = 0.5, iterate = 'bst' }", r"iterate must be .* did you mean 'best'"),
        ("FTW = 0.5", r"FTW must be a table"),
    ],
)
def test_wrong_published_tables(line: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        mine(f"{TEXT}\n[published]\n{line}\n")


def test_the_papers_numbers_are_there() -> None:
    tables = ("fmnist-five", "fmnist-two", "colored-mnist", "cifar-five", "cifar-hundred")
    told = {n: Recipe.load(f"paper/{n}").published for n in tables}
    assert told["fmnist-five"]["FTW"].clients["client-3"] == (0.7742, 0.0618)
    assert told["colored-mnist"]["Grayscale"] == Published(mean=0.68, sd=0.01)
    assert told["cifar-hundred"]["FedBN"] == Published(mean=0.4934, worst=0.1678, best=0.8233)
    assert told["fmnist-two"]["FITW"].clients == {"client-1": (0.8, 0.02), "client-2": (0.71, 0.02)}
    assert {t.iterate for t in told["cifar-five"].values()} == {"best"}
    for table in told.values():  # a mean is that of its clients
        for p in table.values():
            mean = sum(m for m, _ in p.clients.values()) / max(1, len(p.clients))
            assert not p.clients or mean == pytest.approx(p.mean, abs=6e-3)


# -- reading -------------------------------------------------------------------------------------


def test_folders_of_any_level_and_each_run_once(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    whole = one(tmp_path).sheet()
    assert one(tmp_path / "my" / "own").sheet() == whole
    assert compare([tmp_path, tmp_path / "my"])[0].sheet() == whole
    assert len(one(tmp_path / "my" / "own" / "FTW" / "seed-1").rows) == 1


def test_a_table_for_each_recipe(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    made(tmp_path, Recipe.load("smoke/digits"), "ERM", 0, (0.5,))
    assert [c.recipe for c in compare([tmp_path])] == ["my/own", "smoke/digits"]


def test_methods_stand_as_in_the_recipe(tmp_path: Path) -> None:
    recipe = Recipe.load("paper/colored-mnist")
    for method in ("ERM", "FTW", "Grayscale"):
        made(tmp_path, recipe, method, 0, (0.6,))
    assert [row.method for row in one(tmp_path).rows] == ["Grayscale", "ERM", "FTW"]


def test_two_runs_of_a_method_and_seed_are_refused(tmp_path: Path) -> None:
    for folder, score in (("a", 0.5), ("b", 0.6)):
        made(tmp_path / folder, mine(), "ERM", 0, (score,))
    with pytest.raises(InputError, match=r"ERM seed 0 in .*/a/.* and .*/b/.*one by one"):
        compare([tmp_path])


def test_packed_runs_in_a_folder_are_read_and_the_same_run_counts_once(tmp_path: Path) -> None:
    three_seeds(tmp_path / "runs", history=[(5, 0.8)])
    whole = one(tmp_path / "runs").sheet()
    runs, _ = find([tmp_path / "runs"])
    write(tmp_path / "packed" / "mine.jsonl", runs)
    assert one(tmp_path / "packed").sheet() == whole
    assert one(tmp_path).sheet() == whole  # folders and pack hold the same runs
    (tmp_path / "packed" / "notes.jsonl").write_text('{"another": "file"}\n')
    (tmp_path / "packed" / "empty.jsonl").touch()
    assert one(tmp_path).sheet() == whole


def test_a_published_method_that_was_not_run_has_a_row(tmp_path: Path) -> None:
    made(tmp_path, mine(), "FTW", 0, (0.8,))
    sheet = one(tmp_path, published=True, known=[mine()]).sheet()
    rows = [dict(zip(sheet.header, row, strict=True)) for row in sheet.rows]
    assert [(r["method"], r["ours"]) for r in rows] == [("FTW", ".8000"), ("ERM", "not run")]
    assert rows[1]["published"] == ".5"
    assert rows[1]["published worst"] == ".35"
    assert len(one(tmp_path).sheet().rows) == 1  # published figures were not asked for


def test_precision_and_compilation_belong_to_the_machine(tmp_path: Path) -> None:
    recipe = mine()
    made(
        tmp_path,
        recipe.changed(["train.precision=bfloat16", "train.compile=true"]),
        "FTW",
        0,
        (0.8,),
    )
    made(tmp_path, recipe, "FTW", 1, (0.8,))
    remarks = one(tmp_path, known=[recipe]).remarks
    assert not any("differ" in r for r in remarks)
    assert sum("bfloat16, compiled)" in r for r in remarks) == 1
    assert sum(r.startswith("FTW: run on") for r in remarks) == 1  # the two machines differ


def test_what_is_not_finished_is_said(tmp_path: Path) -> None:
    made(tmp_path, mine(), "ERM", 0, (0.5,))
    (made(tmp_path, mine(), "FTW", 1, (0.5,)) / "result.json").unlink()
    made(tmp_path, mine(), "ERM", 2, ())  # no test labels
    comparison = one(tmp_path)
    assert len(comparison["ERM"].runs) == 1
    assert "not finished, so left out: FTW seed 1" in comparison.remarks


def test_nothing_finished(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be a finished run"):
        compare([tmp_path])
    (made(tmp_path, mine(), "FTW", 1, (0.5,)) / "result.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="1 not finished"):
        compare([tmp_path])
    with pytest.raises(InputError, match="must be a folder"):
        compare([tmp_path / "nowhere"])


@pytest.mark.parametrize("name", ["notes.txt", "result.json", "none.jsonl"])
def test_places_are_folders_or_packed_files(name: str, tmp_path: Path) -> None:
    if not name.startswith("none"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    for needed in (True, False):
        with pytest.raises(InputError, match=rf"folder .*, or a .jsonl file .*; got .*{name}"):
            find([tmp_path / name], needed=needed)


def test_a_run_whose_recipe_is_no_text_is_still_compared(tmp_path: Path) -> None:
    folder = made(tmp_path, mine(), "ERM", 0, (0.5,))
    (folder / "recipe.toml").write_bytes(b"\xff\xfe")
    assert one(tmp_path)["ERM"].ours == (0.5, None)
    (folder / "result.json").unlink()
    with pytest.raises(InputError, match="0 not finished"):  # whose would it be?
        compare([tmp_path])


# -- the command line ----------------------------------------------------------------------------


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    three_seeds(tmp_path / "runs")
    runs = str(tmp_path / "runs")
    assert main(["compare", runs, "--published"]) == 0
    printed = capsys.readouterr().out
    assert "published ordering FTW > ERM: holds" in printed
    assert ".8200 ± .0497" in printed
    assert main(["compare", runs, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("## Mine \\| yours")
    for name, start in (("a.md", "## "), ("a.txt", "Mine | ")):
        assert main(["compare", runs, "-o", str(tmp_path / "out" / name)]) == 0
        assert (tmp_path / "out" / name).read_text(encoding="utf-8").startswith(start)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.md", "a.txt"]
    capsys.readouterr()
    assert main(["compare", runs, "-o", "page.html"]) == 1
    assert "--output must end in .txt or .md; got page.html" in capsys.readouterr().err


def test_command_draws_curves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, mine(), "ERM", 0, (0.5,))
    command = ["compare", str(tmp_path), "--curves", str(tmp_path / "curves.svg")]
    assert main(command) == 1
    assert "train.watch_test=true" in capsys.readouterr().err
    made(tmp_path, mine(), "FTW", 0, (0.5,), history=[(5, 0.1), (10, 0.4)])
    assert main([*command[:-1], "curves.png"]) == 1
    assert "must end in .svg; got curves.png" in capsys.readouterr().err
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "curves.svg" in printed
    assert "Mine | yours" in printed  # the table too
    assert "<svg" in (tmp_path / "curves.svg").read_text(encoding="utf-8")
    monkeypatch.setitem(sys.modules, "fedshift.report.figures", None)
    assert main(command) == 1
    assert "'.[report]'" in capsys.readouterr().err


def test_command_with_a_recipe_that_is_newer_than_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, mine(TEXT), "FTW", 0, (0.7,))
    assert main(["compare", str(tmp_path), "--published"]) == 0
    assert "no published numbers" in capsys.readouterr().out
    file = tmp_path / "newer.toml"
    file.write_text('name = "my/own"\n' + TEXT + PUBLISHED, encoding="utf-8")
    assert main(["compare", str(tmp_path), "--recipe", str(file), "--verbose"]) == 0
    assert "below by .120" in capsys.readouterr().out


def test_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path)]) == 1
    assert "finished run" in capsys.readouterr().err
    (tmp_path / "result.json").write_text(json.dumps({"other": 1}), encoding="utf-8")
    assert main(["compare", str(tmp_path)]) == 1
    for wrong in (["compare"], ["compare", str(tmp_path), "--format", "pdf"]):
        with pytest.raises(SystemExit) as stop:
            main(wrong)
        assert stop.value.code == 2
