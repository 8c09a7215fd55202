from __future__ import annotations

import numpy as np
import pytest
from laws import moved, two_classes

from fedshift.diagnose.conditional import labels_given_inputs
from fedshift.diagnose.finding import adjust
from fedshift.diagnose.kind import MEANING, Kind, label_ratio, with_labels, without_labels
from fedshift.diagnose.two_sample import Budget, Pair, Side, inputs, labels


def both_ways(kind: str, seed: int, n: int = 600) -> tuple[Kind, Kind]:
    """The kind as named with and without test labels."""
    rng = np.random.default_rng([seed, n])
    budget = Budget(draws=199, seed=seed)
    pair = Pair.of(two_classes(n, rng), moved(kind, n, rng), budget, kind)
    found = adjust([f(pair, budget) for f in (inputs, labels, labels_given_inputs)])
    assert pair.y is not None
    return (
        with_labels(pair, {f.question: f for f in found}, budget),
        without_labels(pair, pair.y[~pair.target], found[0], budget),
    )


@pytest.mark.parametrize(
    ("kind", "labelled", "unlabelled"),
    [
        ("label", "label", "label"),
        ("covariate", "covariate", "covariate or concept"),
        ("concept", "concept", "none"),
        ("none", "none", "none"),
    ],
)
def test_the_right_kind_is_named(kind, labelled, unlabelled):
    seeds = range(10)
    found = [both_ways(kind, seed) for seed in seeds]
    assert sum(a.name == labelled for a, _ in found) >= 9
    assert sum(b.name == unlabelled for _, b in found) >= 9


def test_both_at_once():
    """Other shares of the classes and other inputs: p(y | x) differs by those shares only."""
    rng = np.random.default_rng(0)
    budget = Budget(draws=199)
    new = two_classes(8000, rng, share=0.65)
    new = new.take(np.flatnonzero(rng.random(8000) < np.exp(np.minimum(new.x[:, -1] - 2.5, 0))))
    pair = Pair.of(two_classes(800, rng), new.take(np.arange(800)), budget, "both")
    found = adjust([f(pair, budget) for f in (inputs, labels, labels_given_inputs)])
    kind = with_labels(pair, {f.question: f for f in found}, budget)
    assert kind.name == "label and covariate"
    assert kind.findings[-1].question == "labels given inputs after label weights"


def test_label_ratios_come_from_unlabelled_rows():
    rng = np.random.default_rng(1)
    source, target = two_classes(3000, rng, share=0.3), two_classes(3000, rng, share=0.7)
    budget = Budget()
    pair = Pair.of(source, Side(target.x), budget)
    assert source.y is not None
    ratio, law = label_ratio(pair, source.y[pair.rows], budget)
    np.testing.assert_allclose(law, [0.3, 0.7], atol=0.05)
    np.testing.assert_allclose(ratio, [0.3 / 0.7, 0.7 / 0.3], rtol=0.12)


def test_a_class_of_one_row_does_not_stop_the_rest():
    rng = np.random.default_rng(2)
    source, target = two_classes(300, rng), two_classes(300, rng, share=0.7)
    assert source.y is not None
    for extra in ([5], [5, 6, 6, 7]):  # one row, and several rare classes
        y = source.y.copy()
        y[: len(extra)] = extra
        budget = Budget()
        ratio, law = label_ratio(Pair.of(Side(source.x, y), Side(target.x), budget), y, budget)
        assert ratio[1] > 1.5
        assert np.isfinite(ratio).all()
        assert law.sum() == pytest.approx(1.0, abs=0.02)


def test_one_class_is_a_reason_not_an_error():
    rng = np.random.default_rng(3)
    budget = Budget(draws=99)
    pair = Pair.of(Side(rng.normal(size=(80, 2))), Side(rng.normal(1, 1, size=(80, 2))), budget)
    found = adjust([inputs(pair, budget)])[0]
    kind = without_labels(pair, np.zeros(80, dtype=np.intp), found, budget)
    assert kind.name == "cannot tell"
    assert "two classes" in kind.meaning


def test_concept_says_that_weighting_cannot_mend_it():
    assert "weighting cannot mend this" in MEANING["concept"]
    assert "not known without test labels" in MEANING["covariate or concept"]
