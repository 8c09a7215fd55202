"""The ratio of known laws: the truth the estimators are held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from scipy.special import logsumexp

from fedshift.core.samples import Float64Array, FloatArray, Laws, Rows, Sample
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator

LogDensity = Callable[[FloatArray], FloatArray]


class Exact(RatioEstimator):
    """log Σ_l p_l(x) − log p_source(x) for laws whose log densities are known.

    Parameters
    ----------
    log_source : callable
        Rows (n, ...) ↦ log density (n,).
    log_target : callable or mapping of name to callable
        The same for the target law or laws.

    Examples
    --------
    >>> import numpy as np
    >>> r = Exact(lambda x: -x[:, 0] ** 2 / 2, lambda x: -(x[:, 0] - 1) ** 2 / 2)
    >>> r.log_ratio(np.array([0.0, 1.0]))  # x − ½
    array([-0.5,  0.5])
    """

    def __init__(
        self, log_source: LogDensity, log_target: LogDensity | Mapping[Any, LogDensity]
    ) -> None:
        self.log_source = log_source
        self.log_target = log_target

    def __sklearn_is_fitted__(self) -> bool:
        """Nothing is learned, so nothing has to be fitted first."""
        return True

    def fit(self, *, source: Rows, target: Laws) -> Self:
        """Check the rows; there is nothing to learn."""
        given = len(target) if isinstance(target, Mapping) else 1
        if given != len(self._laws()):
            raise InputError(
                f"target must hold as many laws as Exact knows, {len(self._laws())}; got {given}"
            )
        super().fit(source=source, target=target)
        return self

    def _laws(self) -> list[LogDensity]:
        known = self.log_target
        return list(known.values()) if isinstance(known, Mapping) else [known]

    @property
    def n_laws_(self) -> int:
        """Number of target laws."""
        return len(self._laws())

    @n_laws_.setter
    def n_laws_(self, value: int) -> None:
        """Ignored: the laws are given."""

    def _fit(self, source: Sample, target: Sample) -> None:
        pass

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        laws = [np.asarray(law(x), dtype=np.float64) for law in self._laws()]
        base = np.asarray(self.log_source(x), dtype=np.float64)
        for name, value in (("log_source", base), *(("log_target", law) for law in laws)):
            if value.shape != (len(x),):
                raise InputError(
                    f"{name} must give one log density a row, shape ({len(x)},); got {value.shape}"
                )
        return np.asarray(logsumexp(laws, axis=0) - np.log(len(laws)) - base)
