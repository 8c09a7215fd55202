"""The one-hot case: exact comparison, printed conditions, and where they part."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from fedshift.errors import InputError
from fedshift.theory import (
    OneHot,
    appendix_example,
    corrected_condition,
    corrected_counterexample,
    fixed_design,
    helpful_weights,
    printed_condition,
    printed_counterexample,
    random_design,
    small_weights_example,
    weighting_helps,
)

distributions = st.lists(st.floats(0.05, 1.0), min_size=2, max_size=4).map(np.array)
parts = st.floats(0.0, 4.0)


@st.composite
def problems(draw: st.DrawFn, *, weights: bool = True) -> OneHot:
    train = draw(distributions)
    d = len(train)
    test = np.array(draw(st.lists(st.floats(0.05, 1.0), min_size=d, max_size=d)))
    some = st.lists(parts, min_size=d, max_size=d)
    return OneHot.of(
        train=train / train.sum(),
        test=test / test.sum(),
        theta=draw(some),
        noise=draw(parts),
        ridge=draw(st.floats(0.05, 5.0)),
        counts=draw(st.lists(st.integers(0, 20), min_size=d, max_size=d)),
        weight=draw(some) if weights else None,
    )


# the exact comparison


def test_the_counterexample_to_the_printed_condition() -> None:
    problem = small_weights_example()
    condition = printed_condition(problem)
    np.testing.assert_allclose(condition.lower, 0.0)
    np.testing.assert_allclose(condition.upper, 1 / 11)
    assert condition.everywhere
    result = weighting_helps(problem)
    assert result.excess == pytest.approx(1 / 1.5**2 + 0.01 * 10 * 0.05**2 / 1.5**2)
    assert result.plain_excess == pytest.approx(1 / 121 + 0.01 * 10 / 121)
    assert f"{result.excess:.3f} {result.plain_excess:.4f}" == "0.445 0.0091"
    assert not result.helps
    assert result.where_not == (0, 1)
    assert "does not help: excess risk 0.445 with weights, 0.00909 without" in result.status
    assert not corrected_condition(problem).holds.any()


@given(problems())
def test_terms_are_those_of_ridge_regression_on_one_hot_rows(problem: OneHot) -> None:
    assert problem.counts is not None
    at = np.repeat(np.arange(len(problem.train)), problem.counts.astype(int))
    assume(len(at))
    options = {"theta": problem.theta, "noise": problem.noise, "ridge": problem.ridge}
    x, result = np.eye(len(problem.train))[at], weighting_helps(problem)
    for weight, distribution, bias, variance in (
        (problem.weight[at], problem.test, result.bias, result.variance),
        (None, problem.test, result.plain_bias, result.plain_variance),
        (None, problem.train, result.printed_plain_bias, result.printed_plain_variance),
    ):
        ridge_risk = fixed_design(x=x, weight=weight, moment=np.diag(distribution), **options)
        assert bias.sum() == pytest.approx(ridge_risk.bias, rel=1e-9, abs=1e-12)
        assert variance.sum() == pytest.approx(ridge_risk.variance, rel=1e-9, abs=1e-12)
    assert result.gain.sum() == pytest.approx(result.plain_excess - result.excess, abs=1e-9)


def random_problem(n: int) -> OneHot:
    return OneHot.of(
        train=[0.6, 0.3, 0.1],
        test=[0.1, 0.3, 0.6],
        theta=[1.0, -1.0, 2.0],
        noise=0.5,
        ridge=1.5,
        n=n,
    )


def test_random_design_against_all_designs() -> None:
    problem, n = random_problem(4), 4
    result = weighting_helps(problem)
    bias = variance = plain = 0.0
    for states in product(range(3), repeat=n):
        chance = float(np.prod(problem.train[list(states)]))
        counts = np.bincount(states, minlength=3)
        each = weighting_helps(
            OneHot.of(
                train=problem.train, test=problem.test, theta=problem.theta, noise=0.5, ridge=1.5,
                counts=counts,
            )
        )  # fmt: skip
        bias, variance = bias + chance * each.bias, variance + chance * each.variance
        plain += chance * each.plain_excess
    np.testing.assert_allclose(result.bias, bias)
    np.testing.assert_allclose(result.variance, variance)
    assert result.plain_excess == pytest.approx(plain)


def test_random_design_against_drawn_designs() -> None:
    problem = random_problem(30)

    def draw(rng: np.random.Generator) -> tuple:
        at = rng.choice(3, size=30, p=problem.train)
        return np.eye(3)[at], problem.weight[at]

    ridge_risk = random_design(
        draw=draw, theta=problem.theta, noise=0.5, ridge=1.5, moment=np.diag(problem.test),
        designs=2000,
    )  # fmt: skip
    result = weighting_helps(problem)
    assert abs(result.bias.sum() - ridge_risk.bias) < 4 * ridge_risk.bias_error
    assert abs(result.variance.sum() - ridge_risk.variance) < 4 * ridge_risk.variance_error


@given(problems())
def test_helpful_weights_are_exactly_those_that_do_no_harm(problem: OneHot) -> None:
    result = helpful_weights(problem)
    for w in (*np.linspace(0.0, 4.0, 9), 50.0, 1e4):
        gain = weighting_helps(OneHot.of(**{**vars(problem), "weight": w})).gain
        scale = 1e-9 * (1.0 + problem.theta**2 + problem.noise)
        inside = (result.low <= w) & (w <= result.high)
        assert (gain[inside] >= -scale[inside]).all()
        assert (gain[~inside] <= scale[~inside]).all()
    assert ((result.low <= 1.0) & (result.high >= 1.0)).all()


def test_the_best_weight_is_found_by_search() -> None:
    problem = OneHot.of(
        train=[0.5, 0.5], test=[0.2, 0.8], theta=[1.0, 0.5], noise=1.5, ridge=2.0, counts=[6, 9]
    )

    def excess(w: float, i: int) -> float:
        weight = np.ones(2)
        weight[i] = w
        return weighting_helps(OneHot.of(**{**vars(problem), "weight": weight})).excess

    result = helpful_weights(problem)
    for i in range(2):
        best = minimize_scalar(excess, bounds=(0, 50), args=(i,), method="bounded").x
        assert result.best[i] == pytest.approx(best, rel=1e-3)
        other = result.low[i] if result.high[i] == 1.0 else result.high[i]
        assert other != 1.0
        assert excess(float(other), i) == pytest.approx(excess(1.0, i))
    # the unit of the labels does not matter
    small = OneHot.of(**{**vars(problem), "theta": problem.theta / 100, "noise": 1.5e-4})
    for name in ("low", "high", "best"):
        np.testing.assert_allclose(getattr(helpful_weights(small), name), getattr(result, name))


def test_edges_of_helpful_weights() -> None:
    base = {"train": [0.5, 0.5], "test": [0.5, 0.5], "ridge": 1.0}
    silent = helpful_weights(OneHot.of(**base, theta=1.0, noise=0.0, counts=3))
    assert silent.low.tolist() == [1.0, 1.0]
    assert np.isinf(silent.high).all()
    assert np.isinf(silent.best).all()
    nothing = helpful_weights(OneHot.of(**base, theta=0.0, noise=1.0, counts=3))
    assert nothing.low.tolist() == [0.0, 0.0]
    assert nothing.high.tolist() == [1.0, 1.0]
    empty = helpful_weights(OneHot.of(**base, theta=1.0, noise=1.0, counts=[0, 3]))
    assert (empty.low[0], empty.high[0]) == (0.0, math.inf)
    assert np.isnan(empty.best[0])
    assert repr(nothing) == "HelpfulWeights([0, 1], [0, 1])"


# the conditions of the paper


@given(problems(weights=False))
def test_the_density_ratio_never_meets_the_printed_condition_everywhere(problem: OneHot) -> None:
    assert problem.counts is not None
    assume(problem.counts.any())
    assert not printed_condition(problem).everywhere
    s = np.sqrt(problem.test / problem.train)
    xi = problem.ridge / (problem.ridge + problem.counts)
    met = printed_condition(problem).holds
    clear = np.abs(s**3 / xi - 1) > 1e-9
    np.testing.assert_array_equal(met[clear], (s**3 <= xi)[clear])


@given(problems())
def test_corrected_conditions_compare_term_by_term(problem: OneHot) -> None:
    """Bias and variance against ERM on training rows, as the paper's proofs have it."""
    assume((problem.theta > 0.01).all() and problem.noise > 0.01)
    result = weighting_helps(problem)
    change = result.bias / result.printed_plain_bias - 1
    with np.errstate(invalid="ignore"):
        noise = np.nan_to_num(result.variance / result.printed_plain_variance - 1)
    clear = (np.abs(change) > 1e-9) & ((np.abs(noise) > 1e-9) | (problem.counts == 0))
    no_more, no_less = (change <= 0) & (noise <= 0), (change >= 0) & (noise >= 0)
    np.testing.assert_array_equal(corrected_condition(problem).holds[clear], no_more[clear])
    np.testing.assert_array_equal(corrected_counterexample(problem).holds[clear], no_less[clear])


@given(problems())
def test_on_test_rows_no_weight_but_one_lowers_both_terms(problem: OneHot) -> None:
    result = weighting_helps(problem)
    assert problem.counts is not None
    both = (result.bias < result.plain_bias) & (result.variance < result.plain_variance)
    assert not both.any()


def test_without_rows_the_conditions_know_no_variance() -> None:
    options = {"theta": 1.0, "noise": 1.0, "ridge": 1.0, "counts": 0, "weight": 7.0}
    same = OneHot.of(train=[0.5, 0.5], test=[0.5, 0.5], **options)
    assert corrected_condition(same).everywhere
    assert corrected_counterexample(same).everywhere
    shifted = OneHot.of(train=[0.4, 0.6], test=[0.6, 0.4], **options)
    assert corrected_condition(shifted).holds.tolist() == [False, True]
    assert corrected_counterexample(shifted).holds.tolist() == [True, False]


def test_the_appendix_holds_with_little_noise_and_fails_with_much() -> None:
    quiet, loud = appendix_example(), appendix_example(noise=10.0)
    s, xi = np.sqrt([2 / 3, 3 / 2]), np.array([0.5, 0.6])
    limit = np.minimum(1 / ((s - 1) / xi + 1), s + np.array([1.0, 1.5]) * (s - 1))
    for problem in (quiet, loud):
        printed = printed_counterexample(problem)
        np.testing.assert_allclose(printed.upper, limit)
        assert printed.everywhere
    assert not weighting_helps(quiet).helps
    result = weighting_helps(loud)
    assert result.helps
    # also against ERM as the paper measures it
    assert result.excess < (result.printed_plain_bias + result.printed_plain_variance).sum()
    assert corrected_counterexample(loud).where_not == (0, 1)


def test_the_premise_of_the_appendix_counts() -> None:
    problem = OneHot.of(
        train=[0.9, 0.1],
        test=[0.1, 0.9],
        theta=1.0,
        noise=1.0,
        ridge=1.0,
        counts=[9, 1],
        weight=0.1,
    )
    assert printed_counterexample(problem).holds.tolist() == [False, True]  # s = 1/3 < .9
    assert "1 of 2" in repr(printed_counterexample(problem))


def test_weights_can_help() -> None:
    """A strong ridge, and test rows where training rows are few."""
    result = weighting_helps(
        OneHot.of(train=[0.9, 0.1], test=[0.1, 0.9], theta=1.0, noise=0.1, ridge=10.0, n=50)
    )
    assert result.helps
    assert result.excess < result.plain_excess / 3
    assert result.where_not == (0,)


def test_bad_input_is_named() -> None:
    good = {
        "train": [0.5, 0.5], "test": [0.5, 0.5], "theta": 1.0, "noise": 1.0, "ridge": 1.0,
        "counts": 3,
    }  # fmt: skip
    for change, words in (
        ({"train": [0.5, 0.4]}, "train must sum to one; got 0.9"),
        ({"train": [1.0, 0.0]}, "train must be above 0; got 0.0 in place 1"),
        ({"test": [1.0]}, "test must be numbers of shape"),
        ({"ridge": 0.0}, "ridge must be a number above 0"),
        ({"n": 5}, "either counts"),
        ({"counts": None}, "either counts"),
        ({"counts": [1, -1]}, "counts must be of at least 0"),
        ({"weight": [1, 2, 3]}, "weight must be numbers of shape"),
        ({"theta": "many"}, "theta must hold numbers"),
    ):
        with pytest.raises(InputError, match=words):
            OneHot.of(**{**good, **change})
    with pytest.raises(InputError, match="give counts instead"):
        printed_condition(OneHot.of(**{**good, "counts": None, "n": 5}))
