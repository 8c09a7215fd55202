"""Ratio scores of a support vector machine; a single outlying row hardly changes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from sklearn.svm import SVC

from fedshift.core.features import pooled_moments
from fedshift.core.samples import Float64Array, FloatArray, Sample
from fedshift.ratio.base import Path, RatioEstimator

#: kernel widths tried, as γ times the total variance of the columns
GAMMAS = (1.5, 3.0, 5.0)
#: factor from decision values to the size of log ratios, before calibration
LENGTH = 3.0


class SVM(RatioEstimator):
    """Decision values of a support vector machine that separates target from source rows.

    Under label shift, a few rows of each distribution lie where nearly all rows belong to the
    other distribution. The log loss of such rows grows with the log ratio, so they distort the fit.
    In a support vector machine the influence of a row is bounded. All columns share one scale, as
    pixels do. The values order rows well but are not log ratios; `Auto` calibrates them on held-out
    rows.
    """

    def _path(self, source: Sample, target: Sample) -> Path:
        x = np.concatenate([source.flat, target.flat])
        side = np.repeat([-1, 1], [len(source), len(target)])
        weight = np.concatenate([p.weight * len(p) for p in (source, target)])
        _, sd = pooled_moments(source, target)
        spread = float(np.sum(np.square(sd))) or 1.0
        models = [SVC(C=1.0, gamma=g / spread).fit(x, side, sample_weight=weight) for g in GAMMAS]
        return partial(_scores, models=models)

    def _fit(self, source: Sample, target: Sample) -> None:
        self._scores = self._path(source, target)

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        return np.asarray(self._scores(x)[:, 1])


def _scores(x: FloatArray, models: Sequence[SVC]) -> Float64Array:
    flat = x.reshape(len(x), -1)
    return np.stack([LENGTH * m.decision_function(flat) for m in models], axis=1)
