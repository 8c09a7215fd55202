"""Logistic and Gaussian ratios: closed truths, slow references, scale."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression

from fedshift.errors import InputError
from fedshift.ratio import Gaussian, Logistic
from fedshift.ratio import logistic as module
from fedshift.ratio.gaussian import shrunk_covariance


def test_fixed_ridge_equals_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    s, t = rng.normal(size=(300, 3)), rng.normal(0.5, 1, (200, 3))
    x = np.concatenate([s, t])
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    y = np.repeat([0, 1], [300, 200])
    theirs = LogisticRegression(C=1 / (500 * 0.01), tol=1e-10).fit(z, y)
    ours = Logistic(ridge=0.01).fit(source=s, target=t)
    offset = np.log(200 / 300)
    np.testing.assert_allclose(ours.log_ratio(x), theirs.decision_function(z) - offset, atol=1e-3)


def test_blocks_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    s, t = rng.normal(size=(3000, 2)), rng.normal(0.5, 1, (3000, 2))
    whole = Logistic(ridge=0.01).fit(source=s, target=t).log_ratio(s)
    monkeypatch.setattr(module, "CACHE", 4000)  # forces features computed anew, block by block
    np.testing.assert_allclose(
        Logistic(ridge=0.01).fit(source=s, target=t).log_ratio(s), whole, atol=1e-7
    )


def test_more_features_than_rows() -> None:
    rng = np.random.default_rng(2)
    s, t = rng.normal(size=(40, 100)), rng.normal(size=(40, 100))
    t[:, 0] += 2.0
    wide = Logistic(ridge=0.1).fit(source=s, target=t)
    assert wide.coef_.shape == (101,)
    assert np.argmax(np.abs(wide.coef_[1:])) == 0
    narrow = Logistic(ridge=0.1).fit(source=s[:, :5], target=t[:, :5])
    assert narrow.log_ratio(t[:, :5]).mean() > narrow.log_ratio(s[:, :5]).mean()


def test_ridge_chosen_on_part_of_large_data_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    s, t = rng.normal(size=(2000, 5)), rng.normal(0.2, 1, (2000, 5))
    full = Logistic().fit(source=s, target=t).ridge_
    monkeypatch.setattr(module, "TUNE_ROWS", 200)
    part = Logistic().fit(source=s, target=t).ridge_
    assert np.isclose(part, [r / 10 for r in module.RIDGES]).any()
    assert full in module.RIDGES


def test_covariance_is_ledoit_and_wolfs() -> None:
    x = np.random.default_rng(4).normal(size=(60, 8)) @ np.diag(np.arange(1.0, 9.0))
    x -= x.mean(axis=0)
    ours = shrunk_covariance(x, np.full(60, 1 / 60))
    np.testing.assert_allclose(ours, ledoit_wolf(x)[0], rtol=1e-10)
    doubled = shrunk_covariance(np.concatenate([x, x]), np.full(120, 1 / 120))
    assert (
        np.abs(doubled - np.cov(x.T, bias=True)).max() < np.abs(ours - np.cov(x.T, bias=True)).max()
    )


def test_gaussian_ratio_is_the_ratio_of_gaussians() -> None:
    rng = np.random.default_rng(5)
    cov = np.array([[1.0, 0.6], [0.6, 1.0]])
    s = rng.multivariate_normal([0, 0], np.eye(2), 20_000)
    t = rng.multivariate_normal([0.5, 0], cov, 20_000)
    x = rng.normal(size=(50, 2))
    truth = multivariate_normal([0.5, 0], cov).logpdf(x) - multivariate_normal([0, 0]).logpdf(x)
    np.testing.assert_allclose(Gaussian().fit(source=s, target=t).log_ratio(x), truth, atol=0.25)


def test_collinear_columns_pass() -> None:
    rng = np.random.default_rng(6)
    s, t = rng.normal(size=(50, 1)), rng.normal(1, 1, (50, 1))
    twice = Gaussian(shared=True).fit(source=np.hstack([s, s]), target=np.hstack([t, t]))
    assert np.isfinite(twice.log_ratio(np.hstack([s, s]))).all()
    assert np.isfinite(
        Logistic("quadratic")
        .fit(source=np.hstack([s, s]), target=np.hstack([t, t]))
        .log_ratio(np.hstack([t, t]))
    ).all()


@pytest.mark.parametrize("ridge", ["best", -1.0])
def test_bad_ridge(ridge) -> None:
    with pytest.raises(InputError, match="ridge must be"):
        Logistic(ridge=ridge).fit(source=np.arange(9.0), target=np.arange(9.0) + 1)
