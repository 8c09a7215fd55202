"""The estimator to take when in doubt: fit a family, trust held-out rows, prefer the simple."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.params import whole
from fedshift.core.samples import Float64Array, FloatArray, Sample, row_hash
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.family import (
    SIMPLE,
    TOLERANCE,
    Choice,
    Member,
    Stack,
    choose,
    hold_out,
    shallow_estimators,
)
from fedshift.ratio.neural import Neural


class Auto(RatioEstimator):
    """Fits a family of estimators, compares them on rows they have not seen, and says why.

    Members: no shift; ridge, sparse and quadratic logistic regression; Gaussians with shared and
    own covariances; kernel logistic regression; boosted and randomised trees; a network. All are
    fitted on the same folds. Each may be bent by a bounded calibration if held-out rows pay for
    it. A non-negative stack of their held-out log ratios is the most flexible candidate; a simple
    parametric member is taken instead if its held-out divergence is within `tolerance` paired
    standard errors, and 1.5 nats over all rows, of the best, so noise never buys a network.

    New rows get the mean over the fold models. A row that was fitted on gets the word of the
    model that has not seen it, in `source_log_ratio_` and in `log_ratio` alike, so no row ever
    vouches for itself.

    Parameters
    ----------
    folds : int
    tolerance : float
        In standard errors of the paired difference of held-out losses.
    max_rows : int
        Rows of each law that members are compared on; above it, the chosen ones are fitted
        again on all rows.
    seed : int

    Attributes
    ----------
    choice_ : str
        Name of the chosen member, or "stack".
    reason_ : str
        One sentence: what was chosen, over what, by how much.
    table_ : list of dict
        A row for each candidate: name, held-out loss, difference to the best with its standard
        error, coefficient in the stack.
    source_log_ratio_ : ndarray (n_source,)

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
        if min(len(s), len(t)) >= 50:
            estimators["network"] = Neural("lr", bound=None, seed=self.seed)
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
        self.__dict__.pop("_seen", None)
        estimators = self._estimators(s, t)
        members = hold_out(estimators, s, t, folds=folds, seed=self.seed)
        choice = choose(members, s, t, tolerance=self.tolerance)
        self._chosen = choice.candidate
        self._describe(choice)
        if len(source) > len(s):  # the fold models have not seen the other rows
            out = self._predict(source.x)
            out[index] = self._chosen.source
        else:
            out = self._chosen.source
        self._seen = _Seen.of(source.x, out, t.x, self._chosen.target)
        if len(source) > len(s) or len(target) > len(t):
            for member in self._parts():
                if member.name in estimators:  # once on all rows, in place of the fold models
                    member.paths[:] = [estimators[member.name]._path(source, target)]
        self.source_log_ratio_ = out[source.inverse] + math.log(self.n_laws_)

    def _describe(self, choice: Choice) -> None:
        stacked = choice.candidates["stack"]
        assert isinstance(stacked, Stack)
        shares = dict(zip(choice.candidates, stacked.coefficients, strict=False))
        self.choice_ = choice.taken
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
        loss = choice.losses[choice.taken]
        if choice.taken == "stack":
            parts = sorted(((c, n) for n, c in shares.items() if c > 0), reverse=True)
            rival = min((n for n in SIMPLE if n in choice.losses), key=choice.losses.__getitem__)
            gap, error = choice.gaps[rival]
            self.reason_ = (
                "stack of "
                + ", ".join(f"{n} × {c:.2f}" for c, n in parts)
                + f": held-out loss {loss:.4f}; the best simple member, {rival}, is behind the "
                f"best of all by {gap:.4f} ± {error:.4f}"
            )
        else:
            gap, error = choice.gaps[choice.taken]
            self.reason_ = (
                f"{choice.taken}: the simplest member whose held-out loss, {loss:.4f}, is as good "
                f"as that of the best, {choice.best}, to within noise ({gap:+.4f} ± {error:.4f})"
            )

    def _parts(self) -> list[Member]:
        """The members that the choice is made of."""
        if isinstance(self._chosen, Stack):
            pairs = zip(self._chosen.members, self._chosen.coefficients, strict=True)
            return [m for m, c in pairs if c > 0]
        return [self._chosen] if isinstance(self._chosen, Member) else []

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        values = self._chosen(x)
        seen: _Seen | None = getattr(self, "_seen", None)
        return values if seen is None else seen.replace(x, values)


@dataclass(frozen=True)
class _Seen:
    """Rows the fold models were fitted on, with the log ratio of the one that saw none of them."""

    hashes: npt.NDArray[np.uint64]
    values: Float64Array

    @classmethod
    def of(cls, s: FloatArray, out_s: Float64Array, t: FloatArray, out_t: Float64Array) -> _Seen:
        # equal rows, of one law or both, share the mean of what was said of them
        keys = np.concatenate([row_hash(s), row_hash(t)])
        hashes, which, count = np.unique(keys, return_inverse=True, return_counts=True)
        total = np.bincount(which, weights=np.concatenate([out_s, out_t]))
        return cls(hashes, total / count)

    def replace(self, x: FloatArray, values: Float64Array) -> Float64Array:
        """Held-out values for the rows that were seen, the given ones for all others."""
        h = row_hash(x)
        at = np.searchsorted(self.hashes, h).clip(max=len(self.hashes) - 1)
        return np.where(self.hashes[at] == h, self.values[at], values)
