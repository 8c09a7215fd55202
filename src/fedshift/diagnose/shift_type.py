"""Name a shift: label, covariate, joint, none or inconclusive; and warn of concept shift.

Label shift leaves p(x | y) as it was; covariate shift leaves p(y | x) as it was. Without test
labels only label shift can be rejected: training rows are weighted by estimated label ratios, and
if they still differ from the test rows, the inputs changed in another way. Whether p(y | x) changed
as well is then unknown.
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
from fedshift.diagnose.effect_size import BoolArray, IntArray
from fedshift.diagnose.finding import Finding, Question
from fedshift.diagnose.two_sample import Budget, Pair, inputs, inputs_given_labels
from fedshift.errors import FedshiftWarning, InputError
from fedshift.ratio.label import MLLS

Name = Literal["none", "label", "covariate", "joint", "inconclusive"]

#: a class with fewer rows has no ratio of its own
RARE = 5
#: level of the tests that distinguish shift types
LEVEL = 0.01

#: statuses of a test that found no difference large enough to matter
SAME = ("no shift found", "too small to matter")

#: each shift type in a sentence or two
MEANING: dict[Name, str] = {
    "none": "no label shift or covariate shift was found",
    "label": "the class proportions p(y) changed and p(x given y) did not. Weights that "
    "depend on the label correct this",
    "covariate": "the inputs p(x) changed and p(y given x) did not. Weights that depend on the "
    "inputs correct this",
    "joint": "the class proportions changed, and so did the inputs within classes; p(y given x) "
    "changed only by as much as the change of the class proportions implies. Weights that depend "
    "on both the label and the inputs correct this",
    "inconclusive": "there are too few rows or labels to name the shift type",
}
#: covariate shift, where test labels are missing
UNVERIFIED = (
    "the inputs p(x) changed in a way that class proportions do not explain. Weights that depend "
    "on x correct this if p(y given x) stayed the same, which is not known without test labels"
)
#: the warning beside any shift type
CONCEPT = (
    "for the same inputs the labels differ (concept shift). Weighting cannot correct this: collect "
    "new labels, or train a separate model"
)


@dataclass(frozen=True, kw_only=True)
class ShiftType:
    """The type of a shift and the tests behind it.

    Attributes
    ----------
    name : {"none", "label", "covariate", "joint", "inconclusive"}
    concept : bool or None
        Whether p(y | x) changed as well, beyond what class proportions explain. Weights cannot
        correct that. The value is None if it is unknown, that is, without test labels.
    findings : tuple of Finding
        The tests that decided. Their p-values are not adjusted, because they run only after a shift
        was found.
    reason : str
        Why the type is inconclusive, else empty.
    """

    name: Name
    concept: bool | None = False
    findings: tuple[Finding, ...] = ()
    reason: str = ""

    @property
    def meaning(self) -> str:
        """What the type means for the reader, without a final full stop."""
        if self.concept:
            return CONCEPT
        text = UNVERIFIED if self.concept is None else MEANING[self.name]
        return self.reason or text

    def __str__(self) -> str:
        return f"{self.name} (warning: concept shift)" if self.concept else self.name

    def __repr__(self) -> str:
        return f"ShiftType({self}: {len(self.findings)} tests)"


def with_labels(pair: Pair, findings: dict[str, Finding], budget: Budget) -> ShiftType:
    """Name the type where both source and target have labels.

    Parameters
    ----------
    pair : Pair
    findings : dict of question to Finding
        The tests of inputs, labels, and labels given inputs.
    budget : Budget
    """
    shifts = {q for q, f in findings.items() if f.status == "shift"}
    if not shifts:
        every = all(f.status == "inconclusive" for f in findings.values())
        return ShiftType(name="inconclusive" if every else "none")
    by_class = _unadjusted(inputs_given_labels(pair, budget))
    by_input = _unadjusted(findings["labels given inputs"])
    tests = (by_class, by_input)
    if by_class.status in SAME and "labels" in shifts:
        return ShiftType(name="label", findings=tests)
    if by_class.status not in SAME and by_input.status in SAME and "inputs" in shifts:
        return ShiftType(name="covariate", findings=tests)
    if by_input.status != "shift":
        return ShiftType(name="inconclusive", findings=tests, reason=by_input.reason)
    if "inputs" not in shifts:
        return ShiftType(name="none", concept=True, findings=tests)
    rest = _unadjusted(_after_intercepts(pair, budget))
    concept = rest.status == "shift"
    name: Name = "covariate" if concept and "labels" not in shifts else "joint"
    return ShiftType(name=name, concept=concept, findings=(*tests, rest))


def without_labels(pair: Pair, y: IntArray, finding: Finding, budget: Budget) -> ShiftType:
    """Name the type where only the source has labels y (n_source,), as in deployment."""
    if finding.status == "inconclusive":
        return ShiftType(name="inconclusive", reason=finding.reason)
    if finding.status != "shift":
        return ShiftType(name="none")
    try:
        ratio = label_ratio(pair, y, budget)
    except InputError as error:
        return ShiftType(name="inconclusive", reason=f"label shift cannot be checked: {error}")
    n = int(pair.target.sum())
    keep = np.append(_thin(ratio[y], budget.rng("thin", *pair.words)), np.ones(n, dtype=bool))
    rest = _unadjusted(inputs(pair.take(keep), budget, question="inputs after label weights"))
    reason = ""
    concept: bool | None = False
    name: Name = "label"
    if rest.status == "inconclusive":
        name = "inconclusive"
        reason = f"too few training rows look like the test rows: {rest.reason}"
    elif rest.status == "shift":
        name, concept = "covariate", None
    return ShiftType(name=name, concept=concept, findings=(rest,), reason=reason)


def label_ratio(pair: Pair, y: IntArray, budget: Budget) -> Float64Array:
    """Estimate p_target(y) / p_source(y), (k,), from unlabelled target rows.

    The method is maximum likelihood (`MLLS`). Classes with fewer than 5 source rows (`RARE`) share
    one ratio.
    """
    source, target = pair.z[~pair.target], pair.z[pair.target]
    if source.shape[1] == 0:
        raise InputError("all columns are constant")
    count = np.bincount(y)
    few = (count > 0) & (count < RARE)
    # rare classes share a group; a single rare row joins the most frequent class
    group = np.arange(len(count))
    group[few] = len(count) if count[few].sum() >= 2 else int(np.argmax(count))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedshiftWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MLLS(seed=budget.seed).fit(source=source, source_labels=group[y], target=target)
    table = dict(zip(model.classes_.tolist(), np.exp(model.class_log_ratio_), strict=True))
    return np.array([table.get(int(g), 0.0) for g in group])


def _after_intercepts(pair: Pair, budget: Budget) -> Finding:
    """Test whether p(y | x) differs by more than a change of class proportions explains.

    A logistic model of the labels has one intercept per class in the source and another in the
    target. Source rows are drawn with probabilities in proportion to the exponential of the
    difference, so only a change of p(y | x) that depends on the inputs remains.
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
    keep = pair.target | _thin(weight, budget.rng("thin", *pair.words), within=~pair.target)
    question: Question = "labels given inputs after label weights"
    return labels_given_inputs(pair.take(keep), budget, question=question)


def _thin(
    weight: Float64Array, rng: np.random.Generator, within: BoolArray | None = None
) -> BoolArray:
    """Keep each row with probability proportional to its weight (n,); returns a mask (n,)."""
    top = float((weight if within is None else weight[within]).max())
    return np.asarray(rng.random(len(weight)) * top < weight)


def _unadjusted(finding: Finding) -> Finding:
    """The finding with its raw p-value and the level of this module."""
    return replace(finding, adjusted=finding.p, level=LEVEL)
