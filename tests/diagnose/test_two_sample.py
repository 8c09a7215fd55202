"""Tests of distributions with known shifts."""

from __future__ import annotations

import numpy as np
import pytest
from distributions import hard_table, moved, two_classes

from fedshift.diagnose.conditional import labels_given_inputs
from fedshift.diagnose.two_sample import (
    LOPSIDED,
    Budget,
    Pair,
    Side,
    inputs,
    inputs_given_labels,
    labels,
)

QUESTIONS = {
    "inputs": inputs,
    "labels": labels,
    "inputs given labels": inputs_given_labels,
    "labels given inputs": labels_given_inputs,
}
#: which distributions differ under which shift
DIFFER = {
    "label": {"inputs", "labels", "labels given inputs"},
    "covariate": {"inputs", "inputs given labels"},
    "concept": {"inputs given labels", "labels given inputs"},
}


@pytest.mark.parametrize("kind", DIFFER)
@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_sees_its_distribution_move(kind, question):
    rng = np.random.default_rng(0)
    budget = Budget(draws=199)
    pair = Pair.of(two_classes(1200, rng), moved(kind, 1200, rng), budget, "test")
    finding = QUESTIONS[question](pair, budget)
    if question in DIFFER[kind]:
        assert finding.p <= 0.01
        assert finding.auc > 0.53
    elif not (question == "labels" and kind == "concept"):
        # flipped labels change the shares, too
        assert finding.p > 0.01


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("draw", [two_classes, hard_table])
def test_no_question_cries_wolf(question, draw):
    """Rejections at .1 in 100 repeats without shift, within three standard errors of .1."""
    hits = 0
    for repeat in range(100):
        rng = np.random.default_rng([1, repeat])
        budget = Budget(draws=99, seed=repeat)
        pair = Pair.of(draw(40, rng), draw(int(rng.integers(30, 150)), rng), budget, "null")
        hits += QUESTIONS[question](pair, budget).p <= 0.1
    assert hits <= 10 + 9


def test_labels_given_inputs_stands_a_strong_covariate_shift():
    """Different inputs, the same curved p(y | x): no alarm even where sides hardly overlap."""

    def side(rng, shift):
        x = rng.standard_normal((400, 4))
        x[:, :2] += shift
        score = 2 * np.sin(2 * x[:, 0]) - x[:, 1] * x[:, 2]
        return Side(x, (rng.random(400) < 1 / (1 + np.exp(-score))).astype(np.intp))

    hits = 0
    for repeat in range(40):
        rng = np.random.default_rng([2, repeat])
        budget = Budget(draws=99, seed=repeat)
        pair = Pair.of(side(rng, 0.0), side(rng, 1.0), budget, "covariate")
        hits += labels_given_inputs(pair, budget).p <= 0.1
    assert hits <= 4 + 3 * 1.9


def test_the_size_of_a_change_of_labels_given_inputs():
    """Labels 20 points more frequent at every x: the AUC of two Gaussians with correlation .2."""
    rng = np.random.default_rng(3)
    n = 5000
    x = rng.standard_normal((2 * n, 2))
    y = (rng.random(2 * n) < np.repeat([0.4, 0.6], n)).astype(np.intp)
    budget = Budget(draws=99)
    pair = Pair.of(Side(x[:n], y[:n]), Side(x[n:], y[n:]), budget, "level")
    finding = labels_given_inputs(pair, budget)
    assert finding.auc == pytest.approx(0.614, abs=0.02)  # Φ(√2 · .2 / √(1 − .04))
    assert finding.low < 0.614 < finding.high


def test_the_auc_of_labels_is_half_plus_half_their_total_variation():
    y = np.repeat([0, 1, 0, 1], [700, 300, 400, 600])
    x = np.random.default_rng(0).standard_normal((2000, 1))
    budget = Budget(draws=99)
    finding = labels(Pair.of(Side(x[:1000], y[:1000]), Side(x[1000:], y[1000:]), budget), budget)
    assert finding.auc == pytest.approx(0.65)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_few_rows_are_not_enough(question):
    rng = np.random.default_rng(4)
    budget = Budget(draws=99)
    finding = QUESTIONS[question](
        Pair.of(two_classes(5, rng), two_classes(90, rng), budget), budget
    )
    assert finding.status == "inconclusive"
    assert "5 rows" in finding.reason


def test_one_class_gives_a_reason():
    rng = np.random.default_rng(5)
    budget = Budget(draws=99)
    sides = [Side(rng.standard_normal((50, 2)), np.zeros(50, dtype=np.intp)) for _ in range(2)]
    assert "one class" in labels_given_inputs(Pair.of(*sides, budget), budget).reason


def test_labels_that_never_meet_cannot_be_compared_within():
    rng = np.random.default_rng(6)
    budget = Budget(draws=99)
    sides = [Side(rng.standard_normal((50, 2)), np.full(50, c)) for c in (0, 1)]
    assert inputs_given_labels(Pair.of(*sides, budget), budget).status == "inconclusive"


def test_large_sides_are_thinned():
    rng = np.random.default_rng(7)
    budget = Budget(rows=300, draws=99)
    pair = Pair.of(two_classes(2000, rng), two_classes(400, rng), budget)
    assert pair.sizes == (300, 300)
    assert len(np.unique(pair.rows)) == 300
    assert pair.rows.max() > 1000
    assert Pair.of(two_classes(2000, rng), two_classes(15, rng), budget).sizes == (
        15 * LOPSIDED,
        15,
    )


def test_a_seed_gives_one_answer():
    rng = np.random.default_rng(8)
    a, b = two_classes(100, rng), two_classes(100, rng)
    budget = Budget(draws=99, seed=3)
    pairs = [Pair.of(a, b, budget, "same") for _ in range(2)]
    for test in QUESTIONS.values():
        assert test(pairs[0], budget) == test(pairs[1], budget)
