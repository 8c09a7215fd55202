"""Where the training rows lie, to mark new rows that are unlike all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedshift.core.samples import Float64Array
from fedshift.core.tensors import read_tensors, write_tensors

#: quantiles of every column: ends of the reach, ends of the central range, middle
LEVELS = (0.005, 0.05, 0.5, 0.95, 0.995)
#: share of training rows beyond the limit of each score: reach, joint, exchange
BEYOND = np.array([0.005, 0.005, 0.015])
#: parts of the rows, for held-out scores
FOLDS = 5
#: added to the variance of every direction, so that a direction without variance has a limit
RIDGE = 0.1
#: factor of the largest held-out score, where rows are too few for a quantile
MARGIN = 1.5
#: rounds of counts in which sites find a quantile together
HALVINGS = 40


@dataclass(frozen=True, eq=False)
class Support:
    """Where the training rows lie, to mark new rows that are unlike all of them.

    A model also returns a prediction for a row that it knows nothing about: a column in another
    unit, two columns exchanged, an impossible value. Three scores find such rows, for d columns:

    - reach: the largest distance of a value from its column's median, where the 0.5 % and 99.5 %
      quantiles have distance 1;
    - joint: the Mahalanobis distance of u = asinh(z), where z are robustly scaled columns; it finds
      values that are unusual together. asinh keeps long tails from hiding the rest;
    - exchange: over all pairs of columns whose central ranges (5 % to 95 %) do not overlap, how far
      both values lie on the other's side of the middle between the ranges.

    A score beyond its limit marks the row. Limits are quantiles that 0.5 %, 0.5 % and 1.5 % of the
    training rows exceed, with every row scored by a `Support` of other rows. So at most some 2.5 %
    of rows like the training rows are marked. With too few rows for such a quantile, a limit is 1.5
    times the largest score. It fails for values that are usual one by one, strange only together,
    and hardly correlated.

    Attributes
    ----------
    quantiles : ndarray (5, d)
        The quantiles `LEVELS` of every column.
    spread : ndarray (d,)
        Standard deviation, which replaces the width of ranges without one; at least a tiny number.
    centre : ndarray (d,)
        Mean of u.
    root : ndarray (d, d)
        Matrix whose product with u − centre has the Mahalanobis distance as its length.
    limits : ndarray (3,)
        Limits of the three scores.
    """

    quantiles: Float64Array
    spread: Float64Array
    centre: Float64Array
    root: Float64Array
    limits: Float64Array

    @classmethod
    def of(cls, x: Float64Array) -> Support:
        """Learn from training rows (n, d) in their own units; NaN is a missing value."""
        fold = np.arange(len(x)) % min(FOLDS, len(x))
        held_out = np.empty((len(x), 3))
        for j in range(fold.max() + 1):
            held_out[fold == j] = _without_limits(x[fold != j]).scores(x[fold == j])
        last = np.ceil((len(x) + 1) * (1 - BEYOND)).astype(int)  # a new row's chance: BEYOND
        limits = np.sort(held_out, axis=0)[np.minimum(last, len(x)) - 1, np.arange(3)]
        limits = np.where(last > len(x), MARGIN * limits, limits)
        limits[2] = max(limits[2], 0.0)
        return replace(_without_limits(x), limits=limits)

    def scores(self, x: Float64Array) -> Float64Array:
        """Return reach, joint and exchange (n, 3) of rows (n, d)."""
        least, low, middle, high, most = self.quantiles
        x = np.where(np.isnan(x), middle, x)
        above, below = (np.where(w > 0, w, self.spread) for w in (most - middle, middle - least))
        reach = np.max((x - middle) / np.where(x > middle, above, -below), axis=1, initial=0.0)
        joint = np.linalg.norm((self._compressed(x) - self.centre) @ self.root, axis=1)
        exchange = np.full(len(x), -np.inf)
        width = np.where(high > low, high - low, self.spread)
        for a in range(len(low)):  # column a lies below columns b
            b = np.flatnonzero(high[a] < low)
            if len(b):
                between = (high[a] + low[b]) / 2
                up, down = (x[:, [a]] - between) / width[a], (between - x[:, b]) / width[b]
                np.maximum(exchange, np.minimum(up, down).max(axis=1), out=exchange)
        return np.stack([reach, joint, exchange], axis=1)

    def outside(self, x: Float64Array) -> npt.NDArray[np.bool_]:
        """Return a mask (n,) of the rows that are unlike the training rows."""
        return np.asarray((self.scores(x) > self.limits).any(axis=1))

    @property
    def bytes_sent(self) -> int:
        """Bytes that each site sends for it: counts below candidate quantiles, and sums."""
        d = len(self.centre)
        one_fit = HALVINGS * len(LEVELS) * d + 2 * d + d + d * (d + 1) // 2
        return 8 * ((FOLDS + 1) * one_fit + HALVINGS * len(self.limits))

    def save(self, path: Path) -> Path:
        """Write the arrays to a safetensors file."""
        return write_tensors(path, {n: torch.from_numpy(a) for n, a in vars(self).items()})

    @classmethod
    def load(cls, path: Path) -> Support:
        """Read what `save` wrote."""
        return cls(**{n: t.numpy() for n, t in read_tensors(path).items()})

    def _compressed(self, x: Float64Array) -> Float64Array:
        _, low, middle, high, _ = self.quantiles
        width = np.where(high > low, (high - low) / 3.29, self.spread)  # one sd of a Gaussian
        return np.asarray(np.arcsinh((x - middle) / width))


def _without_limits(x: Float64Array) -> Support:
    """Fit quantiles and moments, from counts and sums of the sites."""
    x = np.where(np.isnan(x).all(axis=0), 0.0, x)
    d = x.shape[1]
    quantiles = np.nanquantile(x, LEVELS, axis=0) if d else np.empty((len(LEVELS), 0))
    filled = np.where(np.isnan(x), quantiles[2], x)
    spread = np.maximum(filled.std(axis=0), 1e-9 * np.maximum(1.0, np.abs(quantiles[2])))
    start = Support(quantiles, spread, np.zeros(d), np.eye(d), np.zeros(3))
    u = start._compressed(filled)
    centre = u.mean(axis=0)
    covariance = (u - centre).T @ (u - centre) / len(u)
    shrink = d / (len(u) + d)  # with few rows towards the identity
    covariance = (1 - shrink) * covariance + (shrink + RIDGE) * np.eye(d)
    values, vectors = np.linalg.eigh(covariance)
    return replace(start, centre=centre, root=vectors / np.sqrt(values))
