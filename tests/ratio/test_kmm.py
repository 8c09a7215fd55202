"""KMM: optimality conditions, its parts, convergence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedshift.core.kernel import gaussian, squared_distances
from fedshift.errors import NotConverged
from fedshift.ratio.kmm import KMM, duality_gap, kmm_weights, nystroem, project, smooth


def shifted(n: int, m: int, *, d: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(m, d)) + 1.0 / math.sqrt(d)


@pytest.mark.parametrize(("bound", "eps"), [(1.5, 0.0), (3.0, 0.05), (1000.0, 0.1)])
def test_kmm_meets_its_optimality_conditions(bound: float, eps: float) -> None:
    rng = np.random.default_rng(2)
    source, target = rng.normal(size=(40, 1)), rng.normal(size=(60, 1)) + 1.0
    weight = rng.integers(1, 4, 40) / 1.0
    weight /= weight.sum()
    centres = np.concatenate([source, target])
    features, mean = nystroem(source, target, np.full(60, 1 / 60), centres, 0.5)
    exact = gaussian(squared_distances(source, source), 0.5)
    np.testing.assert_allclose(features @ features.T, exact, atol=1e-5)  # all rows are landmarks
    beta, gap = kmm_weights(
        features, weight, mean, bound=bound, eps=eps, tol=1e-9, max_iter=100_000
    )
    assert gap <= 1e-9
    assert beta.min() >= 0.0
    assert beta.max() <= bound
    assert abs(weight @ beta - 1.0) <= eps + 1e-12
    # stationarity: some ν with ∇ = ν inside the box, ≥ ν at 0, ≤ ν at the bound
    gradient = features @ ((weight * beta) @ features - mean)
    at_zero, at_bound = beta < 1e-9, beta > bound - 1e-9
    inside = ~(at_zero | at_bound)
    nu = np.median(gradient[inside])
    assert np.abs(gradient[inside] - nu).max() < 1e-3
    assert (gradient[at_zero] > nu - 1e-3).all()
    assert (gradient[at_bound] < nu + 1e-3).all()
    if eps > 0 and abs(weight @ beta - 1.0) < eps - 1e-6:
        assert abs(nu) < 1e-3


def test_duality_gap_is_the_linear_programme() -> None:
    from scipy.optimize import linprog

    rng = np.random.default_rng(5)
    for low, high in [(1.0, 1.0), (0.7, 1.3)]:
        gradient, weight = rng.normal(size=20), rng.dirichlet(np.ones(20))
        beta = np.ones(20)
        lp = linprog(
            weight * gradient, A_ub=np.stack([weight, -weight]), b_ub=[high, -low], bounds=(0, 3)
        )
        gap = duality_gap(beta, gradient, weight, 3.0, low, high)
        assert gap == pytest.approx((weight * gradient) @ beta - lp.fun, abs=1e-9)


def test_projection_is_feasible_and_nearest() -> None:
    rng = np.random.default_rng(6)
    for _ in range(50):
        point, weight = 5 * rng.normal(size=12), rng.dirichlet(np.ones(12))
        out = project(point, weight, 4.0, 0.9, 1.1)
        assert out.min() >= 0.0
        assert out.max() <= 4.0
        assert 0.9 - 1e-9 <= weight @ out <= 1.1 + 1e-9
        other = project(rng.normal(size=12), weight, 4.0, 0.9, 1.1)  # some feasible point
        assert (weight * (point - out)) @ (other - out) <= 1e-9  # obtuse angle: nearest


def test_kmm_smoother_far_away_is_the_nearest_row() -> None:
    rows = np.array([[0.0], [1.0]])
    out = smooth(np.array([[1e6]]), rows, np.array([0.5, 0.5]), np.array([2.0, 7.0]), 0.1)
    assert out[0] == pytest.approx(7.0)


def test_kmm_ratio_has_mean_one_whatever_n() -> None:
    for n in (60, 600):
        source, target = shifted(n, 2 * n)
        est = KMM().fit(source=source, target=target)
        assert est.ratio(source).mean() == pytest.approx(1.0, abs=0.01)


def test_kmm_says_when_it_did_not_converge() -> None:
    source, target = shifted(200, 200)
    with pytest.warns(NotConverged, match="raise max_iter"):
        KMM(max_iter=1, tol=1e-12).fit(source=source, target=target)
