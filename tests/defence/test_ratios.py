"""Ratios with one false distribution: limits on its effect, and no effect on honest ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedshift.core.weights import Weighting, effective_sample_size
from fedshift.defence.ratios import (
    RatioDefence,
    check_label_distribution,
    defend_log_ratios,
    defend_normalisers,
    label_log_ratios,
)
from fedshift.errors import InputError

OFF = RatioDefence(multiple=None, mass=None, winsorise=None, min_ess=None)


def honest(seed: int = 0, distributions: int = 4, n: int = 500) -> dict[str, np.ndarray]:
    """Exact ratios N(m_l, 1) against N(0, 1) at rows of the latter."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return {f"c{l}": m * x - m * m / 2 for l, m in enumerate(np.linspace(-1, 1, distributions))}


def aimed(n: int = 500, row: int = 3) -> np.ndarray:
    out = np.full(n, -8.0)
    out[row] = math.log(n)
    return out


def test_without_limits_it_is_the_sum() -> None:
    distributions = honest()
    s, report = defend_log_ratios(distributions, OFF)
    np.testing.assert_allclose(
        np.exp(s), np.exp(list(distributions.values())).sum(axis=0), rtol=1e-12
    )
    assert report.limited == []
    w = OFF.weighting(500)(s, n_targets=4)
    np.testing.assert_allclose(w.values, np.exp(s))


def test_limits_leave_honest_distributions_as_they_are() -> None:
    distributions = honest()
    s, report = defend_log_ratios(distributions)
    np.testing.assert_allclose(s, defend_log_ratios(distributions, OFF)[0], rtol=0, atol=1e-12)
    assert report.limited == []
    plain, defended = (d.weighting(500)(s, n_targets=4) for d in (OFF, RatioDefence()))
    assert defended.exponent == 1.0
    assert (plain.values != defended.values).sum() <= 1  # the one row above the quantile


def test_a_distribution_aimed_at_one_row_is_limited() -> None:
    distributions = {**honest(), "bad": aimed()}
    open_, _ = defend_log_ratios(distributions, OFF)
    s, report = defend_log_ratios(distributions)
    assert report.limited == ["bad"]
    w = RatioDefence().weighting(500)(s, n_targets=5)
    clean = OFF.weighting(500)(defend_log_ratios(honest(), OFF)[0], n_targets=4)
    # about 1 / α² with α = 1/5 of the mass on one row; the limits bring nearly all rows back
    assert OFF.weighting(500)(open_, n_targets=5).ess < 30
    assert w.ess > 0.8 * clean.ess
    others = np.arange(500) != 3
    np.testing.assert_allclose(w.values[others], clean.values[others], rtol=0.05, atol=0.01)


@given(st.integers(0, 100), st.floats(-5, 60), st.integers(1, 500))
@example(30, 5.0, 7)
@settings(max_examples=40, deadline=None)
def test_no_distribution_adds_more_than_it_may(seed: int, size: float, rows: int) -> None:
    distributions = honest(seed)
    bad = np.where(np.arange(500) < rows, size, -math.inf)
    s, _ = defend_log_ratios(distributions | {"bad": bad})
    tops = sorted(np.exp(r.max()) for r in [*distributions.values(), bad])
    limit = 10 * max(
        1.0, tops[2]
    )  # of five; a loud distribution may move it up to the next honest one
    others = [np.minimum(np.exp(r), limit) for r in distributions.values()]
    added = np.exp(s) - sum(r * min(1.0, 2 / r.mean()) for r in others)
    assert limit <= 10 * max(np.exp(r.max()) for r in distributions.values())
    assert added.max() <= limit * (1 + 1e-9)
    assert added.mean() <= 2 * (1 + 1e-9)
    assert added.min() >= -1e-9 * limit


def test_mass_is_limited_because_the_truth_has_at_most_one() -> None:
    distributions = honest()
    loud = {**distributions, "c0": distributions["c0"] + 2.0}
    s, report = defend_log_ratios(loud, RatioDefence(multiple=None))
    mean = float(np.exp(loud["c0"]).mean())
    assert mean > 5
    assert report.limited == ["c0"]
    rest, _ = defend_log_ratios({n: r for n, r in distributions.items() if n != "c0"}, OFF)
    assert (np.exp(s) - np.exp(rest)).mean() == pytest.approx(2.0)


def test_the_shift_of_a_client_whose_rows_nobody_else_meets_is_kept() -> None:
    """Every site is used on two classes of ten; this one has the rows of the first two."""
    eps, distributions = 1e-4, {}
    for k in range(5):
        distribution = np.full(10, eps)
        distribution[2 * k : 2 * k + 2] = (0.9, 0.1) if k == 0 else (0.5, 0.5)
        distributions[f"c{k}"] = distribution / distribution.sum()
    y = np.repeat([0, 1], 500)
    log_ratios, _ = label_log_ratios(distributions, np.array([0.5, 0.5, *[0.0] * 8]), y)
    s, report = defend_log_ratios(log_ratios)
    np.testing.assert_allclose(s, defend_log_ratios(log_ratios, OFF)[0], rtol=1e-12)
    assert report.limited == []
    # and where there are two, one that has no mass there at all
    two = {"honest": log_ratios["c0"], "bad": np.full(1000, -50.0)}
    np.testing.assert_allclose(defend_log_ratios(two)[0], log_ratios["c0"])


def test_distributions_that_are_not_numbers_are_left_out() -> None:
    distributions = honest()
    s, report = defend_log_ratios({**distributions, "bad": np.full(500, math.nan)})
    np.testing.assert_array_equal(s, defend_log_ratios(distributions)[0])
    assert "NaN" in report.left_out["bad"]
    with pytest.raises(InputError, match="no test distribution"):
        defend_log_ratios({"bad": np.full(5, np.inf)})
    with pytest.raises(InputError, match="shapes"):
        defend_log_ratios({"a": np.zeros(5), "b": np.zeros(6)})


@given(st.integers(0, 1000), st.floats(0, 30))
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("ignore::fedshift.errors.ClippedWeights")
def test_weights_stay_above_the_floor(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    s = spread * rng.normal(size=300)
    s -= np.logaddexp.reduce(s) - math.log(300)
    defence = RatioDefence(min_ess=0.1)
    w = defence.weighting(300)(s)
    assert effective_sample_size(w.values) >= defence.floor(300) * (1 - 1e-9)


def test_normalisers_cannot_buy_a_larger_part() -> None:
    value = [3.0, 1e9, -2.0, math.inf, math.nan]
    np.testing.assert_array_equal(defend_normalisers(value, n_targets=5), [3, 4.5, 0, 0, 0])
    assert defend_normalisers([1e9], OFF).tolist() == [1e9]
    assert defend_normalisers([1e9], n_targets=3).tolist() == [6.0]
    assert defend_normalisers([], n_targets=3).tolist() == []


@given(st.integers(3, 9), st.floats(0.01, 5), st.floats(0, 1e300))
@settings(max_examples=60, deadline=None)
def test_a_boasting_client_weighs_what_the_text_says(count: int, mean: float, value: float) -> None:
    m = defend_normalisers([*[mean] * (count - 1), value], n_targets=count)
    assert m[-1] / m.sum() <= 1.5 / (count - 1 + 1.5) + 1e-9
    if count > 3:
        np.testing.assert_array_equal(m[:-1], min(mean, 2 * count))


@pytest.mark.parametrize("value", [0.0, 5e-324, 1e-30, 1e-3, 1e9])
def test_one_of_two_cannot_make_all_parts_vanish(value: float) -> None:
    m = defend_normalisers([2.0, value], n_targets=2)
    assert m.sum() >= 1e-6
    assert m[1] / m.sum() <= 0.6 + 1e-9


def test_floors() -> None:
    assert RatioDefence().floor(100) == 10
    assert RatioDefence().floor(4) == 4
    assert OFF.floor(100) == 0
    uncut = RatioDefence(winsorise=None)
    w = uncut.weighting(4, Weighting(normalise="mean one"))(np.array([0.0, 5.0, 0.0, 0.0]))
    np.testing.assert_allclose(w.values, 1.0, atol=1e-6)


def test_label_distributions_give_the_table() -> None:
    distributions = {"a": [0.9, 0.1], "b": [0.2, 0.8], "bad": [90.0, 10.0], "worse": "text"}
    by_client, left_out = label_log_ratios(distributions, [0.5, 0.5], [0, 1, 1])
    np.testing.assert_allclose(np.exp(by_client["a"]), [1.8, 0.2, 0.2])
    np.testing.assert_allclose(np.exp(by_client["b"]), [0.4, 1.6, 1.6])
    assert set(left_out) == {"bad", "worse"}
    assert "sum to 100" in left_out["bad"]


@pytest.mark.parametrize(
    ("distribution", "reason"),
    [
        ([0.5, 0.5], None),
        ([0.5, 0.25, 0.25], "shape"),
        ([1.5, -0.5], "below 0"),
        ([math.nan, 1.0], "not finite"),
        (["a", "b"], "does not convert"),
        ([0.4, 0.4], "sum to 0.8"),
    ],
)
def test_check_distribution(distribution: object, reason: str | None) -> None:
    value = check_label_distribution(distribution, 2)
    assert (value is None) if reason is None else (value is not None and reason in value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"multiple": 0},
        {"boast": 0.5},
        {"winsorise": 1.5},
        {"min_rows": 0},
    ],
)
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        RatioDefence(**wrong)  # type: ignore[arg-type]
