from __future__ import annotations

import math

import numpy as np
import pytest

from fedshift.diagnose.overlap import Overlap, overlap, whole
from fedshift.diagnose.two_sample import Budget, Pair, Side


def test_effective_rows_of_a_mean_shift():
    """N(0,1) to N(d,1): E r² = exp(d²), so exp(−d²) of the rows count."""
    d = 0.6
    rng = np.random.default_rng(0)
    budget = Budget()
    pair = Pair.of(Side(rng.normal(0, 1, (4000, 1))), Side(rng.normal(d, 1, (4000, 1))), budget)
    result = overlap(pair, budget, rows=8000)
    assert result.share == pytest.approx(math.exp(-d * d), abs=0.06)
    assert result.ess == pytest.approx(8000 * result.share)
    assert result.coverage > 0.95
    assert result.outside < 0.01
    assert not result.poor
    assert 1 < result.largest < 40


def test_no_shift_needs_no_weights():
    rng = np.random.default_rng(1)
    budget = Budget()
    pair = Pair.of(Side(rng.normal(size=(300, 3))), Side(rng.normal(size=(300, 3))), budget)
    result = overlap(pair, budget)
    assert result.model == "none"
    assert result.share == 1.0
    assert result.largest == 1.0
    assert whole(300).ess == result.ess


def test_disjoint_sides_are_described_in_words():
    rng = np.random.default_rng(2)
    budget = Budget()
    pair = Pair.of(Side(rng.normal(0, 1, (200, 2))), Side(rng.normal(6, 1, (200, 2))), budget)
    result = overlap(pair, budget)
    assert result.poor
    assert result.outside > 0.5
    assert "hardly any similar training" in result.sentence
    assert "Collect" in result.sentence


def test_constant_rows_have_no_ratio():
    budget = Budget()
    pair = Pair.of(Side(np.ones((20, 2))), Side(np.ones((20, 2))), budget)
    result = overlap(pair, budget)
    assert "constant" in result.sentence
    assert result.to_dict()["ess"] is None


def test_one_value_on_each_side_has_no_ratio():
    budget = Budget()
    pair = Pair.of(Side(np.zeros((20, 2))), Side(np.ones((20, 2))), budget)
    result = overlap(pair, budget)
    assert result.reason
    assert not result.poor


def test_repr_is_one_line():
    assert "\n" not in repr(whole(10))
    assert "\n" not in repr(Overlap(reason="few rows"))
