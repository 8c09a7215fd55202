"""The ratio from any probabilistic classifier of scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from fedshift.core.calibrate import Evidence, Saturation, worthwhile_saturation
from fedshift.core.params import whole
from fedshift.core.samples import Float64Array, FloatArray, Sample
from fedshift.errors import InputError
from fedshift.ratio.base import Path, RatioEstimator
from fedshift.ratio.crossfit import out_of_fold

#: above this many rows one held-out part replaces the folds
FOLDS_BELOW = 50_000
#: most rows of a law held out for calibration then
HELD_OUT = 50_000

Index = npt.NDArray[np.intp]


def boosting(n: int, *, seed: int = 0) -> HistGradientBoostingClassifier:
    """Shallow, slowly learned boosted trees that stop early: good log odds, few surprises.

    Below 100 rows there is nothing to stop on, and fewer, smaller trees are grown.
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
    r"""log r(x) = log P(target | x) − log P(source | x) − log(n_target / n_source).

    Cross-fitted: the rows are cut in folds, each fold is scored by a model that has not seen it,
    and the scores calibrate the average of the models by a bounded monotone map
    (`fedshift.core.calibrate.Saturation`) if that pays on held-out rows.

    Parameters
    ----------
    estimator : classifier, optional
        Anything with ``predict_proba``, pipelines included. Default: boosted trees.
    calibrate : bool
        Whether held-out scores may bend the log ratio.
    folds : int
        0 fits one model on all rows, uncalibrated. Above 50,000 rows one held-out tenth
        replaces the folds.
    seed : int

    Attributes
    ----------
    source_log_ratio_ : ndarray (n_source,)
        Out-of-fold log ratios of the source rows as given (only when folds were used).
    saturation_ : Saturation or None
        The calibration, if one was worth it.
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
            kept_s = np.delete(np.arange(len(source)), out_s)
            kept_t = np.delete(np.arange(len(target)), out_t)
            model = self._learn(source, target, kept_s, kept_t)
            self._models = [model]
            s, t = source.take(out_s), target.take(out_t)
            self._calibrate(model(s.x)[:, 0], model(t.x)[:, 0], s, t)
        else:
            held = out_of_fold(self, source, target, folds=folds, seed=self.seed)
            self._models = held.paths
            self._calibrate(*held.column(0), source, target)
            out = self._bend(held.source[:, 0])
            self.source_log_ratio_ = out[source.inverse] + math.log(self.n_laws_)

    def _calibrate(self, s: Float64Array, t: Float64Array, source: Sample, target: Sample) -> None:
        if self.calibrate:
            evidence = Evidence.of(source.weight, target.weight)
            self.saturation_ = worthwhile_saturation(s, t, evidence)

    def _bend(self, log_ratio: Float64Array) -> Float64Array:
        return log_ratio if self.saturation_ is None else self.saturation_(log_ratio)

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        return self._bend(np.mean([model(x)[:, 0] for model in self._models], axis=0))

    def _fresh(self, n: int) -> Any:
        """An unfitted classifier; one that draws from a global generator is given the seed."""
        if self.estimator is None:
            return boosting(n, seed=self.seed)
        model = clone(self.estimator)
        parameters = model.get_params()
        unset = {k: self.seed for k, v in parameters.items() if v is None and _is_seed(k)}
        return model.set_params(**unset)

    def _path(self, source: Sample, target: Sample) -> Path:
        return self._learn(source, target, np.arange(len(source)), np.arange(len(target)))

    def _learn(self, source: Sample, target: Sample, kept_s: Index, kept_t: Index) -> Path:
        """Fit on some rows of each law, with one copy of them and no more."""
        n_s, n_t = len(kept_s), len(kept_t)
        # boosting works on float64: made at once, it need not make a second copy
        dtype = np.float64 if self.estimator is None else source.x.dtype
        x = np.empty((n_s + n_t, source.flat.shape[1]), dtype=dtype)
        x[:n_s], x[n_s:] = source.flat[kept_s], target.flat[kept_t]
        y = np.repeat([0, 1], [n_s, n_t])
        kept = (source.weight[kept_s], target.weight[kept_t])
        weight = np.concatenate([w / w.mean() for w in kept])
        model = self._fresh(len(x))
        model.fit(x, y, **_weights(model, weight))
        offset = math.log(n_t / n_s)

        def log_ratio(rows: FloatArray) -> Float64Array:
            p = model.predict_proba(rows.reshape(len(rows), -1))[:, 1].astype(np.float64)
            p = np.clip(p, 1e-9, 1.0 - 1e-9)
            return np.asarray((np.log(p) - np.log1p(-p) - offset)[:, None])

        return log_ratio


def _is_seed(name: str) -> bool:
    return name == "random_state" or name.endswith("__random_state")


def _weights(model: Any, weight: Float64Array) -> dict[str, Float64Array]:
    """The keyword that carries the weights, or none where all rows weigh the same."""
    if np.ptp(weight) < 1e-9:
        return {}
    keyword = weight_keyword(model)
    if keyword is None:
        raise InputError(
            f"{_last(model)[0]} takes no sample_weight, but rows must be weighted (duplicate "
            "rows, or target laws of different size); use a classifier that takes sample_weight, "
            "or laws of equal size without duplicates"
        )
    return {keyword: weight}


def _last(model: Any) -> tuple[str, Any, str]:
    """Name and object of the step that learns, and the prefix that routes a keyword to it."""
    prefix = ""
    while isinstance(model, Pipeline):
        prefix += f"{model.steps[-1][0]}__"
        model = model.steps[-1][1]
    return type(model).__name__, model, prefix


def weight_keyword(model: Any) -> str | None:
    """The keyword of `fit` that carries row weights, through pipelines; None if there is none."""
    _, last, prefix = _last(model)
    return f"{prefix}sample_weight" if has_fit_parameter(last, "sample_weight") else None
