"""Saturation and stacking: recover a planted truth, cost nothing where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import check_grad

from fedshift.core import calibrate
from fedshift.core.calibrate import RatioEvidence, Saturation, stack, worthwhile_saturation


def even(n: int, m: int | None = None) -> RatioEvidence:
    return RatioEvidence.of(np.full(n, 1 / n), np.full(m or n, 1 / (m or n)))


def two_groups(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of two well separated groups whose shares go from 1:20 to 20:1 (log r = ±log 20)."""
    rng = np.random.default_rng(seed)
    out = []
    for share in (1 / 21, 20 / 21):
        group = rng.random(n) < share
        out.append(np.where(group, 6.0, -6.0) + rng.normal(0, 2, n))
    return out[0], out[1]


def test_recovers_the_bounds_of_a_mixture() -> None:
    s, t = two_groups(4000, 0)
    fitted = worthwhile_saturation(s, t, even(4000))
    assert fitted is not None
    assert fitted.high == pytest.approx(np.log(20), abs=0.25)
    assert fitted.low == pytest.approx(-np.log(20), abs=0.25)


def test_leaves_a_straight_line_alone() -> None:
    rng = np.random.default_rng(1)
    s, t = rng.normal(0, 1, 2000) - 0.5, rng.normal(1, 1, 2000) - 0.5
    assert worthwhile_saturation(s, t, even(2000)) is None


@given(
    st.floats(0.1, 5),
    st.floats(-5, 5),
    st.floats(-10, -0.1),
    st.floats(0.1, 10),
    st.floats(-30, 30),
)
def test_monotone_and_within_bounds(a: float, b: float, low: float, high: float, s: float) -> None:
    bend = Saturation(a, b, low, high)
    x = np.array([s, s + 0.5])
    y = bend(x)
    assert low - 1e-9 <= y[0] <= y[1] + 1e-12 <= high + 1e-9


def test_wide_bounds_are_a_straight_line() -> None:
    bend = Saturation(1.0, -12.0, -12.0, 12.0)
    x = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(bend(x), x, atol=2e-3)


def test_gradient_by_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    s, t = two_groups(50, 2)
    errors = {}

    def spy(loss, start, **_):
        errors["error"] = check_grad(
            lambda x: loss(x)[0], lambda x: loss(x)[1], np.array([0.1, -1.0, 0.5, 0.7])
        )
        return real(loss, start, **_)

    real = calibrate.minimize
    monkeypatch.setattr(calibrate, "minimize", spy)
    Saturation.fit(s, t, even(50))
    assert errors["error"] < 1e-5


def test_stack_prefers_the_truth_to_noise() -> None:
    rng = np.random.default_rng(3)
    n = 3000
    s, t = rng.normal(0, 1, n) - 0.5, rng.normal(1, 1, n) - 0.5
    noise_s, noise_t = rng.normal(size=n), rng.normal(size=n)
    a, b = np.stack([s, noise_s], 1), np.stack([t, noise_t], 1)
    coefficients, intercept = stack(a, b, even(n))
    assert coefficients[0] == pytest.approx(1.0, abs=0.1)
    assert coefficients[1] < 0.05
    assert abs(intercept) < 0.1
    joined = even(n).loss(a @ coefficients + intercept, b @ coefficients + intercept)
    assert joined <= even(n).loss(s, t) + 1e-9


def test_unequal_samples_keep_the_truth() -> None:
    # the truth x − ½ minimises the loss whatever the sizes
    rng = np.random.default_rng(4)
    s, t = rng.normal(0, 1, 20_000) - 0.5, rng.normal(1, 1, 2_000) - 0.5
    evidence = even(20_000, 2_000)
    (slope,), intercept = stack(s[:, None], t[:, None], evidence)
    assert slope == pytest.approx(1.0, abs=0.06)
    assert intercept == pytest.approx(0.0, abs=0.06)
    assert evidence.loss(s, t) <= evidence.loss(s + 0.3, t + 0.3)
