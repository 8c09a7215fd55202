"""Checks of constructor parameters, made when `fit` is called."""

from __future__ import annotations

import math
import numbers
from typing import Any

from fedshift.errors import InputError


def whole(owner: object, name: str, *, least: int = 1) -> int:
    """A parameter that must be a whole number, at least `least`."""
    value: Any = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(
            f"{type(owner).__name__}: {name} must be a whole number of at least {least}; "
            f"got {value!r}"
        )
    return int(value)


def positive(owner: object, name: str) -> float:
    """A parameter that must be a positive, finite number."""
    value: Any = getattr(owner, name)
    good = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (good and 0 < value < math.inf):
        raise InputError(f"{type(owner).__name__}: {name} must be a positive number; got {value!r}")
    return float(value)
