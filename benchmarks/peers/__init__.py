"""Peers of fedshift, one module each, run by :mod:`peers._worker` inside the peer's environment.

A module defines ``METHODS``: names mapped to functions that take the source and the target rows
and return a :class:`Fitted`; ``PACKAGE``, the distribution whose version is recorded; and, where
there are any, ``SOURCE_ONLY``, the methods that have ratios at the source rows alone. This
package imports nothing but the standard library and numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """What a method has learned.

    Attributes
    ----------
    ratio : callable or None
        Ratios at new rows; None for a method that has them at the source rows only.
    source : array of shape (n_source,), optional
        Ratios at the source rows, where the method has better than ``ratio(source)`` (those of
        a cross-fit) or nothing else.
    """

    ratio: Callable[[Array], Array] | None
    source: Array | None = None


Method = Callable[[Array, Array], Fitted]

LAMBDAS = [0.01, 0.1, 1.0]


def bandwidths(source: Array, target: Array) -> list[float]:
    """Three Gaussian bandwidths around the median distance (of at most 500 rows).

    With ``LAMBDAS`` they are the grid of densratio's "3x3" and of adapt. They were taken after a
    first run over the fixed values .1, 1 and 10, because they come nearer to the published figures
    of uLSIF (narrow_d2 .47 -> .03 for densratio; mean_d100_n1000 3.95 -> 1.73 for adapt). adapt's
    KLIEP is mixed: digits NMSE 1450 -> 12.9 but accuracy .748 -> .624, correlated_d10 .37 -> .64.
    """
    rows = np.concatenate([source, target])
    rows = rows[np.random.default_rng(0).permutation(len(rows))[:500]]
    squares = (rows**2).sum(1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0.0))
    median = float(np.median(distances[np.triu_indices(len(rows), 1)]))
    return [factor * median for factor in (0.3, 1.0, 3.0)]
