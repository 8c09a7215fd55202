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
    found, log_ratio = overlap(pair, budget, rows=8000)
    assert found.share == pytest.approx(math.exp(-d * d), abs=0.06)
    assert found.ess == pytest.approx(8000 * found.share)
    assert found.coverage > 0.95
    assert found.outside < 0.01
    assert not found.poor
    assert 1 < found.largest < 40
    assert found.bound > 3
    assert log_ratio is not None
    assert log_ratio.shape == (4000,)


def test_no_shift_needs_no_weights():
    rng = np.random.default_rng(1)
    budget = Budget()
    pair = Pair.of(Side(rng.normal(size=(300, 3))), Side(rng.normal(size=(300, 3))), budget)
    found, log_ratio = overlap(pair, budget)
    assert found.model == "none"
    assert found.share == 1.0
    np.testing.assert_allclose(log_ratio, 0.0, atol=1e-9)
    assert whole(300).ess == found.ess


def test_disjoint_sides_are_told_apart_in_words():
    rng = np.random.default_rng(2)
    budget = Budget()
    pair = Pair.of(Side(rng.normal(0, 1, (200, 2))), Side(rng.normal(6, 1, (200, 2))), budget)
    found, _ = overlap(pair, budget)
    assert found.poor
    assert found.outside > 0.5
    assert "next to no training" in found.sentence
    assert "collect" in found.sentence


def test_constant_rows_have_no_ratio():
    budget = Budget()
    pair = Pair.of(Side(np.ones((20, 2))), Side(np.ones((20, 2))), budget)
    found, log_ratio = overlap(pair, budget)
    assert log_ratio is None
    assert "constant" in found.sentence
    assert found.to_dict()["ess"] is None


def test_one_value_on_each_side_has_no_ratio():
    budget = Budget()
    pair = Pair.of(Side(np.zeros((20, 2))), Side(np.ones((20, 2))), budget)
    found, log_ratio = overlap(pair, budget)
    assert log_ratio is None
    assert found.reason
    assert not found.poor


def test_repr_is_one_line():
    assert "\n" not in repr(whole(10))
    assert "\n" not in repr(Overlap(reason="few rows"))
