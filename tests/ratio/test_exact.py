"""Known laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedshift.errors import InputError, RatioDirection
from fedshift.ratio import Exact


def density(mean: float):
    return lambda x: norm(mean).logpdf(x[:, 0])


def test_sum_over_laws() -> None:
    r = Exact(density(0), {"a": density(1), "b": density(-1)})
    x = np.linspace(-1, 1, 5)
    np.testing.assert_allclose(r.log_ratio(x), np.logaddexp(x - 0.5, -x - 0.5))
    out = r.log_ratio(torch.tensor(x))
    assert isinstance(out, torch.Tensor)


def test_mean_ratio_on_source_is_the_number_of_laws() -> None:
    x = np.random.default_rng(0).normal(size=100_000)
    r = Exact(density(0), {"a": density(0.5), "b": density(-0.5)})
    assert r.ratio(x).mean() == pytest.approx(2.0, abs=0.02)


def test_swapped_samples_are_noticed() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, 500), rng.normal(1, 1, 500)
    r = Exact(density(0), density(1))
    r.fit(source=a, target=b)
    with pytest.warns(RatioDirection, match="swapped"):
        r.fit(source=b, target=a)


def test_bad_laws() -> None:
    x = np.arange(4.0)
    with pytest.raises(InputError, match="as many laws"):
        Exact(density(0), density(1)).fit(source=x, target={"a": x, "b": x})
    with pytest.raises(InputError, match=r"log_source must give one log density a row"):
        Exact(lambda x: x, density(1)).log_ratio(x)
