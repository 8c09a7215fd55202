"""TOML tables to arguments of dataclasses and functions, and back.

The keys of a table are the parameters of its dataclass or function, so a new field is a new key.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Self, Union, get_args, get_origin

import numpy as np

from fedshift.core.old_files import RENAMED_KEYS
from fedshift.core.params import nearest
from fedshift.errors import InputError

TomlTable = Mapping[str, Any]


@dataclass(frozen=True)
class Location:
    """A file and a table in it, for error messages."""

    file: str = "recipe"
    table: str = ""

    def under(self, key: str) -> Location:
        """The location of the table with this key, inside this table."""
        return Location(self.file, f"{self.table}.{key}" if self.table else key)

    def __str__(self) -> str:
        return f"{self.file}, [{self.table}]" if self.table else self.file

    def unknown(self, key: str, known: Collection[str], value: object = None) -> InputError:
        """Return the error for an unknown key; for a renamed key, it gives the new name."""
        new = RENAMED_KEYS.get(key, "")
        if new.isidentifier():
            setting = new if value is None else f"{new} = {json.dumps(value, default=str)}"
            return InputError(f"{self}: {key} is now {new}: write {setting}")
        if new:
            return InputError(f"{self}: {key} was removed: {new}")
        return InputError(f"{self}: unknown key {key!r}; a key here is {nearest(key, known)}")

    def wrong(self, key: str, need: str, got: object) -> InputError:
        """The error for a value of the wrong type."""
        return InputError(f"{self}: {key} must be {need}; got {got!r} ({_noun(got)})")


# -- reading -----------------------------------------------------------------------------------


def make(
    maker: Callable[..., Any],
    table: TomlTable,
    place: Location,
    skip: Collection[str] = (),
    also: Sequence[str] = (),
) -> Any:
    """Call a dataclass or function with the checked values of a table; errors name the place."""
    values = arguments(maker, table, place, skip, also)
    with at(place):
        return maker(**values)


@contextmanager
def at(place: Location) -> Iterator[None]:
    """Put the place before the message of an error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def arguments(
    maker: Callable[..., Any],
    table: TomlTable,
    place: Location,
    skip: Collection[str] = (),
    also: Sequence[str] = (),
) -> dict[str, Any]:
    """Read a table as keyword arguments of a callable, each of the type of its annotation.

    Parameters
    ----------
    skip : names
        Parameters that a table may not set.
    also : names
        Other keys of the table, which the caller has read. The error for an unknown key names them.

    Raises
    ------
    InputError
        For an unknown key, a wrong type or a missing key. The message has the place, the key, what
        is needed and what was given; for an unknown key also the nearest known one.
    """
    known, hints = parameters(maker, skip), _hints(maker)
    out = {}
    for key, value in table.items():
        if key not in known:
            raise place.unknown(key, (*also, *known), value)
        out[key] = read(hints.get(key, Any), value, key, place)
    missing = [n for n, p in known.items() if p.default is p.empty and n not in out]
    if missing:
        names = ", ".join(map(repr, missing))
        raise InputError(f"{place}: {names} must be given; got {sorted(table)}")
    return out


def parameters(
    maker: Callable[..., Any], skip: Collection[str] = ()
) -> dict[str, inspect.Parameter]:
    """Parameters of a callable that a table may set."""
    return {n: p for n, p in inspect.signature(maker).parameters.items() if n not in skip}


def read(hint: Any, value: Any, key: str, place: Location) -> Any:
    """Read a TOML value as the type of an annotation; lists become tuples."""
    for result in _readings(hint, value, key, place):
        return result
    raise place.wrong(key, _need(hint), value)


def _readings(hint: Any, value: Any, key: str, place: Location) -> Iterator[Any]:
    """The value as a type, if it can be read so: one value or none."""
    origin, inner = get_origin(hint), get_args(hint)
    if hasattr(hint, "toml"):  # reads itself
        yield hint.read(value, key, place)
    elif origin is Union or origin is types.UnionType:
        kinds: dict[Any, Any] = {
            getattr(h, "kind", None): h for h in inner if dataclasses.is_dataclass(h)
        }
        silent = any(getattr(h, "kind_is_optional", False) for h in kinds.values())
        named = isinstance(value, Mapping) and (not silent or "kind" in value)
        if named and len(kinds) > 1:  # a table with its kind
            table, below = dict(value), place.under(key)
            kind = table.pop("kind", None)
            if kind not in kinds:
                raise InputError(f"{below}: kind must be {nearest(kind, [str(k) for k in kinds])}")
            yield make(kinds[kind], table, below)
            return
        for h in sorted(inner, key=lambda h: h is Any):
            yield from _readings(h, value, key, place)
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, Mapping):
            yield make(hint, value, place.under(key))
    elif origin is Literal:
        if isinstance(value, str):
            if value not in inner:
                raise InputError(f"{place}: {key} must be {nearest(value, inner)}")
            yield value
    elif hint in (int, float):
        numbers = (int,) if hint is int else (int, float)
        if isinstance(value, numbers) and not isinstance(value, bool):
            yield hint(value)
    elif hint in (str, bool):
        if isinstance(value, hint):
            yield value
    elif hint is type(None):
        return  # a key that is left out
    elif origin in (tuple, Sequence, list):
        if isinstance(value, list | tuple):
            fixed = origin is tuple and (len(inner) != 2 or inner[1] is not ...)
            each = inner if fixed else (inner[0],) * len(value)
            if len(each) == len(value):
                yield tuple(read(h, v, key, place) for h, v in zip(each, value, strict=True))
    elif origin is Mapping:
        if isinstance(value, Mapping):
            yield {k: read(inner[1], v, k, place.under(key)) for k, v in value.items()}
    else:  # arrays and others, which the callable checks
        yield value


def _need(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Union or origin is types.UnionType:
        return " or ".join(dict.fromkeys(_need(h) for h in inner if h is not type(None)))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple and (len(inner) != 2 or inner[1] is not ...):
        return f"a list of {len(inner)} values"
    if origin in (tuple, Sequence, list):
        return f"a list, each {_need(inner[0])}"
    if origin is Mapping or dataclasses.is_dataclass(hint):
        return "a table"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, "of another type")


def _noun(value: object) -> str:
    nouns = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if isinstance(value, Mapping):
        return "a table"
    return nouns.get(type(value), "a list" if isinstance(value, list | tuple) else "a date")


@cache
def _hints(maker: Callable[..., Any]) -> dict[str, Any]:
    of: Any = maker
    if inspect.isclass(maker) and not dataclasses.is_dataclass(maker):
        of = maker.__init__
    try:
        return typing.get_type_hints(of)
    except NameError:  # a name imported for type checkers only: its values go unchecked
        return {}


@dataclass(frozen=True)
class Spec:
    """The name of a thing, with options for its constructor.

    In TOML it is a name, ``model = "mlp"``, or a table, ``{kind = "mlp", hidden = [32]}``.
    """

    kind: str
    options: TomlTable = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", plain(self.options))

    @classmethod
    def read(cls, value: Any, key: str, place: Location) -> Self:
        """Read a name or a table."""
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
            raise place.wrong(key, "a name, or a table with its kind", value)
        return cls(value["kind"], {k: v for k, v in value.items() if k != "kind"})

    @property
    def toml(self) -> str | dict[str, Any]:
        """The value in a recipe: a name or a table."""
        return {"kind": self.kind, **self.options} if self.options else self.kind

    def named(self, known: Collection[str], key: str, place: Location) -> str:
        """The name; raises unless it is a known one."""
        if self.kind not in known:
            raise InputError(f"{place}: {key} must be {nearest(self.kind, known)}")
        return self.kind


# -- writing -----------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Convert a value for TOML: tuples and arrays to lists, dataclasses to tables.

    Examples
    --------
    >>> from fedshift.federation.plan import TopK
    >>> plain({"compression": TopK(0.1), "betas": (0.9, 0.999)})
    {'compression': {'kind': 'top-k', 'share': 0.1}, 'betas': [0.9, 0.999]}
    """
    if hasattr(value, "toml"):
        return value.toml
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = getattr(value, "kind", None)
        return ({} if kind is None else {"kind": kind}) | fields_of(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        f"a recipe must hold numbers, text, lists and tables; got {type(value).__name__}; use "
        "the name of a model, estimator or plan instead of an object"
    )


def fields_of(value: Any, skip: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass as a table, without those that are None."""
    values = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init)
    return {n: plain(v) for n, v in values if n not in skip and v is not None}
