"""Bias and variance of weighted ridge regression against simulated labels and all designs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.errors import InputError
from fedshift.theory import RidgeRisk, fixed_design, random_design, second_moment

ATOMS = np.array([[1.0, 0.5], [-0.5, 1.0], [2.0, 1.0]])
TRAIN, TEST = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
RATIO = TEST / TRAIN
MOMENT = (ATOMS * TEST[:, None]).T @ ATOMS
THETA, NOISE, RIDGE = np.array([1.0, -2.0]), 0.4, 0.7


def fit(x: np.ndarray, y: np.ndarray, w: np.ndarray, ridge: float) -> np.ndarray:
    """Ridge as plain least squares with rows √w x and √λ e_i; labels (n, many)."""
    d = x.shape[1]
    rows = np.concatenate([np.sqrt(w)[:, None] * x, np.sqrt(ridge) * np.eye(d)])
    labels = np.concatenate([np.sqrt(w)[:, None] * y, np.zeros((d, y.shape[1]))])
    return np.linalg.lstsq(rows, labels, rcond=None)[0]


@pytest.mark.parametrize("weighted", [True, False])
def test_fixed_design_against_simulated_labels(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    states = rng.choice(3, size=12, p=TRAIN)
    x, w = ATOMS[states], RATIO[states] if weighted else np.ones(12)
    result = fixed_design(
        x=x, weight=w if weighted else None, theta=THETA, noise=NOISE, ridge=RIDGE, moment=MOMENT
    )
    many = 40_000
    y = (x @ THETA)[:, None] + np.sqrt(NOISE) * rng.normal(size=(12, many))
    off = fit(x, y, w, RIDGE) - THETA[:, None]
    error = np.einsum("im,ij,jm->m", off, MOMENT, off)
    assert result.excess == pytest.approx(error.mean(), abs=4 * error.std() / np.sqrt(many))
    mean = off.mean(axis=1)
    assert result.bias == pytest.approx(mean @ MOMENT @ mean, rel=0.05)
    assert result.designs == 1
    # B + V is the excess squared error on fresh test rows, labels and all
    at = rng.choice(3, size=many, p=TEST)
    fresh = ATOMS[at] @ THETA + np.sqrt(NOISE) * rng.normal(size=many)
    excess = (fresh - np.sum(ATOMS[at] * (off.T + THETA), axis=1)) ** 2 - NOISE
    assert result.excess == pytest.approx(excess.mean(), abs=4 * excess.std() / np.sqrt(many))


def all_designs(n: int, weighted: bool) -> tuple[float, float]:
    bias = variance = 0.0
    for states in product(range(3), repeat=n):
        at = list(states)
        risk = fixed_design(
            x=ATOMS[at],
            weight=RATIO[at] if weighted else None,
            theta=THETA,
            noise=NOISE,
            ridge=RIDGE,
            moment=MOMENT,
        )
        chance = float(np.prod(TRAIN[at]))
        bias, variance = bias + chance * risk.bias, variance + chance * risk.variance
    return bias, variance


@pytest.mark.parametrize("weighted", [True, False])
def test_random_design_against_all_designs(weighted: bool) -> None:
    def draw(rng: np.random.Generator) -> tuple:
        at = rng.choice(3, size=4, p=TRAIN)
        return ATOMS[at], RATIO[at] if weighted else None

    options = {"draw": draw, "theta": THETA, "noise": NOISE, "ridge": RIDGE, "moment": MOMENT}
    result = random_design(**options, designs=4000)
    bias, variance = all_designs(4, weighted)
    assert abs(result.bias - bias) < 4 * result.bias_error
    assert abs(result.variance - variance) < 4 * result.variance_error
    assert 0 < result.bias_error < 0.1 * bias
    assert 0 < result.variance_error < 0.1 * variance
    assert result == random_design(**options, designs=4000)
    assert result != random_design(**options, designs=4000, seed=1)
    assert "over 4000 designs" in repr(result)


seeds = st.integers(0, 10_000)


@given(seeds, st.floats(0.1, 10.0))
def test_weights_and_ridge_times_a_constant_change_nothing(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(6, 3)), rng.exponential(size=6)
    options = {"x": x, "theta": rng.normal(size=3), "noise": 0.3, "moment": np.eye(3)}
    one = fixed_design(weight=w, ridge=0.5, **options)
    other = fixed_design(weight=factor * w, ridge=factor * 0.5, **options)
    assert other.bias == pytest.approx(one.bias)
    assert other.variance == pytest.approx(one.variance)


@given(seeds)
def test_without_a_ridge_equal_weights_are_best(seed: int) -> None:
    """Gauss and Markov: no bias, and no weights have less variance."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(8, 2)), rng.exponential(size=8) + 0.01
    moment = second_moment(rng.normal(size=(5, 2)))
    options = {"x": x, "theta": [1.0, 1.0], "noise": 1.0, "ridge": 0.0, "moment": moment}
    weighted, plain = fixed_design(weight=w, **options), fixed_design(**options)
    assert weighted.bias == plain.bias == 0.0
    assert plain.variance <= weighted.variance * (1 + 1e-9)


def test_second_moment_by_hand() -> None:
    x = np.array([[1.0, 2.0], [3.0, -1.0]])
    by_hand = 0.25 * np.outer(x[0], x[0]) + 0.75 * np.outer(x[1], x[1])
    np.testing.assert_allclose(second_moment(x, weight=[1.0, 3.0]), by_hand)


def test_bad_input_is_named() -> None:
    good = {"x": np.eye(2), "theta": [1.0, 1.0], "noise": 1.0, "ridge": 1.0, "moment": np.eye(2)}
    assert fixed_design(**good) == RidgeRisk(bias=0.5, variance=0.5)
    for change, words in (
        ({"ridge": 0.0, "weight": [1.0, 0.0]}, "set a ridge above zero"),
        ({"ridge": -1.0}, "ridge must be a number of at least 0"),
        ({"theta": [1.0, 2.0, 3.0]}, "theta must be numbers of shape"),
        ({"weight": [1.0, -1.0]}, "weight must be of at least 0; got -1.0 in place 1"),
        ({"moment": np.eye(3)}, "moment must have shape"),
        ({"noise": float("nan")}, "noise"),
    ):
        with pytest.raises(InputError, match=words):
            fixed_design(**{**good, **change})
    with pytest.raises(InputError, match="designs"):
        random_design(
            draw=lambda rng: (np.eye(2), None), theta=[1.0, 1.0], noise=1.0, ridge=1.0,
            moment=np.eye(2), designs=0,
        )  # fmt: skip
