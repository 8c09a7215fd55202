"""Automatic choice among ratio estimators, by their loss on held-out rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.params import whole
from fedshift.core.samples import Float64Array, FloatArray, Sample, row_hash
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.candidates import (
    SIMPLE,
    TOLERANCE,
    Member,
    RatioChoice,
    Stack,
    choose,
    hold_out,
    shallow_estimators,
)
from fedshift.ratio.neural import Neural

#: with fewer distinct rows in source or target, networks and randomised trees take most of the time
#: and improve no ratio
FEW = 300


class Auto(RatioEstimator):
    r"""Choose a ratio estimator by its loss on held-out rows; the default where you are unsure.

    No single estimator suits every shift: a flexible one overfits few rows, and a simple one
    misses curved ratios. `Auto` fits a family of estimators on the same folds and compares their
    log loss on the N rows left out of the fits,

    .. math:: \frac1N \Bigl(\sum_{source} \log(1 + e^{\eta(x)})
              + \sum_{target} \log(1 + e^{-\eta(x)})\Bigr), \qquad
              \eta = \log r + \log(n_{target} / n_{source}) .

    The family: no shift; ridge, sparse and quadratic logistic regression; Gaussians with a shared
    covariance, and Gaussians with a covariance each; kernel logistic regression; boosted and
    randomised trees; a support vector machine; a network. A member is left out if it does not suit
    the number of rows or columns. Each member is calibrated by a bounded map if that lowers the
    held-out loss.

    The most flexible candidate is a stack: a non-negative combination of the members' log ratios.
    The parametric members are, simplest first: no shift; logistic regression; Gaussians with a
    shared covariance; logistic regression on columns and their squares, first sparse, then with a
    ridge; Gaussians with a covariance each; quadratic logistic regression. The simplest one whose
    loss is close to the lowest of all candidates is chosen; if there is none, the stack is. Close
    means: within `tolerance` standard errors of the paired difference, plus 1.5/N (1.5 nats in the
    loss summed over all N rows). So noise alone does not lead to a complex model.

    New rows get the mean over the models of all folds. `log_ratio` recognises rows that `fit` has
    used: they get the log ratio of the model that was fitted without them, as in
    `source_log_ratio_`.

    When it fails: with few rows the simple members win, even if the true ratio is curved. With
    fewer than 300 distinct rows in source or target, networks and randomised trees are not tried;
    with fewer than 50, nor are boosted trees. Fitting
    takes `folds` times as long as all members together; use a single estimator, for example
    `Logistic`, if that is too slow.

    Parameters
    ----------
    folds : int
        Number of folds, at least 2.
    tolerance : float
        By how many standard errors of the paired difference of held-out losses a simple member
        may be worse than the best candidate.
    max_rows : int
        At most this many rows of each distribution are used to compare candidates. If there are
        more, the members that were chosen are fitted again on all rows.
    seed : int
        Seeds the folds, the trees and the network.

    Attributes
    ----------
    choice_ : str
        Name of the chosen member, or "stack".
    reason_ : str
        One sentence: the chosen candidate, and how its held-out loss compares with others.
    table_ : list of dict
        One entry for each candidate: its name, held-out loss, difference to the lowest loss with
        its standard error, coefficient in the stack, and whether it was calibrated ("saturated").
    source_log_ratio_ : ndarray (n_source,)
        Log ratios of the source rows, in the order of `fit`, from models fitted without them.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> r = Auto().fit(source=rng.normal(size=500), target=rng.normal(1, 1, 500))
    >>> r.choice_
    'linear'
    """

    def __init__(
        self, *, folds: int = 5, tolerance: float = TOLERANCE, max_rows: int = 20_000, seed: int = 0
    ) -> None:
        self.folds = folds
        self.tolerance = tolerance
        self.max_rows = max_rows
        self.seed = seed

    def _estimators(self, s: Sample, t: Sample) -> dict[str, RatioEstimator]:
        estimators = shallow_estimators(s, t, seed=self.seed)
        if min(len(s), len(t)) >= FEW:
            estimators["network"] = Neural("lr", bound=None, seed=self.seed)
        else:
            estimators.pop("trees", None)
        return estimators

    def _fit(self, source: Sample, target: Sample) -> None:
        whole(self, "folds", least=2)
        whole(self, "max_rows", least=100)
        if not self.tolerance >= 0:
            raise InputError(f"Auto: tolerance must be at least 0; got {self.tolerance}")
        index = source.subset(self.max_rows)
        s, t = source.take(index), target.some(self.max_rows)
        folds = min(self.folds, len(s), len(t))
        if folds < 2:
            raise InputError("Auto needs at least 2 distinct rows in source and in target; got 1")
        self.__dict__.pop("_fitted_rows", None)
        estimators = self._estimators(s, t)
        members = hold_out(estimators, s, t, folds=folds, seed=self.seed)
        choice = choose(members, s, t, tolerance=self.tolerance)
        self._candidate = choice.candidate
        self._describe(choice)
        if len(source) > len(s):  # no fold model was fitted on the other rows
            out = self._predict(source.x)
            out[index] = self._candidate.source
        else:
            out = self._candidate.source
        self._fitted_rows = _FittedRows.of(source.x, out, t.x, self._candidate.target)
        if len(source) > len(s) or len(target) > len(t):
            for member in self._parts():
                if member.name in estimators:  # one fit on all rows replaces the fold models
                    member.paths[:] = [estimators[member.name]._path(source, target)]
        self.source_log_ratio_ = out[source.inverse] + math.log(self.n_targets_)

    def _describe(self, choice: RatioChoice) -> None:
        stacked = choice.candidates["stack"]
        assert isinstance(stacked, Stack)
        shares = dict(zip(choice.candidates, stacked.coefficients, strict=False))
        self.choice_ = choice.name
        self.table_ = [
            {
                "name": name,
                "loss": choice.losses[name],
                "difference": choice.gaps[name][0],
                "standard_error": choice.gaps[name][1],
                "coefficient": float(shares.get(name, math.nan)),
                "saturated": candidate.saturation is not None,
            }
            for name, candidate in choice.candidates.items()
        ]
        loss = choice.losses[choice.name]
        if choice.name == "stack":
            parts = sorted(((c, n) for n, c in shares.items() if c > 0), reverse=True)
            rival = min((n for n in SIMPLE if n in choice.losses), key=choice.losses.__getitem__)
            gap, error = choice.gaps[rival]
            self.reason_ = (
                "stack of "
                + ", ".join(f"{n} × {c:.2f}" for c, n in parts)
                + f": held-out loss {loss:.4f}; the loss of the best simple member, {rival}, is "
                f"{gap:.4f} ± {error:.4f} above the lowest loss"
            )
        else:
            gap, error = choice.gaps[choice.name]
            self.reason_ = (
                f"{choice.name}: the simplest member whose held-out loss, {loss:.4f}, equals that "
                f"of the best, {choice.best}, to within noise ({gap:+.4f} ± {error:.4f})"
            )

    def _parts(self) -> list[Member]:
        """The members that the chosen candidate consists of."""
        if isinstance(self._candidate, Stack):
            pairs = zip(self._candidate.members, self._candidate.coefficients, strict=True)
            return [m for m, c in pairs if c > 0]
        return [self._candidate] if isinstance(self._candidate, Member) else []

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        values = self._candidate(x)
        fitted: _FittedRows | None = getattr(self, "_fitted_rows", None)
        return values if fitted is None else fitted.replace(x, values)


@dataclass(frozen=True)
class _FittedRows:
    """Rows of `fit`, each with the log ratio from the model fitted without it."""

    hashes: npt.NDArray[np.uint64]
    values: Float64Array

    @classmethod
    def of(
        cls, s: FloatArray, out_s: Float64Array, t: FloatArray, out_t: Float64Array
    ) -> _FittedRows:
        # equal rows, of one distribution or both, share the mean of their log ratios
        keys = np.concatenate([row_hash(s), row_hash(t)])
        hashes, which, count = np.unique(keys, return_inverse=True, return_counts=True)
        total = np.bincount(which, weights=np.concatenate([out_s, out_t]))
        return cls(hashes, total / count)

    def replace(self, x: FloatArray, values: Float64Array) -> Float64Array:
        """Replace the values of rows that `fit` used by their held-out ones."""
        h = row_hash(x)
        at = np.searchsorted(self.hashes, h).clip(max=len(self.hashes) - 1)
        return np.where(self.hashes[at] == h, self.values[at], values)
