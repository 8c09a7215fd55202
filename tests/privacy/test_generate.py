"""Samplers: the distribution comes back, no row does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from fedshift.data.sources import load
from fedshift.errors import InputError
from fedshift.privacy.generate import GaussianMixtureSampler, Sampler
from fedshift.privacy.vae import VAESampler


def three_clumps(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [60.0, 0.0], [0.0, 6.0]])
    return centres[rng.integers(3, size=n)] + rng.normal(size=(n, 2)) * [8.0, 0.8]


def test_mixture_finds_the_clumps_and_their_distribution() -> None:
    x = three_clumps(900, 0)
    sampler = GaussianMixtureSampler(components=(1, 2, 3, 4, 8)).fit(x, seed=0)
    assert sampler.n_components_ >= 3
    new, fresh = sampler.sample(3000, seed=1), three_clumps(3000, 2)
    assert new.mean(axis=0) == pytest.approx(fresh.mean(axis=0), abs=2.0)
    both, label = np.concatenate([new, fresh]), np.repeat([0, 1], 3000)
    squares = np.concatenate([both, both**2], axis=1) / 100
    score = cross_val_score(LogisticRegression(max_iter=500), squares, label, scoring="roc_auc")
    assert score.mean() < 0.56  # generated rows are hardly distinguishable from fresh ones


def test_one_clump_needs_one_component() -> None:
    x = np.random.default_rng(0).normal(size=(600, 4)) @ np.triu(np.ones((4, 4)))
    sampler = GaussianMixtureSampler().fit(x, seed=0)
    assert sampler.n_components_ == 1
    new = sampler.sample(20_000, seed=0)
    # the floor widens every variance by 5 %
    assert np.cov(new.T) == pytest.approx(np.cov(x.T) + 0.05 * np.diag(x.var(axis=0)), abs=0.12)


def test_a_lone_row_is_not_given_back() -> None:
    """Free to take a component for each row, the floor still keeps it √floor wide."""
    x = np.concatenate([np.random.default_rng(0).normal(size=(60, 3)), [[40.0, 40.0, 40.0]]])
    sampler = GaussianMixtureSampler(components=(30,), rows_each=2).fit(x, seed=0)
    new = sampler.sample(4000, seed=0)
    near = np.abs(new - 40.0).max(axis=1) / x.std(axis=0).max()
    assert near.min() > 0.01
    for covariance in sampler._mixture.covariances_:
        assert np.linalg.eigvalsh(covariance)[0] >= 0.05 - 1e-9


def test_log_density_is_that_of_the_samples() -> None:
    x = np.random.default_rng(0).normal(size=(500, 1)) * 3.0
    sampler = GaussianMixtureSampler(components=(1,), floor=1e-9).fit(x, seed=0)
    z = (np.array([[0.0], [3.0]]) - x.mean()) / x.std()
    gap = np.subtract(*sampler.log_density([[0.0], [3.0]]))
    assert gap == pytest.approx(float((z[1, 0] ** 2 - z[0, 0] ** 2) / 2), rel=1e-6)


def test_few_rows_allow_few_components() -> None:
    assert GaussianMixtureSampler().fit(three_clumps(45, 0), seed=0).n_components_ == 1
    with pytest.raises(InputError, match="at least 10 rows"):
        GaussianMixtureSampler().fit(three_clumps(9, 0), seed=0)


def test_constant_columns_stay_nearly_constant() -> None:
    x = np.column_stack([np.random.default_rng(0).normal(size=100), np.full(100, 7.0)])
    new = GaussianMixtureSampler().fit(x, seed=0).sample(500, seed=0)
    assert abs(new[:, 1] - 7.0).max() < 1.0


@pytest.mark.parametrize("sampler", [GaussianMixtureSampler(), VAESampler(steps=5, batch_size=16)])
def test_same_seed_same_rows(sampler: Sampler) -> None:
    x = np.random.default_rng(0).random((40, 1, 5, 6)).astype(np.float32)
    state = torch.get_rng_state()
    first = sampler.fit(x, seed=3).sample(7, seed=4)
    again = sampler.fit(x, seed=3).sample(7, seed=4)
    assert first.shape == (7, 1, 5, 6)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, sampler.sample(7, seed=5))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("sampler", [GaussianMixtureSampler(), VAESampler()])
def test_not_fitted_is_said(sampler: Sampler) -> None:
    assert "not fitted" in repr(sampler)
    with pytest.raises(InputError, match="call fit"):
        sampler.sample(3, seed=0)


def test_vae_draws_digits() -> None:
    """A classifier of real digits finds all ten among made ones, most of them surely."""
    digits = load("digits")
    x = (digits.x / digits.high).astype(np.float32)
    x = x.reshape(len(x), -1, 8, 8)
    sampler = VAESampler(steps=600, batch_size=64).fit(x, seed=0)
    new = sampler.sample(600, seed=1)
    assert new.shape[1:] == x.shape[1:]
    assert new.dtype == np.float32
    assert new.min() >= 0
    assert new.max() <= 1
    judge = LogisticRegression(C=0.1, max_iter=300).fit(x.reshape(len(x), -1), digits.y)
    chance = judge.predict_proba(new.reshape(600, -1))
    noise = judge.predict_proba(np.random.default_rng(0).permuted(x.reshape(len(x), -1), axis=0))
    assert len(np.unique(chance.argmax(1))) == 10
    assert chance.max(1).mean() > noise.max(1).mean() + 0.2
    # first and second moments of pixels
    assert np.abs(new.mean(0) - x.mean(0)).max() < 0.12
    assert np.corrcoef(new.mean(0).ravel(), x.mean(0).ravel())[0, 1] > 0.98


def test_vae_needs_images() -> None:
    with pytest.raises(InputError, match="images"):
        VAESampler().fit(np.zeros((50, 4)), seed=0)


def test_a_floor_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="floor"):
        GaussianMixtureSampler(floor=0.0).fit(three_clumps(50, 0), seed=0)
