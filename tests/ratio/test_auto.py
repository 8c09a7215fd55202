"""Auto: picks the simple model where it suffices, the flexible one where it pays."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedshift.errors import InputError
from fedshift.ratio import Auto


def nmse(weight: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean((weight / weight.mean() - truth / truth.mean()) ** 2))


def test_prefers_the_linear_model_for_a_mean_shift() -> None:
    rng = np.random.default_rng(0)
    r = Auto().fit(source=rng.normal(size=(800, 2)), target=rng.normal(0.7, 1, (800, 2)))
    assert r.choice_ in ("linear", "shared Gaussian")
    assert "simplest member" in r.reason_
    names = [row["name"] for row in r.table_]
    assert names[0] == "none"
    assert {"linear", "boosting", "network", "stack"} <= set(names)


def test_says_no_shift_where_there_is_none() -> None:
    rng = np.random.default_rng(1)
    r = Auto().fit(source=rng.normal(size=(400, 3)), target=rng.normal(size=(400, 3)))
    assert r.choice_ == "none"
    np.testing.assert_array_equal(r.log_ratio(np.zeros((2, 3))), 0.0)


def test_few_shifted_columns_among_many() -> None:
    rng = np.random.default_rng(2)
    scale = np.ones(20)
    scale[:2] = 0.5
    source, target = rng.normal(size=(1500, 20)), rng.normal(size=(1500, 20)) * scale
    x = rng.normal(size=(2000, 20))
    truth = 4 * np.exp(-1.5 * np.square(x[:, :2]).sum(axis=1))
    assert nmse(Auto().fit(source=source, target=target).ratio(x), truth) < 0.05


def test_curved_ratio_needs_the_stack() -> None:
    rng = np.random.default_rng(3)
    pool = rng.uniform(-3, 3, (6000, 2))
    keep = rng.random(6000) < (1 + np.sin(2 * pool[:, 0]) * np.sin(2 * pool[:, 1])) / 2
    r = Auto().fit(source=pool[:1500], target=pool[1500:][keep[1500:]][:1500])
    assert r.choice_ == "stack"
    assert r.reason_.startswith("stack of ")
    x = rng.uniform(-3, 3, (1000, 2))
    truth = 1 + np.sin(2 * x[:, 0]) * np.sin(2 * x[:, 1])
    assert nmse(r.ratio(x), truth) < 0.3 * np.var(truth)


def test_label_shift_of_digits_is_bounded() -> None:
    digits = load_digits()
    rng = np.random.default_rng(4)
    order = rng.permutation(len(digits.target))
    halves = np.array_split(order, 2)
    rows = []
    for half, low in zip(halves, (0.05, 1.0), strict=True):
        keep = np.where(digits.target[half] < 5, low, 1.05 - low)
        rows.append(half[rng.random(len(half)) < keep])
    source, target = (digits.images[i] / 16 for i in rows)
    r = Auto(folds=3).fit(source=source, target=target)
    truth = np.where(digits.target[rows[0]] < 5, np.log(20), -np.log(20))
    log_ratio = r.source_log_ratio_
    assert np.corrcoef(log_ratio, truth)[0, 1] > 0.8
    assert log_ratio.max() < np.log(20) + 1.5  # the truth is bounded, and so is the estimate
    assert nmse(np.exp(log_ratio), np.exp(truth)) < 0.6 * np.var(np.exp(truth))


def test_rows_beyond_the_limit_are_used_and_ordered() -> None:
    rng = np.random.default_rng(5)
    source, target = rng.normal(size=(900, 1)), rng.normal(1, 1, (700, 1))
    r = Auto(max_rows=300, folds=3).fit(source=source, target=target)
    assert r.source_log_ratio_.shape == (900,)
    assert np.corrcoef(r.source_log_ratio_, source[:, 0])[0, 1] > 0.98
    few = Auto(max_rows=300, folds=3).fit(source=source[:300], target=target[:300])
    x = np.linspace(-1, 2, 9)[:, None]
    errors = [np.abs(m.log_ratio(x) - (x[:, 0] - 0.5)).max() for m in (r, few)]
    assert errors[0] < 0.3


def test_bad_options_and_too_few_rows() -> None:
    x = np.arange(10.0)
    with pytest.raises(InputError, match="folds must be a whole number of at least 2"):
        Auto(folds=1).fit(source=x, target=x + 0.5)
    with pytest.raises(InputError, match="2 distinct rows"):
        Auto().fit(source=[1.0, 1.0], target=[0.0, 2.0])


def test_discrete_columns_keep_their_shift() -> None:
    rng = np.random.default_rng(6)
    source, target = ((rng.random((3000, 1)) < p).astype(float) for p in (0.1, 0.9))
    r = Auto().fit(source=source, target=target)
    np.testing.assert_allclose(r.log_ratio([[0.0], [1.0]]), [-np.log(9), np.log(9)], atol=0.2)
    assert r.source_log_ratio_.shape == (3000,)


def test_rows_beyond_the_limit_get_held_out_ratios() -> None:
    rng = np.random.default_rng(7)

    def two_humps(n: int) -> np.ndarray:
        x = rng.normal(size=(n, 3))
        x[:, 0] = 2 * np.sign(x[:, 0]) + 0.7 * rng.normal(size=n)
        return x

    source, fresh = two_humps(900), two_humps(900)
    target = rng.normal(size=(900, 3)) * [2, 1, 1]
    r = Auto(max_rows=300, folds=3).fit(source=source, target=target)
    assert r.log_ratio(source).mean() == pytest.approx(r.log_ratio(fresh).mean(), abs=0.25)
