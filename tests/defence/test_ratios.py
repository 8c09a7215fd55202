"""Ratios with one law made up: what it may do, and what honest laws keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedshift.core.weights import effective_sample_size
from fedshift.defence.ratios import (
    RatioDefence,
    check_law,
    defend_log_ratios,
    defend_normalisers,
    defend_weights,
    label_log_ratios,
)
from fedshift.errors import InputError

OFF = RatioDefence(multiple=None, mass=None, winsorise=None, min_ess=None)


def honest(seed: int = 0, laws: int = 4, n: int = 500) -> dict[str, np.ndarray]:
    """Exact ratios N(m_l, 1) against N(0, 1) at rows of the latter."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return {f"c{l}": m * x - m * m / 2 for l, m in enumerate(np.linspace(-1, 1, laws))}


def aimed(n: int = 500, row: int = 3) -> np.ndarray:
    out = np.full(n, -8.0)
    out[row] = math.log(n)
    return out


def test_without_limits_it_is_the_sum() -> None:
    laws = honest()
    s, report = defend_log_ratios(laws, OFF)
    np.testing.assert_allclose(np.exp(s), np.exp(list(laws.values())).sum(axis=0), rtol=1e-12)
    assert report.limited == []
    w = defend_weights(s, OFF, laws=4)
    np.testing.assert_allclose(w.values, np.exp(s))


def test_limits_leave_honest_laws_as_they_are() -> None:
    laws = honest()
    s, report = defend_log_ratios(laws)
    np.testing.assert_allclose(s, defend_log_ratios(laws, OFF)[0], rtol=0, atol=1e-12)
    assert report.limited == []
    plain, kept = defend_weights(s, OFF, laws=4), defend_weights(s, laws=4)
    assert kept.exponent == 1.0
    assert (plain.values != kept.values).sum() <= 1  # the one row above the quantile


def test_a_law_aimed_at_one_row_is_limited() -> None:
    laws = {**honest(), "bad": aimed()}
    open_, _ = defend_log_ratios(laws, OFF)
    s, report = defend_log_ratios(laws)
    assert report.limited == ["bad"]
    assert report.laws["bad"].cut == 1
    w = defend_weights(s, laws=5)
    clean = defend_weights(defend_log_ratios(honest(), OFF)[0], OFF, laws=4)
    # about 1 / α² with α = 1/5 of the mass on one row; the limits bring nearly all rows back
    assert defend_weights(open_, OFF, laws=5).ess < 30
    assert w.ess > 0.8 * clean.ess
    others = np.arange(500) != 3
    np.testing.assert_allclose(w.values[others], clean.values[others], rtol=0.05, atol=0.01)


@given(st.integers(0, 100), st.floats(-5, 60), st.integers(1, 500))
@example(30, 5.0, 7)
@settings(max_examples=40, deadline=None)
def test_no_law_adds_more_than_it_may(seed: int, size: float, rows: int) -> None:
    laws = honest(seed)
    bad = np.where(np.arange(500) < rows, size, -math.inf)
    s, _ = defend_log_ratios(laws | {"bad": bad})
    tops = sorted(np.exp(r.max()) for r in [*laws.values(), bad])
    limit = 10 * max(1.0, tops[2])  # of five; a loud law may move it up to the next honest one
    others = [np.minimum(np.exp(r), limit) for r in laws.values()]
    added = np.exp(s) - sum(r * min(1.0, 2 / r.mean()) for r in others)
    assert limit <= 10 * max(np.exp(r.max()) for r in laws.values())
    assert added.max() <= limit * (1 + 1e-9)
    assert added.mean() <= 2 * (1 + 1e-9)
    assert added.min() >= -1e-9 * limit


def test_mass_is_limited_because_the_truth_has_at_most_one() -> None:
    laws = honest()
    loud = {**laws, "c0": laws["c0"] + 2.0}
    s, report = defend_log_ratios(loud, RatioDefence(multiple=None))
    mean = float(np.exp(report.laws["c0"].mean))
    assert mean > 5
    assert report.laws["c0"].scaled == pytest.approx(2 / mean)
    rest, _ = defend_log_ratios({n: r for n, r in laws.items() if n != "c0"}, OFF)
    assert (np.exp(s) - np.exp(rest)).mean() == pytest.approx(2.0)


def test_the_shift_of_a_client_whose_rows_nobody_else_meets_is_kept() -> None:
    """Every site is used on two classes of ten; this one has the rows of the first two."""
    eps, laws = 1e-4, {}
    for k in range(5):
        law = np.full(10, eps)
        law[2 * k : 2 * k + 2] = (0.9, 0.1) if k == 0 else (0.5, 0.5)
        laws[f"c{k}"] = law / law.sum()
    y = np.repeat([0, 1], 500)
    told, _ = label_log_ratios(laws, np.array([0.5, 0.5, *[0.0] * 8]), y)
    s, report = defend_log_ratios(told)
    np.testing.assert_allclose(s, defend_log_ratios(told, OFF)[0], rtol=1e-12)
    assert report.limited == []
    # and where there are two, one that has no mass there at all
    two = {"honest": told["c0"], "bad": np.full(1000, -50.0)}
    np.testing.assert_allclose(defend_log_ratios(two)[0], told["c0"])


@given(st.integers(0, 1000), st.integers(1, 7), st.sampled_from(["median", "trimmed"]))
@settings(max_examples=40, deadline=None)
def test_median_and_trimmed_against_numpy(seed: int, count: int, how: str) -> None:
    rng = np.random.default_rng(seed)
    laws = {str(l): rng.normal(size=20) for l in range(count)}
    s, _ = defend_log_ratios(
        laws,
        RatioDefence(how=how, trim=0.2, multiple=None, mass=None),  # type: ignore[arg-type]
    )
    r = np.sort(np.exp(list(laws.values())), axis=0)
    if how == "median":
        truth = count * np.median(r, axis=0)
    else:
        cut = int(0.2 * count + 1e-9)
        truth = count * r[cut : count - cut].mean(axis=0)
    np.testing.assert_allclose(np.exp(s), truth, rtol=1e-10)


def test_median_of_like_laws_survives_one_liar_and_forgets_lone_classes() -> None:
    same = {str(l): np.linspace(-1, 1, 50) for l in range(4)}
    median = RatioDefence(how="median", multiple=None, mass=None)
    s, _ = defend_log_ratios(same | {"bad": np.full(50, 30.0)}, median)
    np.testing.assert_allclose(s, np.linspace(-1, 1, 50) + math.log(5))
    # five classes, each met by one client only: the price named in the documentation
    table = np.where(np.eye(5) == 1, math.log(5), -math.inf)
    s, _ = defend_log_ratios({str(l): row for l, row in enumerate(table)}, median)
    assert (s == -math.inf).all()


def test_laws_that_are_not_numbers_are_left_out() -> None:
    laws = honest()
    s, report = defend_log_ratios({**laws, "bad": np.full(500, math.nan)})
    np.testing.assert_array_equal(s, defend_log_ratios(laws)[0])
    assert "NaN" in report.left_out["bad"]
    assert "left out bad" in repr(report)
    with pytest.raises(InputError, match="no test law"):
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
    w = defend_weights(s, defence)
    assert effective_sample_size(w.values) >= defence.floor(300) * (1 - 1e-9)


def test_normalisers_cannot_buy_a_larger_part() -> None:
    said = [3.0, 1e9, -2.0, math.inf, math.nan]
    np.testing.assert_array_equal(defend_normalisers(said, laws=5), [3, 4.5, 0, 0, 0])
    assert defend_normalisers([1e9], OFF).tolist() == [1e9]
    assert defend_normalisers([1e9], laws=3).tolist() == [6.0]
    assert defend_normalisers([], laws=3).tolist() == []


@given(st.integers(3, 9), st.floats(0.01, 5), st.floats(0, 1e300))
@settings(max_examples=60, deadline=None)
def test_a_boasting_client_weighs_what_the_text_says(count: int, mean: float, said: float) -> None:
    m = defend_normalisers([*[mean] * (count - 1), said], laws=count)
    assert m[-1] / m.sum() <= 1.5 / (count - 1 + 1.5) + 1e-9
    if count > 3:
        np.testing.assert_array_equal(m[:-1], min(mean, 2 * count))


@pytest.mark.parametrize("said", [0.0, 5e-324, 1e-30, 1e-3, 1e9])
def test_one_of_two_cannot_make_all_parts_vanish(said: float) -> None:
    m = defend_normalisers([2.0, said], laws=2)
    assert m.sum() >= 1e-6
    assert m[1] / m.sum() <= 0.6 + 1e-9


def test_floors() -> None:
    assert RatioDefence().floor(100) == 10
    assert RatioDefence().floor(4) == 4
    assert OFF.floor(100) == 0
    uncut = RatioDefence(winsorise=None)
    w = defend_weights(np.array([0.0, 5.0, 0.0, 0.0]), uncut, normalise="mean one")
    np.testing.assert_allclose(w.values, 1.0, atol=1e-6)


def test_label_laws_give_the_table() -> None:
    laws = {"a": [0.9, 0.1], "b": [0.2, 0.8], "bad": [90.0, 10.0], "worse": "text"}
    found, left_out = label_log_ratios(laws, [0.5, 0.5], [0, 1, 1])
    np.testing.assert_allclose(np.exp(found["a"]), [1.8, 0.2, 0.2])
    np.testing.assert_allclose(np.exp(found["b"]), [0.4, 1.6, 1.6])
    assert set(left_out) == {"bad", "worse"}
    assert "sum to 100" in left_out["bad"]


@pytest.mark.parametrize(
    ("law", "reason"),
    [
        ([0.5, 0.5], None),
        ([0.5, 0.25, 0.25], "shape"),
        ([1.5, -0.5], "below 0"),
        ([math.nan, 1.0], "not finite"),
        (["a", "b"], "does not convert"),
        ([0.4, 0.4], "sum to 0.8"),
    ],
)
def test_check_law(law: object, reason: str | None) -> None:
    said = check_law(law, 2)
    assert (said is None) if reason is None else (said is not None and reason in said)


@pytest.mark.parametrize(
    "wrong",
    [
        {"how": "meen"},
        {"trim": 0.5},
        {"multiple": 0},
        {"boast": 0.5},
        {"winsorise": 1.5},
        {"min_rows": 0},
    ],
)
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        RatioDefence(**wrong)  # type: ignore[arg-type]
