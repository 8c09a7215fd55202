"""Folds and cross-validated fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.data.federation import ClientData, Federation
from fedshift.federation.crossval import cross_fit, make_folds, scores_of
from fedshift.federation.ledger import Ledger


def federation(sizes: tuple[int, ...] = (40, 60), seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    clients = []
    for k, n in enumerate(sizes):
        y = rng.integers(0, 3, n)
        clients.append(
            ClientData(f"c{k}", rng.normal(size=(n, 3)) + y[:, None], y, np.zeros((1, 3)))
        )
    return Federation(tuple(clients))


def folds(fed: Federation, count: int = 5) -> dict[str, np.ndarray]:
    return dict(make_folds({c.name: c.y for c in fed}, count=count, seed=0))


class TestFolds:
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=5),
        st.integers(2, 6),
    )
    def test_every_class_is_spread_evenly_over_all_clients(
        self, labels: list[list[int]], count: int
    ) -> None:
        named = {f"c{k}": np.array(y) for k, y in enumerate(labels)}
        found = make_folds(named, count=count, seed=1)
        y, fold = (np.concatenate([part[n] for n in named]) for part in (named, found))
        for c in np.unique(y):
            sizes = np.bincount(fold[y == c], minlength=count)
            assert sizes.max() - sizes.min() <= 1

    def test_a_class_of_one_row_a_client_is_in_several_folds(self) -> None:
        named = {f"c{k}": np.array([0, 1, 1, 1, 1, 1]) for k in range(3)}
        found = make_folds(named, count=5, seed=0)
        assert len({int(found[n][0]) for n in named}) == 3

    def test_client_order_is_irrelevant(self) -> None:
        fed = federation((11, 7, 23))
        named = {c.name: c.y for c in fed}
        one = make_folds(named, count=4, seed=2)
        other = make_folds(dict(reversed(named.items())), count=4, seed=2)
        for name in named:
            np.testing.assert_array_equal(one[name], other[name])

    def test_numbers_are_one_class(self) -> None:
        found = make_folds({"a": np.linspace(0, 1, 20)}, count=4, seed=0)
        np.testing.assert_array_equal(np.bincount(found["a"]), 5)


def test_held_out_scores_come_from_models_that_have_not_seen_the_row() -> None:
    fed = federation()
    fold = folds(fed)
    fit = cross_fit(fed, None, fold, classes=3, ridges=[0.1])
    c = fed[0]
    row = int(np.flatnonzero(fold["c0"] == 2)[0])
    y = c.y.copy()
    y[row] = (y[row] + 1) % 3
    turned = Federation((replace(c, y=y), fed[1]))
    again = cross_fit(turned, None, fold, classes=3, ridges=[0.1])
    np.testing.assert_allclose(again.held_out["c0"][row], fit.held_out["c0"][row], atol=1e-9)
    other = int(np.flatnonzero(fold["c0"] == 3)[0])
    assert np.abs(again.held_out["c0"][other] - fit.held_out["c0"][other]).max() > 1e-4
    for j, part in enumerate(fit.parts):
        own = fold["c1"] == j
        np.testing.assert_allclose(fit.held_out["c1"][own], scores_of(part, fed[1].x[own]))


def test_the_ridge_has_the_lowest_weighted_held_out_loss() -> None:
    fed = federation((12, 12))
    fold = folds(fed)
    rng = np.random.default_rng(0)
    w = {c.name: rng.gamma(1.0, size=len(c.y)) for c in fed}
    ridges = [3.0, 0.3, 0.03, 0.0003]
    fit = cross_fit(fed, w, fold, classes=3, ridges=ridges)
    alone = [cross_fit(fed, w, fold, classes=3, ridges=[r]).risk for r in ridges]
    assert fit.risk == pytest.approx(min(alone), rel=1e-2)  # paths start warm
    assert fit.ridge == ridges[int(np.argmin(alone))]
    risk = sum((w[n] * v).mean() for n, v in fit.losses.items()) / sum(v.mean() for v in w.values())
    assert fit.risk == pytest.approx(float(risk))


def test_a_client_of_one_row_sits_out_of_its_fold() -> None:
    fed = federation((30, 1, 2))
    ledger = Ledger()
    fit = cross_fit(fed, None, folds(fed), classes=3, ledger=ledger)
    assert all(np.isfinite(s).all() for s in fit.held_out.values())
    assert ledger["c1", "train.model"].up < ledger["c0", "train.model"].up


def test_it_speaks() -> None:
    fed = federation()
    assert repr(cross_fit(fed, None, folds(fed), classes=3)).startswith(
        "CrossFittedModel(linear, ridge"
    )
