"""The estimator to take when in doubt: fit a family, trust held-out rows, prefer the simple."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedshift.core.calibrate import Saturation, information, log_loss, stack, worthwhile_saturation
from fedshift.core.samples import Float64Array, FloatArray, Sample
from fedshift.errors import InputError
from fedshift.ratio.base import Path, RatioEstimator
from fedshift.ratio.classifier import Classifier
from fedshift.ratio.crossfit import out_of_fold
from fedshift.ratio.gaussian import Gaussian
from fedshift.ratio.logistic import Logistic
from fedshift.ratio.neural import Neural

#: parametric members, simplest first; the rest only enter the stack
SIMPLE = ("none", "linear", "shared Gaussian", "sparse", "squares", "Gaussian", "quadratic")
#: nats by which fitting the stack's coefficients flatters it on the rows it is judged on
OPTIMISM = 1.5
#: most features a quadratic member may have, unless rows are very few
QUADRATIC = 600


class NoShift(RatioEstimator):
    """r(x) = 1: the model every other one has to beat."""

    def _fit(self, source: Sample, target: Sample) -> None:
        pass

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        return np.zeros(len(x))


@dataclass(frozen=True)
class Member:
    """A candidate with its held-out log ratios.

    Attributes
    ----------
    source, target : ndarray (n,), (n',)
        Out-of-fold log ratios.
    paths : list of callables
        Models fitted on each complement of a fold.
    column : int
        Which model of the path.
    saturation : Saturation or None
        Calibration worth its numbers, if any.
    """

    name: str
    source: Float64Array
    target: Float64Array
    paths: list[Path]
    column: int
    saturation: Saturation | None

    def __call__(self, x: FloatArray) -> Float64Array:
        """Calibrated mean log ratio of the fold models."""
        return _bend(
            np.mean([path(x)[:, self.column] for path in self.paths], axis=0), self.saturation
        )


class Auto(RatioEstimator):
    """Fits a family of estimators, compares them on rows they have not seen, and says why.

    Members: no shift; ridge, sparse and quadratic logistic regression; Gaussians with shared and
    own covariances; kernel logistic regression; boosted trees; a network. All are fitted on the
    same folds. Each may be bent by a bounded calibration if held-out rows pay for it. A
    non-negative stack of their held-out log ratios is the most flexible candidate; a simple
    parametric member is taken instead if its held-out divergence is within `tolerance` paired
    standard errors, and 1.5 nats over all rows, of the best (a one-standard-error rule), so
    noise never buys a network.

    New rows get the mean over the fold models. `source_log_ratio_` are the source rows' own
    out-of-fold log ratios: use these as training weights.

    Parameters
    ----------
    folds : int
    tolerance : float
        In standard errors of the paired difference of held-out losses.
    max_rows : int
        Rows of each law that members are compared on; above it, the chosen ones are fitted
        again on all rows.
    seed : int

    Attributes
    ----------
    choice_ : str
        Name of the chosen member, or "stack".
    reason_ : str
        One sentence: what was chosen, over what, by how much.
    table_ : list of dict
        A row for each candidate: name, held-out loss, difference to the best with its standard
        error, coefficient in the stack.
    source_log_ratio_ : ndarray (n_source,)

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> r = Auto().fit(source=rng.normal(size=500), target=rng.normal(1, 1, 500))
    >>> r.choice_
    'linear'
    """

    def __init__(
        self, *, folds: int = 5, tolerance: float = 1.0, max_rows: int = 20_000, seed: int = 0
    ) -> None:
        self.folds = folds
        self.tolerance = tolerance
        self.max_rows = max_rows
        self.seed = seed

    def _members(self, source: Sample, target: Sample) -> dict[str, RatioEstimator]:
        """The candidates that fit this number of rows and columns."""
        d = source.flat.shape[1]
        n = min(len(source), len(target))
        seed = self.seed
        members: dict[str, RatioEstimator] = {"linear": Logistic("linear")}
        if d <= 2000:
            members["shared Gaussian"] = Gaussian(shared=True)
            members["Gaussian"] = Gaussian()
        if d <= 120:
            members["sparse"] = Logistic("squares", sparse=True)
            members["squares"] = Logistic("squares")
        if d > 1 and (d * (d + 1) // 2 <= QUADRATIC or (n < 500 and d <= 64)):
            members["quadratic"] = Logistic("quadratic")
        for width in (1.0, 0.5, 0.25) if d <= 10 else (1.0, 0.5):
            members[f"kernel {width:g}"] = Logistic("kernel", width=width)
            if d > 20:
                members[f"pixel kernel {width:g}"] = Logistic(
                    "kernel", width=width, shared_scale=True
                )
        if n >= 50:
            members["boosting"] = Classifier(folds=0, seed=seed)
            members["network"] = Neural("lr", bound=None, seed=seed)
        return members

    def _fit(self, source: Sample, target: Sample) -> None:
        if self.folds < 2 or self.tolerance < 0 or self.max_rows < 100:
            raise InputError(
                "Auto needs folds ≥ 2, tolerance ≥ 0 and max_rows ≥ 100; got "
                f"{self.folds}, {self.tolerance} and {self.max_rows}"
            )
        s, t = (p.take(slice(0, self.max_rows)) for p in (source, target))
        folds = min(self.folds, len(s), len(t))
        if folds < 2:
            raise InputError("Auto needs at least 2 distinct rows in source and in target; got 1")
        members = [_constant(s, t)]
        for name, estimator in self._members(s, t).items():
            members.append(self._hold_out(name, estimator, s, t, folds))
        stacked = _Stack.of(members, s, t)
        self._choose(members, stacked, s, t)
        out = self._chosen.source
        if len(source) > len(s) or len(target) > len(t):
            self._refit(source, target)
            out = np.concatenate([out, self._predict(source.x[len(s) :])])
        self.source_log_ratio_ = out[source.inverse] + math.log(self.n_laws_)

    def _hold_out(
        self, name: str, estimator: RatioEstimator, s: Sample, t: Sample, folds: int
    ) -> Member:
        held = out_of_fold(estimator, s, t, folds=folds, seed=self.seed)
        losses = [
            log_loss(*held.column(j), s.weight, t.weight) for j in range(held.source.shape[1])
        ]
        best = int(np.argmin(losses))
        a, b = held.column(best)
        bend = worthwhile_saturation(a, b, s.weight, t.weight)
        return Member(name, _bend(a, bend), _bend(b, bend), held.paths, best, bend)

    def _choose(self, members: list[Member], stacked: _Stack, s: Sample, t: Sample) -> None:
        candidates: dict[str, Any] = {m.name: m for m in members} | {"stack": stacked}
        losses = {
            name: log_loss(m.source, m.target, s.weight, t.weight) for name, m in candidates.items()
        }
        best = min(losses, key=losses.__getitem__)
        gaps = {name: _paired(m, candidates[best], s, t) for name, m in candidates.items()}
        coefficients = dict(zip((m.name for m in members), stacked.coefficients, strict=True))
        self.table_ = [
            {
                "name": name,
                "loss": losses[name],
                "difference": gaps[name][0],
                "standard_error": gaps[name][1],
                "coefficient": float(coefficients.get(name, math.nan)),
                "saturated": m.saturation is not None,
            }
            for name, m in candidates.items()
        ]
        allowance = OPTIMISM / information(len(s), len(t))
        fits = [
            name
            for name in SIMPLE
            if name in gaps and gaps[name][0] <= self.tolerance * gaps[name][1] + allowance
        ]
        self.choice_ = fits[0] if fits else "stack"
        self._chosen = candidates[self.choice_]
        gap, error = gaps[self.choice_]
        if fits:
            self.reason_ = (
                f"{self.choice_}: the simplest member whose held-out loss {losses[self.choice_]:.4f} "
                f"is within {self.tolerance:g} standard errors of the best, {best} "
                f"({gap:+.4f} ± {error:.4f})"
            )
        else:
            parts = sorted(((c, n) for n, c in coefficients.items() if c > 0), reverse=True)
            simple = min((n for n in SIMPLE if n in losses), key=losses.__getitem__)
            self.reason_ = (
                "stack of "
                + ", ".join(f"{n} × {c:.2f}" for c, n in parts)
                + f": held-out loss {losses['stack']:.4f}; the best simple member, {simple}, is "
                f"worse by {gaps[simple][0]:.4f} ± {gaps[simple][1]:.4f}"
            )

    def _refit(self, source: Sample, target: Sample) -> None:
        """Fit the chosen members once on all rows, in place of their fold models."""
        estimators = self._members(source.take(slice(0, self.max_rows)), target)
        parts = self._chosen.members if isinstance(self._chosen, _Stack) else [self._chosen]
        for member in parts:
            if member.name in estimators:
                member.paths[:] = [estimators[member.name]._path(source, target)]

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        return self._chosen(x)


@dataclass(frozen=True)
class _Stack:
    """A non-negative combination of members."""

    members: list[Member]
    coefficients: Float64Array
    intercept: float
    source: Float64Array
    target: Float64Array
    saturation: Saturation | None

    @classmethod
    def of(cls, members: list[Member], s: Sample, t: Sample) -> _Stack:
        a = np.stack([m.source for m in members], axis=1)
        b = np.stack([m.target for m in members], axis=1)
        coefficients, intercept = stack(a, b, s.weight, t.weight)
        coefficients[0] = 0.0  # "none" is zero whatever its coefficient
        a, b = a @ coefficients + intercept, b @ coefficients + intercept
        bend = worthwhile_saturation(a, b, s.weight, t.weight)
        return cls(members, coefficients, intercept, _bend(a, bend), _bend(b, bend), bend)

    def __call__(self, x: FloatArray) -> Float64Array:
        total = np.full(len(x), self.intercept)
        for c, member in zip(self.coefficients, self.members, strict=True):
            if c > 0:
                total += c * member(x)
        return _bend(total, self.saturation)


def _constant(s: Sample, t: Sample) -> Member:
    def path(x: FloatArray) -> Float64Array:
        return np.zeros((len(x), 1))

    return Member("none", np.zeros(len(s)), np.zeros(len(t)), [path], 0, None)


def _bend(log_ratio: Float64Array, saturation: Saturation | None) -> Float64Array:
    return log_ratio if saturation is None else saturation(log_ratio)


def _paired(a: Any, b: Any, s: Sample, t: Sample) -> tuple[float, float]:
    """Difference of held-out losses and its standard error, row by row."""
    total, variance = 0.0, 0.0
    for p, q, law, sign in ((a.source, b.source, s, 1.0), (a.target, b.target, t, -1.0)):
        d = np.logaddexp(0.0, sign * p) - np.logaddexp(0.0, sign * q)
        mean = law.mean(d)
        total += mean
        variance += float(np.square(law.weight) @ np.square(d - mean))
    return total, math.sqrt(variance)
