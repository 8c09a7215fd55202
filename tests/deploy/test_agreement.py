"""Agreements: one file that server and sites read alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedshift.core.weights import Weighting
from fedshift.defence.robust import Robust
from fedshift.deploy.agreement import Agreement
from fedshift.errors import InputError
from fedshift.experiments.recipe import Recipe
from fedshift.federation.plan import FedAvg


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return Recipe.load("smoke/flower")


CASES: dict[str, dict[str, Any]] = {
    "first": {},
    "labels": {"method": "FTW-labels"},
    "erm": {"method": "ERM", "clients": 3},
    "exact": {"method": "FTW-exact", "clients": 2},
    "disclosure-level-3": {"disclosure_level": 3},
    "disclosure-level-4": {"disclosure_level": 4},
    "disclosure-level-5": {"disclosure_level": 5},
    "robust": {"robust": Robust(rule="trimmed-mean", clip=None), "minimum": 2, "tries": 5},
    "clip": {"robust": Robust(clip=3.5), "deadline": 30.0},
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_read_is_what_was_written(case: str, recipe: Recipe, tmp_path: Path) -> None:
    made = Agreement.of(recipe, **CASES[case])
    path = made.write(tmp_path / "task.toml")
    read = Agreement.read(path)
    assert read.job.digest == made.job.digest
    assert read.job.robust == made.job.robust
    assert read.job.ratio.plan == made.job.ratio.plan
    assert read.to_toml() == made.to_toml()
    assert made.job.digest in repr(read)


@pytest.mark.parametrize(
    ("case", "kind", "disclosure_level"),
    [
        ("first", "multi-source", 2),
        ("labels", "federated-mlls", 2),
        ("erm", "local", 0),
        ("exact", "given", 0),
        ("disclosure-level-3", "multi-source", 3),
        ("disclosure-level-4", "generated", 4),
        ("disclosure-level-5", "raw", 5),
    ],
)
def test_methods_and_disclosure_levels(
    case: str, kind: str, disclosure_level: int, recipe: Recipe
) -> None:
    job = Agreement.of(recipe, **CASES[case]).job
    assert (job.ratio.kind, job.disclosure_level) == (kind, disclosure_level)
    assert job.shape == (1, 8, 8)
    assert job.classes == 10
    assert job.weighting == Weighting(clip=20.0)
    assert isinstance(job.plan, FedAvg)
    if case == "labels":
        assert (job.ratio.folds, job.ratio.plan.n_rounds) == (2, 4)


def test_seeds_make_other_tasks(recipe: Recipe) -> None:
    several = recipe.changed(["seeds=[0, 1]"])
    digests = {Agreement.of(several, seed=s, clients=2).job.digest for s in (0, 1)}
    assert len(digests) == 2


def test_a_site_gets_its_own_rows(recipe: Recipe) -> None:
    made = Agreement.of(recipe, method="FTW-exact", clients=3)
    data, ratio = made.rows("client-2")
    assert data.name == "client-2"
    assert ratio is not None
    assert ratio.shape == (len(data.x),)
    # of three clients' test distributions, not of all five
    assert np.exp(ratio).mean() <= 3.5
    assert Agreement.of(recipe, clients=3).rows("client-2")[1] is None
    with pytest.raises(InputError, match="client-9"):
        made.rows("client-9")


def test_a_ratio_that_needs_rows_of_others_says_so(recipe: Recipe) -> None:
    other = recipe.changed(["method.FTW.ratio='logistic'"])
    with pytest.raises(InputError, match="needs rows of other sites"):
        Agreement.of(other, method="FTW")
    shared = Agreement.of(other, method="FTW", disclosure_level=5)
    assert (shared.job.ratio.kind, shared.job.ratio.estimator) == ("raw", "logistic")
    with pytest.raises(InputError, match=r"clients must be 1 to 5.*got 9"):
        Agreement.of(recipe, clients=9)


@pytest.mark.parametrize("objective", ["ftw", "fitw"])
def test_the_ratio_kind_must_be_named(recipe: Recipe, objective: str) -> None:
    auto = recipe.changed(
        ["method.FTW.ratio='federated-auto'", f"method.FTW.objective='{objective}'"]
    )
    with pytest.raises(InputError) as error:
        Agreement.of(auto, method="FTW")
    for part in ("'multi-source' and 'federated-mlls'", "'fedshift deploy check'"):
        assert part in str(error.value)
    shared = Agreement.of(
        auto, method="FTW", disclosure_level=5
    )  # rows are pooled: nothing to choose
    assert (shared.job.ratio.kind, shared.job.ratio.estimator) == ("raw", "classifier")


RATIO = "method.FTW.ratio={{ kind = '{}', {} }}"


def test_options_of_a_ratio_are_kept_or_refused(recipe: Recipe, tmp_path: Path) -> None:
    given = recipe.changed([RATIO.format("multi-source", "folds = 5, model = 'linear'")])
    ratio = Agreement.of(given, clients=2).job.ratio
    assert (ratio.folds, ratio.model) == (5, "linear")
    with pytest.raises(InputError, match=r"\[method\.ratio\]: unknown key 'lr'"):
        Agreement.of(recipe.changed([RATIO.format("multi-source", "lr = 0.1")]), clients=2)
    with pytest.raises(
        InputError, match=r"each site fits 'classifier' .* got folds for 'multi-source'"
    ):
        Agreement.of(given.changed([RATIO.format("multi-source", "folds = 5")]), disclosure_level=5)
    plain = recipe.changed([RATIO.format("federated-mlls", "calibration = 'bcts'")])
    agreed = Agreement.of(plain, clients=2)
    assert agreed.job.ratio.kind == "federated-mlls"
    file = agreed.write(tmp_path / "task.toml")
    assert Agreement.read(file).job.digest == agreed.job.digest
    text = file.read_text(encoding="utf-8")
    assert text.count('calibration = "bcts"') == 1
    file.write_text(text.replace('"bcts"', '"matrix"'), encoding="utf-8")
    with pytest.raises(InputError, match=r"a temperature and a bias.* got calibration 'matrix'"):
        Agreement.read(file)
    matrix = recipe.changed([RATIO.format("federated-mlls", "calibration = 'matrix'")])
    with pytest.raises(InputError, match=r"a temperature and a bias.* got calibration 'matrix'"):
        Agreement.of(matrix, clients=2)
    alone = recipe.changed([RATIO.format("logistic", "folds = 5"), "method.FTW.objective='fitw'"])
    with pytest.raises(InputError, match="with its default options; got folds for 'logistic'"):
        Agreement.of(alone)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"disclosure_level": 0}, "needs disclosure level 2; got disclosure level 0"),
        (
            {"disclosure_level": 1, "method": "FTW-labels"},
            "needs disclosure level 2; got disclosure level 1",
        ),
        (
            {"disclosure_level": 3, "method": "FTW-labels"},
            "disclosure level 3 is only for ratios 'multi-source'.*got ratios 'federated-mlls'",
        ),
        ({"disclosure_level": 3, "method": "ERM"}, "disclosure level 3 is only for ratios 'multi"),
    ],
)
def test_a_disclosure_level_is_kept_or_refused(
    settings: dict[str, Any], why: str, recipe: Recipe
) -> None:
    with pytest.raises(InputError, match=why):
        Agreement.of(recipe, **settings)


WRONG: list[tuple[str, str, str]] = [
    ("[deploy]", "[other]", "other"),
    ("classes = 10", "classes = 0", "classes"),
    ("classes = 10", "klasses = 10", "klasses"),
    ("classes = 10", "classes = 10\nseed = 3", "seed"),
    ('clip = "median"', 'clip = "most"', "clip"),
    ('kind = "multi-source"', 'kind = "guess"', "kind"),
    ("deadline = 120.0", 'deadline = "long"', "deadline"),
    ("[deploy]", "[deploy\n", "must be TOML"),
    ("seeds = [\n    0,", "seeds = [0, 1,", "one method and one seed"),
    ("[deploy.robust]", '[deploy.robust]\nfoo = "off"', r"\[deploy.robust\]: unknown key 'foo'"),
    ('rule = "mean"', 'rule = "off"', "rule"),
    ('clients = [\n    "client-1"', "clients = [1", "clients"),
    ("shape = [\n    1,", 'shape = ["a",', "shape"),
]


@pytest.mark.parametrize(("old", "new", "why"), WRONG)
def test_what_is_wrong_is_named(
    old: str, new: str, why: str, recipe: Recipe, tmp_path: Path
) -> None:
    text = Agreement.of(recipe, clients=3).to_toml()
    assert old in text, text
    before, _, after = text.rpartition(old)
    path = tmp_path / "task.toml"
    path.write_text(before + new + after)
    with pytest.raises(InputError, match=why):
        Agreement.read(path)


@pytest.mark.parametrize(
    ("table", "line", "why"),
    [
        ("train", "lean = 0.25", "lean is now pooling: write pooling = 0.25"),
        ("train", "flattenings = []", "flattenings was removed"),
        ("deploy", 'rung = "x"', 'rung is now disclosure_level: write disclosure_level = "x"'),
        ("deploy.robust", "byzantine = 1", "byzantine was removed"),
        ("deploy.defence", 'how = "sum"', "how was removed"),
        ("deploy.defence", "trim = 0.2", "trim was removed"),
    ],
)
def test_an_old_key_is_refused(
    table: str, line: str, why: str, recipe: Recipe, tmp_path: Path
) -> None:
    text = Agreement.of(recipe, clients=3).to_toml()
    (tmp_path / "task.toml").write_text(text.replace(f"[{table}]\n", f"[{table}]\n{line}\n"))
    with pytest.raises(InputError, match=rf"task.toml, \[{table}\]: {why}"):
        Agreement.read(tmp_path / "task.toml")


@pytest.mark.parametrize(
    "table", ["ratio = 5", "robust = 5", "ratio = 'x'", "robust = ['a']", "defence = 3"]
)
def test_tables_must_be_tables(table: str, recipe: Recipe, tmp_path: Path) -> None:
    text = Agreement.of(recipe, method="ERM", clients=2).to_toml()
    head, _, _ = text.partition("[deploy.")
    (tmp_path / "task.toml").write_text(f"{head}\n{table}\n")
    with pytest.raises(InputError, match=table.partition(" ")[0]):
        Agreement.read(tmp_path / "task.toml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the agreement"):
        Agreement.read(tmp_path / "none.toml")


def test_short_numbers_are_refused(recipe: Recipe) -> None:
    half = replace(recipe, train=replace(recipe.train, precision="bfloat16"))
    with pytest.raises(InputError, match="float32 or float64"):
        Agreement.of(half, clients=2)


def test_pooling_needs_the_other_sites(recipe: Recipe) -> None:
    pooled = replace(recipe, train=replace(recipe.train, pooling=0.5))
    with pytest.raises(InputError, match=r"pooling must be 0 in a deployment.*got 0.5; leave"):
        Agreement.of(pooled, clients=2)
