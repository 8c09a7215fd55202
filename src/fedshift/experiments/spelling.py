"""Values as TOML: a writer, and a reader that holds tables against a callable's own signature.

Nothing here knows a key by name. What a table may hold is what the dataclass or function it is
for takes, so a new field is a new key at once.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Self, Union, get_args, get_origin

import numpy as np

from fedshift.core.params import nearest
from fedshift.errors import InputError

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a value stands, for errors: a file and a table in it."""

    file: str = "recipe"
    table: str = ""

    def under(self, key: str) -> Place:
        """A table below this one."""
        return Place(self.file, f"{self.table}.{key}" if self.table else key)

    def __str__(self) -> str:
        return f"{self.file}, [{self.table}]" if self.table else self.file

    def unknown(self, key: str, known: Collection[str]) -> InputError:
        """What to raise for a key that is not one."""
        return InputError(f"{self}: unknown key {key!r}; a key here is {nearest(key, known)}")

    def wrong(self, key: str, need: str, got: object) -> InputError:
        """What to raise for a value of the wrong type."""
        return InputError(f"{self}: {key} must be {need}; got {got!r} ({_noun(got)})")


# -- reading -----------------------------------------------------------------------------------


def make(
    maker: Callable[..., Any],
    table: Table,
    place: Place,
    skip: Collection[str] = (),
    also: Sequence[str] = (),
) -> Any:
    """Call a dataclass or function with a table's values, all checked; errors say where."""
    given = arguments(maker, table, place, skip, also)
    with at(place):
        return maker(**given)


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Put the place before what an error says."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def arguments(
    maker: Callable[..., Any],
    table: Table,
    place: Place,
    skip: Collection[str] = (),
    also: Sequence[str] = (),
) -> dict[str, Any]:
    """A table as keyword arguments of a callable, each of the type its annotation asks for.

    Parameters
    ----------
    skip : names
        Parameters that are not for recipes.
    also : names
        Keys the table may hold besides, which somebody else has taken out of it.

    Raises
    ------
    InputError
        Naming the place, the key, what is needed and what was got; for an unknown key the
        nearest known one; or the keys that are missing.
    """
    known, hints = parameters(maker, skip), _hints(maker)
    out = {}
    for key, value in table.items():
        if key not in known:
            raise place.unknown(key, (*also, *known))
        out[key] = read(hints.get(key, Any), value, key, place)
    missing = [n for n, p in known.items() if p.default is p.empty and n not in out]
    if missing:
        raise InputError(f"{place}: {_listed(missing)} must be given; got {sorted(table)}")
    return out


def parameters(
    maker: Callable[..., Any], skip: Collection[str] = ()
) -> dict[str, inspect.Parameter]:
    """Parameters of a callable that a table may hold."""
    return {n: p for n, p in inspect.signature(maker).parameters.items() if n not in skip}


def read(hint: Any, value: Any, key: str, place: Place) -> Any:
    """A TOML value as the type of an annotation; lists become tuples."""
    for taken in _readings(hint, value, key, place):
        return taken
    raise place.wrong(key, _need(hint), value)


def _readings(hint: Any, value: Any, key: str, place: Place) -> Iterator[Any]:
    """Ways to read a value as a type: one or none."""
    origin, inner = get_origin(hint), get_args(hint)
    if hasattr(hint, "spelled"):  # has a spelling of its own
        yield hint.read(value, key, place)
    elif origin is Union or origin is types.UnionType:
        kinds: dict[Any, Any] = {
            getattr(h, "kind", None): h for h in inner if dataclasses.is_dataclass(h)
        }
        silent = any(getattr(h, "kind_is_optional", False) for h in kinds.values())
        said = isinstance(value, Mapping) and (not silent or "kind" in value)
        if said and len(kinds) > 1:  # a table that says which it is
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
    else:  # arrays and such: whoever takes them checks
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


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


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
class Choice:
    """One of several things, by name, with options for its maker.

    In TOML it is the name alone, ``model = "mlp"``, or a table: ``{kind = "mlp", hidden = [32]}``.
    """

    kind: str
    options: Table = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", plain(self.options))

    @classmethod
    def read(cls, value: Any, key: str, place: Place) -> Self:
        """A choice from what a recipe says."""
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
            raise place.wrong(key, "a name, or a table with its kind", value)
        return cls(value["kind"], {k: v for k, v in value.items() if k != "kind"})

    @property
    def spelled(self) -> str | dict[str, Any]:
        """As in a recipe."""
        return {"kind": self.kind, **self.options} if self.options else self.kind

    def named(self, known: Collection[str], key: str, place: Place) -> str:
        """The name, which must be a known one."""
        if self.kind not in known:
            raise InputError(f"{place}: {key} must be {nearest(self.kind, known)}")
        return self.kind


# -- writing -----------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value as TOML can hold it: tuples and arrays as lists, dataclasses as tables.

    Examples
    --------
    >>> from fedshift.federation.plan import TopK
    >>> plain({"compression": TopK(0.1), "betas": (0.9, 0.999)})
    {'compression': {'kind': 'top-k', 'share': 0.1}, 'betas': [0.9, 0.999]}
    """
    if hasattr(value, "spelled"):
        return value.spelled
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
        f"a recipe holds numbers, text, lists and tables; got {type(value).__name__}; give a name"
    )


def fields_of(value: Any, skip: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass as a table; None, which TOML has not, is left out."""
    named = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init)
    return {n: plain(v) for n, v in named if n not in skip and v is not None}


def to_toml(table: Table) -> str:
    """A table as TOML text, which `tomllib` reads back as the same table.

    Examples
    --------
    >>> print(to_toml({"title": "one", "plan": {"lr": 1e-3}, "method": [{"name": "ERM"}]}))
    title = "one"
    <BLANKLINE>
    [plan]
    lr = 0.001
    <BLANKLINE>
    [[method]]
    name = "ERM"
    <BLANKLINE>
    """
    return "\n".join(_lines(table, ())).strip("\n") + "\n"


def _lines(table: Table, path: tuple[str, ...]) -> Iterator[str]:
    inner = {k: v for k, v in table.items() if isinstance(v, Mapping) or _is_tables(v)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        name = ".".join(map(_key, (*path, key)))
        for part in value if _is_tables(value) else (value,):
            yield from ("", f"[[{name}]]" if _is_tables(value) else f"[{name}]")
            yield from _lines(part, (*path, key))


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # JSON's escapes are TOML's, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    return "[" + ", ".join(map(_value, value)) + "]"
