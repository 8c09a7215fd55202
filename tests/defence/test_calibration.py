"""Sums of a calibration: possible sums are accepted, impossible ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.scaling import bcts_sums
from fedshift.defence.calibration import CalibrationSums, add_up, check_sums, longest

CLASSES = 4


def honest(seed: int, sharp: float = 1.0, scale: float = 1.0) -> tuple[CalibrationSums, np.ndarray]:
    """Of random rows and a random θ, with what the rows of each class weigh."""
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=rng.integers(1, 60))
    logits = sharp * rng.normal(size=(len(y), CLASSES))
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    weight = rng.random(len(y))
    theta = np.concatenate([[np.exp(rng.normal())], scale * rng.normal(size=CLASSES)])
    _, slope, curve = bcts_sums(p, y, weight, theta)
    return CalibrationSums(slope, curve), np.bincount(y, weight, minlength=CLASSES)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 3.0, 100.0]), st.sampled_from([0.1, 30.0]))
def test_honest_sums_pass(seed: int, sharp: float, scale: float) -> None:
    sums, weight = honest(seed, sharp, scale)
    assert check_sums(sums, weight) is None


@pytest.mark.parametrize(
    ("slope", "curve", "why"),
    [
        ([0, 0.3, 0, -0.3, 0], 0.01, "slope of -0.3 where -0.25 to 0.75 is possible"),
        ([0, 0.9, -0.2, -0.2, -0.2], 0.01, "slope of 0.9"),
        ([30, 0, 0, 0, 0], 0.01, "slope of 30 where -27.6 to 27.6 is possible"),
        ([0, 0.2, 0.1, 0.1, 0], 0.01, "sum to 0.4, not to 0"),
        ([0, 0, 0, 0, 0], -1.0, "below 0"),
        ([0, 0, 0, 0, 0], 1e7, "curvature of 1e+07"),
    ],
)
def test_what_rows_cannot_lead_to(slope: list[float], curve: float, why: str) -> None:
    reason = check_sums(
        CalibrationSums(np.array(slope, float), curve * np.eye(5)), np.full(4, 0.25)
    )
    assert reason is not None
    assert why in reason


def test_sums_of_sites_that_are_alike_keep_their_bits() -> None:
    honest_sums = {str(k): honest(k)[0] for k in range(4)}
    plain = (
        sum(honest_sums[n].slope for n in sorted(honest_sums)),
        sum(honest_sums[n].curve for n in sorted(honest_sums)),
    )
    total, shortened = add_up(honest_sums, np.inf)
    assert not shortened
    assert np.array_equal(total.slope, plain[0])
    assert np.array_equal(total.curve, plain[1])


def test_a_hard_pull_is_shortened() -> None:
    honest_sums = {
        n: CalibrationSums(np.array([0.0, x, -x]), np.eye(3))
        for n, x in zip("abcd", (1, -1, 2, 90), strict=True)
    }
    limit = longest(honest_sums.values())
    assert limit == pytest.approx(2 * np.sqrt(2))
    total, shortened = add_up(honest_sums, limit)
    assert set(shortened) == {"d"}
    assert total.slope.tolist() == pytest.approx([0, 4, -4])
