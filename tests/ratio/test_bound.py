"""Bounds on the ratio against known suprema."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from fedshift.core.samples import read_pair
from fedshift.errors import InputError
from fedshift.ratio.bound import Bound, GridBound, KMeansBound, ScoreBound

ALL = [KMeansBound(10), GridBound(), ScoreBound()]


def narrowed(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two coordinates of standard deviation one half: the sup is 4."""
    rng = np.random.default_rng(seed)
    target = rng.standard_normal((n, d))
    target[:, :2] *= 0.5
    return rng.standard_normal((n, d)), target


def separated(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two clusters far apart; their shares move from (.8, .2) to (.2, .8): the sup is 4."""
    rng = np.random.default_rng(seed)

    def rows(share: float) -> np.ndarray:
        return rng.normal(size=(n, 2)) * 0.3 + 10.0 * (rng.random((n, 1)) < share)

    return rows(0.2), rows(0.8)


@pytest.mark.parametrize("d", [2, 10, 50])
def test_score_bound_holds_in_any_dimension(d: int) -> None:
    source, target = narrowed(1000, d)
    bound = ScoreBound().fit(source=source, target=target).bound_
    assert 4 / 1.5 <= bound <= 4 * 1.5


def test_kmeans_falls_short_in_high_dimension() -> None:
    source, target = narrowed(2000, 50)
    assert KMeansBound(20).fit(source=source, target=target).bound_ < 2.0


def test_no_shift() -> None:
    rng = np.random.default_rng(0)
    source, target = rng.random((2, 2000, 5))
    assert 1.0 <= ScoreBound().fit(source=source, target=target).bound_ <= 1.5


@pytest.mark.parametrize("bound", [KMeansBound(2), GridBound(2), ScoreBound()], ids=repr)
def test_separated_clusters(bound: Bound) -> None:
    source, target = separated(1000)
    assert clone(bound).fit(source=source, target=target).bound_ == pytest.approx(4.0, rel=0.25)


def test_kmeans_by_hand() -> None:
    source = np.array([[0.0], [0.1], [0.2], [10.0]])
    target = np.array([[0.05], [10.1], [10.2], [10.3]])
    fitted = KMeansBound(2).fit(source=source, target=target)
    assert fitted.bound_ == pytest.approx(3.0)  # 3/4 over 1/4
    assert sorted(fitted.cells_.source_count) == [1.0, 3.0]


@pytest.mark.parametrize("bound", ALL, ids=repr)
def test_sum_over_distributions(bound: Bound) -> None:
    source, target = separated(400)
    one = clone(bound).fit(source=source, target=target)
    two = clone(bound).fit(source=source, target={"a": target, "b": target})
    assert two.n_targets_ == 2
    # the pool of a distribution with itself is that distribution
    assert two.bound_ == pytest.approx(2 * one.bound_)


@pytest.mark.parametrize("bound", ALL, ids=repr)
def test_duplicates_and_order_change_nothing(bound: Bound) -> None:
    source, target = narrowed(300, 2)
    one = clone(bound).fit(source=source, target=target).bound_
    twice = clone(bound).fit(source=np.repeat(source, 2, axis=0), target=target[::-1]).bound_
    assert twice == pytest.approx(one)


@pytest.mark.parametrize("bound", ALL, ids=repr)
def test_estimate_is_fit_without_memory(bound: Bound) -> None:
    source, target = narrowed(300, 2)
    fresh = clone(bound)
    s, t, n_targets, _ = read_pair(source, target)
    value = fresh.estimate(s, t, n_targets)
    assert not hasattr(fresh, "bound_")
    assert value == fresh.fit(source=source, target=target).bound_


@pytest.mark.parametrize("bound", ALL, ids=repr)
def test_confidence_and_cap(bound: Bound) -> None:
    source, target = separated(400)
    plain = clone(bound).fit(source=source, target=target).bound_
    upper = clone(bound).set_params(confidence=0.95).fit(source=source, target=target).bound_
    capped = clone(bound).set_params(cap=1.5).fit(source=source, target=target).bound_
    assert upper >= plain
    assert capped == 1.5


def test_smoothing_and_minimum_count_tame_the_raw_maximum() -> None:
    source, target = narrowed(500, 2)
    raw = KMeansBound(200).fit(source=source, target=target).bound_
    smooth = KMeansBound(200, smoothing=5.0).fit(source=source, target=target).bound_
    counted = KMeansBound(200, min_count=10).fit(source=source, target=target).bound_
    assert raw > 8.0
    assert smooth < raw
    assert counted < raw


def test_images_and_wide_rows() -> None:
    rng = np.random.default_rng(0)
    source, target = rng.random((2, 300, 3, 6, 6))
    target[:200, 0, 2:4, 2:4] += 1.0
    bound = ScoreBound().fit(source=source, target=target)
    assert bound.bound_ > 2.0


@pytest.mark.parametrize(
    "classifier", [LogisticRegression(), GaussianNB(), RandomForestClassifier(20, random_state=0)]
)
def test_any_classifier(classifier: Any) -> None:
    source, target = separated(400)
    bound = ScoreBound(classifier).fit(source=source, target=target).bound_
    assert bound == pytest.approx(4.0, rel=0.25)
    assert not hasattr(classifier, "classes_")  # the caller's object stays unfitted


def test_unequal_distributions_and_sizes() -> None:
    source, target = separated(600)
    bound = ScoreBound().fit(source=source, target={"a": target[:100], "b": target[:433]}).bound_
    assert bound == pytest.approx(8.0, rel=0.3)


def test_max_rows() -> None:
    source, target = separated(1000)
    fitted = ScoreBound(max_rows=200).fit(source=source, target=target)
    assert fitted.cells_.source_count.max() == pytest.approx(200)


def test_repr_is_one_line() -> None:
    source, target = separated(100)
    bound = KMeansBound(5, seed=3)
    assert repr(bound) == "KMeansBound(n_bins=5, seed=3)"
    assert "-> bound" in repr(bound.fit(source=source, target=target))
    assert "\n" not in repr(ScoreBound(LogisticRegression(C=2.0, max_iter=500, tol=1e-5)))


def test_grid_names_what_to_use_instead() -> None:
    source, target = narrowed(100, 5)
    with pytest.raises(InputError, match=r"at most 4 columns.*got 5 columns; use ScoreBound"):
        GridBound().fit(source=source, target=target)


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (KMeansBound(0), "n_bins must be a whole number of at least 1; got 0"),
        (KMeansBound(5, init="best"), "init must be"),
        (KMeansBound(5, smoothing=-1.0), "smoothing must be at least 0; got -1.0"),
        (KMeansBound(5, min_count=0), "min_count must be at least 1"),
        (GridBound(cap=-1.0), "cap must be positive"),
        (ScoreBound(confidence=1.0), "confidence must be between 0 and 1; got 1.0"),
        (ScoreBound(n_folds=1), "n_folds must be a whole number of at least 2"),
        (ScoreBound(max_rows=5), "max_rows must be"),
        (KMeansBound(5, cap=0.5), "cap must be at least the number of target distributions"),
        (KMeansBound(1000), "n_bins must be at most the number of distinct rows, 200"),
    ],
)
def test_parameters_are_checked_in_fit(bound: Bound, text: str) -> None:
    source, target = narrowed(100, 2)
    with pytest.raises(InputError, match=text):
        bound.fit(source=source, target=target)
