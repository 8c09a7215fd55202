"""Ridge paths against scikit-learn and against their own definition."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from fedshift.core.logistic import ridge_path, sparse_path


@pytest.fixture
def task() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    f = rng.normal(size=(400, 5))
    y = (rng.random(400) < expit(f @ [1.5, -1, 0, 0, 0] - 0.5)).astype(float)
    w = rng.random(400)
    return f, y, w / w.sum()


@pytest.mark.parametrize("ridge", [1.0, 0.01])
def test_equals_scikit_learn(task, ridge: float) -> None:
    f, y, w = task
    (beta,), converged = ridge_path(lambda: [(f, y, w)], 5, ridges=[ridge], tol=1e-14)
    theirs = LogisticRegression(C=1 / ridge, tol=1e-12, max_iter=10_000)
    theirs.fit(f, y, sample_weight=w)
    assert converged
    np.testing.assert_allclose(beta[1:], theirs.coef_[0], atol=1e-5)
    np.testing.assert_allclose(beta[0], theirs.intercept_[0], atol=1e-5)


def test_blocks_change_nothing(task) -> None:
    f, y, w = task
    ridges = [1.0, 0.1, 0.001]
    whole, _ = ridge_path(lambda: [(f, y, w)], 5, ridges=ridges)
    parts = [(f[i : i + 37], y[i : i + 37], w[i : i + 37]) for i in range(0, 400, 37)]
    split, _ = ridge_path(lambda: parts, 5, ridges=ridges)
    np.testing.assert_allclose(whole, split, atol=1e-9)


def test_offset_moves_the_intercept_only(task) -> None:
    f, y, w = task
    (a,), _ = ridge_path(lambda: [(f, y, w)], 5, ridges=[0.1], tol=1e-14)
    (b,), _ = ridge_path(lambda: [(f, y, w)], 5, ridges=[0.1], offset=2.0, tol=1e-14)
    np.testing.assert_allclose(a[1:], b[1:], atol=1e-6)
    assert a[0] == pytest.approx(b[0] + 2.0, abs=1e-6)


def test_separable_data_stay_finite() -> None:
    f = np.linspace(-1, 1, 40)[:, None]
    y = (f[:, 0] > 0).astype(float)
    beta, _ = ridge_path(lambda: [(f, y, np.full(40, 1 / 40))], 1, ridges=[1.0, 1e-6])
    assert np.isfinite(beta).all()
    assert beta[1, 1] > beta[0, 1] > 0


def test_sparse_path_finds_the_columns(task) -> None:
    f, y, w = task
    beta = sparse_path(lambda: [(f, y, w)], 5, ridges=[10**-2.5])[0]
    assert np.abs(beta[1:3]).min() > 0.5
    assert np.abs(beta[3:]).max() < 1e-2
