"""Density ratios from any probabilistic classifier of scikit-learn."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from fedshift.core.calibrate import RatioEvidence, Saturation, worthwhile_saturation
from fedshift.core.params import whole
from fedshift.core.samples import Float64Array, FloatArray, Sample
from fedshift.errors import InputError
from fedshift.ratio.base import Path, RatioEstimator
from fedshift.ratio.crossfit import out_of_fold

#: above this many rows, one held-out tenth replaces the folds
FOLDS_BELOW = 50_000
#: most rows of source, and of target, in that tenth
HELD_OUT = 50_000

Index = npt.NDArray[np.intp]


def boosting(n: int, *, seed: int = 0) -> HistGradientBoostingClassifier:
    """Return shallow boosted trees with a small learning rate and early stopping.

    Below 100 rows early stopping is not possible, so fewer and smaller trees are grown.
    """
    enough = n >= 100
    return HistGradientBoostingClassifier(
        learning_rate=0.05,
        max_leaf_nodes=8,
        min_samples_leaf=30 if enough else max(2, n // 10),
        max_iter=300 if enough else 20,
        early_stopping=enough,
        n_iter_no_change=15,
        random_state=seed,
    )


class Classifier(RatioEstimator):
    r"""Ratio from a classifier that separates target from source rows.

    By Bayes' theorem

    .. math:: \log r(x) = \log P(target \mid x) - \log P(source \mid x)
              - \log(n_{target} / n_{source}) .

    A classifier is over-confident on the rows it was fitted on. So the rows are split into folds,
    and each fold is scored by a model fitted without it. These scores calibrate the mean of the
    models by a bounded monotone map (`fedshift.core.calibrate.Saturation`), if that lowers the
    held-out loss.

    When it fails: a classifier with poor probabilities gives poor ratios. Target distributions of
    different size, or duplicate rows, need a classifier that takes ``sample_weight``.

    Parameters
    ----------
    estimator : classifier, optional
        Any classifier with ``predict_proba``, also a pipeline. Default: boosted trees.
    calibrate : bool
        Whether held-out scores calibrate the log ratio.
    folds : int
        Number of folds; every fold has a model that is fitted without it. With 0, one model is
        fitted on all rows and not calibrated. With more than 50,000 rows and any value above 0, one
        model is fitted on nine tenths of the rows, and the other tenth calibrates it.
    seed : int
        Seeds the folds and every ``random_state`` of the classifier that is None.

    Attributes
    ----------
    source_log_ratio_ : ndarray (n_source,)
        Out-of-fold log ratios of the source rows, in the order of `fit`. It exists only with
        folds, and with at most 50,000 rows.
    saturation_ : Saturation or None
        The calibration, or None if it does not lower the held-out loss.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> source, target = rng.normal(size=(2000, 1)), rng.normal(1, 1, (2000, 1))
    >>> r = Classifier(LogisticRegression()).fit(source=source, target=target)
    >>> x = np.array([[0.5], [1.0]])
    >>> bool(np.abs(r.log_ratio(x) - (x[:, 0] - 0.5)).max() < 0.15)  # truth: x − ½
    True
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        calibrate: bool = True,
        folds: int = 5,
        seed: int = 0,
    ) -> None:
        self.estimator = estimator
        self.calibrate = calibrate
        self.folds = folds
        self.seed = seed

    def _fit(self, source: Sample, target: Sample) -> None:
        if self.estimator is not None and not hasattr(self.estimator, "predict_proba"):
            raise InputError(
                f"estimator must have predict_proba; got {type(self.estimator).__name__}; wrap it "
                "in sklearn.calibration.CalibratedClassifierCV"
            )
        if whole(self, "folds", least=0) == 1:
            raise InputError(f"folds must be 0 or at least 2; got {self.folds}")
        self.saturation_: Saturation | None = None
        self.__dict__.pop("source_log_ratio_", None)  # of an earlier fit with folds
        folds = min(self.folds, len(source), len(target))
        if folds < 2:
            self._models = [self._path(source, target)]
        elif len(source) + len(target) > FOLDS_BELOW:
            out_s, out_t = (p.subset(min(HELD_OUT, len(p) // 10)) for p in (source, target))
            fit_s = np.delete(np.arange(len(source)), out_s)
            fit_t = np.delete(np.arange(len(target)), out_t)
            model = self._learn(source, target, fit_s, fit_t)
            self._models = [model]
            s, t = source.take(out_s), target.take(out_t)
            self._calibrate(model(s.x)[:, 0], model(t.x)[:, 0], s, t)
        else:
            scores = out_of_fold(self._path, source, target, folds=folds, seed=self.seed)
            self._models = scores.paths
            self._calibrate(*scores.column(0), source, target)
            out = self._bend(scores.source[:, 0])
            self.source_log_ratio_ = out[source.inverse] + math.log(self.n_targets_)

    def _calibrate(self, s: Float64Array, t: Float64Array, source: Sample, target: Sample) -> None:
        if self.calibrate:
            evidence = RatioEvidence.of(source.weight, target.weight)
            self.saturation_ = worthwhile_saturation(s, t, evidence)

    def _bend(self, log_ratio: Float64Array) -> Float64Array:
        return log_ratio if self.saturation_ is None else self.saturation_(log_ratio)

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        return self._bend(np.mean([model(x)[:, 0] for model in self._models], axis=0))

    def _fresh(self, n: int) -> Any:
        """Return an unfitted classifier; every ``random_state`` that is None becomes the seed."""
        if self.estimator is None:
            return boosting(n, seed=self.seed)
        model = clone(self.estimator)
        parameters = model.get_params()
        unset = {k: self.seed for k, v in parameters.items() if v is None and _is_seed(k)}
        return model.set_params(**unset)

    def _path(self, source: Sample, target: Sample) -> Path:
        return self._learn(source, target, np.arange(len(source)), np.arange(len(target)))

    def _learn(self, source: Sample, target: Sample, fit_s: Index, fit_t: Index) -> Path:
        """Fit on rows `fit_s` of source and `fit_t` of target, with a single copy of them."""
        n_s, n_t = len(fit_s), len(fit_t)
        # boosting works on float64: made here, it need not make a second copy
        dtype = np.float64 if self.estimator is None else source.x.dtype
        x = np.empty((n_s + n_t, source.flat.shape[1]), dtype=dtype)
        x[:n_s], x[n_s:] = source.flat[fit_s], target.flat[fit_t]
        y = np.repeat([0, 1], [n_s, n_t])
        weights = (source.weight[fit_s], target.weight[fit_t])
        weight = np.concatenate([w / w.mean() for w in weights])
        model = self._fresh(len(x))
        model.fit(x, y, **_weights(model, weight))
        return partial(_log_ratio, model=model, offset=math.log(n_t / n_s))


def _log_ratio(x: FloatArray, model: Any, offset: float) -> Float64Array:
    """Log ratio (n, 1) from the probability of the target, by Bayes' theorem."""
    p = model.predict_proba(x.reshape(len(x), -1))[:, 1].astype(np.float64)
    p = np.clip(p, 1e-9, 1.0 - 1e-9)
    return np.asarray((np.log(p) - np.log1p(-p) - offset)[:, None])


def _is_seed(name: str) -> bool:
    return name == "random_state" or name.endswith("__random_state")


def _weights(model: Any, weight: Float64Array) -> dict[str, Float64Array]:
    """Return the keyword argument with the weights, or no argument if all rows weigh the same."""
    if np.ptp(weight) < 1e-9:
        return {}
    keyword = weight_keyword(model)
    if keyword is None:
        raise InputError(
            f"{last_step(model)[0]} takes no sample_weight, but the rows have different weights: "
            "there are duplicates, or target distributions of different size; use a classifier "
            "that takes sample_weight, or distributions of equal size without duplicates"
        )
    return {keyword: weight}


def last_step(model: Any) -> tuple[str, Any, str]:
    """Return name and object of a pipeline's last step, and the prefix of its fit keywords."""
    prefix = ""
    while isinstance(model, Pipeline):
        prefix += f"{model.steps[-1][0]}__"
        model = model.steps[-1][1]
    return type(model).__name__, model, prefix


def weight_keyword(model: Any) -> str | None:
    """Return the argument of `fit` for row weights, also of a pipeline; None if it has none."""
    _, last, prefix = last_step(model)
    return f"{prefix}sample_weight" if has_fit_parameter(last, "sample_weight") else None
