"""The face every ratio estimator wears.

Which way the ratio points: ``log p_target − log p_source``, always; `source` and `target` are
keyword-only so that nobody can swap them. If the target is a mapping of K laws, the ratio is
the sum ``Σ_l p_l(x) / p_source(x)``, each law counting once whatever its number of rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from fedshift.core.bregman import Divergence, bregman_risk
from fedshift.core.samples import (
    Float64Array,
    FloatArray,
    Laws,
    Rows,
    Sample,
    as_rows,
    blocks,
    check_names,
    column_names,
    read_pair,
)
from fedshift.core.threads import threads_for
from fedshift.errors import InputError, RatioDirection

#: rows (n, ...) ↦ log ratios (n, m) of m models fitted together
Path = Callable[[FloatArray], Float64Array]


def like(X: Rows, out: Float64Array) -> Any:
    """`out` as a tensor of X's type and device if X is a tensor, else as it is."""
    if isinstance(X, torch.Tensor):
        dtype = X.dtype if X.dtype.is_floating_point else torch.float64
        return torch.as_tensor(out, dtype=dtype, device=X.device)
    return out


class RatioEstimator(BaseEstimator):
    """Base of all estimators of r(x) = Σ_l p_l(x) / p_source(x).

    A subclass writes `_fit(source, target)` for one pooled target law and
    `_log_ratio(x)`; checks, several laws, streaming and the direction check live here.
    Constructors only remember; what was learned ends in an underscore.
    """

    #: fewest rows of a law this estimator can work with
    _min_rows = 2

    def fit(self, *, source: Rows, target: Laws) -> Self:
        """Learn the ratio.

        Parameters
        ----------
        source : rows (n, ...)
            What you have: rows of the law in the denominator.
        target : rows (m, ...) or mapping of name to rows
            What you need: rows of the law, or laws, in the numerator.
        """
        s, t, n_laws, shape = read_pair(source, target, min_rows=self._min_rows)
        self.n_laws_ = n_laws
        self.row_shape_ = shape
        self.columns_ = column_names(source)
        with threads_for(s.x.size + t.x.size):
            self._fit(s, t)
            self._check_direction(s, t)
        return self

    def log_ratio(self, X: Rows) -> Any:
        """Log ratio of each row, shape (n,): numpy for numpy, a tensor for a tensor."""
        check_is_fitted(self)
        check_names(getattr(self, "columns_", None), X, "X")
        x = as_rows(X, name="X")
        self._check_shape(x, "X")
        out = self._predict(x) + math.log(self.n_laws_)
        bad = ~(out < math.inf)
        if bad.any():
            i = int(np.argmax(bad))
            raise InputError(
                f"{type(self).__name__} gives row {i} of X a log ratio of {out[i]}; the row lies "
                "too far from everything seen in fit; drop it or take a bounded estimator (Auto)"
            )
        return like(X, out)

    def ratio(self, X: Rows) -> Any:
        """Ratio of each row, shape (n,): ``exp(log_ratio(X))``, at most e^700."""
        log_ratio = self.log_ratio(X)
        if isinstance(log_ratio, torch.Tensor):
            return log_ratio.clamp(max=math.log(torch.finfo(log_ratio.dtype).max) - 1).exp()
        return np.exp(np.minimum(log_ratio, 700.0))

    def score(self, *, source: Rows, target: Laws, divergence: str | Divergence = "lr") -> float:
        """Minus the empirical Bregman risk on held-out data: higher is better.

        The risk is ``E_source ℓ1(r) + E_target ℓ2(r)`` without the non-negative correction and
        per target law, so scores of different estimators on the same data compare directly.
        """
        check_is_fitted(self)
        s, t, _, _ = read_pair(source, target, min_rows=1)
        self._check_shape(s.x, "source")
        return -bregman_risk(self._predict(s.x), self._predict(t.x), divergence, s.weight, t.weight)

    def _check_shape(self, x: FloatArray, name: str) -> None:
        # known laws need no fit
        need = getattr(self, "row_shape_", x.shape[1:])
        if x.shape[1:] != need:
            raise InputError(f"{name} must have rows of shape {need}, as in fit; got {x.shape[1:]}")

    def _fit(self, source: Sample, target: Sample) -> None:
        raise TypeError(f"{type(self).__name__} must define _fit")

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        raise TypeError(f"{type(self).__name__} must define _log_ratio")

    def _path(self, source: Sample, target: Sample) -> Path:
        """Fit on a pair of laws and forget: the models this estimator would choose among.

        One column here; an estimator with a tuning path gives a column for each value.
        """
        model = clone(self)
        model.n_laws_, model.row_shape_ = 1, source.x.shape[1:]
        model._fit(source, target)
        return lambda x: model._predict(x)[:, None]

    def _predict(self, x: FloatArray) -> Float64Array:
        """Log ratio of the pooled law, block by block so that memory stays bounded."""
        return np.concatenate([self._log_ratio(x[b]) for b in blocks(len(x))])

    def _check_direction(self, source: Sample, target: Sample) -> None:
        """E_target log r ≥ 0 ≥ E_source log r for the truth (Jensen); warn if turned round."""
        s, t = (part.some(4096) for part in (source, target))
        ls, lt = self._predict(s.x), self._predict(t.x)
        if not ((ls < math.inf).all() and (lt < math.inf).all()):  # NaN or +inf
            raise InputError(
                f"{type(self).__name__} produced a log ratio that is not finite; got inputs it "
                "cannot separate numerically; rescale the columns or use a simpler estimator"
            )
        ls, lt = np.maximum(ls, -100.0), np.maximum(lt, -100.0)  # a density may be zero
        gap = t.mean(lt) - s.mean(ls)
        noise = math.sqrt(np.var(ls) / len(ls) + np.var(lt) / len(lt))
        if gap < -3.0 * noise:
            warnings.warn(
                f"{type(self).__name__}: the mean log ratio must be higher on the target than on "
                f"the source; got a difference of {gap:.3g}; were source and target swapped?",
                RatioDirection,
                stacklevel=3,
            )
