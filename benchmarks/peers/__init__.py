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
