r"""Sums of a calibration by all, when one of the sites may be hostile or broken.

Each site adds the slope and the curvature of its own loss (`fedshift.core.scaling.bcts_sums`), and
the server steps by their sums. Rows of class c weigh w_c together at a site, in sum W, and log
probabilities lie in [−L, 0], L = −log `FLOOR`. So what an honest site can say is bounded:

.. math:: -w_c ≤ s_c ≤ W - w_c, \quad Σ_c s_c = 0, \quad |s_0| ≤ L W, \quad
          0 ≤ H_{cc} ≤ W / 4, \quad 0 ≤ H_{00} ≤ L^2 W / 4.

Within these bounds a site could still pull the calibration far off, with a slope that never falls.
Honest sites' slopes differ, but not by much in length, so one that is longer than `APART` times
the median of this step or of an earlier one is shortened: who leads the others astray makes their
slopes longer, and must not gain by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from fedshift.core.label import FLOOR
from fedshift.core.samples import Float64Array
from fedshift.defence.beside import APART


class Sums(NamedTuple):
    """A site's part in a calibration: slope (C + 1,) and curvature (C + 1, C + 1) of its loss."""

    slope: Float64Array
    curve: Float64Array


def check_sums(sums: Sums, weight: Float64Array) -> str | None:
    """Why these cannot be sums over rows of such weights, or None where they can.

    Parameters
    ----------
    sums : Sums
        Finite, of the right shape, the curvature symmetric.
    weight : array (C,)
        What the site's rows of each class weigh together.

    Examples
    --------
    >>> check_sums(Sums(np.array([0.1, 0.2, -0.2]), np.eye(3) / 9), np.array([0.5, 0.5]))
    >>> check_sums(Sums(np.array([0.1, 2.0, -2.0]), np.eye(3) / 9), np.array([0.5, 0.5]))
    'a slope of 2 where rows can lead to -0.5 to 0.5'
    """
    total, width = float(weight.sum()), -math.log(FLOOR)
    room = 1e-6 * total
    low = np.concatenate([[-width * total], -weight]) - room
    high = np.concatenate([[width * total], total - weight]) + room
    wrong = np.flatnonzero((sums.slope < low) | (sums.slope > high))
    if len(wrong):
        k = wrong[0]
        room_for = f"{low[k]:.3g} to {high[k]:.3g}"
        return f"a slope of {sums.slope[k]:.3g} where rows can lead to {room_for}"
    if abs(sums.slope[1:].sum()) > room * len(weight):
        return f"slopes of the classes that sum to {sums.slope[1:].sum():.3g}, not to 0"
    least = float(np.linalg.eigvalsh(sums.curve).min())
    if least < -1e-6 * (1 + np.abs(sums.curve).max()):
        return f"a curvature of {least:.3g}, below 0"
    most = np.full(len(sums.slope), total / 4)
    most[0] *= width**2
    over = np.diag(sums.curve) - most * (1 + 1e-6)
    if (over > 0).any():
        at = int(over.argmax())
        return (
            f"a curvature of {sums.curve[at, at]:.3g} where rows can lead to at most {most[at]:.3g}"
        )
    return None


def longest(sums: Iterable[Sums]) -> float:
    """How long a slope may be: `APART` times the lower median of all."""
    lengths = [float(np.linalg.norm(s.slope)) for s in sums]
    return APART * float(np.quantile(lengths, 0.5, method="lower"))


def add_up(sums: Mapping[str, Sums], limit: float) -> tuple[Sums, dict[str, str]]:
    """The sums over all sites, with slopes no longer than a limit.

    With nobody shortened they are those of ``sum``, bit for bit.

    Returns
    -------
    Sums, dict of site to reason
        The second: who was shortened.

    Examples
    --------
    >>> told = {n: Sums(np.array([s, 0.0]), np.eye(2)) for n, s in zip("abc", (1.0, -1.0, 50.0))}
    >>> total, shortened = add_up(told, longest(told.values()))
    >>> total.slope.tolist(), shortened
    ([2.0, 0.0], {'c': 'a slope of length 50 in a calibration, where the limit is 2'})
    """
    slopes, shortened = [], {}
    for name in sorted(sums):  # in an order that is always the same
        slope = sums[name].slope
        length = float(np.linalg.norm(slope))
        if length > limit:
            slope = slope * (limit / length)
            shortened[name] = (
                f"a slope of length {length:.3g} in a calibration, where the limit is {limit:.3g}"
            )
        slopes.append(slope)
    curves = [sums[name].curve for name in sorted(sums)]
    return Sums(np.asarray(sum(slopes)), np.asarray(sum(curves))), shortened
