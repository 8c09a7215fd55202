"""ULSIF, RULSIF, KLIEP and KMM: against truth, against slow twins, and by their laws."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.base import clone

from fedshift.core.samples import Sample
from fedshift.errors import FedshiftWarning, InputError, NotConverged
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.kernel import (
    FLOOR,
    RULSIF,
    ULSIF,
    Units,
    draw,
    gaussian,
    kernel_blocks,
    median_distance,
    relative_pearson,
    squared_distances,
    ulsif_loo,
)
from fedshift.ratio.kliep import KLIEP, kliep_mixture
from fedshift.ratio.kmm import KMM, duality_gap, kmm_weights, nystroem, project, smooth

ALL: list[type[RatioEstimator]] = [ULSIF, RULSIF, KLIEP, KMM]
every = pytest.mark.parametrize("kind", ALL, ids=lambda k: k.__name__)


def shifted(n: int, m: int, *, d: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(m, d)) + 1.0 / math.sqrt(d)


# ------------------------------------------------------------------------------------------ truth


@pytest.mark.parametrize(
    ("kind", "near", "wide"),
    [(ULSIF, 0.35, 0.45), (RULSIF, 0.2, 0.3), (KLIEP, 0.2, 0.3), (KMM, 0.3, 0.4)],
)
def test_mean_shift_gives_x_minus_half(
    kind: type[RatioEstimator], near: float, wide: float
) -> None:
    """Median over seeds of the largest error: of the log near the centre, of the ratio further out.

    Least squares is accurate on the scale of the ratio: its log is poor where the ratio is small.
    """
    x, y = np.linspace(-0.5, 1.5, 41), np.linspace(-1.5, 1.5, 61)
    logs, ratios = [], []
    for seed in range(3 if kind is KMM else 5):
        source, target = shifted(4000, 4000, seed=seed)
        est = kind().fit(source=source, target=target)
        logs.append(np.abs(est.log_ratio(x) - (x - 0.5)).max())
        ratios.append(np.abs(est.ratio(y) - np.exp(y - 0.5)).max())
    assert np.median(logs) < near
    assert np.median(ratios) < wide
    assert max(logs) < 3 * near


@every
def test_direction(kind: type[RatioEstimator]) -> None:
    source, target = shifted(600, 400, d=3)
    est = kind().fit(source=source, target=target)
    assert est.log_ratio(target).mean() > 0.1 > -0.1 > est.log_ratio(source).mean()


@every
def test_no_shift_gives_ratios_near_one(kind: type[RatioEstimator]) -> None:
    rng = np.random.default_rng(0)
    est = kind().fit(source=rng.normal(size=(2000, 2)), target=rng.normal(size=(2000, 2)))
    x = rng.normal(size=(1000, 2))
    assert np.mean((est.ratio(x) - 1.0) ** 2) < 0.05


@pytest.mark.parametrize(("alpha", "pearson", "kl"), [(0.0, 0.9368, 0.9175), (0.1, 0.6751, 0.7503)])
def test_relative_divergences_of_two_gaussians(alpha: float, pearson: float, kl: float) -> None:
    # standard deviations 1/8 and 1/2; first the stated values themselves, by quadrature
    x = np.linspace(-4.0, 4.0, 80_001)
    p, q = (np.exp(-0.5 * (x / s) ** 2) / (s * math.sqrt(2 * math.pi)) for s in (0.125, 0.5))
    mix = alpha * p + (1 - alpha) * q
    dx = x[1] - x[0]
    assert 0.5 * np.sum(mix * (p / mix - 1) ** 2) * dx == pytest.approx(pearson, abs=1e-4)
    assert np.sum(p * np.log(np.maximum(p, 1e-300) / mix)) * dx == pytest.approx(kl, abs=1e-4)
    found, logs = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        source, target = rng.normal(0, 0.5, 5000), rng.normal(0, 0.125, 5000)
        est = RULSIF(alpha=alpha).fit(source=source, target=target)
        found.append(est.divergence_)
        logs.append(est.relative_log_ratio(rng.normal(0, 0.125, 20_000)).mean())
    assert np.mean(found) == pytest.approx(pearson, abs=0.04)
    assert np.mean(logs) == pytest.approx(kl, abs=0.03)


def test_relative_pearson_of_equal_laws_is_zero() -> None:
    rng = np.random.default_rng(0)
    found = relative_pearson(source=rng.normal(size=(1000, 2)), target=rng.normal(size=(1000, 2)))
    assert abs(found) < 0.02


def test_relative_and_plain_ratio_agree() -> None:
    source, target = shifted(500, 500)
    est = RULSIF(alpha=0.2).fit(source=source, target={"a": target, "b": target + 0.5})
    x = np.linspace(-3, 3, 50)
    plain, relative = est.ratio(x) / 2.0, np.exp(est.relative_log_ratio(x))
    np.testing.assert_allclose(plain, 0.8 * relative / (1 - 0.2 * relative), rtol=1e-10)
    assert relative.max() < 5.0
    tensor = est.relative_log_ratio(torch.as_tensor(x))
    np.testing.assert_allclose(tensor.numpy(), np.log(relative), rtol=1e-10)


def test_rulsif_at_zero_is_ulsif() -> None:
    source, target = shifted(300, 200, d=2)
    a = ULSIF().fit(source=source, target=target)
    b = RULSIF(alpha=0.0).fit(source=source, target=target)
    np.testing.assert_allclose(a.log_ratio(source), b.log_ratio(source), rtol=1e-12)
    np.testing.assert_allclose(b.relative_log_ratio(source), b.log_ratio(source), rtol=1e-12)


# ----------------------------------------------------------------- leave one out, by brute force


def brute_force_loo(
    phi: np.ndarray, c: np.ndarray, v: np.ndarray, ridges: list[float]
) -> np.ndarray:
    """Take each row out, renormalise, build H and h anew, solve, predict the row."""
    out = np.empty((len(phi), len(ridges)))
    for i in range(len(phi)):
        rest = np.arange(len(phi)) != i
        ci, vi = c[rest] / c[rest].sum(), v[rest] / v[rest].sum()
        H = sum(m * np.outer(f, f) for m, f in zip(ci, phi[rest], strict=True))
        h = sum(m * f for m, f in zip(vi, phi[rest], strict=True))
        for k, ridge in enumerate(ridges):
            out[i, k] = phi[i] @ np.linalg.solve(H + ridge * np.eye(phi.shape[1]), h)
    return out


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("n", "m"), [(12, 12), (7, 23), (31, 9)])
@pytest.mark.parametrize("weighted", [False, True])
def test_closed_form_equals_brute_force(alpha: float, n: int, m: int, weighted: bool) -> None:
    rng = np.random.default_rng(n + m)
    x = rng.normal(size=(n + m, 2))
    phi = gaussian(squared_distances(x, x[n : n + 8]), 0.9)
    w, v = (rng.integers(1, 4, size=k) if weighted else np.ones(k) for k in (n, m))
    w, v = w / w.sum(), v / v.sum()
    c = np.concatenate([(1 - alpha) * w, alpha * v])
    v = np.concatenate([np.zeros(n), v])
    ridges = [1e-3, 0.1, 10.0]
    slow = brute_force_loo(phi, c, v, ridges)
    np.testing.assert_allclose(ulsif_loo(phi, c, v, ridges), slow, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", [ULSIF, RULSIF])
def test_scores_of_fit_equal_brute_force(kind: type[ULSIF] | type[RULSIF]) -> None:
    """The whole fit, duplicates included: streamed scores against a loop over given rows."""
    rng = np.random.default_rng(3)
    source, target = rng.normal(size=(14, 2)), rng.normal(size=(9, 2)) + 0.7
    source, target = source[rng.integers(0, 14, 30)], target[rng.integers(0, 9, 17)]
    est = kind(n_centers=6, bandwidths=[0.7, 1.5], ridges=[0.01, 0.3]).fit(
        source=source, target=target
    )
    alpha = getattr(est, "alpha", 0.0)
    units = Units.of(Sample.of(source), Sample.of(target))
    zs, zt = units(source), units(target)
    median = est.bandwidth_ / (0.7 if est.bandwidth_ == _widths(est, source, target)[0] else 1.5)
    n_distinct = len(np.unique(source, axis=0))
    for k, width in enumerate([0.7 * median, 1.5 * median]):
        fs, ft = (gaussian(squared_distances(z, est.centers_), width) for z in (zs, zt))
        for j, ridge in enumerate([0.01, 0.3]):
            rs = [_without(fs, ft, zs, zt, i, None, alpha, ridge) for i in range(len(zs))]
            rt = [_without(fs, ft, zs, zt, None, i, alpha, ridge) for i in range(len(zt))]
            cap = n_distinct / (1 - alpha + alpha * n_distinct)
            rs = np.clip(rs, FLOOR, cap)
            rt = np.clip(rt, FLOOR, rs.max() if alpha == 0 else cap)
            loss = np.mean((1 - alpha) / 2 * rs**2) + np.mean(alpha / 2 * rt**2 - rt)
            assert est.loo_scores_[k, j] == pytest.approx(loss, abs=1e-8)


def _widths(est: ULSIF | RULSIF, source: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    s, t = Sample.of(source), Sample.of(target)
    units = Units.of(s, t)
    median = median_distance(est.centers_, units.read(s)[0], units.read(t)[0])
    return 0.7 * median, 1.5 * median


def _without(
    fs: np.ndarray,
    ft: np.ndarray,
    zs: np.ndarray,
    zt: np.ndarray,
    i: int | None,
    j: int | None,
    alpha: float,
    ridge: float,
) -> float:
    """Prediction for source row i (or target row j) when it and all its copies are left out."""
    cs = np.full(len(zs), (1 - alpha) / len(zs))
    ct = np.full(len(zt), alpha / len(zt))
    v = np.full(len(zt), 1.0 / len(zt))
    if i is not None:
        cs[(zs == zs[i]).all(axis=1)] = 0.0
        row = fs[i]
    else:
        copies = (zt == zt[j]).all(axis=1)
        ct[copies] = v[copies] = 0.0
        row = ft[j]
    total = cs.sum() + ct.sum()
    H = (fs.T * cs @ fs + ft.T * ct @ ft) / total
    theta = np.linalg.solve(H + ridge * np.eye(H.shape[0]), v @ ft / v.sum())
    return float(row @ theta)


def test_left_out_row_of_a_law_with_one_row_is_kept() -> None:
    phi = np.array([[1.0, 0.2], [0.3, 1.0]])
    c, v = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    out = ulsif_loo(phi, c, v, [0.5])
    theta = np.linalg.solve(np.outer(phi[0], phi[0]) + 0.5 * np.eye(2), phi[1])
    np.testing.assert_allclose(out[:, 0], phi @ theta)


def test_slack_zero_takes_the_lowest_score_and_slack_a_simpler_fit() -> None:
    source, target = shifted(400, 400)
    lowest = ULSIF(slack=0.0).fit(source=source, target=target)
    assert lowest.loo_score_ == lowest.loo_scores_.min()
    loose = ULSIF(slack=2.0).fit(source=source, target=target)
    assert loose.loo_score_ >= lowest.loo_score_


# ------------------------------------------------------------------------- optimality conditions


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
    for _ in range(3000):  # the slow twin: plain EM
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
        found = duality_gap(beta, gradient, weight, 3.0, low, high)
        assert found == pytest.approx((weight * gradient) @ beta - lp.fun, abs=1e-9)


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


# ------------------------------------------------------------------------------------------- laws


@every
def test_order_and_copies_of_rows_change_nothing(kind: type[RatioEstimator]) -> None:
    source, target = shifted(150, 120, d=2)
    rng = np.random.default_rng(0)
    plain = kind().fit(source=source, target=target).log_ratio(source)
    shuffled = kind().fit(source=rng.permutation(source), target=rng.permutation(target))
    doubled = kind().fit(source=np.concatenate([source] * 2), target=np.concatenate([target] * 3))
    np.testing.assert_allclose(shuffled.log_ratio(source), plain, atol=1e-8)
    np.testing.assert_allclose(doubled.log_ratio(source), plain, atol=1e-6)


@every
def test_units_of_columns_change_nothing(kind: type[RatioEstimator]) -> None:
    source, target = shifted(150, 120, d=2)
    plain = kind().fit(source=source, target=target).log_ratio(source)
    scale, move = np.array([1e6, 1e-3]), np.array([5.0, -0.1])
    other = kind().fit(source=source * scale + move, target=target * scale + move)
    np.testing.assert_allclose(other.log_ratio(source * scale + move), plain, atol=1e-5)


@every
def test_several_laws_add_up(kind: type[RatioEstimator]) -> None:
    source, target = shifted(150, 120, d=2)
    a, b = target[:60], target[60:]
    together = kind().fit(source=source, target=target).log_ratio(source)
    laws = kind().fit(source=source, target={"a": a, "b": b})
    turned = kind().fit(source=source, target={"b": np.concatenate([b, b]), "a": a})
    np.testing.assert_allclose(laws.log_ratio(source), together + math.log(2.0), atol=1e-6)
    np.testing.assert_allclose(turned.log_ratio(source), laws.log_ratio(source), atol=1e-6)


@every
def test_types_and_shapes(kind: type[RatioEstimator]) -> None:
    source, target = shifted(80, 80, d=4)
    est = kind().fit(source=source, target=target)
    assert est.log_ratio(source).dtype == np.float64
    assert est.log_ratio(source.astype(np.float32)).dtype == np.float64
    tensor = est.log_ratio(torch.as_tensor(source))
    assert tensor.dtype == torch.float64
    np.testing.assert_array_equal(tensor.numpy(), est.log_ratio(source))
    image = kind().fit(source=source.reshape(-1, 2, 2), target=target.reshape(-1, 2, 2))
    np.testing.assert_allclose(image.log_ratio(source.reshape(-1, 2, 2)), est.log_ratio(source))
    assert math.isfinite(est.score(source=source, target=target))


@every
def test_seed_and_clone(kind: type[RatioEstimator]) -> None:
    source, target = shifted(300, 300, d=2)
    make: Callable[[int], RatioEstimator] = lambda seed: kind(n_centers=20, seed=seed)  # noqa: E731
    one = make(0).fit(source=source, target=target).log_ratio(source)
    same = clone(make(0)).fit(source=source, target=target).log_ratio(source)
    other = make(1).fit(source=source, target=target).log_ratio(source)
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-6


@every
def test_far_and_odd_rows_stay_finite(kind: type[RatioEstimator]) -> None:
    rng = np.random.default_rng(0)
    source, target = shifted(100, 100, d=2)
    est = kind().fit(source=source, target=target)
    assert np.isfinite(est.log_ratio(np.array([[1e9, -1e9], [0.0, 1e300]]))).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedshiftWarning)
        apart = kind().fit(source=source, target=target + 1e3)
        assert np.isfinite(apart.log_ratio(np.concatenate([source, target + 1e3]))).all()
        constant = np.column_stack([source, np.full(100, 1e9)])
        other = np.column_stack([target, np.full(100, 1e9)])
        got = kind().fit(source=constant, target=other).log_ratio(constant)
        np.testing.assert_allclose(got, est.log_ratio(source), atol=1e-6)
        few = kind().fit(source=rng.integers(0, 2, 50), target=rng.integers(0, 2, 80))
        assert np.isfinite(few.log_ratio([[0], [1]])).all()
        single = kind().fit(source=np.array([0.0, 0.0]), target=np.array([0.0, 1.0]))
        assert np.isfinite(single.log_ratio([[0.0], [1.0]])).all()


def test_two_states_are_recovered() -> None:
    source = np.repeat([0.0, 1.0], [500, 500])
    target = np.repeat([0.0, 1.0], [900, 100])
    for est in (
        ULSIF(bandwidths=0.1, ridges=1e-6, slack=0.0),
        RULSIF(bandwidths=0.1, ridges=1e-6, slack=0.0),
        KLIEP(bandwidths=0.1),
        KMM(bandwidths=0.1, smoothing=0.1, tol=1e-8),
    ):
        est.fit(source=source, target=target)
        np.testing.assert_allclose(est.ratio([[0.0], [1.0]]), [1.8, 0.2], rtol=0.02)


# ----------------------------------------------------------------------------- parameters and size


@pytest.mark.parametrize(
    ("est", "name"),
    [
        (ULSIF(n_centers=0), "n_centers"),
        (ULSIF(n_centers=2.5), "n_centers"),  # type: ignore[arg-type]
        (ULSIF(bandwidths=[]), "bandwidths"),
        (ULSIF(bandwidths="wide"), "bandwidths"),  # type: ignore[arg-type]
        (ULSIF(ridges=[0.1, -1.0]), "ridges"),
        (ULSIF(slack=-1.0), "slack"),
        (ULSIF(seed=-1), "seed"),
        (RULSIF(alpha=1.0), "alpha"),
        (RULSIF(alpha=-0.1), "alpha"),
        (KLIEP(folds=1), "folds"),
        (KLIEP(tol=0.0), "tol"),
        (KLIEP(max_rows=1), "max_rows"),
        (KMM(bound=0.5), "bound"),
        (KMM(eps=-1.0), "eps"),
        (KMM(smoothing=0.0), "smoothing"),
        (KMM(tol=-1.0), "tol"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(est: RatioEstimator, name: str) -> None:
    source, target = shifted(20, 20)
    with pytest.raises(InputError, match=rf"^{name} must .*; got"):
        est.fit(source=source, target=target)


@pytest.mark.parametrize("kind", [KLIEP, KMM])
def test_row_cap_keeps_the_answer(kind: type[KLIEP] | type[KMM]) -> None:
    source, target = shifted(3000, 3000)
    est = kind(max_rows=800).fit(source=source, target=target)
    x = np.linspace(-0.5, 1.5, 21)
    assert np.abs(est.log_ratio(x) - (x - 0.5)).max() < 0.6


def test_ulsif_memory_does_not_hold_rows_by_rows() -> None:
    source, target = shifted(20_000, 20_000, d=10)
    tracemalloc.start()
    try:
        est = ULSIF().fit(source=source, target=target)
        est.log_ratio(source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64e6  # one n × n matrix would be 3.2e9, one n × b matrix 16e6


def test_draw_follows_the_weights_and_blocks_cover() -> None:
    rng = np.random.default_rng(0)
    weight = np.array([0.7, 0.2, 0.1])
    first = [draw(weight, 1, rng)[0] for _ in range(3000)]
    np.testing.assert_allclose(np.bincount(first) / 3000, weight, atol=0.03)
    assert sorted(draw(weight, 9, rng)) == [0, 1, 2]
    assert [i for b in kernel_blocks(1000, 500) for i in range(1000)[b]] == list(range(1000))
