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
    assert "trains five ways" in " ".join(capsys.readouterr().out.split())


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
    assert "ftw, exact ratios, FedSGD(iterations=6)" in printed
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
        (["--seeds", "many"], "--seeds: seeds must be such as '0:5', '3' or '0,2,4'; got 'many'"),
        (["--seeds", "5:0"], "--seeds: seeds must be spans from low to high.*got '5:0'"),
        (["--seeds", ""], "--seeds: seeds must be such as.*got ''"),
        (["--seeds", "0,0"], "--seeds: seeds must be one or more, each once; got '0,0'"),
        (["--method", "ERM", "FTW", "--method", "ERM"], "--method: .* named once; got ERM again"),
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
    assert "the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(demo, "run", interrupt)
    assert cli.main(["demo"]) == 130


# -- list and doctor -----------------------------------------------------------------------------


def test_list(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in ("smoke/digits", "paper/cifar-hundred", "Colored MNIST", "fashion-mnist"):
        assert name in printed
    for name in ("resnet18", "fitw", "focus:CLIENT", "multi-source", "dirichlet"):
        assert name in printed


def test_doctor_is_well(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["doctor", "--out", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    for name in ("python", "torch", "extra tensorboard", "data digits", "data cifar10"):
        assert name in printed
    assert "log ratio has slope" in printed
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
    assert "pip install 'fedshift[report]'" in printed
    assert "FEDSHIFT_DATA" in printed
