"""Deviations from sums that sites add: known truth at any magnitude."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.moments import SAFE, moments, square_sums, unit_for

#: six numbers of three sites: mean 2, squared deviations 16
ROWS = (np.array([0.0, 1.0]), np.array([5.0]), np.array([1.0, 3.0, 2.0]))
MEAN, SD = 2.0, np.sqrt(16 / 6)


@pytest.mark.parametrize("exponent", [-305, -200, -162, -154, -102, -8, 0, 8, 98, 154, 200, 300])
def test_known_moments_at_any_magnitude(exponent: int) -> None:
    unit = 10.0**exponent
    mean, sd, repeated = moments([r * unit for r in ROWS])
    assert mean == pytest.approx(MEAN * unit, rel=1e-14)
    assert sd == pytest.approx(SD * unit, rel=1e-14)
    assert repeated == (abs(exponent) > 100)


def test_columns_of_different_magnitude_side_by_side() -> None:
    units = np.array([1e-300, 1e-160, 1.0, 0.0, 1e155, 1e300])
    mean, sd, repeated = moments([r[:, None] * units for r in ROWS])
    np.testing.assert_allclose(mean, MEAN * units, rtol=1e-14)
    np.testing.assert_allclose(sd, SD * units, rtol=1e-14)
    assert repeated == 4  # neither the ordinary column nor the constant one


@pytest.mark.parametrize("value", [7.1, -1e-162, 1e300, 0.0, 5e-324])
def test_a_constant_column_has_no_deviation(value: float) -> None:
    assert moments([np.full(7, value), np.full(4, value)])[1] == 0.0


def test_a_sum_is_zero_only_if_every_deviation_is() -> None:
    assert square_sums(np.array([0.0, np.nan, 0.0])) == 0.0
    assert 0.0 < square_sums(np.array([0.0, 1e-200])) < SAFE[0]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=20),
    st.integers(-300, 300),
    st.integers(1, 19),
)
def test_sums_of_sites_add_to_those_of_all_rows(rows: list[float], exponent: int, cut: int) -> None:
    d = np.array(rows) * 10.0**exponent
    unit = unit_for(square_sums(d))
    parts = [square_sums(p, unit) for p in (d[:cut], d[cut:])]
    assert sum(parts) == pytest.approx(float(square_sums(d, unit)), rel=1e-12)
    assert np.isfinite(square_sums(d, unit))
