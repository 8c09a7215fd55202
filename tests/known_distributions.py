"""The ratio of distributions whose densities are known, to hold estimators to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import logsumexp

from fedshift.core.samples import Float64Array, FloatArray, Sample
from fedshift.ratio.base import RatioEstimator

LogDensity = Callable[[FloatArray], FloatArray]


class Exact(RatioEstimator):
    """log Σ_l p_l(x) − log p_source(x), from log densities: rows (n, ...) ↦ (n,)."""

    def __init__(self, log_source: LogDensity, log_targets: tuple[LogDensity, ...]) -> None:
        self.log_source = log_source
        self.log_targets = log_targets

    def _fit(self, source: Sample, target: Sample) -> None:
        pass

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        total = logsumexp([density(x) for density in self.log_targets], axis=0)
        return np.asarray(total - np.log(len(self.log_targets)) - self.log_source(x))
