"""ULSIF and RULSIF: against truth and against brute force."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch

from fedshift.core.kernel import FLOOR, Units, gaussian, median_distance, squared_distances
from fedshift.core.samples import Sample
from fedshift.ratio.ulsif import RULSIF, ULSIF, KernelSpectrum


def shifted(n: int, m: int, *, d: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(m, d)) + 1.0 / math.sqrt(d)


@pytest.mark.parametrize(("alpha", "pearson", "kl"), [(0.0, 0.9368, 0.9175), (0.1, 0.6751, 0.7503)])
def test_relative_divergences_of_two_gaussians(alpha: float, pearson: float, kl: float) -> None:
    # standard deviations 1/8 and 1/2; first the stated values themselves, by quadrature
    x = np.linspace(-4.0, 4.0, 80_001)
    p, q = (np.exp(-0.5 * (x / s) ** 2) / (s * math.sqrt(2 * math.pi)) for s in (0.125, 0.5))
    mix = alpha * p + (1 - alpha) * q
    dx = x[1] - x[0]
    assert 0.5 * np.sum(mix * (p / mix - 1) ** 2) * dx == pytest.approx(pearson, abs=1e-4)
    assert np.sum(p * np.log(np.maximum(p, 1e-300) / mix)) * dx == pytest.approx(kl, abs=1e-4)
    divergences, logs = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        source, target = rng.normal(0, 0.5, 5000), rng.normal(0, 0.125, 5000)
        est = RULSIF(alpha=alpha).fit(source=source, target=target)
        divergences.append(est.divergence_)
        logs.append(est.relative_log_ratio(rng.normal(0, 0.125, 20_000)).mean())
    assert np.mean(divergences) == pytest.approx(pearson, abs=0.04)
    assert np.mean(logs) == pytest.approx(kl, abs=0.03)


def test_relative_pearson_of_equal_distributions_is_zero() -> None:
    rng = np.random.default_rng(0)
    est = RULSIF().fit(source=rng.normal(size=(1000, 2)), target=rng.normal(size=(1000, 2)))
    divergence = est.divergence_
    assert abs(divergence) < 0.02


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


def left_out(phi: np.ndarray, c: np.ndarray, v: np.ndarray, ridges: list[float]) -> np.ndarray:
    spectrum = KernelSpectrum.of((phi * c[:, None]).T @ phi, phi.T @ v)
    return spectrum.leave_one_out(phi, c, v, np.asarray(ridges))


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
    np.testing.assert_allclose(left_out(phi, c, v, ridges), slow, rtol=0, atol=1e-8)


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
    for k, width in enumerate([0.7 * median, 1.5 * median]):
        fs, ft = (gaussian(squared_distances(z, est.centers_), width) for z in (zs, zt))
        for j, ridge in enumerate([0.01, 0.3]):
            rs = [_without(fs, ft, zs, zt, i, None, alpha, ridge) for i in range(len(zs))]
            rt = [_without(fs, ft, zs, zt, None, i, alpha, ridge) for i in range(len(zt))]
            cap = len(source) / (1 - alpha + alpha * len(source))
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
    """Prediction for source row i (or target row j) when that row, not its copies, is left out."""
    cs = np.full(len(zs), (1 - alpha) / len(zs))
    ct = np.full(len(zt), alpha / len(zt))
    v = np.full(len(zt), 1.0 / len(zt))
    if i is not None:
        cs[i] = 0.0
        row = fs[i]
    else:
        ct[j] = v[j] = 0.0
        row = ft[j]
    total = cs.sum() + ct.sum()
    H = (fs.T * cs @ fs + ft.T * ct @ ft) / total
    theta = np.linalg.solve(H + ridge * np.eye(H.shape[0]), v @ ft / v.sum())
    return float(row @ theta)


def test_left_out_row_of_a_distribution_with_one_row_is_kept() -> None:
    phi = np.array([[1.0, 0.2], [0.3, 1.0]])
    c, v = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    out = left_out(phi, c, v, [0.5])
    theta = np.linalg.solve(np.outer(phi[0], phi[0]) + 0.5 * np.eye(2), phi[1])
    np.testing.assert_allclose(out[:, 0], phi @ theta)


def test_slack_zero_takes_the_lowest_score_and_slack_a_simpler_fit() -> None:
    source, target = shifted(400, 400)
    lowest = ULSIF(slack=0.0).fit(source=source, target=target)
    assert lowest.loo_score_ == lowest.loo_scores_.min()
    loose = ULSIF(slack=2.0).fit(source=source, target=target)
    assert loose.loo_score_ >= lowest.loo_score_


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
