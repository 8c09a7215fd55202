"""Cross-fitting: the ratio of a row from models that have not seen it.

A model fitted on a row is tilted towards calling it "source"; weights made that way are too
small exactly where they matter. Cross-fitting cuts both samples in folds, and takes every source
row's ratio from the models fitted without its fold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from sklearn.base import clone

from fedshift.core.samples import Float64Array, FloatArray, Sample, fold_of
from fedshift.errors import InputError
from fedshift.ratio.base import Path, RatioEstimator


@dataclass(frozen=True)
class OutOfFold:
    """What k models say of the rows each has not seen.

    Attributes
    ----------
    source, target : ndarray (n, m), (n', m)
        Log ratios, every row by the model fitted without it.
    paths : list of callables
        The k fitted models.
    """

    source: Float64Array
    target: Float64Array
    paths: list[Path]

    def column(self, j: int) -> tuple[Float64Array, Float64Array]:
        """Held-out log ratios of one of the m models."""
        return self.source[:, j], self.target[:, j]


def out_of_fold(
    estimator: RatioEstimator, source: Sample, target: Sample, *, folds: int, seed: int
) -> OutOfFold:
    """Fit `estimator` on all but each fold in turn and apply it to that fold."""
    small = min(len(source), len(target))
    if small < folds:
        raise InputError(
            f"cross-fitting with {folds} folds needs at least {folds} distinct rows in source and "
            f"target; got {small}; lower the number of folds or collect more rows"
        )
    # one seed for both sides, so that exchanging them exchanges the folds and nothing else
    fold_s = fold_of(len(source), folds, seed=seed)
    fold_t = fold_of(len(target), folds, seed=seed)
    paths: list[Path] = []
    out_s: Float64Array | None = None
    for j in range(folds):
        path = estimator._path(source.take(fold_s != j), target.take(fold_t != j))
        held_s, held_t = path(source.x[fold_s == j]), path(target.x[fold_t == j])
        if out_s is None:
            out_s = np.empty((len(source), held_s.shape[1]))
            out_t = np.empty((len(target), held_s.shape[1]))
        out_s[fold_s == j], out_t[fold_t == j] = held_s, held_t
        paths.append(path)
    assert out_s is not None
    return OutOfFold(out_s, out_t, paths)


class CrossFit(RatioEstimator):
    """Any estimator, cross-fitted.

    After `fit`, `source_log_ratio_` holds the log ratio of every source row, in the order given,
    from models that have not seen it: the median over `repeats` different cuts into folds, so
    that one model gone wild cannot make a single weight explode. New rows get the median over
    all fitted models.

    Parameters
    ----------
    estimator : RatioEstimator
    folds : int
        At least 2.
    repeats : int
        Cuts into folds; 3 or more protect against a single exploding weight.
    cap : bool
        Keep log ratios below the largest one any *target* row was given out of fold: beyond it
        the model extrapolates.

    Attributes
    ----------
    source_log_ratio_ : ndarray (n_source,)
    """

    def __init__(
        self,
        estimator: RatioEstimator,
        *,
        folds: int = 5,
        repeats: int = 3,
        cap: bool = True,
        seed: int = 0,
    ) -> None:
        self.estimator = estimator
        self.folds = folds
        self.repeats = repeats
        self.cap = cap
        self.seed = seed

    def _fit(self, source: Sample, target: Sample) -> None:
        if not isinstance(self.estimator, RatioEstimator):
            raise InputError(
                f"estimator must be one of fedshift.ratio; got {type(self.estimator).__name__}; "
                "wrap a scikit-learn classifier in Classifier(...)"
            )
        if self.folds < 2 or self.repeats < 1:
            raise InputError(
                f"folds must be at least 2 and repeats at least 1; got {self.folds} and "
                f"{self.repeats}"
            )
        single = _Fixed(self.estimator)
        runs = [
            out_of_fold(single, source, target, folds=self.folds, seed=self.seed + i)
            for i in range(self.repeats)
        ]
        self.models_ = [path for run in runs for path in run.paths]
        held_source = np.median([run.source[:, 0] for run in runs], axis=0)
        held_target = np.median([run.target[:, 0] for run in runs], axis=0)
        self.cap_ = float(held_target.max()) if self.cap else math.inf
        capped = np.minimum(held_source, self.cap_)
        self.source_log_ratio_ = capped[source.inverse] + math.log(self.n_laws_)

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        values = np.median([path(x)[:, 0] for path in self.models_], axis=0)
        return np.asarray(np.minimum(values, self.cap_))


class _Fixed(RatioEstimator):
    """One column whatever the estimator's path: it chooses its own tuning inside each fold."""

    def __init__(self, estimator: RatioEstimator) -> None:
        self.estimator = estimator

    def _path(self, source: Sample, target: Sample) -> Path:
        model = clone(self.estimator)
        return RatioEstimator._path(model, source, target)
