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
    "rung-3": {"rung": 3},
    "rung-4": {"rung": 4},
    "rung-5": {"rung": 5},
    "robust": {"robust": Robust(rule="trimmed-mean", clip=None), "minimum": 2, "tries": 5},
    "clip": {"robust": Robust(clip=3.5), "deadline": 30.0},
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_read_is_what_was_written(case: str, recipe: Recipe, tmp_path: Path) -> None:
    made = Agreement.of(recipe, **CASES[case])
    path = made.write(tmp_path / "task.toml")
    read = Agreement.read(path)
    assert read.digest == made.digest
    assert read.job.robust == made.job.robust
    assert read.job.ratio.plan == made.job.ratio.plan
    assert read.to_toml() == made.to_toml()
    assert made.digest in repr(read)


@pytest.mark.parametrize(
    ("case", "kind", "rung"),
    [
        ("first", "multi-source", 2),
        ("labels", "federated-mlls", 2),
        ("erm", "local", 0),
        ("exact", "given", 0),
        ("rung-3", "multi-source", 3),
        ("rung-4", "generated", 4),
        ("rung-5", "raw", 5),
    ],
)
def test_methods_and_rungs(case: str, kind: str, rung: int, recipe: Recipe) -> None:
    job = Agreement.of(recipe, **CASES[case]).job
    assert (job.ratio.kind, job.rung) == (kind, rung)
    assert job.shape == (1, 8, 8)
    assert job.classes == 10
    assert job.weighting == Weighting(clip=20.0)
    assert isinstance(job.plan, FedAvg)
    if case == "labels":
        assert (job.ratio.folds, job.ratio.plan.n_rounds) == (2, 4)


def test_seeds_make_other_tasks(recipe: Recipe) -> None:
    several = recipe.changed(["seeds=[0, 1]"])
    digests = {Agreement.of(several, seed=s, clients=2).digest for s in (0, 1)}
    assert len(digests) == 2


def test_a_site_gets_its_own_rows(recipe: Recipe) -> None:
    made = Agreement.of(recipe, method="FTW-exact", clients=3)
    data, ratio = made.rows("client-2")
    assert data.name == "client-2"
    assert ratio is not None
    assert ratio.shape == (len(data.x),)
    # of three clients' test laws, not of all five
    assert np.exp(ratio).mean() <= 3.5
    assert Agreement.of(recipe, clients=3).rows("client-2")[1] is None
    with pytest.raises(InputError, match="client-9"):
        made.rows("client-9")


def test_a_ratio_that_needs_rows_of_others_says_so(recipe: Recipe) -> None:
    other = recipe.changed(["method.FTW.ratio='logistic'"])
    with pytest.raises(InputError, match="needs other sites' rows"):
        Agreement.of(other, method="FTW")
    shared = Agreement.of(other, method="FTW", rung=5)
    assert (shared.job.ratio.kind, shared.job.ratio.estimator) == ("raw", "logistic")
    with pytest.raises(InputError, match="5 clients; asked for 9"):
        Agreement.of(recipe, clients=9)


@pytest.mark.parametrize("objective", ["ftw", "fitw"])
def test_parties_choose_the_kind_themselves(recipe: Recipe, objective: str) -> None:
    auto = recipe.changed(
        ["method.FTW.ratio='federated-auto'", f"method.FTW.objective='{objective}'"]
    )
    with pytest.raises(InputError) as error:
        Agreement.of(auto, method="FTW")
    for said in ("'multi-source' and 'federated-mlls'", "'fedshift deploy look'"):
        assert said in str(error.value)
    shared = Agreement.of(auto, method="FTW", rung=5)  # rows are pooled: nothing to choose
    assert (shared.job.ratio.kind, shared.job.ratio.estimator) == ("raw", "classifier")


RATIO = "method.FTW.ratio={{ kind = '{}', {} }}"


def test_options_of_a_ratio_are_kept_or_refused(recipe: Recipe, tmp_path: Path) -> None:
    given = recipe.changed([RATIO.format("multi-source", "folds = 5, model = 'linear'")])
    ratio = Agreement.of(given, clients=2).job.ratio
    assert (ratio.folds, ratio.model) == (5, "linear")
    with pytest.raises(InputError, match=r"\[method\.ratio\]: unknown key 'lr'"):
        Agreement.of(recipe.changed([RATIO.format("multi-source", "lr = 0.1")]), clients=2)
    with pytest.raises(InputError, match=r"'classifier' is fitted .* got folds for 'multi-source'"):
        Agreement.of(given.changed([RATIO.format("multi-source", "folds = 5")]), rung=5)
    plain = recipe.changed([RATIO.format("federated-mlls", "calibration = 'bcts'")])
    agreed = Agreement.of(plain, clients=2)
    assert agreed.job.ratio.kind == "federated-mlls"
    file = agreed.write(tmp_path / "task.toml")
    assert Agreement.read(file).digest == agreed.digest
    text = file.read_text(encoding="utf-8")
    assert text.count('calibration = "bcts"') == 1
    file.write_text(text.replace('"bcts"', '"matrix"'), encoding="utf-8")
    with pytest.raises(InputError, match=r"temperature and biases.* got calibration 'matrix'"):
        Agreement.read(file)
    matrix = recipe.changed([RATIO.format("federated-mlls", "calibration = 'matrix'")])
    with pytest.raises(InputError, match=r"temperature and biases.* got calibration 'matrix'"):
        Agreement.of(matrix, clients=2)
    alone = recipe.changed([RATIO.format("logistic", "folds = 5"), "method.FTW.objective='fitw'"])
    with pytest.raises(InputError, match="with its defaults; got folds for 'logistic'"):
        Agreement.of(alone)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"rung": 0}, "needs rung 2 .* got rung 0"),
        ({"rung": 1, "method": "FTW-labels"}, "needs rung 2 .* got rung 1"),
        ({"rung": 3, "method": "FTW-labels"}, "rung 3 adds a bound .* got ratios 'federated-mlls'"),
        ({"rung": 3, "method": "ERM"}, "rung 3 adds a bound"),
    ],
)
def test_a_rung_is_kept_or_refused(settings: dict[str, Any], why: str, recipe: Recipe) -> None:
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
    ("seeds = [0]", "seeds = [0, 1]", "one method and one seed"),
    ("[deploy.robust]", '[deploy.robust]\nfoo = "off"', r"\[deploy.robust\]: unknown key 'foo'"),
    ('rule = "mean"', 'rule = "off"', "rule"),
    ('clients = ["client-1"', "clients = [1", "clients"),
    ("shape = [1, 8, 8]", 'shape = ["a"]', "shape"),
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


def test_sites_do_not_lean_on_each_other(recipe: Recipe) -> None:
    leaning = replace(recipe, train=replace(recipe.train, lean=0.5))
    with pytest.raises(InputError, match=r"sites weigh their rows alone.*got lean 0.5; leave"):
        Agreement.of(leaning, clients=2)


def test_exponents_to_choose_from_are_refused(recipe: Recipe) -> None:
    train = replace(recipe.train, validation=0.1, flattenings=(1.0, 0.5))
    several = replace(recipe, train=train)
    with pytest.raises(InputError, match=r"one exponent.*got flattenings \[1.0, 0.5\].*leave"):
        Agreement.of(several, clients=2)
    erm = Agreement.of(several, method="ERM", clients=2)  # has no ratios, so nothing to choose
    assert erm.digest == Agreement.of(recipe, method="ERM", clients=2).digest
