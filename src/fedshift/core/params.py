"""Checks of parameters."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedshift.errors import InputError


def is_whole(value: Any, least: int = 1) -> bool:
    """Whether a value is a whole number of at least `least`. True and False are not."""
    good = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return good and int(value) >= least


def whole_number(value: Any, name: str, *, least: int = 1) -> int:
    """Return a whole number of at least `least`, or raise InputError with `name`."""
    if not is_whole(value, least):
        raise InputError(f"{name} must be a whole number of at least {least}; got {value!r}")
    return int(value)


def whole(owner: object, name: str, *, least: int = 1) -> int:
    """Return an attribute that must be a whole number of at least `least`."""
    return whole_number(getattr(owner, name), f"{type(owner).__name__}: {name}", least=least)


def positive(owner: object, name: str, *, zero: bool = False) -> float:
    """Return an attribute that must be a positive, finite number, or `zero` if that is allowed."""
    value: Any = getattr(owner, name)
    good = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (good and (0 < value < math.inf or (zero and value == 0))):
        kind = "number of at least 0" if zero else "positive number"
        raise InputError(f"{type(owner).__name__}: {name} must be a {kind}; got {value!r}")
    return float(value)


def check_numbers(kind: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Raise unless every parameter of `kind` that is annotated as a number holds one, and no NaN.

    Parameters
    ----------
    kind : function or class
    values : mapping of name to value
        ``locals()`` at the start of a function, ``vars(self)`` of an object.
    """
    for name, parameter in inspect.signature(kind).parameters.items():
        types, value = set(str(parameter.annotation).split(" | ")), values.get(name, 0)
        if not types <= {"int", "float", "None"} or (value is None and "None" in types):
            continue
        need, what = (numbers.Real, "") if "float" in types else (numbers.Integral, "whole ")
        if not isinstance(value, need) or isinstance(value, bool) or math.isnan(float(value)):
            raise InputError(f"{kind.__name__}: {name} must be a {what}number; got {value!r}")
        if name == "seed":
            whole_number(value, f"{kind.__name__}: seed", least=0)


def nearest(value: object, choices: Iterable[str]) -> str:
    """End of an error message: the choices, the value, and a similar choice if there is one."""
    known = list(choices)
    return f"one of {', '.join(known)}; got {value!r}{suggestion(value, known)}"


def suggestion(value: object, choices: Iterable[str]) -> str:
    """End of an error message: a choice that is similar to the value; empty without one."""
    fold = {choice.casefold(): choice for choice in choices}
    near = difflib.get_close_matches(str(value).casefold(), fold, n=1)
    return f"; did you mean {fold[near[0]]!r}?" if near else ""


def one_of(owner: object, name: str, choices: Sequence[str]) -> str:
    """Return an attribute that must be one of `choices`; the error suggests a similar one."""
    value: Any = getattr(owner, name)
    if isinstance(value, str) and value in choices:
        return value
    raise InputError(f"{type(owner).__name__}: {name} must be {nearest(value, choices)}")
