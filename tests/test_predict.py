"""From a trained run to predictions: every model, task and choice of the gate, on small files."""

from __future__ import annotations

import csv
import io
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedshift as fs
from fedshift.cli import main
from fedshift.errors import InputError

COLUMNS = ["age", "ward", "dose", "pulse", "admitted", "label"]
WARDS = ["day clinic", "north, wing", "Süd"]


def rows(n: int, seed: int, task: str = "binary", *, ill: float = 0.4) -> pd.DataFrame:
    """A table with text, dates and gaps. Pulse (40 to 120) and dose (0 to 9) hardly overlap."""
    rng = np.random.default_rng([seed, n])
    y = rng.random(n) < ill
    age, dose = rng.normal(50 + 6 * y, 8, n), rng.exponential(1.5, n) + y
    frame = pd.DataFrame(
        {
            "age": age.round(1),
            "ward": rng.choice(WARDS, n),
            "dose": np.where(rng.random(n) < 0.1, np.nan, dose.round(2)),
            "pulse": rng.normal(85 - 9 * y, 9, n).round(),
            "admitted": pd.Series(np.datetime64("2020-01-01") + rng.integers(0, 900, n)).dt.date,
            "label": np.where(y, "ill", "well"),
        }
    )
    if task == "three":
        frame["label"] = np.where(age > 60, 3, np.where(y, 2, 1))
    if task == "regression":
        frame["label"] = (0.5 * age + 3 * dose + rng.normal(0, 2, n)).round(2)
    return frame.astype({"label": object})


def write(folder: Path, task: str, n: int = 70, *, later: float = 0.4) -> Path:
    """Two sites; `later` of the deployment rows are ill, and those of oak have no labels."""
    first = 0.1 if later > 0.7 else 0.4
    n = 200 if later > 0.7 else n
    for seed, site in enumerate(("elm", "oak")):
        (folder / site).mkdir(parents=True)
        rows(n, seed, task, ill=first).to_csv(folder / site / "train.csv", index=False)
        new = rows(n, seed + 10, task, ill=later)
        new.drop(columns="label" if site == "oak" else []).to_csv(
            folder / site / "deploy.csv", index=False
        )
    return folder


Train = Callable[..., tuple[Any, Path]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train once for every combination; return the result and its folder."""
    cache: dict[tuple[Any, ...], tuple[Any, Path]] = {}

    def train(task: str, model: str = "linear", later: float = 0.4, **more: Any) -> Any:
        key = (task, model, later, *sorted(more.items()))
        if key not in cache:
            folder = tmp_path_factory.mktemp("run")
            sites = write(folder / "sites", task, later=later)
            result = fs.train(sites, label="label", model=model, **more)
            result.save(folder / "run")
            cache[key] = result, folder
        return cache[key]

    return train


def run(*words: object) -> int:
    return main([str(w) for w in words])


PRODUCT = [
    *(
        (task, model, 0.4)
        for task in ("binary", "three", "regression")
        for model in ("auto", "mlp")
    ),
    ("binary", "linear", 0.8),  # label shift
    ("binary", "mlp", 0.8),
]


@pytest.mark.parametrize(("task", "model", "later"), PRODUCT)
def test_every_run_is_read_back_and_predicts(
    task: str,
    model: str,
    later: float,
    trained: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result, folder = trained(task, model, later)
    saved = fs.load(folder / "run")
    assert len(repr(saved).splitlines()) < 10
    assert len(repr(saved)) < 400
    new = rows(30, 99, task)
    new.loc[3, "ward"] = "ICU"
    shuffled = new[[*reversed(COLUMNS)]].assign(remark="a, b")
    shuffled.to_csv(tmp_path / "new.csv", index=False)
    expected = result.predict(new)
    np.testing.assert_array_equal(saved.predict(shuffled), expected)
    for ending in ("csv", "parquet"):
        out = tmp_path / f"out.{ending}"
        assert run("predict", folder / "run", tmp_path / "new.csv", "-o", out) == 0
        table = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
        assert list(table.columns[:7]) == list(shuffled.columns)
        assert list(table["remark"]) == ["a, b"] * 30
        if task == "regression":
            np.testing.assert_allclose(table["prediction"], expected, rtol=1e-12)
        else:
            assert list(table["prediction"].astype(str)) == [str(c) for c in expected]
            names = [f"probability_{c}" for c in result.predictor.classes]
            np.testing.assert_allclose(table[names], result.predict_proba(new), rtol=1e-9)
        assert table["unlike_training"].dtype == bool
        assert list(table["new_values"].fillna("")) == ["", "", "", "ward=ICU"] + [""] * 26
    assert "'ICU'" in capsys.readouterr().err
    assert saved.score(new) == pytest.approx(saved.score(new.drop(columns="label"), new["label"]))
    assert saved.score(new) > (0.3 if task != "regression" else 0.5)
    (tmp_path / "later").mkdir()
    rows(60, 5, task).to_csv(tmp_path / "later" / "elm.csv", index=False)
    assert run("diagnose", tmp_path / "later", "--since", folder / "run") == 0


def test_the_choice_of_the_gate_is_what_predicts(trained: Train) -> None:
    """Weights that the gate takes, refuses, and never tries: all three can be read back."""
    taken, folder = trained("binary", "linear", 0.9)
    assert taken.outcome.choice == "label"
    assert not (folder / "run" / "weights" / "refused").exists()
    for options in ({}, {"objective": "erm"}):
        plain, folder = trained("binary", "linear", **options)
        assert plain.outcome.choice == "erm"
        tried = set(plain.outcome.candidates) > {"erm"}
        assert (folder / "run" / "weights" / "refused" / "elm.parquet").exists() == tried
        assert fs.load(folder / "run").predict(rows(5, 1)).shape == (5,)


def test_refused_weights_are_kept(trained: Train) -> None:
    """Without a shift, weights of a named ratio are tried and refused."""
    result, folder = trained("binary", "linear", ratio="logistic")
    assert set(result.outcome.candidates) == {"erm", "given"}
    assert result.outcome.choice == "erm"
    for site in ("elm", "oak"):
        kept, tried = (
            pd.read_parquet(folder / "run" / "weights" / part / f"{site}.parquet")
            for part in (".", "refused")
        )
        assert list(kept.columns) == list(tried.columns) == ["row", "sample_weight"]
        assert (kept["sample_weight"] == 1).all()
        assert tried["sample_weight"].std() > 0


# -- rows unlike the training rows -----------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    fs.train(write(folder / "sites", "binary", 250), label="label", model="linear").save(
        folder / "run"
    )
    return folder / "run"


def marked(large: Path, frame: pd.DataFrame, folder: Path) -> float:
    frame.to_csv(folder / "new.csv", index=False)
    assert run("predict", large, folder / "new.csv", "-o", folder / "out.csv") == 0
    return float(pd.read_csv(folder / "out.csv")["unlike_training"].mean())


def test_rows_unlike_the_training_rows_are_marked(large: Path, tmp_path: Path) -> None:
    new = rows(400, 7)
    assert marked(large, new, tmp_path) <= 0.05
    exchanged = new.rename(columns={"dose": "pulse", "pulse": "dose"})
    assert marked(large, exchanged, tmp_path) >= 0.8
    assert marked(large, new.assign(age=new["age"] * 100), tmp_path) == 1
    assert marked(large, new.assign(dose=np.nan), tmp_path) <= 0.05  # missing is not unlike


def test_a_handful_of_rows_is_enough(tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    sites.mkdir()
    for seed, site in enumerate(("elm", "oak")):
        frame = rows(12, seed).assign(constant=7, flag=np.arange(12) % 2)
        frame.to_csv(sites / f"{site}.csv", index=False)
    assert run("train", sites, "--label", "label", "-o", tmp_path / "run") == 0
    new = rows(40, 3).assign(constant=7, flag=1)
    assert marked(tmp_path / "run", new, tmp_path) <= 0.2
    words = pd.DataFrame({"ward": ["a", "b"] * 10, "label": ["x", "y"] * 10})
    fs.train(wrote(tmp_path / "words", words), label="label").save(tmp_path / "no-numbers")
    assert marked(tmp_path / "no-numbers", words, tmp_path) == 0


def wrote(folder: Path, frame: pd.DataFrame) -> Path:
    folder.mkdir()
    for site in ("elm", "oak"):
        frame.to_csv(folder / f"{site}.csv", index=False)
    return folder


# -- mistakes --------------------------------------------------------------------------------------


def test_what_predict_refuses(
    large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.csv"
    rows(5, 0).drop(columns=["age", "ward"]).to_csv(new, index=False)
    whole = tmp_path / "whole.csv"
    rows(5, 0).to_csv(whole, index=False)
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3)))
    before = whole.read_bytes()
    for words, text in (
        ([large, new], "'age', 'ward'"),
        ([large, whole, "-o", whole], "another file"),
        ([large, whole, "-o", tmp_path / "out.xlsx"], ".csv or .parquet"),
        ([large, whole, "--site", "elk"], "did you mean 'elm'"),
        ([large, tmp_path / "x.npz"], "pass a CSV"),
        ([tmp_path, whole], "fedshift train"),
    ):
        assert run("predict", *words) == 1
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1
    assert whole.read_bytes() == before
    assert run("predict", large, whole) == 0
    printed = capsys.readouterr().out
    assert len(list(csv.reader(io.StringIO(printed)))) == 6


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", lambda b: b[: len(b) // 2]),
        ("model.safetensors", lambda b: b""),
        ("erm.safetensors", lambda b: b[:-3]),
        ("reference.safetensors", lambda b: b[:40]),
        ("support.safetensors", lambda b: b"x"),
        ("encoder.json", lambda b: b[: len(b) // 2]),
        ("encoder.json", lambda b: b"{}"),
        ("model.json", lambda b: b[: len(b) // 2]),
        ("model.json", lambda b: b.replace(b'"format": 2', b'"format": 9')),
        ("record.json", lambda b: b[: len(b) // 2]),
        ("labels.json", lambda b: b[: len(b) // 2]),
    ],
)
def test_a_damaged_file_is_named(
    name: str,
    damage: Callable[[bytes], bytes],
    trained: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained("binary", "linear", 0.8)[1] / "run", folder)  # has labels.json
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    rows(5, 0).to_csv(tmp_path / "new.csv", index=False)
    assert run("predict", folder, tmp_path / "new.csv") == 1
    error = capsys.readouterr().err
    assert name in error
    assert error.count("\n") == 1


# -- folders and weights ---------------------------------------------------------------------------


def files(folder: Path) -> Iterator[str]:
    return (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_a_run_replaces_an_earlier_run_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    sites = write(tmp_path / "classes", "binary", later=0.8)  # label shift
    other = write(tmp_path / "numbers", "regression", 30)
    shutil.move(other / "elm", other / "ash")
    assert run("train", sites, "--label", "label", "--model", "linear", "-o", out) == 0
    assert {"labels.json", "weights/elm.parquet", "report.html"} <= set(files(out))
    assert run("train", other, "--label", "label", "--model", "linear", "-o", out) == 0
    now = set(files(out))
    assert {n for n in now if n.startswith("weights/")} == {
        "weights/ash.parquet",
        "weights/oak.parquet",
    }
    assert "labels.json" not in now
    assert sorted(p.name for p in tmp_path.iterdir()) == ["classes", "numbers", "run"]
    # all that follows is refused before anything is trained
    monkeypatch.setattr("fedshift.sites.flow.fit_tables", None)
    (out / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place, text in ((out, "notes.txt"), (sites, "csv"), (tmp_path / "file" / "run", "cannot")):
        assert run("train", sites, "--label", "label", "-o", place) == 1
        assert text in capsys.readouterr().err
    assert set(files(out)) == now | {"notes.txt"}


def test_a_run_that_fails_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fs.train(write(tmp_path / "sites", "binary", 30), label="label", model="linear")
    result.save(tmp_path / "run")
    before = {n: (tmp_path / "run" / n).read_bytes() for n in files(tmp_path / "run")}
    monkeypatch.setattr("fedshift.outcome.folder.write_text", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        result.save(tmp_path / "run")
    assert {n: (tmp_path / "run" / n).read_bytes() for n in files(tmp_path / "run")} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "sites"]


def test_weights_name_the_rows_of_the_file(tmp_path: Path) -> None:
    """Unlabelled rows at the top, a row without content, and a site with two files."""
    frame = rows(60, 0)
    frame.loc[:19, "label"] = None
    text = frame.to_csv(index=False).splitlines()
    text.insert(31, ",,,,,")  # after data row 29
    text.insert(41, "")  # no row at all
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "elm.train.csv").write_text("\n".join(text) + "\n")
    rows(40, 1).to_csv(tmp_path / "sites" / "elm.deploy.csv", index=False)
    assert run("train", tmp_path / "sites", "--label", "label", "-o", tmp_path / "run") == 0
    weights = pd.read_parquet(tmp_path / "run" / "weights" / "elm.parquet")
    assert list(weights.columns) == ["row", "sample_weight"]
    file = pd.read_csv(tmp_path / "sites" / "elm.train.csv")
    joined = file.join(weights.set_index("row"))
    has_label = joined["label"].notna()
    assert (joined["sample_weight"].notna() == has_label).all()
    assert len(weights) == 60
    np.testing.assert_array_equal(file["age"].dropna(), frame["age"])


def test_weights_name_the_file_where_a_site_has_several(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for year in (2019, 2020):
        frame = rows(40, year).assign(site=["elm", "oak"] * 20)
        frame.to_csv(tmp_path / "sites" / f"{year}.csv", index=False)
    sites = fs.Sites.read(tmp_path / "sites", label="label", site="site")
    fs.train(tmp_path / "sites", label="label", site="site", model="linear").save(tmp_path / "run")
    weights = pd.read_parquet(tmp_path / "run" / "weights" / "elm.parquet")
    assert set(weights["file"]) == {"2019.csv", "2020.csv"}
    assert (weights["row"] % 2 == 0).all()  # the rows of elm
    assert weights["sample_weight"].notna().sum() == len(sites.train["elm"])


# -- arrays, recipes -------------------------------------------------------------------------------


def arrays(task: str, seed: int = 0, *, names: bool = False) -> fs.Federation:
    rng = np.random.default_rng(seed)
    clients = {}
    for name in ("a", "b"):
        x, new = rng.normal(size=(2, 40, 3))
        y = x[:, 0] * 2 + x[:, 1] if task == "regression" else (x[:, 0] > 0).astype(int)
        columns = ["u", "v", "w"]
        parts = (pd.DataFrame(x, columns=columns), pd.DataFrame(new, columns=columns))
        clients[name] = (parts[0], y, parts[1]) if names else (x, y, new)
    return fs.Federation.of(clients)


@pytest.mark.parametrize("task", ["binary", "regression"])
@pytest.mark.parametrize("how", ["fit_tables", "run"])
@pytest.mark.parametrize("names", [True, False])
def test_results_on_arrays_predict_and_are_saved(
    task: str, how: str, names: bool, tmp_path: Path
) -> None:
    fed = arrays(task, names=names)
    if how == "fit_tables":
        result: Any = fs.fit_tables(fed, model="mlp")
    else:
        loss = "squared" if task == "regression" else "cross-entropy"
        plan = fs.FedSGD(iterations=60, lr=0.05)
        result = fs.run(fed, fs.Settings(model="mlp", objective="erm", plan=plan, loss=loss))
    x = np.concatenate([c.x for c in fed])
    y = np.concatenate([c.y for c in fed])
    assert result.score(x, y) > 0.7
    result.save(tmp_path / "run")
    saved = fs.load(tmp_path / "run")
    np.testing.assert_array_equal(saved.predict(x), result.predict(x))
    if names:
        frame = pd.DataFrame(x, columns=["u", "v", "w"])
        np.testing.assert_array_equal(saved.predict(frame[["w", "u", "v"]]), result.predict(x))
        frame.to_csv(tmp_path / "new.csv", index=False)
        assert run("predict", tmp_path / "run", tmp_path / "new.csv", "-o", tmp_path / "o.csv") == 0
        np.testing.assert_allclose(
            pd.read_csv(tmp_path / "o.csv")["prediction"], result.predict(x), rtol=1e-6
        )
        with pytest.raises(InputError, match="'v'"):
            saved.predict(frame.drop(columns="v"))
    if task == "regression":
        with pytest.raises(InputError, match="use predict"):
            saved.predict_proba(x)
    else:
        np.testing.assert_array_equal(saved.predict_proba(x), result.predict_proba(x))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(x)
        return out


def test_a_module_of_your_own_is_passed_to_load(tmp_path: Path) -> None:
    fed = arrays("binary")
    plan = fs.FedSGD(iterations=5)
    result = fs.run(fed, fs.Settings(model=Own(), objective="erm", plan=plan))
    result.save(tmp_path / "run")
    with pytest.raises(InputError, match="model=module"):
        fs.load(tmp_path / "run")
    saved = fs.load(tmp_path / "run", model=Own())
    np.testing.assert_array_equal(saved.predict(fed[0].x), result.predict(fed[0].x))


RECIPE = """
title = "Small digits"
[data]
source = "digits"
shift = "one-class-each"
train = [20, 2]
test = [12, 2]
[plan]
iterations = 4
[train]
device = "cpu"
[[method]]
name = "plain"
objective = "erm"
train.model = {model}
[[method]]
name = "FedBN"
objective = "erm"
plan.norm = "local"
train.model = {{ kind = "mlp", hidden = [8], batch_norm = true }}
[[method]]
name = "group"
objective = "erm"
plan.norm = "group"
train.model = {{ kind = "mlp", hidden = [8], batch_norm = true }}
"""


@pytest.mark.parametrize("model", ['"linear"', '"lenet"', '{ kind = "resnet18", width = 4 }'])
def test_recipe_runs_predict(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.toml").write_text(RECIPE.format(model=model))
    methods = ["plain", "FedBN", "group"] if model == '"linear"' else ["plain"]
    words = ["run", tmp_path / "small.toml", "--out", tmp_path / "runs", "--method", *methods]
    assert run(*words) == 0
    x = np.random.default_rng(0).random((20, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    np.savez(tmp_path / "y.npz", y=x)
    for method in methods:
        folder = tmp_path / "runs" / "small" / method / "seed-0"
        site = ["--site", "client-1"] if method == "FedBN" else []
        out = tmp_path / f"{method}.csv"
        assert run("predict", folder, tmp_path / "x.npz", "-o", out, *site) == 0
        table = pd.read_csv(out)
        assert list(table["row"]) == list(range(20))
        shares = table[[c for c in table if c.startswith("probability_")]].to_numpy()
        assert shares.shape == (20, 10)
        np.testing.assert_array_equal(shares.argmax(axis=1), table["prediction"])
        capsys.readouterr()
        assert run("predict", folder, tmp_path / "y.npz") == 1
        assert "array x" in capsys.readouterr().err
        if site:
            one, other = (
                fs.load(folder).predict_proba(x, site=s) for s in ("client-1", "client-2")
            )
            assert np.abs(one - other).max() > 1e-4
            assert run("predict", folder, tmp_path / "x.npz") == 1
            assert "--site" in capsys.readouterr().err


# -- README --------------------------------------------------------------------------------------


def test_the_commands_of_the_readme_lead_from_files_to_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the block below the heading word for word, on files as it names them."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    _, _, part = readme.partition("## From a folder of site files to a decision")
    block = part.partition("```bash\n")[2].partition("```")[0]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [c[:2] for c in commands] == [
        ["fedshift", word] for word in ("diagnose", "train", "predict", "diagnose")
    ]
    monkeypatch.chdir(tmp_path)
    for seed, site in enumerate(("north", "south")):
        for folder, name, shift in (
            ("sites", "train", 0),
            ("sites", "deploy", 10),
            ("new", "deploy", 20),
        ):
            (tmp_path / folder / site).mkdir(parents=True, exist_ok=True)
            frame = rows(90, seed + shift).rename(columns={"label": "ill"})
            frame.to_csv(tmp_path / folder / site / f"{name}.csv", index=False)
    rows(30, 40).drop(columns="label").to_csv("new.csv", index=False)
    for command in commands:
        assert run(*command[1:]) == 0
    assert (tmp_path / "run" / "report.html").is_file()
    predicted = pd.read_csv("predicted.csv")
    assert len(predicted) == 30
    assert set(predicted["prediction"]) <= {"ill", "well"}
