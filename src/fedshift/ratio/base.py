"""The interface of every ratio estimator.

The log ratio is always ``log p_target − log p_source``. The arguments `source` and `target` are
keyword-only, so they cannot be swapped by accident. If the target is a mapping of K
distributions, the ratio is the sum ``Σ_l p_l(x) / p_source(x)``. Each distribution gets equal
weight, whatever its number of rows.
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
from fedshift.core.params import check_numbers
from fedshift.core.samples import (
    Float64Array,
    FloatArray,
    Rows,
    RowSets,
    Sample,
    as_rows,
    blocks,
    check_names,
    column_names,
    read_pair,
)
from fedshift.core.threads import threads_for
from fedshift.errors import InputError, RatioDirection

#: rows (n, ...) ↦ log ratios (n, m) of m models fitted together; not a closure, as it must pickle
Path = Callable[[FloatArray], Float64Array]


def like(X: Rows, out: Float64Array) -> Any:
    """Return `out` as a tensor of X's type and device if X is a tensor, else unchanged."""
    if isinstance(X, torch.Tensor):
        dtype = X.dtype if X.dtype.is_floating_point else torch.float64
        return torch.as_tensor(out, dtype=dtype, device=X.device)
    return out


class RatioEstimator(BaseEstimator):
    """Base class of all estimators of r(x) = Σ_l p_l(x) / p_source(x).

    A subclass defines `_fit(source, target)`, for one pooled target distribution, and
    `_log_ratio(x)`. This class checks the input, pools several target distributions, computes in
    blocks and checks the direction of the ratio. Constructors only store their arguments; names
    of learned attributes end in an underscore.
    """

    #: fewest rows of a distribution that this estimator accepts
    _min_rows = 2

    def fit(self, *, source: Rows, target: RowSets) -> Self:
        """Fit the ratio to rows of source and target.

        Parameters
        ----------
        source : rows (n, ...)
            Rows of the distribution in the denominator, usually training rows.
        target : rows (m, ...) or mapping of name to rows
            Rows of the distribution in the numerator, usually unlabelled deployment rows. To
            target several distributions at once, pass a mapping. Each gets equal weight.

        Returns
        -------
        self
        """
        self.check_options()
        s, t, n_targets, shape = read_pair(source, target, min_rows=self._min_rows)
        self.n_targets_ = n_targets
        self.row_shape_ = shape
        self.columns_ = column_names(source)
        with threads_for(s.x.size + t.x.size):
            self._fit(s, t)
            self._check_direction(s, t)
        return self

    def check_options(self) -> None:
        """Raise `InputError` if an option is not valid; `fit` calls this before any work."""
        check_numbers(type(self), vars(self))

    def log_ratio(self, X: Rows) -> Any:
        """Return the log ratio of each row of X, shape (n,), as an array or a tensor like X."""
        check_is_fitted(self)
        check_names(getattr(self, "columns_", None), X, "X")
        x = as_rows(X, name="X")
        self._check_shape(x, "X")
        out = self._predict(x) + math.log(self.n_targets_)
        bad = ~(out < math.inf)
        if bad.any():
            i = int(np.argmax(bad))
            raise InputError(
                f"{type(self).__name__}: log ratios must be finite; got {out[i]} for row {i} of X, "
                "which lies too far from the rows that fit used; drop the row or use Auto"
            )
        return like(X, out)

    def ratio(self, X: Rows) -> Any:
        """Return the ratio of each row, shape (n,): ``exp(log_ratio(X))``, at most e^700."""
        log_ratio = self.log_ratio(X)
        if isinstance(log_ratio, torch.Tensor):
            return log_ratio.clamp(max=math.log(torch.finfo(log_ratio.dtype).max) - 1).exp()
        return np.exp(np.minimum(log_ratio, 700.0))

    def score(self, *, source: Rows, target: RowSets, divergence: str | Divergence = "lr") -> float:
        """Return minus the empirical Bregman risk on held-out rows; higher is better.

        The risk is ``E_source ℓ1(r) − E_target f'(r)`` (`fedshift.core.bregman`), without the
        non-negative correction (see `Neural`). r is the ratio of the mean of the target
        distributions to the source. Scores of different estimators on the same rows and with the
        same divergence can be compared.

        Parameters
        ----------
        source, target
            As in `fit`, but rows that `fit` has not used.
        divergence : {"lr", "lsif", "ukl", "pu", "robust"} or Divergence
            The Bregman divergence, which gives ℓ1 and f'.
        """
        check_is_fitted(self)
        s, t, _, _ = read_pair(source, target, min_rows=1)
        self._check_shape(s.x, "source")
        return -bregman_risk(self._predict(s.x), self._predict(t.x), divergence, s.weight, t.weight)

    def _check_shape(self, x: FloatArray, name: str) -> None:
        if x.shape[1:] != self.row_shape_:
            raise InputError(
                f"{name} must have rows of shape {self.row_shape_}, as in fit; got {x.shape[1:]}"
            )

    def _fit(self, source: Sample, target: Sample) -> None:
        raise TypeError(f"{type(self).__name__} must define _fit")

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        raise TypeError(f"{type(self).__name__} must define _log_ratio")

    def _path(self, source: Sample, target: Sample) -> Path:
        """Fit a copy of this estimator and return the log ratios of all models it chooses among.

        Here that is one column. An estimator with a tuning path returns a column for each value.
        """
        model: Self = clone(self)
        model.n_targets_, model.row_shape_ = 1, source.x.shape[1:]
        model._fit(source, target)
        return model._predict_column

    def _predict_column(self, x: FloatArray) -> Float64Array:
        return self._predict(x)[:, None]

    def _predict(self, x: FloatArray) -> Float64Array:
        """Log ratio of the pooled target, block by block so that memory stays bounded."""
        return np.concatenate([self._log_ratio(x[b]) for b in blocks(len(x))])

    def _check_direction(self, source: Sample, target: Sample) -> None:
        """Warn if the ratio seems inverted: the truth has E_target log r ≥ 0 ≥ E_source log r."""
        s, t = (part.some(4096) for part in (source, target))
        ls, lt = self._predict(s.x), self._predict(t.x)
        if not ((ls < math.inf).all() and (lt < math.inf).all()):  # NaN or +inf
            raise InputError(
                f"{type(self).__name__}: log ratios must be finite; got NaN or +inf on the rows of "
                "fit; rescale the columns or use a simpler estimator"
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
