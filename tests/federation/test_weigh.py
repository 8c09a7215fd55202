"""Log ratios and weights of a federation: objectives, what is kept, what left the clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import fedshift as fs
from fedshift.data import GaussianShift
from fedshift.errors import (
    FedshiftWarning,
    InputError,
    LowCoverage,
)
from fedshift.federation.ledger import Ledger
from fedshift.federation.weigh import estimate, log_ratios, weigh
from fedshift.learn.objective import Objective
from fedshift.workflow import run

PLAN = fs.FedSGD(iterations=60, lr=0.05, batch_size=16)


def federation(clients: int = 3) -> fs.Federation:
    return GaussianShift.mean_shift(d=2, clients=clients, train_rows=120, test_rows=80).draw(seed=0)


def settings(**changes: Any) -> fs.Settings:
    return fs.Settings(**{"ratio": "exact", "model": "linear", "plan": PLAN, **changes})


def test_every_objective_asks_for_its_ratio() -> None:
    fed = federation(2)
    a, b = (c.name for c in fed)
    for spelled, goals in {
        "ftw": ("all", "all"),
        "fitw": ("own", "own"),
        f"focus:{b}": (b, b),
        f"shift-on-one:{a}": (a, a),
        f"shift-on-both:{a}": (a, a),
        f"shift-on-many:{a}": (a, a),
    }.items():
        found = weigh(fed, "exact", objective=spelled)
        assert found is not None
        for name, goal in zip((a, b), goals, strict=True):
            expected = np.exp(fed.exact_log_ratio(name, goal))
            np.testing.assert_allclose(found[name].values, expected)
    found = weigh(fed, "exact", objective=f"no-shift:{a}")
    assert found is not None
    np.testing.assert_array_equal(found[a].values, 1.0)
    np.testing.assert_allclose(found[b].values, np.exp(fed.exact_log_ratio(b, a)))
    assert weigh(fed, "exact", objective="erm") is None


def test_two_client_scenarios_refuse_more() -> None:
    fed = federation(3)
    with pytest.raises(InputError, match="shift-on-many"):
        Objective.of(f"shift-on-both:{fed[0].name}").goals(fed)


def test_unknown_clients_are_named() -> None:
    with pytest.raises(InputError, match="nobody"):
        weigh(federation(), "exact", objective="focus:nobody")


def test_estimators_that_read_test_rows_are_in_the_ledger() -> None:
    fed, ledger = federation(), Ledger()
    weigh(fed, "logistic", ledger=ledger)
    sent = ledger.by_phase()["query.share"].rows
    assert sent == sum(len(c.test_x) for c in fed)  # once, whoever reads them
    for ratio, objective in (("exact", "ftw"), ("logistic", "fitw"), ("multi-source", "ftw")):
        quiet = Ledger()
        weigh(fed, ratio, objective=objective, ledger=quiet)
        assert quiet.total.rows == 0


def test_gradients_of_ratio_models_are_in_the_ledger() -> None:
    fed = federation()
    for ratio in ("multi-source", "federated-mlls", "federated-auto"):
        ledger = Ledger()
        weigh(fed, ratio, ledger=ledger)
        assert ledger.by_phase()["train.ratio"].up > 0
        assert ledger.total.rows == 0


@pytest.mark.parametrize("kind", ["multi-source", "federated-mlls"])
def test_a_fitted_ratio_is_fitted_again_on_other_data(kind: str) -> None:
    shift = GaussianShift.mean_shift(d=2, clients=2, train_rows=120, test_rows=80)
    one, two = (shift.draw(seed=s) for s in (0, 1))  # the same names and sizes
    plan = fs.FedSGD(iterations=50)
    method: Any = (
        fs.ratio.MultiSource(max_epochs=5)
        if kind == "multi-source"
        else fs.federation.FederatedMLLS(model="linear", plan=plan)
    )
    fitted = (
        method.fit(source=one.train, target=one.test) if kind == "multi-source" else method.fit(one)
    )
    again, fresh = weigh(two, fitted), weigh(two, clone(fitted))
    kept, first = weigh(one, fitted), weigh(one, clone(fitted))
    assert again is not None
    assert fresh is not None
    assert kept is not None
    assert first is not None
    for name in again:
        np.testing.assert_array_equal(again[name].values, fresh[name].values)
        np.testing.assert_array_equal(kept[name].values, first[name].values)


def test_cached_ratios_belong_to_their_clients(tmp_path: Path) -> None:
    fed = federation(2)
    a, b = fed
    swapped = fs.Federation((replace(b, name=a.name), replace(a, name=b.name)))
    first = weigh(fed, "logistic", objective="fitw", folder=tmp_path)
    other = weigh(swapped, "logistic", objective="fitw", folder=tmp_path)
    assert first is not None
    assert other is not None
    np.testing.assert_allclose(first[a.name].values, other[b.name].values)
    (tmp_path / "log-ratios.safetensors").write_bytes(b"damaged")
    again = weigh(swapped, "logistic", objective="fitw", folder=tmp_path)
    assert again is not None
    np.testing.assert_array_equal(again[a.name].values, other[a.name].values)


def test_ratios_are_borrowed_only_from_runs_that_need_the_same(tmp_path: Path) -> None:
    fed = federation(2)
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    first = estimate(fed, "logistic", objective="ftw", folder=theirs)
    kept = (theirs / "log-ratios.safetensors").read_bytes()
    again = estimate(fed, "logistic", objective="ftw", folder=mine, borrow=[theirs])
    assert first is not None
    assert again is not None
    assert again.seconds == first.seconds  # what it took then
    assert again.ledger.to_records() == first.ledger.to_records() != []
    for name, r in first.values.items():
        np.testing.assert_array_equal(again.values[name], r)
    alone = estimate(fed, "logistic", objective="ftw", folder=mine)  # its own copy
    assert alone is not None
    assert alone.seconds == first.seconds
    for other in (
        estimate(fed, "logistic", objective="fitw", borrow=[theirs]),
        estimate(fed, "logistic", seed=1, borrow=[theirs]),
        estimate(fed, fs.ratio.Logistic(features="squares"), borrow=[theirs]),
        estimate(federation(3), "logistic", borrow=[theirs]),
    ):
        assert other is not None
        assert other.seconds != first.seconds
    assert (theirs / "log-ratios.safetensors").read_bytes() == kept


def test_exact_and_given_ratios_are_never_borrowed(tmp_path: Path) -> None:
    """They hang on who built the federation, which its rows do not tell."""
    fed = federation(2)
    other = replace(
        fed, truth=GaussianShift.mean_shift(d=2, clients=2, size=3.0).draw(seed=0).truth
    )
    first = estimate(fed, "exact", folder=tmp_path)
    again = estimate(other, "exact", folder=tmp_path / "own", borrow=[tmp_path])
    assert first is not None
    assert again is not None
    assert not any(tmp_path.rglob("*"))
    for name, r in first.values.items():
        assert not np.allclose(again.values[name], r)


def test_ratios_of_an_estimator_with_a_function_in_it_are_not_kept(tmp_path: Path) -> None:
    plan = fs.FedSGD(iterations=2)
    for made, kept in ((lambda shape, count: fs.models.Linear(shape, count), 0), ("linear", 1)):
        estimate(federation(2), fs.federation.FederatedMLLS(model=made, plan=plan), folder=tmp_path)
        assert len(list(tmp_path.rglob("*"))) == kept


def test_borrowed_ratios_warn_as_estimated_ones_do(tmp_path: Path) -> None:
    fed = federation(2)
    few = fs.Federation(tuple(replace(c, x=c.x[:9], y=c.y[:9]) for c in fed))
    said = []
    for borrow in ([], [tmp_path / "own"]):
        with pytest.warns(FedshiftWarning) as caught:
            estimate(few, "multi-source", folder=tmp_path / "own", borrow=borrow)
        said.append([(w.category, str(w.message)) for w in caught])
    assert said[0] == said[1]


def test_a_neighbour_whose_file_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "odd/log-ratios.safetensors").mkdir(parents=True)
    gone = tmp_path / "gone"
    found = estimate(federation(2), "logistic", borrow=[tmp_path / "odd", gone])
    assert found is not None


def test_given_ratios_are_checked() -> None:
    fed = federation(2)
    a, b = (c.name for c in fed)
    n = len(fed[0].x)
    for given, said in (
        ({a: np.zeros(n)}, f"none for {b!r}"),
        ({a: np.zeros(n), b: np.zeros(n + 1)}, "one a training row"),
        ({a: np.zeros(n), b: np.zeros(n), "c": np.zeros(3)}, "no client 'c'"),
    ):
        with pytest.raises(InputError, match=said):
            weigh(fed, given)


def test_a_client_without_overlap_counts_nothing() -> None:
    fed = federation(2)
    a, b = fed
    given = {a.name: np.zeros(len(a.x)), b.name: np.full(len(b.x), -np.inf)}
    with pytest.warns(LowCoverage, match=b.name):
        found = weigh(fed, given)
    assert found is not None
    np.testing.assert_array_equal(found[b.name].values, 0.0)
    with pytest.warns(LowCoverage):
        out = run(fed, settings(ratio=given, validation=0.2))
    assert np.isfinite(out.history[-1]["validation_loss"])
    with pytest.raises(InputError, match=f"client {a.name!r}.*finite"):
        weigh(fed, {**given, a.name: np.full(len(a.x), np.nan)})


def test_estimated_ratios_are_near_the_exact() -> None:
    fed = federation()
    goals = {c.name: "own" for c in fed}
    found = log_ratios(fed, "logistic", goals, seed=0)
    for c in fed:
        exact = fed.exact_log_ratio(c.name, "own")
        assert np.corrcoef(exact, found[c.name])[0, 1] > 0.9


@pytest.mark.parametrize("name", ["multi-source", "federated-mlls", "federated-auto", "neural"])
def test_named_estimators_compute_where_they_are_told_to(name: str) -> None:
    fed = federation(2)
    with pytest.raises(InputError, match="device must be 'cpu' or 'cuda'; got 'moon'"):
        estimate(fed, name, device="moon")
