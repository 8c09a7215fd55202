from __future__ import annotations

import numpy as np
import pytest
from distributions import moved, two_classes

from fedshift.diagnose.conditional import labels_given_inputs
from fedshift.diagnose.finding import adjust
from fedshift.diagnose.shift_type import (
    CONCEPT,
    UNVERIFIED,
    ShiftType,
    label_ratio,
    with_labels,
    without_labels,
)
from fedshift.diagnose.two_sample import Budget, Pair, Side, inputs, labels


def both_ways(kind: str, seed: int, n: int = 600) -> tuple[ShiftType, ShiftType]:
    """The shift type with and without test labels."""
    rng = np.random.default_rng([seed, n])
    budget = Budget(draws=199, seed=seed)
    pair = Pair.of(two_classes(n, rng), moved(kind, n, rng), budget, kind)
    findings = adjust([f(pair, budget) for f in (inputs, labels, labels_given_inputs)])
    assert pair.y is not None
    return (
        with_labels(pair, {f.question: f for f in findings}, budget),
        without_labels(pair, pair.y[~pair.target], findings[0], budget),
    )


@pytest.mark.parametrize(
    ("kind", "labelled", "unlabelled"),
    [
        ("label", ("label", False), ("label", False)),
        ("covariate", ("covariate", False), ("covariate", None)),
        ("concept", ("none", True), ("none", False)),
        ("none", ("none", False), ("none", False)),
    ],
)
def test_the_right_type_is_named(kind, labelled, unlabelled):
    seeds = range(10)
    findings = [both_ways(kind, seed) for seed in seeds]
    assert sum((a.name, a.concept) == labelled for a, _ in findings) >= 9
    assert sum((b.name, b.concept) == unlabelled for _, b in findings) >= 9


def test_both_at_once():
    """Other shares of the classes and other inputs: p(y | x) differs by those shares only."""
    rng = np.random.default_rng(0)
    budget = Budget(draws=199)
    new = two_classes(8000, rng, share=0.65)
    new = new.take(np.flatnonzero(rng.random(8000) < np.exp(np.minimum(new.x[:, -1] - 2.5, 0))))
    pair = Pair.of(two_classes(800, rng), new.take(np.arange(800)), budget, "both")
    findings = adjust([f(pair, budget) for f in (inputs, labels, labels_given_inputs)])
    shift_type = with_labels(pair, {f.question: f for f in findings}, budget)
    assert (shift_type.name, shift_type.concept) == ("joint", False)
    assert shift_type.findings[-1].question == "labels given inputs after label weights"


@pytest.mark.parametrize(("share", "name"), [(0.3, "covariate"), (0.65, "joint")])
def test_concept_shift_is_a_warning_beside_the_type(share, name):
    """Other inputs, other class proportions or the same, and flipped labels for some inputs."""
    rng = np.random.default_rng(1)
    new = two_classes(12000, rng, share=share)
    new = new.take(np.flatnonzero(rng.random(12000) < np.exp(np.minimum(new.x[:, -1] - 2.5, 0))))
    new = new.take(np.arange(1200))
    for c in (0, 1):  # as many of each class are flipped
        rows = np.flatnonzero((new.y == c) & (new.x[:, 4] > 0))[:110]
        new.y[rows] = -1 - c
    new = Side(new.x, np.select([new.y == -1, new.y == -2], [1, 0], new.y))
    budget = Budget(draws=199)
    pair = Pair.of(two_classes(1200, rng), new, budget, "concept")
    findings = adjust([f(pair, budget) for f in (inputs, labels, labels_given_inputs)])
    shift_type = with_labels(pair, {f.question: f for f in findings}, budget)
    assert (shift_type.name, shift_type.concept) == (name, True)
    assert str(shift_type) == f"{name} (warning: concept shift)"
    assert shift_type.meaning == CONCEPT


def test_label_ratios_come_from_unlabelled_rows():
    rng = np.random.default_rng(1)
    source, target = two_classes(3000, rng, share=0.3), two_classes(3000, rng, share=0.7)
    budget = Budget()
    pair = Pair.of(source, Side(target.x), budget)
    assert source.y is not None
    ratio = label_ratio(pair, source.y[pair.rows], budget)
    np.testing.assert_allclose(ratio, [0.3 / 0.7, 0.7 / 0.3], rtol=0.12)


def test_a_class_of_one_row_does_not_stop_the_rest():
    rng = np.random.default_rng(2)
    source, target = two_classes(300, rng), two_classes(300, rng, share=0.7)
    assert source.y is not None
    for extra in ([5], [5, 6, 6, 7]):  # one row, and several rare classes
        y = source.y.copy()
        y[: len(extra)] = extra
        budget = Budget()
        ratio = label_ratio(Pair.of(Side(source.x, y), Side(target.x), budget), y, budget)
        assert ratio[1] > 1.5
        assert np.isfinite(ratio).all()


def test_one_class_is_a_reason_not_an_error():
    rng = np.random.default_rng(3)
    budget = Budget(draws=99)
    pair = Pair.of(Side(rng.normal(size=(80, 2))), Side(rng.normal(1, 1, size=(80, 2))), budget)
    findings = adjust([inputs(pair, budget)])[0]
    shift_type = without_labels(pair, np.zeros(80, dtype=np.intp), findings, budget)
    assert shift_type.name == "inconclusive"
    assert "two classes" in shift_type.meaning


def test_sentences_of_concept_and_unverified_covariate_shift():
    assert "Weighting cannot correct this" in CONCEPT
    assert "if p(y given x) stayed the same" in UNVERIFIED
    assert "not known without test labels" in UNVERIFIED
