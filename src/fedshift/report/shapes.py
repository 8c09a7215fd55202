"""What a value read from JSON must look like, said once and checked with the place it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedshift.errors import InputError

#: raises if a value is not what it must be, with the place it has in the record
Shape = Callable[[Any, str], None]


def word(value: Any, at: str) -> None:
    """Text."""
    if not isinstance(value, str):
        raise wrong(at, "text", value)


def figure(value: Any, at: str) -> None:
    """A number; null and NaN are numbers that are not known."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise wrong(at, "a number or null", value)


def anything(value: Any, at: str) -> None:
    """Whatever it is."""


def each(item: Shape) -> Shape:
    """A list."""

    def shape(value: Any, at: str) -> None:
        if not isinstance(value, list | tuple):
            raise wrong(at, "a list", value)
        for i, part in enumerate(value):
            item(part, f"{at}[{i}]")

    return shape


def by_name(item: Shape) -> Shape:
    """An object whose keys are names."""

    def shape(value: Any, at: str) -> None:
        if not isinstance(value, Mapping):
            raise wrong(at, "an object", value)
        for name, part in value.items():
            word(name, f"a key of {at}")
            item(part, f"{at}[{name!r}]")

    return shape


def fields(needed: Mapping[str, Shape], **optional: Shape) -> Shape:
    """An object with some keys that it must have, and some that may be missing or null."""

    def shape(value: Any, at: str) -> None:
        if not isinstance(value, Mapping):
            raise wrong(at, "an object", value)
        before = f"{at}." if at else ""
        for key, item in needed.items():
            if key not in value:
                raise wrong(before + key, "there", "nothing")
            item(value[key], before + key)
        for key, item in optional.items():
            if value.get(key) is not None:
                item(value[key], before + key)

    return shape


def both(*shapes: Shape) -> Shape:
    """All of several shapes, one after the other."""

    def shape(value: Any, at: str) -> None:
        for one in shapes:
            one(value, at)

    return shape


def amount(value: Any, at: str) -> None:
    """A number, or a list of what is counted."""
    if not isinstance(value, list | tuple):
        figure(value, at)


def wrong(at: str, need: str, got: Any) -> InputError:
    """The error: where, what was needed, what was got, and what to do."""
    said = got if got == "nothing" else f"{type(got).__name__} {_shown(got)}"
    return InputError(
        f"not a record of sites: {at} must be {need}; got {said}; give the file that 'fedshift "
        "train' or 'fedshift diagnose' wrote"
    )


def _shown(value: Any) -> str:
    said = ascii(value)
    return said if len(said) <= 60 else said[:59] + "…"
