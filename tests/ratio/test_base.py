"""What all estimators do with a ratio, shown on known distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from known_distributions import Exact
from scipy.stats import norm

from fedshift.errors import RatioDirection


def density(mean: float):
    return lambda x: norm(mean).logpdf(x[:, 0])


def test_sum_over_distributions() -> None:
    x = np.linspace(-1, 1, 5)
    r = Exact(density(0), (density(1), density(-1))).fit(source=x, target={"a": x, "b": x})
    np.testing.assert_allclose(r.log_ratio(x), np.logaddexp(x - 0.5, -x - 0.5))
    out = r.log_ratio(torch.tensor(x))
    assert isinstance(out, torch.Tensor)


def test_mean_ratio_on_source_is_the_number_of_distributions() -> None:
    x = np.random.default_rng(0).normal(size=100_000)
    r = Exact(density(0), (density(0.5), density(-0.5)))
    r.fit(source=x, target={"a": x + 0.5, "b": x - 0.5})
    assert r.ratio(x).mean() == pytest.approx(2.0, abs=0.02)


def test_swapped_samples_are_noticed() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, 500), rng.normal(1, 1, 500)
    r = Exact(density(0), (density(1),))
    r.fit(source=a, target=b)
    with pytest.warns(RatioDirection, match="swapped"):
        r.fit(source=b, target=a)
