r"""Label shift with known label counts, `ExactLabels`: the ratio w(y) read off two label laws.

Without target labels the law has to be estimated from predictions: see `fedshift.ratio.label`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedshift.core.bregman import Divergence, bregman_risk
from fedshift.core.label import Array, listed, log_class_ratio, look_up, read_law, sort_key
from fedshift.core.samples import Float64Array
from fedshift.errors import InputError, LowCoverage

Shares = Mapping[Any, float] | npt.ArrayLike


class ExactLabels(BaseEstimator):
    r"""Ratios looked up by label, from known label laws: w(y) = Σ_l p_l(y) / p_source(y).

    It answers for labels, not for rows: ``log_ratio(y)``. When it fails: where p(x | y) differs
    between source and target, no table of labels can repair it.

    Attributes
    ----------
    classes_ : ndarray (k,)
        Classes of the source.
    source_prior_, target_prior_ : ndarray (k,)
        Label laws, `target_prior_` the mean over target laws. Target mass of classes that the
        source does not have is missing from it.
    class_log_ratio_ : ndarray (k,)
        log w(y) of the sum over laws.

    Examples
    --------
    >>> exact = ExactLabels().fit(source={"cat": 50, "dog": 50}, target={"cat": 90, "dog": 10})
    >>> exact.ratio(["dog", "cat"])
    array([0.2, 1.8])
    """

    def fit(self, *, source: Shares, target: Shares | Mapping[Any, Shares]) -> Self:
        """Read label laws.

        Parameters
        ----------
        source : mapping of class to count or probability, or array (k,)
            An array stands for classes 0 to k − 1.
        target : the same, or a mapping of name to such a law
            Several laws give the sum of their ratios, each counting once.
        """
        s = _shares(source, "source")
        laws = _several(target)
        self.n_laws_ = len(laws)
        named = {name: _shares(law, name) for name, law in laws.items()}
        have = sorted((c for c, p in s.items() if p > 0), key=sort_key)
        self.classes_ = _class_array(have)
        self.source_prior_ = np.array([s[c] for c in have])
        for name, law in named.items():
            gone = [c for c, p in law.items() if p > 0 and s.get(c, 0.0) <= 0]
            if gone:
                share = sum(law[c] for c in gone)
                warnings.warn(
                    f"{name} has classes {listed(gone)} that the source has no row of: "
                    f"{share:.1%} of that law cannot be reached by weighting; collect source "
                    "rows of them",
                    LowCoverage,
                    stacklevel=2,
                )
        self.target_priors_ = {
            name: np.array([law.get(c, 0.0) for c in have]) for name, law in named.items()
        }
        self.target_prior_ = np.mean(list(self.target_priors_.values()), axis=0)
        self.class_log_ratio_ = log_class_ratio(
            self.target_prior_, self.source_prior_, self.n_laws_
        )
        return self

    def label_log_ratio(self, y: npt.ArrayLike) -> Float64Array:
        """Log w(y) of each label, shape (n,)."""
        check_is_fitted(self, "classes_")
        return look_up(self.classes_, self.class_log_ratio_, y)

    def log_ratio(self, X: npt.ArrayLike) -> Float64Array:
        """The same as `label_log_ratio`: `X` are labels."""
        return self.label_log_ratio(X)

    def ratio(self, X: npt.ArrayLike) -> Float64Array:
        """w(y) of each label, shape (n,)."""
        return np.asarray(np.exp(self.log_ratio(X)))

    def score(
        self,
        *,
        source: npt.ArrayLike,
        target: npt.ArrayLike | Mapping[Any, npt.ArrayLike],
        divergence: str | Divergence = "lr",
    ) -> float:
        """Minus the empirical Bregman risk on labels held out; as `RatioEstimator.score`."""
        check_is_fitted(self, "classes_")
        parts = list(target.values()) if isinstance(target, Mapping) else [target]
        shift = np.log(self.n_laws_)
        values = [self.log_ratio(part) - shift for part in parts]
        weight = np.concatenate([np.full(len(v), 1.0 / (len(v) * len(values))) for v in values])
        s = self.log_ratio(source) - shift
        return -bregman_risk(s, np.concatenate(values), divergence, None, weight)


def _shares(law: Shares, name: str) -> dict[Any, float]:
    keys: list[Any]
    if isinstance(law, Mapping):
        keys, values = list(law), np.array([float(v) for v in law.values()])
    else:
        values = np.asarray(law, dtype=np.float64).reshape(-1)
        keys = list(range(len(values)))
    shares = read_law(values, len(keys), name)
    return dict(zip(keys, shares.tolist(), strict=True))


def _several(target: Shares | Mapping[Any, Shares]) -> dict[str, Shares]:
    if isinstance(target, Mapping):
        if not target:
            raise InputError("target must hold at least one law; got an empty mapping")
        if all(np.ndim(cast(Any, v)) > 0 or isinstance(v, Mapping) for v in target.values()):
            return {f"target[{key!r}]": cast(Shares, law) for key, law in target.items()}
    return {"target": cast(Shares, target)}


def _class_array(classes: list[Any]) -> Array:
    kinds = {isinstance(c, str) for c in classes}
    if len(kinds) == 2:
        raise InputError("classes must be all text or all numbers; got both; rename them")
    return np.asarray(classes)
