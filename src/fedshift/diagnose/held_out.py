"""How large is a difference? Measured on rows that the classifier has not seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm, rankdata

from fedshift.core.calibrate import Evidence, stack
from fedshift.core.samples import Float64Array, fold_of

IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]

FOLDS = 5
#: ridges tried, as shares of the largest eigenvalue
RIDGES = (0.5, 0.05, 0.005)
#: Folds share rows, so a cross-fitted figure varies more than its rows say: by this factor for
#: five folds (Nadeau and Bengio 2003; 1.3 to 1.5 measured without shift).
SHARED = math.sqrt(1.0 + FOLDS / (FOLDS - 1))
Z = 1.959963984540054


def folds_of(group: IntArray, *, seed: int) -> IntArray:
    """A fold for every row, spread evenly over each group."""
    fold = np.empty(len(group), dtype=np.intp)
    for g in np.unique(group):
        mine = np.flatnonzero(group == g)
        fold[mine] = fold_of(len(mine), FOLDS, seed=seed)
    return fold


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Ridge regressions, each fitted without one fold and asked about that fold only.

    Attributes
    ----------
    fold : int ndarray (n,)
    centre : ndarray (folds, p)
    level : ndarray (folds, m)
    coefficients : ndarray (folds, ridges, p, m)
    """

    fold: IntArray
    centre: Float64Array
    level: Float64Array
    coefficients: Float64Array

    @classmethod
    def of(cls, features: Float64Array, responses: Float64Array, fold: IntArray) -> CrossFit:
        """Fit responses (n, m) by features (n, p), both centred on the rows fitted."""
        shape = (FOLDS, len(RIDGES), features.shape[1], responses.shape[1])
        centre, level = np.empty((FOLDS, shape[2])), np.empty((FOLDS, shape[3]))
        coefficients = np.empty(shape)
        for j in range(FOLDS):
            kept = fold != j
            centre[j], level[j] = features[kept].mean(axis=0), responses[kept].mean(axis=0)
            f = features[kept] - centre[j]
            gram, moments = f.T @ f, f.T @ (responses[kept] - level[j])
            top = _largest(gram)
            for i, ridge in enumerate(RIDGES):
                a = gram + max(ridge * top, 1e-9) * np.eye(len(gram))
                factor = cho_factor(a, check_finite=False)
                coefficients[j, i] = cho_solve(factor, moments, check_finite=False)
        return cls(fold, centre, level, coefficients)

    def predict(self, features: Float64Array, ridge: int) -> Float64Array:
        """Predictions (n, m), each row by the fit without its fold."""
        out = np.empty((len(features), self.level.shape[1]))
        for j in range(FOLDS):
            held = self.fold == j
            out[held] = (features[held] - self.centre[j]) @ self.coefficients[j, ridge]
            out[held] += self.level[j]
        return out


def cross_fit(
    features: Float64Array, responses: Float64Array, fold: IntArray
) -> list[Float64Array]:
    """Held-out ridge predictions (n, m) of responses (n, m), one array for every ridge."""
    fit = CrossFit.of(features, responses, fold)
    return [fit.predict(features, i) for i in range(len(RIDGES))]


def _largest(gram: Float64Array, steps: int = 30) -> float:
    """The largest eigenvalue, near enough, by powers."""
    v = np.ones(len(gram))
    for _ in range(steps):
        w = gram @ v
        size = float(np.linalg.norm(w))
        if size == 0.0:
            return 0.0
        v = w / size
    return float(v @ gram @ v)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How well a held-out classifier tells two sides apart.

    Attributes
    ----------
    auc : float
        Chance that a target row scores above a source row: ½ if nothing can be told.
    low, high : float
        95 % interval of it (DeLong's error, widened for the rows that folds share).
    tv : float or None
        Total variation, at least: hit rate minus false-alarm rate at a threshold chosen on other
        folds. No bounded loss can change by more than the true one.
    js : float or None
        Jensen-Shannon divergence in bits, at least; 1 means that the sides do not overlap.
    """

    auc: float
    low: float
    high: float
    tv: float | None = None
    js: float | None = None


def effect(score: Float64Array, target: BoolArray, fold: IntArray) -> Effect:
    """Effect sizes of held-out scores (n,)."""
    value, error = auc_and_error(score, target)
    half = Z * SHARED * error
    return Effect(
        auc=value,
        low=max(0.0, value - half),
        high=min(1.0, value + half),
        tv=_variation(score, target, fold),
        js=_jensen_shannon(score, target),
    )


def auc_and_error(score: Float64Array, target: BoolArray) -> tuple[float, float]:
    """Area under the ROC curve and DeLong's standard error, in O(n log n).

    Examples
    --------
    >>> auc_and_error(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))[0]
    0.75
    """
    a, b = int(target.sum()), int((~target).sum())
    rank = rankdata(score)
    over_source = (rank[target] - rankdata(score[target])) / b
    under_target = 1.0 - (rank[~target] - rankdata(score[~target])) / a
    value = float(over_source.mean())
    variance = sum(
        float(np.var(v, ddof=1)) / len(v) for v in (over_source, under_target) if len(v) > 1
    )
    # even where all pairs are in order the next one may not be
    floor = 0.25 / (min(a, b) + 2) ** 2
    return value, math.sqrt(max(variance, floor))


def _variation(score: Float64Array, target: BoolArray, fold: IntArray) -> float:
    """Hit rate minus false-alarm rate at the threshold that is best on the other folds."""
    says = np.zeros(len(score), dtype=bool)
    for j in np.unique(fold):
        held = fold == j
        says[held] = score[held] > _threshold(score[~held], target[~held])
    return max(0.0, float(says[target].mean() - says[~target].mean()))


def _threshold(score: Float64Array, target: BoolArray) -> float:
    order = np.argsort(score, kind="stable")
    step = np.where(target, -1.0 / max(1, target.sum()), 1.0 / max(1, (~target).sum()))
    gain = np.cumsum(step[order])
    ends = np.append(score[order][1:] > score[order][:-1], True)  # no cut between ties
    return float(score[order][int(np.argmax(np.where(ends, gain, -math.inf)))])


def _jensen_shannon(score: Float64Array, target: BoolArray) -> float:
    """One minus the balanced log loss, in bits, of scores put on the log-ratio scale."""
    s, t = score[~target][:, None], score[target][:, None]
    scale = max(float(score.std()), 1e-12)
    evidence = Evidence.of(*(np.full(len(v), 1.0 / len(v)) for v in (s, t)))
    (slope,), shift = stack(s / scale, t / scale, evidence)
    loss = [
        np.logaddexp(0.0, sign * (slope * v / scale + shift)).mean()
        for sign, v in ((1, s), (-1, t))
    ]
    return max(0.0, 1.0 - float(np.mean(loss)) / math.log(2.0))


def auc_of_correlation(correlation: float, spread: float) -> float:
    """The AUC of two Gaussians whose side has this correlation with the score.

    `spread` is the variance of the side given all else, ¼ for sides of equal size.

    Examples
    --------
    >>> round(auc_of_correlation(0.1, 0.25), 3)
    0.557
    """
    r = min(0.999999, max(-0.999999, correlation))
    gap = r / math.sqrt(max(1e-12, (1.0 - r * r) * spread)) if r else 0.0
    return float(norm.cdf(gap / math.sqrt(2.0)))
