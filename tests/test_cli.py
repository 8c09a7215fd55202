"""The command line, as a user meets it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedshift import cli, demo, doctor
from fedshift.errors import InputError

RECIPE = """
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
name = "ERM"
objective = "erm"
[[method]]
name = "FTW"
ratio = "exact"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(RECIPE)
    return path


def test_version_and_wrong_usage(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out.startswith("fedshift ")
    for wrong in (["fly"], [], ["run"], ["demo", "--seed", "x"], ["list", "--sets"]):
        with pytest.raises(SystemExit, match="2"):
            cli.main(wrong)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["demo", "--seed", "-1"])
    assert "a seed must be a whole number ≥ 0; got '-1'" in capsys.readouterr().err


def test_help_is_light() -> None:
    code = (
        "import sys; from fedshift.cli import parser; parser().format_help();"
        "print(*({'torch', 'numpy', 'sklearn', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# -- demo ----------------------------------------------------------------------------------------


def test_demo_is_given_folder_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(demo, "run", lambda out, *, seed: given.append((out, seed)))
    assert cli.main(["demo", "--out", str(tmp_path), "--seed", "3"]) == 0
    assert given == [(tmp_path, 3)]


def test_demo_says_that_it_trains(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["demo", "--help"])
    assert "Trains five ways" in " ".join(capsys.readouterr().out.split())


def test_demo_asks_for_a_place_to_write_first(
    recipe: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(demo, "digits_federation")
    assert cli.main(["demo", "--out", str(recipe)]) == 1
    assert capsys.readouterr().err.startswith("fedshift: cannot write")


def test_no_place_to_write_is_one_clear_line(recipe: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["run", str(recipe), "--out", str(recipe)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("fedshift: cannot write")
    assert said.count("\n") == 1


# -- run -----------------------------------------------------------------------------------------


def test_run_a_file(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["run", str(recipe), "--out", str(tmp_path / "runs"), "--seeds", "0:2"]
    words += ["--set", "plan.lr=0.1", "plan.iterations=4", "--set", "method.FTW.weighting.clip=9"]
    assert cli.main([*words, "--method", "FTW", "--device", "cpu"]) == 0
    assert "FTW seed 1: accuracy" in capsys.readouterr().out
    folder = tmp_path / "runs/two/FTW/seed-1"
    assert json.loads((folder / "result.json").read_text())["rounds"] == 4
    asked = (folder / "recipe.toml").read_text()
    assert "lr = 0.1\n" in asked
    assert "clip = 9.0\n" in asked
    assert not (tmp_path / "runs/two/ERM").exists()
    # the same command again is finished at once; the record runs as a recipe
    assert cli.main([*words, "--method", "FTW", "--device", "cpu"]) == 0
    assert "finished before: FTW seed 0" in capsys.readouterr().out
    assert cli.main(["run", str(folder / "recipe.toml"), "--out", str(tmp_path / "again")]) == 0
    again = tmp_path / "again/two/FTW/seed-1/model.safetensors"
    assert again.read_bytes() == (folder / "model.safetensors").read_bytes()


def test_dry_run_writes_nothing(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["run", str(recipe), "--out", str(tmp_path / "runs"), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "ftw, exact ratios, FedSGD(seed=0, iterations=6)" in printed
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["smoke/digit"], "did you mean 'smoke/digits'?"),
        (["smoke/digits", "--set", "plan.iteratons=5"], "did you mean 'iterations'?"),
        (["smoke/digits", "--set", "plan.lr=fast"], "lr must be a number; got 'fast'"),
        (["smoke/digits", "--method", "FWT"], "did you mean 'FTW'?"),
        (["none.toml"], "cannot read recipe none.toml"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["run", *words, "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fedshift: ")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "many"], "--seeds: seeds must be text like '0:5', '3' or '0,2,4'; got 'many'"),
        (["--seeds", "5:0"], "--seeds: seeds must be ranges from low to high.*got '5:0'"),
        (["--seeds", ""], "--seeds: seeds must be text like.*got ''"),
        (
            ["--seeds", "0,0"],
            "--seeds: there must be at least one seed, and seeds must differ; got '0,0'",
        ),
        (
            ["--method", "ERM", "FTW", "--method", "ERM"],
            "--method: methods must differ; got ERM more than once",
        ),
    ],
)
def test_none_or_twice_is_wrong_usage(
    words: list[str], said: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run", str(recipe), "--out", str(tmp_path / "runs"), *words])
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize("device", ["gpu", "cuda"])
def test_no_such_device_is_one_clear_line(
    device: str,
    dry: list[str],
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = ["run", str(recipe), "--out", str(tmp_path / "runs"), *dry]
    for change in (
        ["--device", device],
        ["--set", f"train.device={device}"],
        ["--set", f"method.FTW.train.device={device}"],
    ):
        assert cli.main([*words, *change]) == 1
        out, error = capsys.readouterr()
        assert re.search(f"^fedshift: .*device .*'{device}'", error)
        assert error.count("\n") == 1
        assert not out
    assert not (tmp_path / "runs").exists()


def test_missing_data_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedshift.data.sources._roots", lambda given: [Path(given)])
    monkeypatch.setenv("FEDSHIFT_OFFLINE", "1")
    words = ["run", "paper/cifar-five", "--data-dir", str(tmp_path), "--out", str(tmp_path)]
    assert cli.main(words) == 1
    assert "set FEDSHIFT_DATA to a folder" in capsys.readouterr().err


def test_interrupted_is_130(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedshift.experiments.runner.run_workflow", interrupt)
    assert cli.main(["run", str(recipe), "--out", str(tmp_path)]) == 130
    assert "the same command continues" in capsys.readouterr().err
    monkeypatch.setattr(demo, "run", interrupt)
    assert cli.main(["demo"]) == 130


# -- folders of recipes, studies -----------------------------------------------------------------

STUDY = """
title = "What ten images cost"
study = "communication"
samples = 10
"""


@pytest.fixture
def folder_of_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two recipes and a study, and another whose name begins the same."""
    files = {"a/one": RECIPE, "a/study": STUDY, "a/two": RECIPE, "ab/three": RECIPE}
    for name, text in files.items():
        path = tmp_path / "recipes" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = {name: tmp_path / "recipes" / f"{name}.toml" for name in files}
    monkeypatch.setattr("fedshift.experiments.recipe.recipes", lambda: found)
    return tmp_path / "recipes" / "a"


def test_run_a_whole_room(
    folder_of_recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["run", "a/all", "--out", str(tmp_path / "runs"), "--set", "plan.iterations=2"]
    assert cli.main([*words, "--seeds", "0"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("FTW seed 0: accuracy") == 2
    assert "What ten images cost (a/study)" in printed
    results = sorted((tmp_path / "runs").rglob("result.json"))
    assert [str(p.parent.relative_to(tmp_path / "runs")) for p in results] == [
        "a/one/ERM/seed-0",
        "a/one/FTW/seed-0",
        "a/study",
        "a/two/ERM/seed-0",
        "a/two/FTW/seed-0",
    ]
    assert json.loads(results[0].read_text())["rounds"] == 2
    # and all of it in one page
    assert cli.main(["compare", str(tmp_path / "runs"), "-o", str(tmp_path / "all.md")]) == 0
    titles = [x for x in (tmp_path / "all.md").read_text().splitlines() if x.startswith("## ")]
    assert len(titles) == 3
    assert titles[-1] == "## What ten images cost (a/study)"


def test_a_recipe_that_fails_stops_no_other(
    folder_of_recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (folder_of_recipes / "one.toml").write_text(RECIPE.replace("[plan]", "[plann]"))
    assert cli.main(["run", "a/all", "--out", str(tmp_path / "runs")]) == 1
    out, error = capsys.readouterr()
    assert "FTW seed 0: accuracy" in out
    assert "a/one: one.toml: unknown key 'plann'; " in error
    assert error.endswith("fedshift: 1 of 3 recipes failed: a/one\n")
    assert (tmp_path / "runs/a/two/FTW/seed-0/result.json").exists()


def test_interrupting_a_folder_ends_it(
    folder_of_recipes: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedshift.experiments.runner.run_workflow", interrupt)
    assert cli.main(["run", "a/all", "--out", str(tmp_path / "runs")]) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert not (tmp_path / "runs/a/study").exists()


def test_a_dry_run_of_a_folder(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert cli.main(["run", "smoke/all", "--dry-run", "--out", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    for name in ("smoke/digits:", "smoke/digits-fedavg:", "smoke/gaussian:"):
        assert name in printed
    assert not (tmp_path / "runs").exists()
    assert cli.main(["run", "paper/communication", "--dry-run", "--out", str(tmp_path)]) == 0
    assert "Traffic(samples=1000" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["smok/all", "all", "smoke/", "/all"])
def test_there_is_no_such_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["run", name, "--out", str(tmp_path)]) == 1
    assert f"got {name!r}" in capsys.readouterr().err


def test_a_study_is_run_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file, out = tmp_path / "ten images.toml", tmp_path / "runs"
    file.write_text(STUDY)
    assert cli.main(["run", str(file), "--out", str(out), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "0.03 MB" in printed
    assert cli.main(["compare", str(out), str(out / "ten-images"), "--format", "markdown"]) == 0
    compared = capsys.readouterr().out
    assert compared.startswith("## What ten images cost (ten-images)")
    assert compared.count("## ") == 1  # named twice, shown once


@pytest.mark.parametrize("words", [["--set", "samples=5"], ["--seeds", "0"], ["--method", "FTW"]])
def test_a_study_has_nothing_to_choose(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["run", "paper/communication", "--out", str(tmp_path), *words]) == 1
    assert "paper/communication is a study, without methods" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# -- pack ----------------------------------------------------------------------------------------


def test_pack_and_compare(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    runs, file = tmp_path / "runs", tmp_path / "kept" / "mine.jsonl"
    assert cli.main(["run", str(recipe), "--out", str(runs), "--seeds", "0:2"]) == 0
    capsys.readouterr()
    assert cli.main(["pack", str(runs), "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"wrote 4 runs to {file}\n"
    said = []
    for place in (runs, file):
        assert cli.main(["compare", str(place), "--format", "markdown"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "| FTW |" in said[0]
    # an unfinished run is left out, and told
    (runs / "two/FTW/seed-1/result.json").unlink()
    assert cli.main(["pack", str(runs), "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"wrote 3 runs to {file}; not finished, so left out: 1\n"
    assert len(file.read_text().splitlines()) == 3
    # the commit of runs that name none, as stated
    for line in (lines := [json.loads(x) for x in file.read_text().splitlines()]):
        line["environment"]["commit"] = None
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cli.main(["pack", str(file), "-o", str(file), "--commit", "608c509"]) == 0
    assert file.read_text().count('"commit": "608c509 (as stated)"') == 3
    for wrong, need in (("abcdef0", "that of the run, 608c509"), ("main", "that of the run")):
        assert cli.main(["pack", str(file), "-o", str(file), "--commit", wrong]) == 1
        assert f"commit must be {need}" in capsys.readouterr().err
    # one file of several, in the place of one of them
    assert cli.main(["pack", str(file), "-o", str(file)]) == 0
    assert "wrote 3 runs" in capsys.readouterr().out


def test_pack_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    good, bad = str(tmp_path / "out.jsonl"), tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    for words, said in (
        ([str(tmp_path), "-o", str(tmp_path / "out.json")], "--output must end in .jsonl; got"),
        ([str(tmp_path), "-o", good], "there must be a finished run"),
        ([str(tmp_path / "nowhere"), "-o", good], "runs must be a folder"),
        ([str(bad), "-o", good], "bad.jsonl, line 1, must be a run that 'fedshift pack' wrote"),
    ):
        assert cli.main(["pack", *words]) == 1
        error = capsys.readouterr().err
        assert error.startswith("fedshift: ")
        assert said in error
        assert error.count("\n") == 1
    assert not Path(good).exists()
    with pytest.raises(SystemExit, match="2"):
        cli.main(["pack", str(tmp_path)])


def test_studies_hide_no_mistake(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["run", "paper/communication", "--out", str(tmp_path / "studies")]) == 0
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    for wrong, said in ((bad, "line 1, must be a run"), (tmp_path / "no", "must be a folder")):
        assert cli.main(["compare", str(tmp_path / "studies"), str(wrong)]) == 1
        assert said in capsys.readouterr().err


# -- list and doctor -----------------------------------------------------------------------------


def test_list(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in ("smoke/digits", "paper/cifar-hundred", "Colored MNIST", "fashion-mnist"):
        assert name in printed
    for name in ("resnet18", "fitw", "focus:CLIENT", "multi-source", "dirichlet"):
        assert name in printed
    assert re.search(r"paper/communication +What sharing samples costs", printed)
    assert "paper/kmeans-bound" in printed


def test_doctor_is_well(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["doctor", "--out", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    for name in ("python", "torch", "extra tables", "data digits", "data cifar10"):
        assert name in printed
    assert "log ratio of N(1, 1) to N(0, 1) has slope" in printed
    assert "fused and reference engines differ by" in printed
    assert printed.endswith("all is well\n")
    assert not (tmp_path / "new").exists()


def test_doctor_finds_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr("fedshift.data.sources._roots", lambda given: [tmp_path])

    def broken(*_: object) -> None:
        raise InputError("no engine")

    monkeypatch.setattr(doctor, "run", broken)
    assert cli.main(["doctor", "--out", str(tmp_path / "file")]) == 1
    printed = capsys.readouterr().out
    assert "FAIL output folder: cannot write" in printed
    assert "FAIL training self-test: no engine" in printed
    assert "pip install -c constraints.txt -e '.[report]'" in printed
    assert "FEDSHIFT_DATA" in printed
