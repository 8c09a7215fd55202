from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fedshift.diagnose.columns import column_shifts
from fedshift.diagnose.two_sample import Budget, Pair, Side


def test_the_column_that_moved_comes_first_with_its_size():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3000, 5))
    b[:, 3] += 0.5
    pair = Pair.of(Side(a), Side(b), Budget())
    shifts = column_shifts(a, b, names=list("uvwxy"), pair=pair)
    first = shifts[0]
    assert first.name == "x"
    assert len(shifts) == 1  # the others do not differ significantly
    assert first.distance == pytest.approx(2 * norm.cdf(0.25) - 1, abs=0.03)
    assert first.difference == pytest.approx(0.5 / np.sqrt(1 + 0.0625), abs=0.05)
    assert first.share is not None
    assert first.share > 0.8
    assert first.adjusted < 1e-6


def test_an_interaction_is_shared_by_its_columns():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 2000, 4))
    b[:, 1] = np.abs(b[:, 1]) * np.sign(b[:, 0]) * np.where(rng.random(2000) < 0.9, 1, -1)
    b += [0.2, 0.2, 0.2, 0]  # a column is listed only if it differs by itself
    pair = Pair.of(Side(a), Side(b), Budget())
    share = {c.name: c.share for c in column_shifts(a, b, names=list("abcd"), pair=pair)}
    assert share["a"] > 0.3
    assert share["b"] > 0.3


def test_one_hot_columns_are_one_feature():
    rng = np.random.default_rng(2)
    colour = [rng.choice(3, 1000, p=p) for p in ([0.2, 0.3, 0.5], [0.5, 0.3, 0.2])]
    s, t = (np.column_stack([np.eye(3)[c], rng.standard_normal(1000)]) for c in colour)
    names = ["colour=red", "colour=green", "colour=blue", "age"]
    groups = dict.fromkeys(names[:3], "colour")
    pair = Pair.of(Side(s), Side(t), Budget())
    shifts = column_shifts(s, t, names=names, groups=groups, pair=pair)
    assert [c.name for c in shifts] == ["colour"]
    assert shifts[0].distance == pytest.approx(0.3, abs=0.05)
    assert shifts[0].difference is None
    assert shifts[0].share > 0.9


def test_false_alarms_over_columns_are_controlled():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(100):
        a, b = rng.integers(0, 4, (2, 60, 8)) * 1.0
        hits += bool(column_shifts(a, b, names=list("abcdefgh")))
    assert hits <= 5 + 7


def test_constant_and_huge_columns():
    rng = np.random.default_rng(4)
    x = np.column_stack([np.full(50, 3.0), 1e300 * rng.standard_normal(50)])
    assert column_shifts(x, x[::-1], names=["constant", "huge"]) == ()
    (huge,) = column_shifts(x, x[::-1] + np.array([0, 1e300]), names=["constant", "huge"])
    assert huge.name == "huge"
    assert np.isfinite([huge.distance, huge.difference]).all()
