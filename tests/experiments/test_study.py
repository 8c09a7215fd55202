"""Studies: tables known by hand, what they leave and how they are read again, wrong files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedshift.data import Labels
from fedshift.data.sources import Images, load
from fedshift.errors import InputError
from fedshift.experiments import study
from fedshift.experiments.recipe import Recipe, recipes
from fedshift.experiments.study import (
    STUDIES,
    Eigenvalues,
    KMeansTable,
    StudyRecipe,
    Traffic,
    load_any,
    studies_in,
)
from fedshift.experiments.toml_tables import Location
from fedshift.report.comparison import Sheet, render

DIGITS = {"source": "digits", "shift": "one-class-each", "clients": 3, "train": [60, 3]} | {
    "test": [30, 3]
}


def sheet(made: study.Study) -> Sheet:
    return made.sheet("a title", data_dir=None)


def cells(made: Sheet) -> list[dict[str, str]]:
    return [dict(zip(made.header, row, strict=True)) for row in made.rows]


# -- k-means: known truth ------------------------------------------------------------------------


def blots(train: int = 100, test: int = 40, classes: int = 4) -> Images:
    """Every class is one picture."""
    y = np.concatenate([np.repeat(np.arange(classes), n) for n in (train, test)])
    x = np.zeros((len(y), 8, 8), dtype=np.uint8)
    x[np.arange(len(y)), y, y] = 255
    return Images("mnist", x, y, train * classes)


def test_a_cluster_for_each_class_finds_the_supremum(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def given(name: str, data_dir: Any) -> Images:
        asked.append((name, data_dir))
        return blots()

    monkeypatch.setattr(study, "load", given)
    # training 5, 5, 100, 100; in use 40, 40, 2, 2: (40/84) / (5/210) = 20 = 1 / rare
    made = KMeansTable(clusters=(1, 4), published=(10.5, 20), draws=3).sheet("t", data_dir="there")
    assert asked == [("mnist", "there")]
    assert made.header == ("clusters", "published", "ours, middle", "lowest to highest", "n")
    assert made.rows == (
        ("1", "10.5", "1.00", "1.00 to 1.00", "3"),
        ("4", "20", "20.00", "20.00 to 20.00", "3"),
    )
    assert "true supremum is 20." in made.notes[0]


def test_the_smallest_class_sets_the_scale() -> None:
    y = np.repeat([0, 1, 2], [9, 4, 50])
    x = np.arange(63).reshape(63, 1, 1)
    distribution = np.array([0.25, 1.0, 0.5])
    rows = study._part(x, y, distribution, np.random.default_rng(0))
    assert rows.shape == (1 + 4 + 2, 1)
    assert rows.dtype == np.float32
    assert np.bincount(y[rows[:, 0].astype(int)]).tolist() == [1, 4, 2]
    assert len(set(rows[:, 0].tolist())) == 7  # without replacement
    again = study._part(x, y, distribution, np.random.default_rng(1))
    assert (rows != again).any()


def test_draws_differ_and_come_back() -> None:
    table = KMeansTable(images="digits", rare=0.2, clusters=(15,), draws=3)
    (row,) = cells(sheet(table))
    low, high = map(float, row["lowest to highest"].split(" to "))
    assert 1 <= low <= float(row["ours, middle"]) <= high
    assert low < high
    assert row["published"] == ""
    assert sheet(table) == sheet(table)


# -- eigenvalues: a slow twin --------------------------------------------------------------------


def test_eigenvalues_are_those_of_the_second_moments() -> None:
    made = sheet(Eigenvalues(data=DIGITS, ridge=2.0, seed=1))
    shift = Labels.one_class_each(clients=3, train=(60, 3), test=(30, 3))
    federation = load("digits").split(shift, seed=1)
    assert [row["client"] for row in cells(made)] == [c.name for c in federation]
    limits = []
    for row, c in zip(cells(made), federation, strict=True):
        x, z = (rows.reshape(len(rows), -1).astype(float) for rows in (c.x, c.test_x))
        own, other = (np.linalg.eigvalsh(m.T @ m / len(m))[::-1] for m in (x, z))
        rounding = 64 * np.finfo(float).eps
        there = own > own[0] * rounding
        ratio = np.sqrt(np.where(other > other[0] * rounding, other, 0)[there] / own[there])
        limit = (1 + np.sqrt(1 + 4 * 2.0 / (2.0 + len(x) * own))) / 2
        limits.append(limit)
        assert row["directions"] == "64"
        assert row["ratio below 1"] == str((ratio < 1).sum())
        assert row["λ vanishes"] == str((~there).sum())
        assert row["largest"] == f"{ratio.max():.3g}"
        assert row["holds"] == str(((ratio > 0) & (ratio < limit[there])).sum())
        at, mean, low, high = made.curves[c.name]
        assert list(at) == np.flatnonzero(there).tolist()
        assert mean == low == high
        np.testing.assert_allclose(mean, ratio, rtol=1e-3)
    low, high = np.min(limits), np.max(limits)
    assert f": from {low:.4g} to {high:.4g}. Published: all ratios are < 1" in made.notes[0]
    assert (made.figure, made.curves_over) == ("√(λ'_i / λ_i)", "rank of the eigenvalue")


def test_drawn_rows_need_no_source() -> None:
    made = Eigenvalues(data={"shift": "mean-shift", "d": 3, "train_rows": 50, "test_rows": 50})
    assert made.source is None
    assert {row["directions"] for row in cells(sheet(made))} == {"3"}


# -- communication: the paper's example ----------------------------------------------------------


def test_what_samples_cost() -> None:
    made = sheet(Traffic(published=("3.1 MB", "3.5 TB")))
    assert [row[1:] for row in made.rows] == [
        ("3.1 MB", "3.07 MB"),
        ("3.5 TB", "3.52 TB"),
        ("", "8.7e-07"),
    ]
    (none, _, share) = sheet(Traffic(samples=0, steps=0)).rows
    assert (none[2], share[2]) == ("0.00 MB", "0.0e+00")


# -- files ---------------------------------------------------------------------------------------

TEXT = """
title = "What ten images cost"
description = "ten"
study = "communication"
samples = 10
published = ["", "lots"]
"""


def test_a_study_leaves_its_sheet(tmp_path: Path) -> None:
    (tmp_path / "-my study.toml").write_text(TEXT)
    recipe = load_any(tmp_path / "-my study.toml")
    assert isinstance(recipe, StudyRecipe)
    assert (recipe.name, recipe.description) == ("my-study", "ten")
    assert recipe.study == Traffic(samples=10, published=("", "lots"))
    made = recipe.run(tmp_path / "runs")
    assert made.title == "What ten images cost (my-study)"
    folder = tmp_path / "runs" / "my-study"
    told = json.loads((folder / "result.json").read_text())
    assert (told["study"], told["recipe"]) == ("communication", "my-study")
    assert told["parameters"]["samples"] == 10
    assert told["parameters"]["published"] == ["", "lots"]
    assert json.loads((folder / "environment.json").read_text())["device"] == "cpu"
    assert studies_in(tmp_path) == [made]


def test_sheets_come_back_with_their_curves(tmp_path: Path) -> None:
    made = StudyRecipe("deep/eigen", "", "", Eigenvalues(data=DIGITS)).run(tmp_path)
    assert made.title == "deep/eigen"
    (again,) = studies_in(tmp_path)
    for format in ("text", "markdown"):
        assert render([again], format) == render([made], format)
    assert again.curves_over == made.curves_over
    assert json.dumps(again.curves) == json.dumps(made.curves) != "{}"


def test_studies_are_found_at_any_level_and_once(tmp_path: Path) -> None:
    for name in ("b", "a/x"):
        StudyRecipe(name, name, "", Traffic()).run(tmp_path)
    assert [s.title for s in studies_in(tmp_path)] == ["a/x (a/x)", "b (b)"]
    assert [s.title for s in studies_in(tmp_path / "b", tmp_path)] == ["b (b)", "a/x (a/x)"]
    assert studies_in(tmp_path / "nowhere") == studies_in() == []
    (tmp_path / "b" / "result.json").write_text('{"fingerprint": "of a run", "sheet": 1}')
    (tmp_path / "result.json").write_text("torn")
    assert [s.title for s in studies_in(tmp_path)] == ["a/x (a/x)"]


@pytest.mark.parametrize("told", [{}, {"sheet": 5}, {"sheet": {"title": "t", "notes": []}}])
def test_a_sheet_that_cannot_be_read_is_named(told: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "x" / "result.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"study": "communication", **told}))
    with pytest.raises(
        InputError,
        match=r"x/result.json must be the result .* cannot be read .*; run the study again",
    ):
        studies_in(tmp_path)


def test_shipped_studies_are_read() -> None:
    found = {name: load_any(name) for name in recipes()}
    studies = {n: s for n, s in found.items() if isinstance(s, StudyRecipe)}
    assert {s.study.kind for s in studies.values()} == set(STUDIES)
    assert all(s.name == n and s.title for n, s in studies.items())
    bound = studies["paper/kmeans-bound"].study
    assert isinstance(bound, KMeansTable)
    assert dict(zip(bound.clusters, bound.published, strict=True))[500] == 206.76
    assert (bound.source, 1 / bound.rare) == ("mnist", pytest.approx(20))
    assert studies["paper/eigenvalues-fmnist"].study.source == "fashion-mnist"
    assert studies["paper/communication"].study.source is None
    assert isinstance(found["paper/fmnist-five"], Recipe)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('study = "k-means"', r"study must be .*; did you mean 'k-means-bound'\?"),
        ("study = ['communication']", "study must be text"),
        ('study = "communication"\nsample = 5', r"unknown key 'sample'; .* 'samples'\?"),
        ('study = "communication"\ntitel = "x"', r"unknown key 'titel'; .* 'title'\?"),
        ('study = "communication"\nsamples = "many"', "samples must be a whole number"),
        ('study = "communication"\nsamples = -1', "samples must be .* of at least 0; got -1"),
        ('study = "communication"\npublished = ["x"]', "published must be two strings"),
        ('study = "communication"\nname = "../x"', "the name of a recipe must be"),
        ('study = "communication"\ntitle = 5', "title must be text"),
        ('study = "k-means-bound"\nimages = "mnst"', r"did you mean 'mnist'\?"),
        ('study = "k-means-bound"\nrare = 0.0', r"rare must be in \(0, 1\]; got 0.0"),
        ('study = "k-means-bound"\nshare = 2.0', r"share must be in \(0, 1\]; got 2.0"),
        ('study = "k-means-bound"\nclusters = [0, 5]', "clusters must be whole numbers ≥ 1"),
        ('study = "k-means-bound"\nclusters = []', "clusters must be whole numbers ≥ 1"),
        ('study = "k-means-bound"\ndraws = 0', "draws must be a whole number of at least 1"),
        (
            'study = "k-means-bound"\npublished = [1.0]',
            "one figure for each entry of clusters, 3 in all; got 1",
        ),
        ('study = "eigenvalues"', "'shift' must be given"),
        ('study = "eigenvalues"\nridge = 0', "ridge must be a positive number"),
        ('study = "eigenvalues"\nseed = -1', "seed must be a whole number of at least 0"),
        (
            'study = "eigenvalues"\n[data]\nshift = "labels"\ntabel = "x"\nsource = "mnist"',
            r"unknown key 'tabel'; .* did you mean 'table'\?",
        ),
        ("study = ", " must be TOML"),
    ],
)
def test_wrong_files_say_what_is_wrong(lines: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(lines)
    with pytest.raises(InputError, match=f"mine.toml.*{said}"):
        load_any(tmp_path / "mine.toml")


def test_what_is_nowhere_is_named() -> None:
    with pytest.raises(InputError, match=r"did you mean 'paper/communication'\?"):
        load_any("paper/comunication")
    with pytest.raises(InputError, match=r"cannot read recipe none.toml"):
        load_any("none.toml")


def test_keys_are_those_of_the_study() -> None:
    made = StudyRecipe.of({"name": "x", "study": "k-means-bound", "clusters": [3]}, Location("x"))
    assert made == StudyRecipe("x", "", "", KMeansTable(clusters=(3,)))
