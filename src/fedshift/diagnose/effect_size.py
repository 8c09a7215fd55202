"""Effect sizes: the AUC of cross-fitted classifiers, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm, rankdata

from fedshift.core.samples import Float64Array, fold_of

IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]

FOLDS = 5
#: ridge penalties, as shares of the largest eigenvalue
RIDGES = (0.5, 0.05, 0.005)
#: Folds share training rows, so a cross-fitted figure has a larger standard error, by this factor
#: for five folds (Nadeau and Bengio 2003; 1.3 to 1.5 measured without shift).
SHARED = math.sqrt(1.0 + FOLDS / (FOLDS - 1))
Z = 1.959963984540054


def folds_of(group: IntArray, *, seed: int) -> IntArray:
    """Assign every row a fold (n,), evenly within each group."""
    fold = np.empty(len(group), dtype=np.intp)
    for g in np.unique(group):
        mine = np.flatnonzero(group == g)
        fold[mine] = fold_of(len(mine), FOLDS, seed=seed)
    return fold


@dataclass(frozen=True, eq=False)
class RidgeCrossFit:
    """Ridge regressions, each fitted without one fold and used to predict that fold.

    Attributes
    ----------
    fold : int ndarray (n,)
    centre : ndarray (folds, p)
        Means of the features.
    level : ndarray (folds, m)
        Means of the responses.
    coefficients : ndarray (folds, ridges, p, m)
    """

    fold: IntArray
    centre: Float64Array
    level: Float64Array
    coefficients: Float64Array

    @classmethod
    def of(cls, features: Float64Array, responses: Float64Array, fold: IntArray) -> RidgeCrossFit:
        """Fit responses (n, m) by features (n, p), both centred on the rows of each fit."""
        shape = (FOLDS, len(RIDGES), features.shape[1], responses.shape[1])
        centre, level = np.empty((FOLDS, shape[2])), np.empty((FOLDS, shape[3]))
        coefficients = np.empty(shape)
        for j in range(FOLDS):
            rest = fold != j
            centre[j], level[j] = features[rest].mean(axis=0), responses[rest].mean(axis=0)
            f = features[rest] - centre[j]
            gram, moments = f.T @ f, f.T @ (responses[rest] - level[j])
            top = _largest(gram)
            for i, ridge in enumerate(RIDGES):
                a = gram + max(ridge * top, 1e-9) * np.eye(len(gram))
                factor = cho_factor(a, check_finite=False)
                coefficients[j, i] = cho_solve(factor, moments, check_finite=False)
        return cls(fold, centre, level, coefficients)

    def predict(self, features: Float64Array, ridge: int) -> Float64Array:
        """Predict responses (n, m), each row by the fit without its fold."""
        out = np.empty((len(features), self.level.shape[1]))
        for j in range(FOLDS):
            mine = self.fold == j
            out[mine] = (features[mine] - self.centre[j]) @ self.coefficients[j, ridge]
            out[mine] += self.level[j]
        return out


def cross_fit(
    features: Float64Array, responses: Float64Array, fold: IntArray
) -> list[Float64Array]:
    """Return held-out ridge predictions (n, m) of responses (n, m), one array per ridge."""
    fit = RidgeCrossFit.of(features, responses, fold)
    return [fit.predict(features, i) for i in range(len(RIDGES))]


def _largest(gram: Float64Array, steps: int = 30) -> float:
    """Approximate the largest eigenvalue by power iteration."""
    v = np.ones(len(gram))
    for _ in range(steps):
        w = gram @ v
        size = float(np.linalg.norm(w))
        if size == 0.0:
            return 0.0
        v = w / size
    return float(v @ gram @ v)


def effect(score: Float64Array, target: BoolArray) -> dict[str, float]:
    """Compute the AUC of held-out scores (n,) with its 95 % interval, from "low" to "high".

    DeLong's error is widened because models of different folds share training rows.
    """
    value, error = auc_and_error(score, target)
    half = Z * SHARED * error
    return {"auc": value, "low": max(0.0, value - half), "high": min(1.0, value + half)}


def auc_and_error(score: Float64Array, target: BoolArray) -> tuple[float, float]:
    """Compute the area under the ROC curve and DeLong's standard error, in O(n log n).

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
    # even if all pairs are in order, the error is not zero
    floor = 0.25 / (min(a, b) + 2) ** 2
    return value, math.sqrt(max(variance, floor))


def auc_of_correlation(correlation: float, spread: float) -> float:
    """Convert the correlation of a score with the target indicator to the AUC of two Gaussians.

    The indicator is 1 for target rows and 0 for source rows. `spread` is its variance, for example
    ¼ with equally many source and target rows. If the score was adjusted for other variables,
    `spread` is the mean of the indicator's variance given these variables.

    Examples
    --------
    >>> round(auc_of_correlation(0.1, 0.25), 3)
    0.557
    """
    r = min(0.999999, max(-0.999999, correlation))
    gap = r / math.sqrt(max(1e-12, (1.0 - r * r) * spread)) if r else 0.0
    return float(norm.cdf(gap / math.sqrt(2.0)))
