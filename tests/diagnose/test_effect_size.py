from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.linear_model import Ridge

from fedshift.diagnose.effect_size import (
    RIDGES,
    RidgeCrossFit,
    auc_and_error,
    auc_of_correlation,
    cross_fit,
    effect,
    folds_of,
)


def test_auc_is_the_share_of_ordered_pairs():
    rng = np.random.default_rng(0)
    score, target = rng.integers(0, 6, 60) * 1.0, rng.random(60) < 0.4
    pairs = score[target][:, None] - score[~target][None, :]
    brute = (pairs > 0).mean() + 0.5 * (pairs == 0).mean()
    assert auc_and_error(score, target)[0] == pytest.approx(brute)


def test_error_of_the_auc_is_its_spread_over_samples():
    rng = np.random.default_rng(1)
    target = np.arange(150) >= 50
    draws = [auc_and_error(rng.standard_normal(150) + target, target) for _ in range(300)]
    values, errors = np.transpose(draws)
    assert errors.mean() == pytest.approx(values.std(), rel=0.12)
    assert values.mean() == pytest.approx(norm.cdf(1 / math.sqrt(2)), abs=0.01)


def test_cross_fit_is_ridge_regression_without_the_fold():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((60, 4)), rng.standard_normal((60, 2))
    fold = folds_of(np.arange(60) % 2, seed=0)
    rest = fold != 3
    centred = x[rest] - x[rest].mean(axis=0)
    top = np.linalg.eigvalsh(centred.T @ centred)[-1]
    slow = Ridge(alpha=RIDGES[1] * top).fit(x[rest], y[rest]).predict(x[~rest])
    # the largest eigenvalue comes from powers, to a few digits
    np.testing.assert_allclose(cross_fit(x, y, fold)[1][~rest], slow, atol=2e-3)
    fit = RidgeCrossFit.of(x, y, fold)
    np.testing.assert_array_equal(fit.predict(x, 1), cross_fit(x, y, fold)[1])


def test_folds_are_even_in_every_group():
    group = np.repeat([0, 1, 2], [10, 25, 7])
    fold = folds_of(group, seed=1)
    for g in range(3):
        count = np.bincount(fold[group == g], minlength=5)
        assert count.max() - count.min() <= 1


def test_effects_of_two_gaussians():
    """N(0,1) and N(d,1): AUC Φ(d/√2)."""
    d, n = 1.5, 20_000
    rng = np.random.default_rng(3)
    target = np.arange(2 * n) >= n
    result = effect(rng.standard_normal(2 * n) + d * target, target)
    assert result["auc"] == pytest.approx(norm.cdf(d / math.sqrt(2)), abs=0.01)
    assert result["low"] < result["auc"] < result["high"]


def test_the_interval_without_a_difference_holds_one_half():
    rng = np.random.default_rng(4)
    target = rng.random(2000) < 0.3
    result = effect(rng.standard_normal(2000), target)
    assert result["low"] < 0.5 < result["high"]


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_auc_of_a_correlation(share):
    rng = np.random.default_rng(5)
    side = rng.random(200_000) < share
    score = rng.standard_normal(200_000) + 0.4 * side
    r = float(np.corrcoef(side, score)[0, 1])
    assert auc_of_correlation(r, share * (1 - share)) == pytest.approx(
        auc_and_error(score, side)[0], abs=0.01
    )
