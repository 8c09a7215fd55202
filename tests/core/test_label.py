"""Label shift as functions: known truth and distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.label import bbse, mlls, rlls
from fedshift.errors import InputError


def exact_problem(seed: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P(predicted | label) (k, k), source prior, target prior."""
    rng = np.random.default_rng(seed)
    channel = 0.7 * np.eye(k) + 0.3 * rng.dirichlet(np.ones(k), k).T
    return channel, rng.dirichlet(np.full(k, 5.0)), rng.dirichlet(np.full(k, 2.0))


@given(st.integers(0, 10_000), st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_exact_confusion_recovers_the_prior(seed: int, k: int) -> None:
    channel, source, target = exact_problem(seed, k)
    confusion = channel * source
    w = bbse(confusion, channel @ target)
    np.testing.assert_allclose(w * source, target, atol=1e-10)
    w = rlls(confusion, channel @ target, penalty=0.0)
    np.testing.assert_allclose(w * source, target, atol=1e-8)


@given(st.integers(0, 10_000), st.integers(2, 8))
@settings(max_examples=40, deadline=None)
def test_mlls_on_calibrated_posteriors_finds_the_truth(seed: int, k: int) -> None:
    # x is the prediction itself, a finite set, so that expectations are exact
    channel, source, target = exact_problem(seed, k)
    posterior = channel * source
    posterior /= posterior.sum(axis=1, keepdims=True)
    result = mlls(posterior, source, weight=channel @ target, tol=1e-13)
    assert result.converged
    np.testing.assert_allclose(result.prior, target, atol=1e-7)
    assert np.all(np.diff(result.log_likelihood) >= -1e-12)


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_em_never_lowers_the_likelihood(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(4, 0.3), 60)
    result = mlls(p, rng.dirichlet(np.ones(4) * 3), max_iter=200)
    assert np.all(np.diff(result.log_likelihood) >= -1e-12)
    assert result.prior.sum() == pytest.approx(1.0)


def test_rlls_penalty_draws_towards_one() -> None:
    channel, source, target = exact_problem(1, 5)
    confusion, mu = channel * source, channel @ target
    away = [
        np.linalg.norm(rlls(confusion, mu, penalty=p) - 1.0) for p in (0.0, 0.01, 0.05, 0.2, 10.0)
    ]
    assert away == sorted(away, reverse=True)
    assert away[-1] == pytest.approx(0.0, abs=1e-6)
    half = rlls(confusion, mu, penalty=0.0, trust=0.5)
    np.testing.assert_allclose(half, 1 + (bbse(confusion, mu) - 1) / 2, atol=1e-6)


def test_bad_probabilities_and_matrices() -> None:
    with pytest.raises(InputError, match="sum to one"):
        mlls([[0.5, 0.9]], [0.5, 0.5])
    with pytest.raises(InputError, match="class number 1"):
        mlls([[0.5, 0.5]], [1.0, 0.0])
    with pytest.raises(InputError, match="invertible"):
        bbse([[0.25, 0.25], [0.25, 0.25]], [0.5, 0.5])
    with pytest.raises(InputError, match=r"\(k, k\)"):
        bbse([[0.5, 0.5]], [1.0])
    with pytest.raises(InputError, match="penalty"):
        rlls(np.eye(2) / 2, [0.5, 0.5], penalty=-1.0)
