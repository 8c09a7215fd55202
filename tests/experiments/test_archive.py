"""Runs packed into one file: nothing that compares is lost, and what is damaged is named."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedshift.errors import InputError
from fedshift.experiments.archive import NEEDED, Run, read, write
from fedshift.experiments.compare import compare, find
from fedshift.experiments.recipe import Recipe, recipes
from fedshift.experiments.runner import run
from fedshift.experiments.study import load_any

TEXT = """
title = "Two Gaussians\u2028in two lines"
seeds = "0:2"
[data]
shift = "mean-shift"
train_rows = 80
test_rows = 60
[plan]
iterations = 6
lr = 0.1
[train]
model = "linear"
device = "cpu"
check_every = 3
watch_test = true
[[method]]
name = "ERM"
objective = "erm"
[[method]]
name = "FTW"
ratio = "logistic"
[published]
FTW = { mean = 0.6, clients = { client-1 = [0.6, 0.1] } }
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of four finished runs."""
    out = tmp_path_factory.mktemp("runs")
    recipe = Recipe.recorded(f'name = "my/own"\n{TEXT}', file="mine.toml")
    run(recipe, out, console=Console(file=io.StringIO()))
    return out


@pytest.fixture
def packed(runs: Path, tmp_path: Path) -> Path:
    return write(tmp_path / "deep" / "mine.jsonl", find([runs])[0])


# -- known truth ---------------------------------------------------------------------------------


def test_a_file_says_what_its_folders_say(runs: Path, packed: Path) -> None:
    (folders,), (file,) = (compare([place], published=True) for place in (runs, packed))
    assert file.remarks == folders.remarks
    assert file.sheet().header == folders.sheet().header
    assert file.sheet().notes == folders.sheet().notes
    assert file.sheet().rows == folders.sheet().rows  # six digits are more than a table shows
    for a, b in zip(folders.rows, file.rows, strict=True):
        assert b.ours == pytest.approx(a.ours, rel=1e-5)
        assert b.verdicts == a.verdicts
        assert b.curves is not None
        assert a.curves is not None
        assert b.curves[0] == a.curves[0] == [3, 6]
        assert b.curves[1] == pytest.approx(a.curves[1], rel=1e-5)


def test_lines_are_in_order_and_places_are_lines(packed: Path) -> None:
    found = read(packed)
    keys = [(r, m, s) for r in ["my/own"] for m in ("ERM", "FTW") for s in (0, 1)]
    assert [r.key for r in found] == keys
    assert [r.place for r in found] == [f"{packed}:{i}" for i in (1, 2, 3, 4)]
    assert len(packed.read_text(encoding="utf-8").split("\n")) == 5  # title's own break is no line


def test_what_is_kept_of_a_run(runs: Path, packed: Path) -> None:
    one = read(packed)[3]
    folder = runs / "my/own/FTW/seed-1"
    assert one.recipe == Recipe.load(folder / "recipe.toml")
    assert one.environment == json.loads((folder / "environment.json").read_text())
    whole = json.loads((folder / "result.json").read_text())
    assert one.result.keys() == whole.keys()
    assert one.result["fingerprint"] == whole["fingerprint"]
    assert [x["round"] for x in one.history] == [3, 6]
    assert one.values == pytest.approx({c["client"]: c["accuracy"] for c in whole["clients"]})
    assert packed.stat().st_size < 4 * 20_000


def test_the_ledger_is_summed_over_clients(runs: Path, packed: Path) -> None:
    whole = json.loads((runs / "my/own/FTW/seed-0/result.json").read_text())["ledger"]
    kept = read(packed)[2].result["ledger"]
    assert {entry["client"] for entry in kept} == {"all"}
    assert sorted(e["phase"] for e in kept) == sorted({e["phase"] for e in whole})
    for entry in kept:
        for name in ("up", "down", "rows"):
            own = [e[name] for e in whole if e["phase"] == entry["phase"]]
            assert entry[name] == sum(own)


def test_figures_keep_six_digits_and_whole_numbers_all() -> None:
    result = dict.fromkeys(NEEDED) | {"ledger": [], "mean": 1 / 3, "rounds": 123456789}
    told = Run("x", result | {"deep": [{"a": (2 / 3, 1e-9 / 7)}], "yes": True}).to_record()
    assert told["result"]["mean"] == 0.333333
    assert told["result"]["rounds"] == 123456789
    assert told["result"]["deep"] == [{"a": [0.666667, 1.42857e-10]}]
    assert told["result"]["yes"] is True


# -- properties ----------------------------------------------------------------------------------


def test_packing_what_is_packed_changes_nothing(packed: Path, tmp_path: Path) -> None:
    again = write(tmp_path / "again.jsonl", reversed(read(packed)))
    assert again.read_bytes() == packed.read_bytes()


def test_packs_and_folders_mix(runs: Path, packed: Path, tmp_path: Path) -> None:
    erm = write(tmp_path / "erm.jsonl", [r for r in read(packed) if r.method == "ERM"])
    both, unfinished = find([erm, runs / "my/own/FTW"])
    assert sorted(r.key for r in both) == sorted(r.key for r in read(packed))
    assert unfinished == []
    assert len(find([erm, packed])[0]) == 4  # the same run in two files counts once
    other = [replace(r, result={**r.result, "mean": 0.5}) for r in read(erm)]
    write(erm, other)
    with pytest.raises(InputError, match=r"ERM seed 0 in .*erm.jsonl:1 and .*mine.jsonl:1"):
        find([erm, packed])


def test_the_same_file_twice_counts_once(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(packed.parent)
    assert len(find([packed, packed.name, f"./{packed.name}"])[0]) == 4


def test_no_runs_make_an_empty_file(tmp_path: Path) -> None:
    assert read(write(tmp_path / "none.jsonl", [])) == []
    with pytest.raises(InputError, match="must be a finished run"):
        find([tmp_path / "none.jsonl"])
    assert find([tmp_path / "none.jsonl"], needed=False) == ([], [])


# -- what is gone or damaged ---------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"title = ", b"other = 1\n"])
def test_a_run_without_its_recipe_is_still_a_run(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "recipe.toml").write_bytes(content)
    found = Run.of_folder(tmp_path, {"method": "ERM"})
    assert found.recipe is None
    assert (found.environment, found.history, found.curve) == ({}, (), {})
    assert found.method == "ERM"


def test_checks_without_a_test_figure_are_left_out_of_the_curve() -> None:
    lines = ({"round": 1}, {"round": 2, "test_accuracy": None}, {"round": 3, "test_accuracy": 0.5})
    assert Run("x", {}, history=lines).curve == {3: 0.5}


def changed(packed: Path, **changes: Any) -> None:
    """Give the second line other parts."""
    lines = packed.read_text(encoding="utf-8").split("\n")
    lines[1] = json.dumps(json.loads(lines[1]) | changes)
    packed.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"recipe": None}, "recipe"),
        ({"history": {}, "environment": 5}, "environment, history"),
        ({"result": []}, "result"),
        ({"result": {"recipe": "x"}}, r"result.fingerprint, result.method, .*result.ledger"),
    ],
)
def test_lines_that_lack_something(packed: Path, changes: Any, text: str) -> None:
    changed(packed, **changes)
    with pytest.raises(
        InputError, match=rf"mine.jsonl, line 2, must be a run .*; it lacks {text};"
    ):
        read(packed)


@pytest.mark.parametrize(
    ("line", "text"),
    [("{", r"JSON \("), ("", r"JSON \("), ("[1]", "recipe, "), ("null", "recipe, ")],
)
def test_lines_that_are_something_else(packed: Path, line: str, text: str) -> None:
    packed.write_text(packed.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"line 5, must be a run .*; it lacks {text}"):
        read(packed)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read runs from .*none.jsonl"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "odd.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"cannot read runs from .*odd.jsonl"):
        read(tmp_path / "odd.jsonl")


RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"


#: methods of committed records that were removed on purpose, by recipe
REMOVED = {("ablation/fmnist-five", "flatten-chosen")}


@pytest.mark.skipif(not RECORDS.is_dir(), reason="records come with the repository only")
def test_every_committed_record_is_of_a_recipe_and_a_method_of_today() -> None:
    files = sorted(RECORDS.rglob("*.jsonl"))
    assert len(files) > 5
    shipped = {name: load_any(name) for name in recipes()}
    unknown = set()
    for file in files:
        runs = read(file)
        assert runs
        for one in runs:
            recipe, known = one.recipe, shipped[one.result["recipe"]]
            assert recipe is not None, one.place
            assert isinstance(known, Recipe)
            assert [m.name for m in recipe.methods] == [one.method]
            if one.method not in [m.name for m in known.methods]:
                unknown.add((recipe.name, one.method))
            elif "estimator" in one.result:  # as a parameter has another name today
                parameters = recipe.methods[0].ratio.parameters(one.key[2])
                assert one.result["estimator"].keys() <= parameters.keys()
    assert unknown == REMOVED


def test_a_pack_of_renamed_methods_keeps_the_text_of_their_recipes(tmp_path: Path) -> None:
    (old,) = read(RECORDS / "small" / "cifar-hundred-wide.jsonl")
    assert old.key == ("small/cifar-hundred", "FTW-pooling", 1)
    assert 'name = "FTW-lean"' in old.recipe_text
    assert old.recipe is not None
    assert old.recipe.train.pooling == 0.5
    (again,) = read(write(tmp_path / "again.jsonl", [old]))
    assert replace(again, place=old.place) == old


@pytest.mark.skipif(not RECORDS.is_dir(), reason="records come with the repository only")
def test_a_method_that_used_a_removed_setting_keeps_its_row() -> None:
    (found,) = compare([RECORDS / "ablation" / "fmnist-five-cpu.jsonl"])
    assert found["flatten-chosen"].ours[0] == pytest.approx(0.8301, abs=5e-5)
    assert [r for r in found.remarks if "no longer has" in r] == [
        "flatten-chosen: run with train.flattenings = [1.0, 0.75, 0.5], which fedshift no longer "
        "has"
    ]


@pytest.mark.skipif(not RECORDS.is_dir(), reason="records come with the repository only")
def test_the_records_of_the_papers_tables_can_be_read() -> None:
    files = sorted((RECORDS / "paper").glob("*.jsonl"))
    assert files
    for comparison in compare(files, published=True):
        assert comparison.recipe.startswith("paper/")
        rows = {row[0]: row for row in comparison.sheet().rows}
        assert {"ERM", "FTW"} <= comparison.published.keys() & rows.keys()
        if "not run" in rows["ERM"]:  # needs a GPU for long
            assert comparison.recipe == "paper/cifar-hundred"
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_a_recipe_that_cannot_be_read_any_more(packed: Path) -> None:
    """As after a later version has renamed a key: the figures still count."""
    lines = [replace(r, recipe_text=r.recipe_text + "\nold_key = 1\n") for r in read(packed)]
    write(packed, lines)
    (found,) = compare([packed])
    assert found["FTW"].runs[0].recipe is None
    assert (found.title, len(found.rows)) == ("", 2)
