"""ULSIF, RULSIF, KLIEP and KMM together: against truth and by their distributions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.base import clone

from fedshift.errors import FedshiftWarning, InputError
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.kliep import KLIEP
from fedshift.ratio.kmm import KMM
from fedshift.ratio.ulsif import RULSIF, ULSIF

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


# -------------------------------------------------------------------------------------------
# distributions


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
def test_several_distributions_add_up(kind: type[RatioEstimator]) -> None:
    source, target = shifted(150, 120, d=2)
    a, b = target[:60], target[60:]
    together = kind().fit(source=source, target=target).log_ratio(source)
    distributions = kind().fit(source=source, target={"a": a, "b": b})
    turned = kind().fit(source=source, target={"b": np.concatenate([b, b]), "a": a})
    np.testing.assert_allclose(distributions.log_ratio(source), together + math.log(2.0), atol=1e-6)
    np.testing.assert_allclose(turned.log_ratio(source), distributions.log_ratio(source), atol=1e-6)


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
    with pytest.raises(InputError, match=rf"{name} must .*; got"):
        est.fit(source=source, target=target)


@pytest.mark.parametrize("kind", [KLIEP, KMM])
def test_row_cap_keeps_the_answer(kind: type[KLIEP] | type[KMM]) -> None:
    source, target = shifted(3000, 3000)
    est = kind(max_rows=800).fit(source=source, target=target)
    x = np.linspace(-0.5, 1.5, 21)
    assert np.abs(est.log_ratio(x) - (x - 0.5)).max() < 0.6
