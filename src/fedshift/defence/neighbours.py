"""Distances between pools, and the influence of each pool on weights.

A pool is the set of rows that one client shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedshift.core.samples import Float64Array, FloatArray


def plane(pool: Mapping[str, FloatArray]) -> dict[str, Float64Array]:
    """Return rows as vectors of comparable columns.

    Each column of a table is divided by the median, over clients, of its standard deviation, if
    that is not 0. Pixels (rows with more than one axis) already share a scale.
    """
    flat = {n: np.asarray(x.reshape(len(x), -1), dtype=np.float64) for n, x in pool.items()}
    if next(iter(pool.values())).ndim > 2:
        return flat
    scale = np.median([x.std(axis=0) for x in flat.values()], axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return {n: x / scale for n, x in flat.items()}


def distances(a: Float64Array, b: Float64Array) -> Float64Array:
    """Return the Euclidean distances (n, m) between rows a (n, d) and rows b (m, d)."""
    # centred on the median, so that distant rows do not cost near ones their digits
    middle = np.median(b, axis=0)
    a, b = a - middle, b - middle
    square = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - 2 * (a @ b.T)
    return np.asarray(np.sqrt(np.maximum(square, 0.0)))


@dataclass(frozen=True, eq=False)
class PoolDistances:
    """Distances between pools, and to reference rows known to be real.

    Attributes
    ----------
    pool : dict of client to vectors (n, d)
    reference : vectors (r, d) or None
    """

    pool: dict[str, Float64Array]
    reference: Float64Array | None = None

    @cached_property
    def _between(self) -> dict[tuple[str, str], Float64Array]:
        names = list(self.pool)
        out = {}
        for i, a in enumerate(names):
            for b in names[i:]:
                out[a, b] = distances(self.pool[a], self.pool[b])
                out[b, a] = out[a, b].T
        return out

    @cached_property
    def _to_reference(self) -> dict[str, Float64Array]:
        if self.reference is None:
            return {}
        return {n: distances(x, self.reference) for n, x in self.pool.items()}

    @cached_property
    def spread(self) -> dict[str, float]:
        """Median distance between two rows of a pool."""
        out = {}
        for name, x in self.pool.items():
            above = self._between[name, name][np.triu_indices(len(x), 1)]
            out[name] = float(np.median(above)) if len(above) else 0.0
        return out

    @cached_property
    def nearest_own(self) -> dict[str, Float64Array]:
        """Distance from every row to the nearest other row of the same pool."""
        out = {}
        for name, x in self.pool.items():
            d = self._between[name, name].copy()
            np.fill_diagonal(d, np.inf)
            out[name] = d.min(axis=1) if len(x) > 1 else np.zeros(len(x))
        return out

    def nearest_other(self, name: str, without: str | None = None) -> Float64Array:
        """Distance from every row to the nearest row of another pool or of the reference.

        If `without` is the name of a client, its pool is not searched.
        """
        there = [self._between[name, b].min(axis=1) for b in self.pool if b not in (name, without)]
        there += [d.min(axis=1) for n, d in self._to_reference.items() if n == name]
        return np.asarray(np.min(there, axis=0))

    def influence(self, name: str, width: float) -> float:
        """How unevenly a pool would change the weights of rows that are not its own.

        The value is √(mean f²) / mean f over the reference rows (without a reference, over the
        other pools' rows). f(x) is the mean of exp(−‖x − x_i‖² / (2 width²)) over the pool's
        rows x_i. Up to scale, f(x) is the pool's contribution to the ratio at x. A pool that
        affects only m of n rows, and those equally, has influence √(n / m).
        """
        if self.reference is None:
            to = np.concatenate([self._between[b, name] for b in self.pool if b != name])
        else:
            to = self._to_reference[name].T
        f = np.exp(-np.square(to / max(width, 1e-300)) / 2).mean(axis=1)
        mean = float(f.mean())
        return float(np.sqrt(np.square(f).mean()) / mean) if mean > 1e-12 else 0.0
