"""KLIEP: optimality conditions, constraint, convergence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedshift.core.kernel import gaussian, squared_distances
from fedshift.errors import NotConverged
from fedshift.ratio.kliep import KLIEP, kliep_mixture


def shifted(n: int, m: int, *, d: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(m, d)) + 1.0 / math.sqrt(d)


@pytest.mark.parametrize("width", [0.2, 1.0, 4.0])
def test_kliep_meets_its_optimality_conditions(width: float) -> None:
    rng = np.random.default_rng(1)
    source, target = rng.normal(size=(300, 2)), rng.normal(size=(200, 2)) + 0.6
    k = gaussian(squared_distances(target, target[:60]), width)
    density = k / gaussian(squared_distances(source, target[:60]), width).mean(axis=0)
    density = np.column_stack([np.ones(200), density])
    weight = rng.integers(1, 4, 200) / 1.0
    weight /= weight.sum()
    beta, gap = kliep_mixture(density, weight, tol=1e-8)
    assert gap <= 1e-8
    assert beta.min() >= 0.0
    assert beta.sum() == pytest.approx(1.0)
    score = density.T @ (weight / (density @ beta))
    assert score.max() <= 1.0 + 1e-8
    assert beta @ np.abs(score - 1.0) < 1e-6  # equality where β > 0
    slow = np.full(61, 1 / 61)
    for _ in range(3000):  # the slow reference: plain EM
        slow = slow * (density.T @ (weight / (density @ slow)))
    best, em = (weight @ np.log(density @ b) for b in (beta, slow))
    assert em - 1e-8 <= best <= em + 2e-3


def test_kliep_ratio_has_mean_one_over_the_source() -> None:
    source, target = shifted(700, 500, d=2)
    est = KLIEP().fit(source=source, target=target)
    assert est.ratio(source).mean() == pytest.approx(1.0, abs=1e-3)  # the floor may add a little
    assert est.gap_ <= est.tol


def test_kliep_says_when_it_did_not_converge() -> None:
    source, target = shifted(200, 200)
    with pytest.warns(NotConverged, match="raise max_iter"):
        KLIEP(max_iter=1, tol=1e-12).fit(source=source, target=target)
