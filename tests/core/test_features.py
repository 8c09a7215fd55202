"""Feature maps: scaled, symmetric, bounded memory."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.core.features import NAMES, feature_map, pooled_moments
from fedshift.core.samples import Sample
from fedshift.errors import InputError


def pair() -> tuple[Sample, Sample]:
    rng = np.random.default_rng(0)
    return Sample.of(rng.normal(3, 2, (300, 3))), Sample.of(rng.normal(4, 2, (200, 3)))


def test_moments_are_those_of_the_pooled_rows() -> None:
    s, t = pair()
    pooled = np.concatenate([s.x, t.x])
    mean, sd = pooled_moments(s, t)
    np.testing.assert_allclose(mean, pooled.mean(axis=0))
    np.testing.assert_allclose(sd, pooled.std(axis=0))


def test_moments_survive_large_offsets_and_constants() -> None:
    rng = np.random.default_rng(1)
    x = np.stack([1e8 + rng.normal(size=500), np.full(500, 1e8)], axis=1)
    _, sd = pooled_moments(Sample.of(x))
    assert sd[0] == pytest.approx(1.0, abs=0.1)
    assert sd[1] == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_exchange_spans_the_same_space(name) -> None:
    s, t = pair()
    a, p = feature_map(name, s, t, n_centers=40)
    b, q = feature_map(name, t, s, n_centers=40)
    x = s.x[:20]
    assert p == q == a(x).shape[1]
    np.testing.assert_allclose(a(x) @ a(x).T, b(x) @ b(x).T, atol=1e-6)


def test_products_are_standardised() -> None:
    s, t = pair()
    f, p = feature_map("quadratic", s, t)
    assert p == 3 + 6
    values = np.concatenate([f(s.x), f(t.x)])
    np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(values.std(axis=0), 1, atol=1e-9)


def test_kernel_features_reproduce_the_kernel() -> None:
    # with every row a centre, inner products of features are kernel values
    rng = np.random.default_rng(2)
    s, t = Sample.of(rng.normal(size=(15, 2))), Sample.of(rng.normal(size=(15, 2)))
    f, _ = feature_map("kernel", s, t, width=0.7, n_centers=30)
    g = f(s.x)
    np.testing.assert_allclose(np.square(g).sum(axis=1), 1.0, atol=1e-4)


def test_unknown_name() -> None:
    with pytest.raises(InputError, match="linear, squares, quadratic, kernel"):
        feature_map("cubic", *pair())  # type: ignore[arg-type]
