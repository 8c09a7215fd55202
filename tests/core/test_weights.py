"""Weights: distributions first, then each option, then warnings and errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.linear_model import LogisticRegression, Ridge

from fedshift import Weighting, effective_sample_size
from fedshift.core.weights import log_share
from fedshift.errors import (
    ClippedWeights,
    FedshiftWarning,
    InputError,
    LargeMeanRatio,
    LowCoverage,
    LowEffectiveSampleSize,
)

logs = arrays(np.float64, st.integers(1, 40), elements=st.floats(-8, 0))


def quiet(weighting: Weighting, s, **kw):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedshiftWarning)
        return weighting(s, **kw)


@given(logs)
def test_plain_weights_are_the_ratios(s: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(quiet(Weighting(), s)), np.exp(s))


@given(logs, st.floats(-3, 3))
def test_mean_one_forgets_a_common_factor(s: np.ndarray, c: float) -> None:
    one = Weighting(normalise="mean one")
    a, b = quiet(one, s), quiet(one, s + c)
    np.testing.assert_allclose(a.values, b.values, rtol=1e-9)
    assert a.mean == pytest.approx(1.0)


@given(logs)
def test_ess_lies_between_one_and_n(s: np.ndarray) -> None:
    w = quiet(Weighting(), s)
    assert 1 - 1e-9 <= w.ess <= len(s) + 1e-9


@given(logs, st.floats(0.05, 1.0))
def test_ess_floor_is_met_by_the_smallest_flattening(s: np.ndarray, share: float) -> None:
    w = quiet(Weighting(min_ess=share), s)
    assert w.ess >= share * len(s) * (1 - 1e-6)
    if w.exponent < 1:  # a little less flattening would miss the floor
        less = np.exp(min(1.0, w.exponent * 1.02 + 1e-6) * s)
        assert effective_sample_size(less) < share * len(s) * (1 + 1e-6)


@given(logs, st.floats(0.1, 10))
def test_clip_is_a_ceiling(s: np.ndarray, clip: float) -> None:
    w = quiet(Weighting(clip=clip), s)
    assert w.max <= clip * (1 + 1e-12)
    assert w.n_clipped == int((np.exp(s) > clip).sum())


def test_weight_two_is_the_row_twice() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    k = rng.integers(1, 4, size=30)
    weighted = Ridge().fit(x, y, sample_weight=quiet(Weighting(), np.log(k)))
    repeated = Ridge().fit(np.repeat(x, k, axis=0), np.repeat(y, k))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-8)


def test_common_factor_keeps_the_optimum() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    y = (x[:, 0] + rng.normal(size=60) > 0).astype(int)
    s = rng.normal(size=60)
    fits = [
        LogisticRegression(C=np.inf, tol=1e-10)
        .fit(x, y, sample_weight=quiet(Weighting(), s + c))
        .coef_
        for c in (-1.0, -2.5)
    ]
    np.testing.assert_allclose(fits[0], fits[1], rtol=1e-4)


def test_winsorise_cuts_at_the_quantile() -> None:
    s = np.log(np.arange(1.0, 101.0) / 100)
    w = Weighting(winsorise=0.98)(s)
    assert w.max == pytest.approx(0.98)
    assert w.n_clipped == 2


def test_flatten_is_a_power_and_zero_forgets() -> None:
    s = np.array([0.0, 1.0, 2.0])
    np.testing.assert_allclose(Weighting(flatten=0.5)(s).values, np.exp(s / 2))
    np.testing.assert_allclose(Weighting(flatten=0.0)(s).values, 1.0)


def test_coverage_counts_distributions_once() -> None:
    # half of the one distribution is out of reach
    with pytest.warns(LowCoverage, match="40%"):
        assert Weighting()(np.log([0.4, 0.4])).coverage == pytest.approx(0.4)
    assert Weighting()(np.log([2.0, 2.0]), n_targets=2).coverage == 1.0


def test_zero_ratio_is_weight_zero() -> None:
    w = Weighting()(np.array([-np.inf, 0.5]))
    assert w.values[0] == 0.0
    assert w.ess == 1.0


def test_huge_ratios_need_a_clip() -> None:
    with pytest.raises(InputError, match="overflows"):
        Weighting()(np.array([800.0, 0.0]))
    steep = np.array([800.0] + [0.0] * 30)
    with pytest.warns(LargeMeanRatio):
        assert Weighting(clip=5.0)(steep).max == 5.0
    with pytest.warns(LargeMeanRatio):
        assert Weighting(min_ess=10)(steep).ess >= 10 * (1 - 1e-6)


def test_warnings_name_what_happened() -> None:
    s = np.append(np.full(99, -8.0), 4.6)
    with pytest.warns(LowEffectiveSampleSize, match="of 100 rows.*clip=, in a fed.* pooling="):
        Weighting()(s)
    with pytest.warns(ClippedWeights, match="50 of 100"):
        Weighting(clip=1.0)(np.log(np.repeat([0.2, 1.5], 50)))


def test_repr_and_tensor() -> None:
    w = Weighting(clip=20.0)(np.log([0.5, 1.0, 1.5]))
    assert repr(w) == "Weights(n=3, mean 1, max 1.5, ESS 2.571, coverage 1.00; unchanged)"
    assert len(w) == 3
    flat = Weighting(normalise="mean one", flatten=0.5)(torch.zeros(4))
    assert flat.changes == "flattened to the power 0.5, scaled to mean one"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([np.nan, 0.0], "got nan in row 0"),
        ([0.0, np.inf], "got inf in row 1"),
        ([], "n ≥ 1"),
        ([[0.0]], "one value per row"),
        (["a"], "numbers"),
        ([-np.inf, -np.inf], "overlap"),
        ([-1e6, -1e6], "underflow"),
    ],
)
def test_bad_log_ratios(values, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Weighting()(values)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"normalise": "sum"}, "normalise"),
        ({"clip": 0.0}, "clip"),
        ({"winsorise": 1.5}, "winsorise"),
        ({"flatten": 2.0}, "flatten"),
        ({"min_ess": -1.0}, "min_ess"),
    ],
)
def test_bad_options(options, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Weighting(**options)


def test_floor_beyond_n_is_refused() -> None:
    with pytest.raises(InputError, match="number of rows 3"):
        Weighting(min_ess=10)(np.zeros(3))
    with pytest.raises(InputError, match="distributions"):
        Weighting()(np.zeros(3), n_targets=0)


def test_shares_by_hand() -> None:
    distributions = np.log([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    np.testing.assert_allclose(np.exp(log_share(distributions, 0, 1.0)), [1.8, 1.0, 0.4])
    np.testing.assert_allclose(np.exp(log_share(distributions, 1, 1.0)), [0.2, 1.0, 1.6])
    np.testing.assert_allclose(np.exp(log_share(distributions, 0, 0.5)), [1.5, 1.0, 2 / 3])
    np.testing.assert_array_equal(log_share(distributions, 0, 0.0), 0.0)


def test_a_neighbour_without_mass_takes_no_share() -> None:
    distributions = np.array([[0.0, -np.inf, 0.0], [0.0, -np.inf, -np.inf]])
    for pooling in (0.3, 1.0):
        np.testing.assert_allclose(np.exp(log_share(distributions, 0, pooling)), [1.5, 3.0])
    with pytest.raises(InputError, match=r"pooling must be an exponent in \[0, 1\]; got 2"):
        log_share(distributions, 0, 2.0)


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.integers(1, 6)),
        elements=st.floats(-300, 300),
    ),
    st.floats(0, 1),
    st.floats(-50, 50),
)
def test_shares_sum_to_the_clients(
    distributions: np.ndarray, pooling: float, offset: float
) -> None:
    clients = distributions.shape[1]
    shares = [np.exp(log_share(distributions, k, pooling)) for k in range(clients)]
    np.testing.assert_allclose(np.sum(shares, axis=0), clients)
    for k, share in enumerate(shares):  # densities are needed up to a factor of the row
        np.testing.assert_allclose(
            share, np.exp(log_share(distributions + offset, k, pooling)), rtol=1e-9
        )


def test_a_coverage_that_is_known_is_taken() -> None:
    with pytest.warns(LowCoverage):
        Weighting()(np.full(20, -5.0))
    assert Weighting()(np.full(20, -5.0), coverage=0.97).coverage == 0.97
