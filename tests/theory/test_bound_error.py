"""What cells cost: exact cell averages, Monte Carlo of the estimated bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.errors import InputError
from fedshift.theory import BoundError


def test_terms() -> None:
    result = BoundError(clients=3, delta=2.0, bins=16, n_train=400, n_test=100, dimension=2)
    assert result.width == pytest.approx(6 / 4)
    assert result.train_noise == pytest.approx(6 * 0.2)
    assert result.test_noise == pytest.approx(6 * 0.4)
    assert result.total == pytest.approx(6 * (0.25 + 0.2 + 0.4))
    assert result.c_error == pytest.approx(0.25 + 0.2 + 0.4)
    assert result.printed_total == pytest.approx(6 * (1 / 16 + 0.2))
    line = replace(result, n_test=None, dimension=1)
    assert line.test_noise == 0.0
    assert line.total == line.printed_total


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_width_follows_the_cells_of_a_sloped_density(dimension: int) -> None:
    """The density ½ + mean of x on the cube: its largest distance to its own cell averages."""

    def distance(side: int) -> float:
        edges = np.arange(side + 1) / side
        centre, corner = (edges[1:] + edges[:-1]) / 2, edges[1:]
        grid = np.stack(np.meshgrid(*[centre] * dimension), axis=-1)
        top = np.stack(np.meshgrid(*[corner] * dimension), axis=-1)
        return float((top.mean(axis=-1) - grid.mean(axis=-1)).max())

    for side in (2, 4, 8):
        cells = side**dimension
        width = BoundError(clients=1, delta=1.0, bins=cells, n_train=10, dimension=dimension).width
        assert distance(side) / width == pytest.approx(0.5)  # the same share for any M
        if dimension > 1:  # the printed 1/M falls faster than the truth
            assert distance(side) * cells > distance(1)


def mean_c_error(bins: int, n_train: int, n_test: int, repeats: int = 200) -> float:
    """E|C̃ − C| for uniform training rows and the test density ½ + x on [0, 1]: C = 2/3."""
    rng = np.random.default_rng(0)
    edges = np.arange(bins + 1) / bins
    test = np.diff(edges / 2 + edges**2 / 2)
    train = rng.multinomial(n_train, np.full(bins, 1 / bins), size=repeats) / n_train
    target = rng.multinomial(n_test, test, size=repeats) / n_test
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(train > 0, target / train, 0.0)
    return float(np.abs(1 / ratio.max(axis=1) - 2 / 3).mean())


@pytest.mark.parametrize("bins", [3, 10, 30, 100])
@pytest.mark.parametrize("n_train", [100, 10**4, 10**6])
@pytest.mark.parametrize("n_test", [100, 10**4, 10**6])
def test_the_order_covers_the_estimated_bound(bins: int, n_train: int, n_test: int) -> None:
    order = BoundError(clients=1, delta=1.0, bins=bins, n_train=n_train, n_test=n_test).c_error
    assert mean_c_error(bins, n_train, n_test) <= order


def test_the_printed_order_misses_few_test_rows() -> None:
    printed = BoundError(clients=1, delta=1.0, bins=30, n_train=10**6).printed_total
    assert mean_c_error(30, 10**6, 100) > 5 * printed


@given(st.integers(1, 10**6), st.one_of(st.none(), st.integers(1, 10**6)), st.integers(1, 4))
def test_best_bins_has_no_better_neighbour(n: int, m: int | None, dimension: int) -> None:
    start = BoundError(clients=2, delta=1.0, bins=7, n_train=n, n_test=m, dimension=dimension)
    best = replace(start, bins=start.best_bins)
    for bins in {1, max(1, best.bins - 1), best.bins + 1, 7, 100}:
        assert best.total <= replace(start, bins=bins).total * (1 + 1e-12)
    if m is None and dimension == 1:
        assert abs(best.bins - (4 * n) ** (1 / 3)) <= 1
    assert f"best M {best.bins}" in repr(best)


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="bins must be a whole number"):
        BoundError(clients=1, delta=1.0, bins=0, n_train=10)
    with pytest.raises(InputError, match="n_test"):
        BoundError(clients=1, delta=1.0, bins=2, n_train=10, n_test=0)
    with pytest.raises(InputError, match="delta"):
        BoundError(clients=1, delta=-1.0, bins=2, n_train=10)
    assert BoundError(clients=1, delta=0.0, bins=2, n_train=10).c_error == 0.0
