r"""Bounds on a ratio from the masses of cells, for histogram-based density-ratio matching (HDRM).

HDRM is the method of Ramezani-Kebrya et al. (TMLR 2023), called "the paper" from here on. Its first
step estimates the largest ratio, sup r; this module has the mathematics of that step. Any partition
of the space into cells turns K target distributions and a source distribution into cell masses. The
ratio of cell m is

.. math:: \tilde r_m = K\,\frac{\text{pooled target mass of } m}{\text{source mass of } m},
          \qquad \tilde r = \max_m \tilde r_m,

and C = 1/r̃ is the constant of the non-negative correction (`fedshift.core.bregman`). r̃_m is the
mean ratio over the cell under the source distribution. Large cells therefore underestimate sup r,
and a cell with few source rows may overestimate it. Minimum counts, smoothing, caps and confidence
limits guard against such cells.

The paper's convergence lemma needs many rows *per cell* while the cells shrink. In high dimension
that is impossible for cells that are small in every direction. It is possible for cells that are
intervals of a one-dimensional score (`fedshift.ratio.ScoreBound`).
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
class CellTable:
    """Masses, counts, ratios and limits of M cells, one entry per cell.

    Attributes
    ----------
    source_mass, target_mass : ndarray (M,)
        Probability of the cell under the source and under the pooled target.
    source_count, target_count : ndarray (M,)
        Number of rows in the cell: `effective_rows` times the mass.
    ratio : ndarray (M,)
        r̃_m of the sum over K distributions; 0 where there is no source row.
    lower, upper : ndarray (M,)
        One-sided Clopper-Pearson limits of that ratio.
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
            f"CellTable(n={len(self)}, largest ratio {self.ratio[top]:.4g} on "
            f"{self.source_count[top]:.0f} source and {self.target_count[top]:.0f} target rows)"
        )

    def take(self, index: npt.NDArray[Any]) -> CellTable:
        """Select cells by index or mask."""
        return CellTable(*(getattr(self, field.name)[index] for field in fields(self)))


def effective_rows(sample: Sample) -> float:
    """Number of rows of a sample, unchanged when the whole sample is duplicated.

    The numbers of copies of the distinct rows are divided by their greatest common divisor: 300
    distinct rows, each repeated twice, are 300 rows. In a pool of distributions of unequal size,
    rows have different weights. The result is then the smaller of the number of rows and 1 / (the
    smallest weight of a distinct row).

    Examples
    --------
    >>> import numpy as np
    >>> from fedshift.core.samples import Sample
    >>> x = np.array([[0.0], [1.0], [1.0]])
    >>> effective_rows(Sample.of(x)), effective_rows(Sample.of(np.concatenate([x, x])))
    (3.0, 3.0)
    """
    n = len(sample.inverse)
    counts = sample.weight * n
    whole = np.rint(counts)
    if np.all(whole >= 1) and np.allclose(counts, whole, rtol=0.0, atol=1e-6):
        return n / int(np.gcd.reduce(whole.astype(np.int64)))
    return float(min(n, 1.0 / sample.weight.min()))


def cell_masses(cell: IntArray, weight: Float64Array, n_cells: int) -> Float64Array:
    """Probability of each cell, shape (n_cells,), from the cell number and weight of each row."""
    return np.bincount(cell, weights=weight, minlength=n_cells).astype(np.float64)


def cell_ratios(
    source_mass: Float64Array,
    target_mass: Float64Array,
    *,
    n_targets: int = 1,
    pseudo_mass: float = 0.0,
) -> Float64Array:
    """r̃_m = K (target mass + ε) / (source mass + ε), and 0 where the cell has no source row.

    ε is `pseudo_mass`. It pulls every cell towards K, the ratio when source and targets are equal.

    Examples
    --------
    >>> import numpy as np
    >>> cell_ratios(np.array([0.5, 0.5, 0.0]), np.array([0.9, 0.0, 0.1]), n_targets=2)
    array([3.6, 0. , 0. ])
    """
    out = np.zeros_like(source_mass)
    some = source_mass > 0
    out[some] = n_targets * (target_mass[some] + pseudo_mass) / (source_mass[some] + pseudo_mass)
    return out


def ratio_limit(
    source_count: Float64Array,
    target_count: Float64Array,
    *,
    n_source: float,
    n_target: float,
    n_targets: int = 1,
    confidence: float = 0.95,
    side: str = "upper",
) -> Float64Array:
    r"""One-sided Clopper-Pearson limit of each cell's ratio.

    Let s of the n_s source rows and t of the n_t target rows lie in the cell, and let r be the
    ratio for K target distributions. Given s + t, t is binomial with success probability
    θ = r n_t / (r n_t + K n_s). The exact limit of θ is a beta quantile, and
    r = K (n_s / n_t) θ / (1 − θ). The upper limit of a cell without source rows is infinite.

    Parameters
    ----------
    source_count, target_count : ndarray (M,)
        Number of rows in each of the M cells.
    n_source, n_target : float
        n_s and n_t, the total numbers of source and target rows.
    n_targets : int
        K, the number of target distributions.
    confidence : float
        Probability that the limit holds for one cell. The limits of all cells hold together with a
        lower probability.
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
        out = n_targets * (n_source / n_target) * share / (1.0 - share)
    return np.where(share >= 1.0, math.inf, out)


def log_ratio_error(
    source_count: Float64Array, target_count: Float64Array, *, n_source: float, n_target: float
) -> Float64Array:
    r"""Standard error of the log ratio of each cell.

    .. math:: \sqrt{1/t - 1/n_t + 1/s - 1/n_s}

    s of the n_s source rows and t of the n_t target rows lie in the cell. The error is 0 for the
    whole space, whose ratio is the number of target distributions, and infinite for a cell without
    source rows or without target rows.
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
    n_targets: int = 1,
    smoothing: float = 0.0,
    confidence: float = 0.95,
) -> CellTable:
    """Tabulate masses, counts, ratios and limits of all cells.

    Parameters
    ----------
    source_mass, target_mass : ndarray (M,)
    n_source, n_target : float
        Number of rows of each distribution.
    n_targets : int
        K, the number of target distributions.
    smoothing : float
        Pseudo-rows per cell: `cell_ratios` with ε = smoothing / min(n_source, n_target).
    confidence : float
        Confidence of the lower and of the upper limit, each one-sided.
    """
    source_count, target_count = source_mass * n_source, target_mass * n_target

    def limit(side: str) -> Float64Array:
        return ratio_limit(
            source_count,
            target_count,
            n_source=n_source,
            n_target=n_target,
            n_targets=n_targets,
            confidence=confidence,
            side=side,
        )

    ratio = cell_ratios(
        source_mass,
        target_mass,
        n_targets=n_targets,
        pseudo_mass=smoothing / min(n_source, n_target),
    )
    return CellTable(
        source_mass, target_mass, source_count, target_count, ratio, limit("lower"), limit("upper")
    )


def largest_ratio(
    cells: CellTable, *, min_count: float = 1.0, upper: bool = False, n_targets: int = 1
) -> float:
    """r̃: the largest ratio of the cells that hold at least `min_count` source rows.

    It is at least K = `n_targets`, because a sum of K ratios has mean K under the source. With
    `upper`, the result is the upper limit *of the cell that attains the maximum*. (The largest of
    all upper limits always belongs to the emptiest cell.)
    """
    ratio = np.where(cells.source_count >= min_count - 1e-9, cells.ratio, 0.0)
    top = int(np.argmax(ratio))
    value = cells.upper[top] if upper and ratio[top] > 0 else ratio[top]
    return max(float(n_targets), float(value))


def nested_masses(
    source_score: Float64Array,
    target_score: Float64Array,
    source_weight: Float64Array,
    target_weight: Float64Array,
    *,
    n_cells: int,
    smallest: float,
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Masses of nested cells {score ≥ t}, for thresholds t whose masses form a geometric series.

    Parameters
    ----------
    source_score, target_score : ndarray (n,), (m,)
    source_weight, target_weight : ndarray (n,), (m,)
        Each sums to one.
    n_cells : int
        Number of thresholds. The mass of a cell, as the mean of its source and its target mass,
        falls geometrically from 1 to `smallest`. Equal thresholds are merged.
    smallest : float
        Mass of the smallest cell: the mean of its source and its target mass.

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
    masses = np.geomspace(min(1.0, smallest), 1.0, n_cells)
    at = np.searchsorted((source + target) / 2.0, masses - 1e-12).clip(max=len(score) - 1)
    # rows with equal scores belong to one cell: move to the last of them
    at = np.unique(np.searchsorted(-score, -score[at], side="right") - 1)
    at = np.union1d(at, [len(score) - 1])
    return score[at], source[at].clip(max=1.0), target[at].clip(max=1.0)


def capped(bound: float, cap: float | None, *, n_targets: int = 1) -> float:
    """Return the bound, or `cap` if the cap is smaller.

    A cap below K, the number of target distributions, is refused. The largest ratio sup r is at
    least K, so the constant C = 1/cap would be larger than 1/sup r.
    """
    if cap is None:
        return bound
    if cap < n_targets:
        raise InputError(
            f"cap must be at least the number of target distributions, {n_targets}, because the "
            f"sum of their ratios has mean {n_targets} on the source; got {cap}; raise or omit cap"
        )
    return min(bound, cap)
