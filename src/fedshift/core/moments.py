"""Standard deviations from sums over sites, for numbers of any magnitude.

The square of a number below 1e-154 underflows, and that of one above 1e154 overflows. Sites first
sum the plain squares (unit 1). If the total over all sites loses digits because it is too small or
too large, the server requests the sum once more, in the unit that `unit_for` returns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array

#: deviations below this share of the mean are rounding
FLAT = 1e-12
#: smaller numbers have fewer digits, so deviations below it are rounding too
SMALLEST_NORMAL = float(np.finfo(np.float64).tiny)
#: totals of squares in this range have all their digits
SAFE = (1e-200, 1e200)
#: units of squares below and above that range: powers of two, which change no digit
UNITS = (2.0**-700, 2.0**700)


def square_sums(deviations: Float64Array, unit: float | Float64Array = 1.0) -> Float64Array:
    """Sum of (d / unit)² over the rows of each column, without NaN.

    d are the `deviations`, one column per quantity. A square that underflows to 0 is replaced by
    the smallest positive number, so that `unit_for` can detect the underflow.

    Examples
    --------
    >>> import numpy as np
    >>> d = np.array([3e-170, 4e-170])
    >>> unit = unit_for(square_sums(d))
    >>> float(np.sqrt(square_sums(d, unit)) * unit)
    5e-170
    """
    with np.errstate(over="ignore"):
        squares = np.square(deviations / unit)
        least = np.where(deviations != 0.0, np.nextafter(0.0, 1.0), 0.0)
        return np.asarray(np.nansum(np.maximum(squares, least), axis=0))


def unit_for(total: npt.ArrayLike) -> Float64Array:
    """Unit in which the squares of each column are to be summed, from their plain sum (unit 1)."""
    t = np.asarray(total, dtype=np.float64)
    small, large = (t > 0.0) & (t < SAFE[0]), t > SAFE[1]
    return np.asarray(np.where(small, UNITS[0], np.where(large, UNITS[1], 1.0)))


def deviation(
    total: npt.ArrayLike, count: float, unit: npt.ArrayLike, mean: npt.ArrayLike
) -> Float64Array:
    """Standard deviation of each column from its sum of squares; 0 if it is only rounding error."""
    sd = np.sqrt(np.asarray(total) / max(count, 1)) * unit
    return np.asarray(np.where(sd > np.maximum(FLAT * np.abs(mean), SMALLEST_NORMAL), sd, 0.0))


def moments(parts: Sequence[Float64Array]) -> tuple[Float64Array, Float64Array, int]:
    """Mean and standard deviation of each column over the rows of all sites.

    Parameters
    ----------
    parts : sequence of ndarray (n_k,) or (n_k, d)
        The rows of each site.

    Returns
    -------
    mean, sd : ndarray () or (d,)
        `sd`, the standard deviation, is 0 where it is only rounding error.
    int
        Number of columns whose squares were summed a second time.
    """
    count = sum(len(p) for p in parts)
    mean = np.asarray(sum(p.sum(axis=0) for p in parts) / count)
    total = sum(square_sums(p - mean) for p in parts)
    unit = unit_for(total)
    repeated = int((unit != 1.0).sum())
    if repeated:
        total = sum(square_sums(p - mean, unit) for p in parts)
    return mean, deviation(total, count, unit, mean), repeated
