"""Which law moved: the labels', the inputs', or the way labels follow from inputs?

Label shift says that p(x | y) stayed, covariate shift that p(y | x) did. Without test labels only
the first can be refuted: if training rows, weighted by estimated label ratios, still do not look
like the test rows, something else moved, and whether p(y | x) did cannot be known.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from fedshift.core.samples import Float64Array
from fedshift.diagnose.conditional import labels_given_inputs
from fedshift.diagnose.finding import Finding, Question
from fedshift.diagnose.held_out import BoolArray, IntArray
from fedshift.diagnose.two_sample import Budget, Pair, inputs, inputs_given_labels
from fedshift.errors import FedshiftWarning, InputError
from fedshift.ratio.label import MLLS

Name = Literal[
    "none",
    "label",
    "covariate",
    "label and covariate",
    "concept",
    "covariate or concept",
    "cannot tell",
]

#: rows of a class below which it has no ratio of its own
RARE = 5
#: level of the tests that tell kinds apart
LEVEL = 0.01

#: what a finding says if two laws are the same for all that matters
SAME = ("no shift found", "too small to matter")

#: what each kind means for whoever reads it
MEANING: dict[Name, str] = {
    "none": "no shift was found, so there is nothing to name",
    "label": "the classes occur in other proportions, and rows of one class look the same: "
    "weights by label mend this",
    "covariate": "other inputs occur, and labels follow from them as before: weights by input "
    "mend this",
    "label and covariate": "both the proportions of the classes and the inputs within them "
    "changed, and labels follow from inputs up to those proportions: joint weights mend this",
    "concept": "for the same inputs the labels differ: weighting cannot mend this; labels of the "
    "new kind, or a model of its own, are needed",
    "covariate or concept": "the inputs changed in a way that other class proportions do not "
    "explain; whether labels follow from inputs as before is not known without test labels, and "
    "if they do not, weighting cannot mend it",
    "cannot tell": "there are too few rows, or labels, to name the kind",
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The kind of a shift and what speaks for it.

    Attributes
    ----------
    name : str
    findings : tuple of Finding
        The tests it rests on; their p-values are not adjusted, as they are only asked once a
        shift was found.
    label_law : tuple of float or None
        Estimated label law of the target, without its labels (MLLS), by class number.
    reason : str
        Why nothing can be told, if so.
    """

    name: Name
    findings: tuple[Finding, ...] = ()
    label_law: tuple[float, ...] | None = None
    reason: str = ""

    @property
    def meaning(self) -> str:
        """One sentence."""
        return self.reason or MEANING[self.name]

    def __repr__(self) -> str:
        return f"Kind({self.name}: {len(self.findings)} tests)"


def with_labels(pair: Pair, found: dict[str, Finding], budget: Budget) -> Kind:
    """The kind where both sides have labels; `found` holds the questions already answered."""
    moved = {q for q, f in found.items() if f.status == "shift"}
    if not moved:
        every = all(f.status == "cannot tell" for f in found.values())
        return Kind(name="cannot tell" if every else "none")
    by_class = _plain(inputs_given_labels(pair, budget))
    by_input = _plain(found["labels given inputs"])
    tests = (by_class, by_input)
    if by_class.status in SAME and "labels" in moved:
        return Kind(name="label", findings=tests)
    if by_class.status not in SAME and by_input.status in SAME and "inputs" in moved:
        return Kind(name="covariate", findings=tests)
    if by_input.status != "shift":
        return Kind(name="cannot tell", findings=tests, reason=by_input.reason)
    if "inputs" not in moved:
        return Kind(name="concept", findings=tests)
    rest = _plain(_after_intercepts(pair, budget))
    name: Name = "concept" if rest.status == "shift" else "label and covariate"
    return Kind(name=name, findings=(*tests, rest))


def without_labels(pair: Pair, y: IntArray, found: Finding, budget: Budget) -> Kind:
    """The kind where only the source has labels y (n_source,), as in deployment."""
    if found.status == "cannot tell":
        return Kind(name="cannot tell", reason=found.reason)
    if found.status != "shift":
        return Kind(name="none")
    try:
        ratio, law = label_ratio(pair, y, budget)
    except InputError as error:
        return Kind(name="cannot tell", reason=f"label shift cannot be checked: {error}")
    kept = np.concatenate(
        [
            _thinned(ratio[y], budget.rng("thin", *pair.words)),
            np.ones(int(pair.target.sum()), dtype=bool),
        ]
    )
    rest = _plain(inputs(pair.take(kept), budget, question="inputs after label weights"))
    label_law = tuple(float(p) for p in law)
    if rest.status == "cannot tell":
        reason = f"too few training rows look like the test rows to say which: {rest.reason}"
        return Kind(name="cannot tell", findings=(rest,), label_law=label_law, reason=reason)
    name: Name = "covariate or concept" if rest.status == "shift" else "label"
    return Kind(name=name, findings=(rest,), label_law=label_law)


def label_ratio(pair: Pair, y: IntArray, budget: Budget) -> tuple[Float64Array, Float64Array]:
    """p_target(y) / p_source(y) and p_target(y), (k,), from unlabelled target rows (MLLS).

    Classes with fewer than `RARE` source rows share one ratio.
    """
    source, target = pair.z[~pair.target], pair.z[pair.target]
    if source.shape[1] == 0:
        raise InputError("all columns are constant")
    count = np.bincount(y)
    few = (count > 0) & (count < RARE)
    # the rare ones together, or with the most frequent class if there is but one row of them
    group = np.arange(len(count))
    group[few] = len(count) if count[few].sum() >= 2 else int(np.argmax(count))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedshiftWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MLLS(seed=budget.seed).fit(source=source, source_labels=group[y], target=target)
    table = dict(zip(model.classes_.tolist(), np.exp(model.class_log_ratio_), strict=True))
    ratio = np.array([table.get(int(g), 0.0) for g in group])
    return ratio, ratio * count / count.sum()


def _after_intercepts(pair: Pair, budget: Budget) -> Finding:
    """Does p(y | x) still differ when every class may have become rarer or more frequent?

    A model of the labels given inputs and side holds one number a class and side; source rows are
    thinned by it, after which only a change that depends on the inputs is left.
    """
    assert pair.y is not None
    design = np.column_stack([pair.z, pair.target])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(max_iter=500).fit(design, pair.y)
    coefficient = model.coef_[:, -1]
    if len(model.classes_) == 2:
        coefficient = np.array([0.0, float(coefficient[0])])
    ratio = np.zeros(int(pair.y.max()) + 1)
    ratio[model.classes_] = np.exp(coefficient - coefficient.max())
    weight = np.where(pair.target, 1.0, ratio[pair.y])
    kept = pair.target | _thinned(weight, budget.rng("thin", *pair.words), within=~pair.target)
    question: Question = "labels given inputs after label weights"
    return labels_given_inputs(pair.take(kept), budget, question=question)


def _thinned(
    weight: Float64Array, rng: np.random.Generator, within: BoolArray | None = None
) -> BoolArray:
    """Rows kept with a chance in proportion to their weight: what is left follows it."""
    top = float((weight if within is None else weight[within]).max())
    return np.asarray(rng.random(len(weight)) * top < weight)


def _plain(finding: Finding) -> Finding:
    """A finding that stands for itself: its p-value is not adjusted, its level is its own."""
    return replace(finding, adjusted=finding.p, level=LEVEL)


__all__ = ["MEANING", "Kind", "Name", "label_ratio", "with_labels", "without_labels"]
