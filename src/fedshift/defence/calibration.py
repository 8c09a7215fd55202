r"""Checks of the sums of a federated calibration, when a site may be hostile or broken.

Each site sends the slope and the curvature of its own loss (`fedshift.core.scaling.bcts_sums`), and
the server takes a Newton step with the totals over sites. At a site, the rows of class c have total
weight w_c and all rows have total weight W. The slope is s and the curvature H. Index 0 belongs to
the inverse temperature, and index c to the bias of class c. Log probabilities lie in [−L, 0], with
L = −log `fedshift.core.label.FLOOR`. So the sums of an honest site are bounded:

.. math:: -w_c ≤ s_c ≤ W - w_c, \quad Σ_c s_c = 0, \quad |s_0| ≤ L W, \quad
          0 ≤ H_{cc} ≤ W / 4, \quad 0 ≤ H_{00} ≤ L^2 W / 4.

Within these bounds a site could still bias the calibration by a long slope in every step. The
slopes of honest sites differ little in length. So no slope may be longer than `APART` times a
reference length. In each step the median length over sites is computed, and the reference length is
the smallest of these medians so far. Medians of earlier steps count because a hostile site can make
the slopes of honest sites longer in later steps. A longer median must not allow the hostile site a
longer slope.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from fedshift.core.label import FLOOR
from fedshift.core.samples import Float64Array
from fedshift.defence.statistics import APART


class CalibrationSums(NamedTuple):
    """A site's slope (C + 1,) and curvature (C + 1, C + 1) of its loss, for C classes."""

    slope: Float64Array
    curve: Float64Array


def check_sums(sums: CalibrationSums, weight: Float64Array) -> str | None:
    """Return the bound that `sums` break, as text, or None if they are within all bounds.

    Parameters
    ----------
    sums : CalibrationSums
        Sums as received: finite, of the right shape, and with a symmetric curvature.
    weight : array (C,)
        Total weight of the site's rows of each class.

    Examples
    --------
    >>> check_sums(CalibrationSums(np.array([0.1, 0.2, -0.2]), np.eye(3) / 9), np.array([0.5, 0.5]))
    >>> check_sums(CalibrationSums(np.array([0.1, 2.0, -2.0]), np.eye(3) / 9), np.array([0.5, 0.5]))
    'a slope of 2 where -0.5 to 0.5 is possible'
    """
    total, width = float(weight.sum()), -math.log(FLOOR)
    slack = 1e-6 * total
    low = np.concatenate([[-width * total], -weight]) - slack
    high = np.concatenate([[width * total], total - weight]) + slack
    wrong = np.flatnonzero((sums.slope < low) | (sums.slope > high))
    if len(wrong):
        k = wrong[0]
        return f"a slope of {sums.slope[k]:.3g} where {low[k]:.3g} to {high[k]:.3g} is possible"
    if abs(sums.slope[1:].sum()) > slack * len(weight):
        return f"slopes of the classes that sum to {sums.slope[1:].sum():.3g}, not to 0"
    least = float(np.linalg.eigvalsh(sums.curve).min())
    if least < -1e-6 * (1 + np.abs(sums.curve).max()):
        return f"a curvature of {least:.3g}, below 0"
    most = np.full(len(sums.slope), total / 4)
    most[0] *= width**2
    over = np.diag(sums.curve) - most * (1 + 1e-6)
    if (over > 0).any():
        at = int(over.argmax())
        return f"a curvature of {sums.curve[at, at]:.3g} where at most {most[at]:.3g} is possible"
    return None


def longest(sums: Iterable[CalibrationSums]) -> float:
    """Return the largest allowed length of a slope: `APART` times the lower median length."""
    lengths = [float(np.linalg.norm(s.slope)) for s in sums]
    return APART * float(np.quantile(lengths, 0.5, method="lower"))


def add_up(
    sums: Mapping[str, CalibrationSums], limit: float
) -> tuple[CalibrationSums, dict[str, str]]:
    """Add up the slopes and curvatures of all sites, with slopes shortened to a limit.

    If no slope is shortened, the result equals the plain sum bit for bit.

    Returns
    -------
    CalibrationSums, dict of site to reason
        The sums, and for each site with a shortened slope the reason.

    Examples
    --------
    >>> slopes = {"a": 1.0, "b": -1.0, "c": 50.0}
    >>> sums = {n: CalibrationSums(np.array([s, 0.0]), np.eye(2)) for n, s in slopes.items()}
    >>> total, shortened = add_up(sums, longest(sums.values()))
    >>> total.slope.tolist(), shortened
    ([2.0, 0.0], {'c': 'a slope of length 50 in a calibration, where the limit is 2'})
    """
    slopes, shortened = [], {}
    for name in sorted(sums):  # always in the same order
        slope = sums[name].slope
        length = float(np.linalg.norm(slope))
        if length > limit:
            slope = slope * (limit / length)
            shortened[name] = (
                f"a slope of length {length:.3g} in a calibration, where the limit is {limit:.3g}"
            )
        slopes.append(slope)
    curves = [sums[name].curve for name in sorted(sums)]
    return CalibrationSums(np.asarray(sum(slopes)), np.asarray(sum(curves))), shortened
