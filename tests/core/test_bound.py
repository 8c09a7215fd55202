"""Cells, their ratios and limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fedshift.core.bound import (
    CellTable,
    capped,
    cell_masses,
    cell_ratios,
    effective_rows,
    largest_ratio,
    log_ratio_error,
    nested_masses,
    ratio_limit,
    tabulate,
)
from fedshift.core.samples import Sample
from fedshift.errors import InputError


def table(source: list[float], target: list[float], **more: float) -> CellTable:
    s, t = np.array(source, dtype=float), np.array(target, dtype=float)
    n, m = s.sum(), t.sum()
    return tabulate(s / n, t / m, n_source=n, n_target=m, **more)  # type: ignore[arg-type]


def test_masses_and_ratios_by_hand() -> None:
    cell = np.array([0, 0, 1, 3])
    mass = cell_masses(cell, np.full(4, 0.25), 4)
    assert mass.tolist() == [0.5, 0.25, 0.0, 0.25]
    ratio = cell_ratios(mass, np.array([0.25, 0.5, 0.25, 0.0]), n_targets=3)
    assert ratio.tolist() == [1.5, 6.0, 0.0, 0.0]  # 0 where there is no source row


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=2, max_size=12),
    st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_mean_ratio_is_the_number_of_distributions(
    counts: list[tuple[int, int]], distributions: int
) -> None:
    s, t = np.array(counts, dtype=float).T
    if t.sum() == 0:
        return
    ratio = cell_ratios(s / s.sum(), t / t.sum(), n_targets=distributions)
    assert np.dot(s / s.sum(), ratio) == pytest.approx(distributions)
    assert ratio.max() >= distributions - 1e-9


def test_smoothing_draws_towards_no_shift() -> None:
    values = [table([90, 10], [10, 90], smoothing=a).ratio[1] for a in (0.0, 1.0, 10.0, 1e9)]
    assert values[0] == pytest.approx(9.0)
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1.0)


def test_limit_is_the_exact_binomial_one() -> None:
    s, t, n, m = 20, 80, 1000, 500
    for side, confidence in (("upper", 0.95), ("lower", 0.9)):
        r = ratio_limit(
            np.array([20.0]), np.array([80.0]),
            n_source=n, n_target=m, confidence=confidence, side=side,
        )[0]  # fmt: skip
        share = r * m / (r * m + n)
        tail = binom.cdf(t, s + t, share) if side == "upper" else binom.sf(t - 1, s + t, share)
        assert tail == pytest.approx(1 - confidence)


def test_limits_at_the_edges() -> None:
    cells = table([0, 10, 90], [10, 0, 90])
    assert math.isinf(cells.upper[0])
    assert cells.ratio[0] == 0.0
    assert cells.lower[1] == 0.0
    assert np.all(cells.lower[1:] <= cells.ratio[1:])
    assert np.all(cells.ratio[1:] <= cells.upper[1:])


def test_largest_ratio_and_its_options() -> None:
    cells = table([1, 19, 80], [30, 60, 10])
    assert largest_ratio(cells) == pytest.approx(30.0)
    assert largest_ratio(cells, min_count=10) == pytest.approx(60 / 19)
    assert largest_ratio(cells, min_count=10, upper=True) == pytest.approx(cells.upper[1])
    assert largest_ratio(cells, min_count=1000, n_targets=4) == 4.0  # no cell left: the mean
    assert "largest ratio 30" in repr(cells)


def test_cap() -> None:
    assert capped(7.0, None) == 7.0
    assert capped(7.0, 5.0) == 5.0
    with pytest.raises(
        InputError, match="cap must be at least the number of target distributions, 3"
    ):
        capped(7.0, 2.0, n_targets=3)


def test_error_vanishes_for_the_whole_space() -> None:
    error = log_ratio_error(
        np.array([100.0, 25.0]), np.array([50.0, 0.0]), n_source=100, n_target=50
    )
    assert error[0] == 0.0
    assert math.isinf(error[1])


def test_error_matches_simulation() -> None:
    rng = np.random.default_rng(0)
    s, t = rng.binomial(1000, 0.1, 20_000), rng.binomial(500, 0.3, 20_000)
    spread = np.log((t / 500) / (s / 1000)).std()
    expected = log_ratio_error(np.array([100.0]), np.array([150.0]), n_source=1000, n_target=500)
    assert expected[0] == pytest.approx(spread, rel=0.03)


def test_nested_cells_grow_to_the_whole_space() -> None:
    rng = np.random.default_rng(0)
    s, t = rng.normal(size=400), rng.normal(1.0, 1.0, size=300)
    threshold, a, b = nested_masses(
        s, t, np.full(400, 1 / 400), np.full(300, 1 / 300), n_cells=20, smallest=0.02
    )
    assert np.all(np.diff(threshold) < 0)
    assert np.all(np.diff(a) >= 0)
    assert (a[-1], b[-1]) == (pytest.approx(1.0), pytest.approx(1.0))
    for cut, x, y in zip(threshold, a, b, strict=True):
        assert x == pytest.approx(np.mean(s >= cut))
        assert y == pytest.approx(np.mean(t >= cut))


def test_nested_cells_keep_ties_together() -> None:
    score = np.repeat([0.0, 1.0], 50)
    w = np.full(100, 0.01)
    _, a, _ = nested_masses(score, score, w, w, n_cells=30, smallest=0.01)
    assert a.tolist() == [pytest.approx(0.5), pytest.approx(1.0)]


def test_effective_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    assert effective_rows(Sample.of(x)) == 30
    assert effective_rows(Sample.of(np.repeat(x, 7, axis=0))) == 30
    coins = (rng.random((101, 1)) < 0.3).astype(float)
    assert effective_rows(Sample.of(coins)) == 101  # two distinct rows, but 101 draws
    pool = Sample.of(x, rng.normal(size=(90, 2)))
    assert 30 <= effective_rows(pool) <= 180
