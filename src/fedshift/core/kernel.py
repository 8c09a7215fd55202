"""Shared parts of the kernel estimators `fedshift.ratio.ulsif`, `kliep` and `kmm`.

Standardisation, centres, Gaussian kernels, blocks of rows, and checks of parameters (`count`,
`grid`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, FloatArray, Sample, blocks, row_hash
from fedshift.errors import InputError

#: Smallest ratio a kernel estimator returns: its log ratio is at least log(1e-3) = −6.9.
FLOOR = 1e-3
#: Entries of a kernel matrix in memory at a time.
CELLS = 2**16
#: Default kernel widths, as multiples of the median distance.
WIDTHS = (0.25, 0.4, 0.6, 1.0, 1.6, 2.5)

Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Units:
    """Map of raw columns to mean zero and variance one over source and target in equal parts."""

    size: Float64Array
    mean: Float64Array
    sd: Float64Array

    @classmethod
    def of(cls, source: Sample, target: Sample) -> Units:
        """Fit the map; a constant column is only shifted."""
        parts = [(p.flat.astype(np.float64), p.weight / 2.0) for p in (source, target)]
        size = np.max([np.abs(x).max(axis=0) for x, _ in parts], axis=0)
        size[size == 0.0] = 1.0
        mean = np.sum([w @ (x / size) for x, w in parts], axis=0)
        sd = np.sqrt(np.sum([w @ (x / size - mean) ** 2 for x, w in parts], axis=0))
        sd[sd <= 1e-14] = 1.0  # rounding noise of a constant column must not become a signal
        return cls(size, mean, sd)

    def __call__(self, x: FloatArray) -> Float64Array:
        """Return rows (n, ...) as standardised float64 vectors (n, d), clipped at ±1e5.

        Rows that the map was fitted on never lie that far out. Clipping keeps the squares of new
        rows finite.
        """
        flat = x.reshape(len(x), -1).astype(np.float64)
        out: Float64Array = np.clip((flat / self.size - self.mean) / self.sd, -1e5, 1e5)
        return out

    def read(self, sample: Sample) -> tuple[Float64Array, Float64Array]:
        """Return standardised rows and their weights.

        The order of the rows does not depend on the units in which the columns are measured.
        """
        z = self(sample.x)
        order = np.argsort(row_hash(np.round(z, 6)), kind="stable")
        return z[order], sample.weight[order]


def draw(weight: Float64Array, k: int, rng: np.random.Generator) -> Index:
    """Draw at most `k` distinct row numbers in proportion to `weight`."""
    key = rng.exponential(size=len(weight)) / weight
    return np.argsort(key, kind="stable")[:k]


def squared_distances(x: Float64Array, centres: Float64Array) -> Float64Array:
    """Squared distance ‖x_i − c_l‖² of each row to each centre, shape (rows, centres)."""
    out = x @ (-2.0 * centres.T)
    out += np.einsum("ij,ij->i", x, x)[:, None]
    out += np.einsum("ij,ij->i", centres, centres)
    return np.maximum(out, 0.0, out=out)


def gaussian(d2: Float64Array, width: float) -> Float64Array:
    """Gaussian kernel exp(−d²/(2σ²)) of squared distances `d2`, where σ is `width`."""
    out = d2 * (-0.5 / width**2)
    return np.exp(out, out=out)


def median_distance(centres: Float64Array, *rows: Float64Array) -> float:
    """Median non-zero distance between the centres and the first rows of each sample."""
    d2 = np.concatenate(
        [squared_distances(x[: max(1, CELLS // len(centres))], centres).ravel() for x in rows]
    )
    d2 = d2[d2 > 1e-12]
    return math.sqrt(float(np.median(d2))) if len(d2) else 1.0


def kernel_blocks(n: int, n_centres: int) -> Iterator[slice]:
    """Slices that together cover `n` rows, each with a kernel matrix of at most 2¹⁶ entries."""
    return blocks(n, max(1, CELLS // n_centres))


def count(value: object, name: str, *, least: int = 1) -> int:
    """Return `value` as an integer of at least `least`, or raise InputError."""
    try:
        out = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        out = least - 1
    if out < least or isinstance(value, bool):
        raise InputError(f"{name} must be an integer of at least {least}; got {value!r}")
    return out


def grid(
    values: Iterable[float] | float | None, name: str, default: Sequence[float]
) -> list[float]:
    """Return a parameter grid as a list of positive numbers; None means `default`."""
    if values is None:
        return list(default)
    try:
        out = [float(v) for v in np.atleast_1d(np.asarray(values, dtype=np.float64)).ravel()]
    except (TypeError, ValueError):
        out = []
    if not out or not all(0.0 < v < math.inf for v in out):
        raise InputError(
            f"{name} must be positive, finite numbers; got {values!r}; None means {tuple(default)}"
        )
    return out
