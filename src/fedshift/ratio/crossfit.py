"""Cross-fitting: the ratio of a row from models fitted without it.

A model fitted on a source row tends to classify it as source. The ratio of that row is then too
small, most of all where ratios should be large. Cross-fitting splits both samples into folds and
computes the ratio of every source row with models fitted without its fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedshift.core.params import whole
from fedshift.core.samples import Float64Array, FloatArray, Sample, fold_of
from fedshift.errors import InputError
from fedshift.ratio.base import Path, RatioEstimator

#: source, target ↦ a fit
Fit = Callable[[Sample, Sample], Path]


@dataclass(frozen=True)
class OutOfFold:
    """Out-of-fold log ratios of m models, one per value of the tuning parameter, over k folds.

    Attributes
    ----------
    source, target : ndarray (n, m), (n', m)
        Log ratios. Each row's value comes from the fit that left the row's fold out.
    paths : list of callables
        The k fits, each a function from rows to log ratios of m models.
    """

    source: Float64Array
    target: Float64Array
    paths: list[Path]

    def column(self, j: int) -> tuple[Float64Array, Float64Array]:
        """Return the out-of-fold log ratios of model j at source and target rows."""
        return self.source[:, j], self.target[:, j]


def out_of_fold(fit: Fit, source: Sample, target: Sample, *, folds: int, seed: int) -> OutOfFold:
    """Fit on all but each fold in turn, and apply each fit to its fold."""
    small = min(len(source), len(target))
    if small < folds:
        raise InputError(
            f"cross-fitting with {folds} folds needs at least {folds} distinct rows in source and "
            f"in target; got {small}; lower the number of folds or collect more rows"
        )
    # one seed for both sides, so that exchanging source and target only exchanges the folds
    fold_s = fold_of(len(source), folds, seed=seed)
    fold_t = fold_of(len(target), folds, seed=seed)
    paths: list[Path] = []
    out_s: Float64Array | None = None
    for j in range(folds):
        path = fit(source.take(fold_s != j), target.take(fold_t != j))
        log_s, log_t = path(source.x[fold_s == j]), path(target.x[fold_t == j])
        if out_s is None:
            out_s = np.empty((len(source), log_s.shape[1]))
            out_t = np.empty((len(target), log_s.shape[1]))
        out_s[fold_s == j], out_t[fold_t == j] = log_s, log_t
        paths.append(path)
    assert out_s is not None
    return OutOfFold(out_s, out_t, paths)


class CrossFit(RatioEstimator):
    """Cross-fit an estimator, so that no row's ratio comes from a model fitted on that row.

    Weights of training rows are biased if the same rows were used to fit the ratio. After `fit`,
    `source_log_ratio_` has the log ratio of every source row, in the order of `fit`, from models
    fitted without it. It is the median over `repeats` splits into folds, so a single bad model
    cannot give a row an extreme weight. New rows get the median over all fitted models.

    When it fails: each model is fitted on fewer rows, so with few rows the ratios are less
    accurate. Cross-fitting takes ``folds * repeats`` fits.

    Parameters
    ----------
    estimator : RatioEstimator
        The estimator to cross-fit.
    folds : int
        At least 2. Source and target each need at least this many distinct rows.
    repeats : int
        Number of splits into folds. At least 3 protect against a single extreme weight.
    cap : bool
        Limit log ratios to the largest out-of-fold value of any *target* row. Above this value the
        model extrapolates.
    seed : int
        Seeds the folds.

    Attributes
    ----------
    source_log_ratio_ : ndarray (n_source,)
        Out-of-fold log ratios of the source rows, in the order of `fit`.
    models_ : list of callables
        All fitted models.
    cap_ : float
        Upper limit of the log ratio; infinite if `cap` is False. With several target distributions
        the limit applies to the ratio of their mean to the source.

    Examples
    --------
    >>> from fedshift.ratio import Logistic
    >>> rng = np.random.default_rng(0)
    >>> r = CrossFit(Logistic()).fit(source=rng.normal(size=500), target=rng.normal(1, 1, 500))
    >>> r.source_log_ratio_.shape
    (500,)
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

    def check_options(self) -> None:
        """Raise `InputError` if an option is not valid; `fit` calls this before any work."""
        super().check_options()
        if not isinstance(self.estimator, RatioEstimator):
            raise InputError(
                f"estimator must be one of fedshift.ratio; got {type(self.estimator).__name__}; "
                "wrap a scikit-learn classifier in Classifier(...)"
            )
        self.estimator.check_options()
        whole(self, "folds", least=2)
        whole(self, "repeats")

    def _fit(self, source: Sample, target: Sample) -> None:
        # a path of one model: the estimator chooses its tuning value within each fold
        single = partial(RatioEstimator._path, self.estimator)
        runs = [
            out_of_fold(single, source, target, folds=self.folds, seed=self.seed + i)
            for i in range(self.repeats)
        ]
        self.models_ = [path for run in runs for path in run.paths]
        at_source = np.median([run.source[:, 0] for run in runs], axis=0)
        at_target = np.median([run.target[:, 0] for run in runs], axis=0)
        self.cap_ = float(at_target.max()) if self.cap else math.inf
        values = np.minimum(at_source, self.cap_)
        self.source_log_ratio_ = values[source.inverse] + math.log(self.n_targets_)

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        values = np.median([path(x)[:, 0] for path in self.models_], axis=0)
        return np.asarray(np.minimum(values, self.cap_))
