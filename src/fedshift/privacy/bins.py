r"""The bound of the ratio from counts alone: a server proposes cells, sites count.

The server must cut the space without seeing a row of any site: along a score that everybody has
(a model of the ratio, evaluated at public or generated points), or around centres of such points.
Sites answer `Released` counts, and a client's bound is

.. math:: \tilde r = \max_m \frac{\sum_l q_l(m)}{p(m)}

over the cells m in which it has rows enough (`fedshift.core.bound`): q_l is the share of site l's
test rows, p that of its own training rows, which need not leave it.

What suppression costs: a target cell that a site hides counts as empty there, and a source cell
that is hidden is left out, so a peak of the ratio in a cell of few rows is not seen. Cells should
be few: with a threshold of c, n rows fill at most n / c of them.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedshift.core.bound import Cells, capped, largest_ratio, tabulate
from fedshift.core.samples import Float64Array
from fedshift.errors import InputError
from fedshift.privacy.counts import Counts, Released

#: standard deviations of the noise below which a source count is not trusted
_CLEAR = 3.0


@dataclass(frozen=True, eq=False)
class ScoreCells:
    """Intervals of a score: cell m holds the rows with edges[m − 1] ≤ score < edges[m].

    Examples
    --------
    >>> cells = ScoreCells.of(np.linspace(0, 1, 101), n_cells=4)
    >>> cells.edges.tolist(), cells.counts(np.array([0.1, 0.3, 0.9, 7.0])).tolist()
    ([0.25, 0.5, 0.75], [1, 1, 0, 2])
    """

    edges: Float64Array

    def __post_init__(self) -> None:
        edges = np.asarray(self.edges, dtype=np.float64)
        if edges.ndim != 1 or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
            raise InputError(f"edges must be finite and rising; got {edges!r}")
        object.__setattr__(self, "edges", edges)

    @classmethod
    def of(cls, score: npt.ArrayLike, n_cells: int) -> Self:
        """Cells that hold equal shares of scores of public points; equal edges are merged."""
        levels = np.arange(1, n_cells) / n_cells
        return cls(np.unique(np.quantile(np.asarray(score, dtype=np.float64), levels)))

    def __len__(self) -> int:
        """Number of cells."""
        return len(self.edges) + 1

    @property
    def digest(self) -> str:
        """A name of these cells: the question a site answers once (`Releases`)."""
        return _digest("score", self.edges)

    def counts(self, score: npt.ArrayLike) -> Counts:
        """Rows in every cell, from the score (n,) of each."""
        values = np.asarray(score, dtype=np.float64)
        if values.ndim != 1 or np.isnan(values).any():
            raise InputError(f"scores must be numbers, one a row; got shape {values.shape}")
        cell = np.searchsorted(self.edges, values, side="right")
        return np.bincount(cell, minlength=len(self)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class CentreCells:
    """A cell around every centre: the rows that lie nearest to it (the paper's k-means)."""

    centres: Float64Array

    def __post_init__(self) -> None:
        centres = np.asarray(self.centres, dtype=np.float64)
        if centres.ndim != 2 or not len(centres) or not np.isfinite(centres).all():
            raise InputError(f"centres must be finite rows (M, d); got shape {centres.shape}")
        object.__setattr__(self, "centres", centres)

    @classmethod
    def of(cls, points: npt.ArrayLike, n_cells: int, *, seed: int = 0) -> Self:
        """k-means of public or generated points (n, …)."""
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning

        rows = _flat(points)
        if n_cells > len(rows):
            raise InputError(f"{n_cells} cells need at least as many points; got {len(rows)}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer clusters than asked: fine
            means = KMeans(n_cells, n_init=1, random_state=seed).fit(rows)
        return cls(np.unique(means.cluster_centers_, axis=0))

    def __len__(self) -> int:
        """Number of cells."""
        return len(self.centres)

    @property
    def digest(self) -> str:
        """A name of these cells, as `ScoreCells.digest`."""
        return _digest("centres", self.centres)

    def counts(self, rows: npt.ArrayLike) -> Counts:
        """Rows (n, …) in every cell."""
        from sklearn.metrics import pairwise_distances_argmin

        flat = _flat(rows)
        if flat.shape[1] != self.centres.shape[1] or not np.isfinite(flat).all():
            raise InputError(
                f"rows must be finite, of {self.centres.shape[1]} columns like the centres; got "
                f"shape {flat.shape}"
            )
        cell = pairwise_distances_argmin(flat, self.centres)
        return np.bincount(cell, minlength=len(self)).astype(np.int64)


@dataclass(frozen=True)
class CountBound:
    """A bound on the sum of ratios, and what it was read from.

    Attributes
    ----------
    bound : float
    cells : Cells
    n_laws : int
        K, which the bound never falls below.
    hidden : float
        Share of all (site, cell) pairs that were suppressed.
    """

    bound: float
    cells: Cells
    n_laws: int
    hidden: float

    def __repr__(self) -> str:
        return (
            f"CountBound({self.bound:.4g} on the sum of {self.n_laws} ratios, from "
            f"{len(self.cells)} cells, {self.hidden:.0%} of the counts hidden)"
        )


def bound_from_counts(
    source: Released | npt.ArrayLike,
    targets: Mapping[str, Released | npt.ArrayLike],
    *,
    min_count: float | None = None,
    smoothing: float = 0.0,
    confidence: float | None = None,
    cap: float | None = None,
) -> CountBound:
    """Bound on Σ_l p_l^te / p^tr from counts in the same cells.

    Parameters
    ----------
    source : Released or counts (M,)
        A client's training rows; its own, so exact counts will do.
    targets : mapping of site to Released or counts (M,)
        Test rows. Each site counts once, whatever its number of rows.
    min_count : float, optional
        Cells with fewer source rows are left out; by default 1, or three standard deviations of
        the noise where there is noise: of the source's own for the whole cell, of a site's for
        its part in it. So a site that claims much noise loses its own say and nobody else's.
    smoothing, cap, confidence
        As in `fedshift.ratio.KMeansBound`.

    Returns
    -------
    CountBound

    Examples
    --------
    >>> bound_from_counts([50, 50], {"a": [90, 10], "b": [50, 50]})
    CountBound(2.8 on the sum of 2 ratios, from 2 cells, 0% of the counts hidden)
    """
    if not targets:
        raise InputError("targets must hold the counts of at least one site; got none")
    own, told = _read("source", source), {n: _read(n, t) for n, t in targets.items()}
    for name, law in told.items():
        if law.counts.shape != own.counts.shape:
            raise InputError(
                f"site {name!r} answered {law.counts.shape} counts for the {own.counts.shape} "
                "cells of the source; ask it again with the same cells"
            )
        # counts too large for whole numbers of 64 bits come round to others, and below 0
        if law.total <= 0 or (law.counts < 0).any() or not math.isclose(law.law.sum(), 1.0):
            raise InputError(
                f"counts of {name!r} must be ≥ 0 with a positive sum below 2**63; got a sum of "
                f"{law.total:,}; leave the site out"
            )
    laws, everyone = list(told.values()), [own, *told.values()]
    shares = [law.law for law in laws]
    if min_count is None:
        min_count = _clear(own)
        shares = [np.where(own.counts >= _clear(own, law), law.law, 0.0) for law in laws]
    cells = tabulate(
        own.law,
        np.mean(shares, axis=0),
        n_source=own.total,
        n_target=sum(law.total for law in laws),
        n_laws=len(laws),
        smoothing=smoothing,
        confidence=0.95 if confidence is None else confidence,
    )
    value = largest_ratio(
        cells, min_count=min_count, upper=confidence is not None, n_laws=len(laws)
    )
    hidden = float(np.mean([law.suppressed.mean() for law in everyone]))
    return CountBound(capped(value, cap, n_laws=len(laws)), cells, len(laws), hidden)


def _clear(*tables: Released) -> float:
    """Fewest rows that stand out from the noise of the loudest of these."""
    return max(1.0, _CLEAR * math.sqrt(2.0) / min(t.epsilon for t in tables))


def _read(name: str, given: Released | npt.ArrayLike) -> Released:
    if isinstance(given, Released):
        return given
    counts = np.asarray(given)
    whole = counts.ndim == 1 and counts.dtype.kind in "iu" and (counts >= 0).all()
    if not (whole and counts.any()):
        raise InputError(f"counts of {name!r} must be whole, one a cell, not all 0; got {given!r}")
    return Released(counts.astype(np.int64), np.zeros(len(counts), dtype=bool))


def _flat(rows: npt.ArrayLike) -> Float64Array:
    values = np.asarray(rows, dtype=np.float64)
    return values.reshape(len(values), -1)


def _digest(kind: str, numbers: npt.NDArray[Any]) -> str:
    data = hashlib.blake2b(f"{kind} {numbers.shape}".encode(), digest_size=12)
    data.update(np.ascontiguousarray(numbers).tobytes())
    return f"{kind}-{data.hexdigest()}"


__all__ = ["CentreCells", "CountBound", "ScoreCells", "bound_from_counts"]
