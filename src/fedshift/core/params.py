"""Checks of constructor parameters, made when `fit` is called."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable, Sequence
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


def nearest(value: object, choices: Iterable[str]) -> str:
    """The end of an error: the choices, what was got, and the nearest choice if one is near."""
    known = list(choices)
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"one of {', '.join(known)}; got {value!r}{hint}"


def one_of(owner: object, name: str, choices: Sequence[str]) -> str:
    """A parameter that must be one of a few words; a near miss is named."""
    value: Any = getattr(owner, name)
    if isinstance(value, str) and value in choices:
        return value
    raise InputError(f"{type(owner).__name__}: {name} must be {nearest(value, choices)}")
