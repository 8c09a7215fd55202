"""Candidate estimators compared on held-out rows, and their stack.

The stack is a non-negative combination of the estimators' log ratios. `Auto` chooses one estimator
or the stack, and `ScoreBound` orders rows by their log ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier

from fedshift.core.calibrate import RatioEvidence, Saturation, stack, worthwhile_saturation
from fedshift.core.samples import Float64Array, FloatArray, Sample, fold_of
from fedshift.progress import bar
from fedshift.ratio.base import Path, RatioEstimator
from fedshift.ratio.classifier import Classifier
from fedshift.ratio.crossfit import out_of_fold
from fedshift.ratio.gaussian import Gaussian
from fedshift.ratio.logistic import Logistic
from fedshift.ratio.svm import SVM

#: parametric members, simplest first; all others are only used in the stack
SIMPLE = ("none", "linear", "shared Gaussian", "sparse", "squares", "Gaussian", "quadratic")
#: nats by which the held-out loss is too low, as those rows also choose tuning value and slope
OPTIMISM = 1.5
#: standard errors of the paired difference that a simple member may be worse by
TOLERANCE = 1.5
#: most products of columns for a quadratic member, unless rows are very few
PRODUCTS = 600
#: most rows of source or target for randomised trees and for support vectors, the slowest members
TREE_ROWS, SVM_ROWS = 6000, 3000


@dataclass(frozen=True)
class Member:
    """One estimator that `Auto` chooses from, fitted once per fold, on the rows outside the fold.

    Attributes
    ----------
    name : str
    source, target : ndarray (n,), (n',)
        Out-of-fold log ratios, calibrated.
    paths : list of callables
        One function per fold. It maps rows to the log ratios of several models, one for each value
        of the estimator's tuning parameter.
    column : int
        Index of the chosen model among the several models of a path.
    slope, intercept : float
        Linear calibration on held-out rows. A strong ridge shrinks the log ratio; the slope
        restores its scale.
    saturation : Saturation or None
        Bounded calibration after the linear one, or None if it does not lower the held-out loss
        enough.
    """

    name: str
    source: Float64Array
    target: Float64Array
    paths: list[Path]
    column: int = 0
    slope: float = 1.0
    intercept: float = 0.0
    saturation: Saturation | None = None

    def __call__(self, x: FloatArray) -> Float64Array:
        """Return the calibrated mean log ratio of the fold models, shape (n,)."""
        raw = np.mean([path(x)[:, self.column] for path in self.paths], axis=0)
        return _bend(self.slope * raw + self.intercept, self.saturation)


@dataclass(frozen=True)
class Stack:
    """A non-negative combination of members, fitted on their out-of-fold log ratios.

    Attributes
    ----------
    members : list of Member
    coefficients : ndarray (m,)
        One for each member, at least 0.
    intercept : float
    source, target : ndarray (n,), (n',)
        Out-of-fold log ratios of the stack. For each row, the coefficients are also fitted without
        the row's fold. Otherwise the held-out loss of the stack would be too low.
    saturation : Saturation or None
        Bounded calibration, or None if it does not lower the held-out loss enough.
    """

    members: list[Member]
    coefficients: Float64Array
    intercept: float
    source: Float64Array
    target: Float64Array
    saturation: Saturation | None

    @classmethod
    def of(cls, members: list[Member], s: Sample, t: Sample) -> Stack:
        """Fit the stack with the lowest held-out loss."""
        a = np.stack([m.source for m in members], axis=1)
        b = np.stack([m.target for m in members], axis=1)
        evidence = RatioEvidence.of(s.weight, t.weight)
        coefficients, intercept = stack(a, b, evidence)
        coefficients[np.ptp(np.concatenate([a, b]), axis=0) == 0] = 0.0  # "none" adds nothing
        out_a, out_b = np.empty(len(s)), np.empty(len(t))
        folds = min(5, len(s), len(t))
        fold_a, fold_b = (fold_of(len(p), folds, seed=len(members)) for p in (s, t))
        for j in range(folds):
            rest_a, rest_b = fold_a != j, fold_b != j
            part = RatioEvidence.of(s.take(rest_a).weight, t.take(rest_b).weight)
            c, shift = stack(a[rest_a], b[rest_b], part)
            out_a[~rest_a], out_b[~rest_b] = a[~rest_a] @ c + shift, b[~rest_b] @ c + shift
        bend = worthwhile_saturation(out_a, out_b, evidence)
        return cls(members, coefficients, intercept, _bend(out_a, bend), _bend(out_b, bend), bend)

    def __call__(self, x: FloatArray) -> Float64Array:
        """Log ratios of new rows."""
        total = np.full(len(x), self.intercept)
        for c, member in zip(self.coefficients, self.members, strict=True):
            if c > 0:
                total += c * member(x)
        return _bend(total, self.saturation)


#: a model of the ratio with its out-of-fold log ratios
RatioCandidate = Member | Stack


def no_shift(s: Sample, t: Sample) -> Member:
    """Return the member with r(x) = 1."""
    return Member("none", np.zeros(len(s)), np.zeros(len(t)), [_zeros])


def _zeros(x: FloatArray) -> Float64Array:
    return np.zeros((len(x), 1))


def shallow_estimators(s: Sample, t: Sample, *, seed: int) -> dict[str, RatioEstimator]:
    """Return all estimators, except networks, that suit this number of rows and columns."""
    d = s.flat.shape[1]
    n = min(len(s), len(t))
    members: dict[str, RatioEstimator] = {"linear": Logistic("linear")}
    if d <= 2000:
        members["shared Gaussian"] = Gaussian(shared=True)
        members["Gaussian"] = Gaussian()
    if d <= 120:
        members["sparse"] = Logistic("squares", sparse=True)
        members["squares"] = Logistic("squares")
    if d > 1 and (d * (d + 1) // 2 <= PRODUCTS or (n < 500 and d <= 64)):
        # with about as many products as rows it is not a simple model
        simple = d + d * (d + 1) // 2 <= n / 2
        members["quadratic" if simple else "products"] = Logistic("quadratic")
    for width in (1.0, 0.5, 0.25) if d <= 10 else (1.0, 0.5):
        members[f"kernel {width:g}"] = Logistic("kernel", width=width)
    if d > 20:  # perhaps pixels: one scale for all columns
        for width in (1.0, 0.5, 0.3):
            members[f"pixel kernel {width:g}"] = Logistic("kernel", width=width, shared_scale=True)
        if max(len(s), len(t)) <= SVM_ROWS:
            members["margin"] = SVM()
    if n >= 50:
        members["boosting"] = Classifier(folds=0, seed=seed)
    if d > 1 and n >= 50 and max(len(s), len(t)) <= TREE_ROWS:
        forest = ExtraTreesClassifier(100, random_state=seed)
        members["trees"] = Classifier(forest, folds=0, seed=seed)
    return members


def hold_out(
    estimators: Mapping[str, RatioEstimator], s: Sample, t: Sample, *, folds: int, seed: int
) -> list[Member]:
    """Fit every estimator on the same folds and calibrate it on the rows left out."""
    members = [no_shift(s, t)]
    evidence = RatioEvidence.of(s.weight, t.weight)
    with bar("density ratio: candidates", len(estimators)) as advance:
        for name, estimator in estimators.items():
            out = out_of_fold(estimator._path, s, t, folds=folds, seed=seed)
            lines = []
            for j in range(out.source.shape[1]):
                a, b = out.column(j)
                (slope,), intercept = stack(a[:, None], b[:, None], evidence)
                a, b = slope * a + intercept, slope * b + intercept
                lines.append((evidence.loss(a, b), j, float(slope), intercept, a, b))
            _, column, slope, intercept, a, b = min(lines, key=lambda line: line[:2])
            bend = worthwhile_saturation(a, b, evidence)
            a, b = _bend(a, bend), _bend(b, bend)
            members.append(Member(name, a, b, out.paths, column, slope, intercept, bend))
            advance(len(members) - 1)
    return members


@dataclass(frozen=True)
class RatioChoice:
    """Candidates compared on held-out rows, and the chosen one.

    Attributes
    ----------
    candidates : mapping of name to RatioCandidate
        The members and their stack.
    losses : mapping of name to float
        Mean held-out log loss.
    gaps : mapping of name to (float, float)
        Difference to the lowest loss and its standard error.
    best : str
        The candidate with the lowest loss.
    name : str
        The chosen candidate: the simplest parametric member whose loss equals the lowest to
        within noise, or else the stack.
    """

    candidates: dict[str, RatioCandidate]
    losses: dict[str, float]
    gaps: dict[str, tuple[float, float]]
    best: str
    name: str

    @property
    def candidate(self) -> RatioCandidate:
        """The chosen candidate."""
        return self.candidates[self.name]


def choose(members: list[Member], s: Sample, t: Sample, *, tolerance: float) -> RatioChoice:
    """Choose the simplest member whose loss is close to the lowest, or else the stack.

    Parameters
    ----------
    tolerance : float
        By how many standard errors of the paired difference of held-out losses a simple member may
        be worse than the best. A further difference of 1.5 / N is allowed (`OPTIMISM` = 1.5; N is
        the number of rows).
    """
    evidence = RatioEvidence.of(s.weight, t.weight)
    candidates: dict[str, RatioCandidate] = {m.name: m for m in members}
    candidates["stack"] = Stack.of(members, s, t)
    losses = {name: evidence.loss(c.source, c.target) for name, c in candidates.items()}
    best = min(losses, key=losses.__getitem__)
    gaps = {n: paired_difference(c, candidates[best], evidence) for n, c in candidates.items()}
    allowance = OPTIMISM / evidence.n
    fits = (n for n in SIMPLE if n in gaps and gaps[n][0] <= tolerance * gaps[n][1] + allowance)
    return RatioChoice(candidates, losses, gaps, best, next(fits, "stack"))


def paired_difference(
    a: RatioCandidate, b: RatioCandidate, evidence: RatioEvidence
) -> tuple[float, float]:
    """Return the held-out loss of `a` minus that of `b`, and its standard error over rows."""
    total, variance = 0.0, 0.0
    sides = (evidence.sides(c.source, c.target) for c in (a, b))
    for (p, w, sign), (q, _, _) in zip(*sides, strict=True):
        d = np.logaddexp(0.0, sign * p) - np.logaddexp(0.0, sign * q)
        part = float(w @ d)
        total += part
        variance += float(np.square(w) @ np.square(d - part / w.sum()))
    return total, math.sqrt(variance)


def _bend(log_ratio: Float64Array, saturation: Saturation | None) -> Float64Array:
    return log_ratio if saturation is None else saturation(log_ratio)
