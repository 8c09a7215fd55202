"""Candidates compared on rows they have not seen, and their stack.

What `Auto` chooses from and what `ScoreBound` cuts its cells along.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier

from fedshift.core.calibrate import Evidence, Saturation, stack, worthwhile_saturation
from fedshift.core.samples import Float64Array, FloatArray, Sample, fold_of
from fedshift.ratio.base import Path, RatioEstimator
from fedshift.ratio.classifier import Classifier
from fedshift.ratio.crossfit import out_of_fold
from fedshift.ratio.gaussian import Gaussian
from fedshift.ratio.logistic import Logistic
from fedshift.ratio.margin import Margin

#: parametric members, simplest first; the rest only enter the stack
SIMPLE = ("none", "linear", "shared Gaussian", "sparse", "squares", "Gaussian", "quadratic")
#: nats by which choosing a tuning value and a slope flatters a member on the rows it is judged on
OPTIMISM = 1.5
#: standard errors of the paired difference that a simple member may be worse by
TOLERANCE = 1.5
#: most products a quadratic member may have, unless rows are very few
PRODUCTS = 600
#: most rows a law for randomised trees and for support vectors, whose cost grows fastest
TREES, MARGIN = 6000, 3000


class Candidate(Protocol):
    """Log ratios on held-out rows, and of new rows."""

    @property
    def source(self) -> Float64Array:
        """Out-of-fold log ratios of the source rows."""

    @property
    def target(self) -> Float64Array:
        """Out-of-fold log ratios of the target rows."""

    @property
    def saturation(self) -> Saturation | None:
        """The bounded calibration, if it was worth its numbers."""

    def __call__(self, x: FloatArray) -> Float64Array:
        """Log ratios of new rows."""


@dataclass(frozen=True)
class Member:
    """One estimator of the family.

    Attributes
    ----------
    source, target : ndarray (n,), (n',)
        Out-of-fold log ratios, calibrated.
    paths : list of callables
        Models fitted on each complement of a fold.
    column : int
        Which model of the path.
    slope, intercept : float
        Straight calibration on held-out rows: a strong ridge finds the direction and shrinks
        its length; the slope gives the length back.
    saturation : Saturation or None
        Bounded calibration on top, if worth its numbers.
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
        """Calibrated mean log ratio of the fold models."""
        raw = np.mean([path(x)[:, self.column] for path in self.paths], axis=0)
        return _bend(self.slope * raw + self.intercept, self.saturation)


@dataclass(frozen=True)
class Stack:
    """A non-negative combination of members, fitted on their held-out log ratios.

    Attributes
    ----------
    source, target : ndarray (n,), (n',)
        What combinations fitted without a row's fold say of it: as many coefficients as there
        are members flatter a stack on the rows it was fitted on.
    """

    members: list[Member]
    coefficients: Float64Array
    intercept: float
    source: Float64Array
    target: Float64Array
    saturation: Saturation | None

    @classmethod
    def of(cls, members: list[Member], s: Sample, t: Sample) -> Stack:
        """The stack with the lowest held-out loss."""
        a = np.stack([m.source for m in members], axis=1)
        b = np.stack([m.target for m in members], axis=1)
        evidence = Evidence.of(s.weight, t.weight)
        coefficients, intercept = stack(a, b, evidence)
        coefficients[np.ptp(np.concatenate([a, b]), axis=0) == 0] = 0.0  # "none" adds nothing
        out_a, out_b = np.empty(len(s)), np.empty(len(t))
        folds = min(5, len(s), len(t))
        fold_a, fold_b = (fold_of(len(p), folds, seed=len(members)) for p in (s, t))
        for j in range(folds):
            kept_a, kept_b = fold_a != j, fold_b != j
            part = Evidence.of(s.take(kept_a).weight, t.take(kept_b).weight)
            c, shift = stack(a[kept_a], b[kept_b], part)
            out_a[~kept_a], out_b[~kept_b] = a[~kept_a] @ c + shift, b[~kept_b] @ c + shift
        bend = worthwhile_saturation(out_a, out_b, evidence)
        held = _bend(out_a, bend), _bend(out_b, bend)
        return cls(members, coefficients, intercept, *held, bend)

    def __call__(self, x: FloatArray) -> Float64Array:
        """Log ratios of new rows."""
        total = np.full(len(x), self.intercept)
        for c, member in zip(self.coefficients, self.members, strict=True):
            if c > 0:
                total += c * member(x)
        return _bend(total, self.saturation)


def no_shift(s: Sample, t: Sample) -> Member:
    """r(x) = 1: the model every other one has to beat."""

    def path(x: FloatArray) -> Float64Array:
        return np.zeros((len(x), 1))

    return Member("none", np.zeros(len(s)), np.zeros(len(t)), [path])


def shallow_estimators(s: Sample, t: Sample, *, seed: int) -> dict[str, RatioEstimator]:
    """Every estimator but networks that fits this number of rows and columns."""
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
        # with as many products as rows it is no longer a simple model
        simple = d + d * (d + 1) // 2 <= n / 2
        members["quadratic" if simple else "products"] = Logistic("quadratic")
    for width in (1.0, 0.5, 0.25) if d <= 10 else (1.0, 0.5):
        members[f"kernel {width:g}"] = Logistic("kernel", width=width)
    if d > 20:  # perhaps pixels: one scale for all columns
        for width in (1.0, 0.5, 0.3):
            members[f"pixel kernel {width:g}"] = Logistic("kernel", width=width, shared_scale=True)
        if max(len(s), len(t)) <= MARGIN:
            members["margin"] = Margin()
    if n >= 50:
        members["boosting"] = Classifier(folds=0, seed=seed)
    if d > 1 and n >= 50 and max(len(s), len(t)) <= TREES:
        forest = ExtraTreesClassifier(100, random_state=seed)
        members["trees"] = Classifier(forest, folds=0, seed=seed)
    return members


def hold_out(
    estimators: Mapping[str, RatioEstimator], s: Sample, t: Sample, *, folds: int, seed: int
) -> list[Member]:
    """Fit every estimator on the same folds, calibrate it on the rows it has not seen."""
    members = [no_shift(s, t)]
    evidence = Evidence.of(s.weight, t.weight)
    for name, estimator in estimators.items():
        held = out_of_fold(estimator, s, t, folds=folds, seed=seed)
        lines = []
        for j in range(held.source.shape[1]):
            a, b = held.column(j)
            (slope,), intercept = stack(a[:, None], b[:, None], evidence)
            a, b = slope * a + intercept, slope * b + intercept
            lines.append((evidence.loss(a, b), j, float(slope), intercept, a, b))
        _, column, slope, intercept, a, b = min(lines, key=lambda line: line[:2])
        bend = worthwhile_saturation(a, b, evidence)
        members.append(
            Member(name, _bend(a, bend), _bend(b, bend), held.paths, column, slope, intercept, bend)
        )
    return members


@dataclass(frozen=True)
class Choice:
    """Candidates compared on held-out rows, and the one to take.

    Attributes
    ----------
    candidates : mapping of name to Candidate
        The members and their stack.
    losses : mapping of name to float
        Mean held-out log loss.
    gaps : mapping of name to (float, float)
        Difference to the lowest loss and its standard error.
    best, taken : str
        The lowest loss; and the simplest parametric member as good to within noise, or the
        stack if there is none.
    """

    candidates: dict[str, Candidate]
    losses: dict[str, float]
    gaps: dict[str, tuple[float, float]]
    best: str
    taken: str

    @property
    def candidate(self) -> Candidate:
        """The candidate taken."""
        return self.candidates[self.taken]


def choose(members: list[Member], s: Sample, t: Sample, *, tolerance: float) -> Choice:
    """The one-standard-error rule over members and their stack.

    Parameters
    ----------
    tolerance : float
        Standard errors of the paired difference of held-out losses that a simple member may be
        worse by; `OPTIMISM` nats over all rows are allowed on top.
    """
    evidence = Evidence.of(s.weight, t.weight)
    candidates: dict[str, Candidate] = {m.name: m for m in members}
    candidates["stack"] = Stack.of(members, s, t)
    losses = {name: evidence.loss(c.source, c.target) for name, c in candidates.items()}
    best = min(losses, key=losses.__getitem__)
    gaps = {n: paired_difference(c, candidates[best], evidence) for n, c in candidates.items()}
    allowance = OPTIMISM / evidence.n
    fits = (n for n in SIMPLE if n in gaps and gaps[n][0] <= tolerance * gaps[n][1] + allowance)
    return Choice(candidates, losses, gaps, best, next(fits, "stack"))


def paired_difference(a: Candidate, b: Candidate, evidence: Evidence) -> tuple[float, float]:
    """Difference of held-out losses and its standard error, row by row."""
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
