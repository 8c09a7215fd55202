from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import kstest

from fedshift.diagnose.encode import Features, encode, features
from fedshift.diagnose.significance import ENOUGH, FitStatistic, draws_for, significance


def permuting(response, rng):
    return lambda count: rng.permuted(np.repeat(response[:, None], count, axis=1), axis=0)


def p_value(x, target, rng, draws=199):
    response = target - target.mean()
    fit = FitStatistic.of(features(encode(x)[0]))
    return significance(
        fit, response, permuting(response, rng), draws=draws, variance=float(response.var())
    ).p


def test_p_values_without_shift_are_uniform():
    rng = np.random.default_rng(0)
    target = np.arange(40) >= 15
    values = [p_value(rng.standard_t(1.5, (40, 3)), target, rng) for _ in range(150)]
    assert kstest(values, "uniform").pvalue > 0.001


def test_p_values_without_shift_are_valid_on_few_values():
    rng = np.random.default_rng(1)
    target = np.arange(30) >= 15
    values = np.array([p_value(rng.integers(0, 2, (30, 2)) * 1.0, target, rng) for _ in range(200)])
    # at most the level, up to three standard errors of 200 repeats
    for level in (0.05, 0.2):
        assert (values <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / 200)


def test_the_p_value_is_that_of_all_permutations():
    x = np.array([0.0, 0.4, 0.1, 2.0, 1.5, 1.7, 0.2])
    target = np.array([0, 0, 0, 1, 1, 1, 0]) == 1
    fit = FitStatistic.of(Features((x - x.mean())[:, None], {"linear": np.arange(1)}))
    # with one feature the statistic is the difference of means
    split = [np.isin(np.arange(7), rows) for rows in itertools.combinations(range(7), 3)]
    gaps = np.array([abs(x[s].mean() - x[~s].mean()) for s in split])
    exact = np.mean(gaps >= abs(x[target].mean() - x[~target].mean()) - 1e-12)
    response = target - target.mean()
    rng = np.random.default_rng(0)
    result = significance(
        fit, response, permuting(response, rng), draws=20_000, variance=float(response.var())
    )
    assert result.p == pytest.approx(exact, rel=0.5)
    assert exact == pytest.approx(1 / 35)  # the three largest are the target


def test_early_stopping_gives_valid_p_values():
    """Besag and Clifford: stopping at the h-th exceedance, p = h / draws is uniform."""
    rng = np.random.default_rng(2)
    fit = FitStatistic.of(Features(np.linspace(-1, 1, 20)[:, None], {"linear": np.arange(1)}))
    response = np.repeat([-0.5, 0.5], 10)
    values = []
    for _ in range(200):
        observed = rng.permutation(response)
        result = significance(fit, observed, permuting(response, rng), draws=999, variance=0.25)
        values.append(result.p)
        assert result.draws == 999 or result.p == ENOUGH / result.draws
    assert np.mean(np.array(values) <= 0.1) <= 0.1 + 3 * 0.0212


def test_constant_columns_are_not_significant():
    response = np.repeat([-0.5, 0.5], 10)
    fit = FitStatistic.of(features(encode(np.ones((20, 3)))[0]))
    draw = permuting(response, np.random.default_rng(0))
    assert significance(fit, response, draw, draws=99, variance=0.25).p == 1.0


def test_draws_suffice_for_every_test_at_once():
    for tests in (1, 7, 100):
        assert tests / (1 + draws_for(tests, 0.025)) <= 0.025 / 2 + 1e-12
