r"""Bounds on a ratio from the masses of cells: the mathematics of the HDRM step.

A partition of the space into cells, whatever made it, turns K target laws and a source law into
cell masses. The ratio of cell m is

.. math:: \tilde r_m = K\,\frac{\text{pooled target mass of } m}{\text{source mass of } m},
          \qquad \tilde r = \max_m \tilde r_m,

and C = 1/r̃ is the constant of the non-negative correction. r̃_m averages the ratio over the cell
(weighted by the source law), so large cells fall short of sup r, and a cell with a handful of
source rows may lie far above it; hence minimum counts, smoothing, caps and confidence limits.

The paper's lemma of convergence needs many rows *per cell* while the cells shrink. In high
dimension no partition of the space itself has that; cells along a score do
(`fedshift.ratio.ScoreBound`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from fedshift.core.samples import Float64Array, Sample
from fedshift.errors import InputError

IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Cells:
    """What lies in each of M cells: a small table, one entry a cell.

    Attributes
    ----------
    source_mass, target_mass : ndarray (M,)
        Probability of the cell under the source and under the pooled target.
    source_count, target_count : ndarray (M,)
        Rows behind the masses (`effective_rows` times the mass).
    ratio : ndarray (M,)
        r̃_m of the sum over K laws; 0 where there is no source row.
    lower, upper : ndarray (M,)
        Clopper-Pearson limits of that ratio, each one-sided.
    """

    source_mass: Float64Array
    target_mass: Float64Array
    source_count: Float64Array
    target_count: Float64Array
    ratio: Float64Array
    lower: Float64Array
    upper: Float64Array

    def __len__(self) -> int:
        """Number of cells."""
        return len(self.ratio)

    def __repr__(self) -> str:
        top = int(np.argmax(self.ratio))
        return (
            f"Cells(n={len(self)}, largest ratio {self.ratio[top]:.4g} on "
            f"{self.source_count[top]:.0f} source and {self.target_count[top]:.0f} target rows)"
        )

    def take(self, index: npt.NDArray[Any]) -> Cells:
        """Some of the cells, by index or mask."""
        return Cells(*(getattr(self, field.name)[index] for field in fields(self)))

    def to_dict(self) -> dict[str, Float64Array]:
        """Columns by name; ``pandas.DataFrame(cells.to_dict())`` makes a frame of it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def effective_rows(sample: Sample) -> float:
    """Number of rows that stand behind a law, unchanged when the whole sample is duplicated.

    Row counts with a common divisor are divided by it: 300 distinct rows, each given twice, are
    300 rows. Laws of unequal size in a pool count at most one over their smallest weight.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshift.core.samples import Sample
    >>> x = np.array([[0.0], [1.0], [1.0]])
    >>> effective_rows(Sample.of(x)), effective_rows(Sample.of(np.concatenate([x, x])))
    (3.0, 3.0)
    """
    given = len(sample.inverse)
    counts = sample.weight * given
    whole = np.rint(counts)
    if np.all(whole >= 1) and np.allclose(counts, whole, rtol=0.0, atol=1e-6):
        return given / int(np.gcd.reduce(whole.astype(np.int64)))
    return float(min(given, 1.0 / sample.weight.min()))


def cell_masses(cell: IntArray, weight: Float64Array, n_cells: int) -> Float64Array:
    """Probability of each cell, shape (n_cells,), from the cell number and weight of each row."""
    return np.bincount(cell, weights=weight, minlength=n_cells).astype(np.float64)


def cell_ratios(
    source_mass: Float64Array,
    target_mass: Float64Array,
    *,
    n_laws: int = 1,
    pseudo_mass: float = 0.0,
) -> Float64Array:
    """r̃_m = K (target mass + ε) / (source mass + ε), and 0 where the cell has no source row.

    ε = `pseudo_mass` smooths: it draws every cell towards the ratio K of laws that do not differ.

    Examples
    --------
    >>> import numpy as np
    >>> cell_ratios(np.array([0.5, 0.5, 0.0]), np.array([0.9, 0.0, 0.1]), n_laws=2)
    array([3.6, 0. , 0. ])
    """
    out = np.zeros_like(source_mass)
    seen = source_mass > 0
    out[seen] = n_laws * (target_mass[seen] + pseudo_mass) / (source_mass[seen] + pseudo_mass)
    return out


def ratio_limit(
    source_count: Float64Array,
    target_count: Float64Array,
    *,
    n_source: float,
    n_target: float,
    n_laws: int = 1,
    confidence: float = 0.95,
    side: str = "upper",
) -> Float64Array:
    r"""One-sided Clopper-Pearson limit of each cell's ratio.

    Given that s + t rows fell into the cell, t is binomial with the share
    θ = r n_t / (r n_t + n_s); the exact limit of θ is a beta quantile, and
    r = K (n_s / n_t) θ / (1 − θ). The upper limit of a cell without source rows is infinite.

    Parameters
    ----------
    source_count, target_count : ndarray (M,)
        Rows in each cell.
    n_source, n_target : float
        Rows in all.
    n_laws : int
        K.
    confidence : float
        Probability that the limit holds, for one cell; it is not simultaneous over cells.
    side : {"upper", "lower"}

    Examples
    --------
    >>> import numpy as np
    >>> s, t = np.array([50.0]), np.array([200.0])
    >>> ratio_limit(s, t, n_source=1000, n_target=1000).round(2)
    array([5.28])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if side == "upper":
            share = np.where(
                source_count > 0, beta.ppf(confidence, target_count + 1.0, source_count), 1.0
            )
        else:
            share = np.where(
                target_count > 0, beta.ppf(1.0 - confidence, target_count, source_count + 1.0), 0.0
            )
        out = n_laws * (n_source / n_target) * share / (1.0 - share)
    return np.where(share >= 1.0, math.inf, out)


def log_ratio_error(
    source_count: Float64Array, target_count: Float64Array, *, n_source: float, n_target: float
) -> Float64Array:
    r"""Standard error of the log of each cell's ratio,

    .. math:: \sqrt{1/t - 1/n_t + 1/s - 1/n_s},

    which is 0 for the whole space, whose ratio is known to be K, and infinite without rows.
    """
    with np.errstate(divide="ignore"):
        variance = 1.0 / target_count - 1.0 / n_target + 1.0 / source_count - 1.0 / n_source
    return np.sqrt(np.maximum(variance, 0.0))


def tabulate(
    source_mass: Float64Array,
    target_mass: Float64Array,
    *,
    n_source: float,
    n_target: float,
    n_laws: int = 1,
    smoothing: float = 0.0,
    confidence: float = 0.95,
) -> Cells:
    """Masses, counts, ratios and limits of all cells in one table.

    Parameters
    ----------
    source_mass, target_mass : ndarray (M,)
    n_source, n_target : float
        Rows behind each law.
    n_laws : int
        K.
    smoothing : float
        Pseudo-rows a cell: `cell_ratios` with ε = smoothing / min(n_source, n_target).
    confidence : float
        Of the lower and of the upper limit.
    """
    source_count, target_count = source_mass * n_source, target_mass * n_target

    def limit(side: str) -> Float64Array:
        return ratio_limit(
            source_count,
            target_count,
            n_source=n_source,
            n_target=n_target,
            n_laws=n_laws,
            confidence=confidence,
            side=side,
        )

    ratio = cell_ratios(
        source_mass,
        target_mass,
        n_laws=n_laws,
        pseudo_mass=smoothing / min(n_source, n_target),
    )
    return Cells(
        source_mass, target_mass, source_count, target_count, ratio, limit("lower"), limit("upper")
    )


def largest_ratio(
    cells: Cells, *, min_count: float = 1.0, upper: bool = False, n_laws: int = 1
) -> float:
    """r̃: the largest ratio of the cells that hold at least `min_count` source rows.

    Never below K, which every sup of a sum of K ratios reaches: its mean under the source is K.
    With `upper`, the upper limit *of the cell that attains the maximum* (the largest of all upper
    limits would always be that of the emptiest cell).
    """
    ratio = np.where(cells.source_count >= min_count - 1e-9, cells.ratio, 0.0)
    top = int(np.argmax(ratio))
    value = cells.upper[top] if upper and ratio[top] > 0 else ratio[top]
    return max(float(n_laws), float(value))


def nested_masses(
    source_score: Float64Array,
    target_score: Float64Array,
    source_weight: Float64Array,
    target_weight: Float64Array,
    *,
    n_cells: int,
    smallest: float,
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Masses of nested cells {score ≥ t}, for thresholds t that halve down to a smallest mass.

    Parameters
    ----------
    source_score, target_score : ndarray (n,), (m,)
    source_weight, target_weight : ndarray (n,), (m,)
        Each sums to one.
    n_cells : int
        Number of thresholds, geometric in the mean of the two masses from 1 down to `smallest`;
        equal thresholds are merged.
    smallest : float
        Mean mass of the smallest cell.

    Returns
    -------
    threshold, source_mass, target_mass : ndarray (M,)
        From the smallest cell to the whole space.
    """
    score = np.concatenate([source_score, target_score])
    source = np.concatenate([source_weight, np.zeros_like(target_weight)])
    target = np.concatenate([np.zeros_like(source_weight), target_weight])
    order = np.argsort(-score, kind="stable")
    score, source, target = score[order], np.cumsum(source[order]), np.cumsum(target[order])
    wanted = np.geomspace(min(1.0, smallest), 1.0, n_cells)
    at = np.searchsorted((source + target) / 2.0, wanted - 1e-12).clip(max=len(score) - 1)
    # rows with equal scores belong to one cell: move to the last of them
    at = np.unique(np.searchsorted(-score, -score[at], side="right") - 1)
    at = np.union1d(at, [len(score) - 1])
    return score[at], source[at].clip(max=1.0), target[at].clip(max=1.0)


def capped(bound: float, cap: float | None, *, n_laws: int = 1) -> float:
    """The bound, at most `cap`; a cap below K would make C larger than any 1/sup r."""
    if cap is None:
        return bound
    if cap < n_laws:
        raise InputError(
            f"cap must be at least the number of target laws, {n_laws}, because the sum of their "
            f"ratios has that mean; got {cap}; raise it or leave it out"
        )
    return min(bound, cap)


__all__ = [
    "Cells",
    "capped",
    "cell_masses",
    "cell_ratios",
    "effective_rows",
    "largest_ratio",
    "log_ratio_error",
    "nested_masses",
    "ratio_limit",
    "tabulate",
]
