"""Tables of text cells, from memory or about to be filled from a file."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import column_names
from fedshift.data.tables.values import quoted
from fedshift.errors import InputError

Index = npt.NDArray[np.intp]
Codes = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Cells:
    """A column of text: every different cell once, and which of them each row has."""

    levels: tuple[str, ...]
    codes: Codes

    @classmethod
    def of(cls, cells: Iterable[str]) -> Self:
        """A column from its cells, stripped."""
        index: dict[str, int] = {}
        codes = [index.setdefault(c.strip(), len(index)) for c in cells]
        return cls(tuple(index), np.array(codes, dtype=np.int32))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.codes)

    def take(self, rows: Index) -> Self:
        """Some rows, with no more cells than they have."""
        found, codes = np.unique(self.codes[rows], return_inverse=True)
        return type(self)(tuple(self.levels[i] for i in found), codes.astype(np.int32))

    def counts(self) -> Counter[str]:
        """How often each cell occurs."""
        found = np.bincount(self.codes, minlength=len(self.levels)).tolist()
        return Counter(dict(zip(self.levels, found, strict=True)))


@dataclass(frozen=True, eq=False)
class Table:
    """A file's columns, in its order.

    Attributes
    ----------
    name : str
        What to call it in notes and errors.
    columns : mapping of str to Cells
    lines : ndarray (n,)
        Where each row stands, counted from 1.
    headed : bool
        Whether the file names its columns.
    notes : tuple of str
    unit : str
        What is counted: lines of a text file, or rows.
    """

    name: str
    columns: Mapping[str, Cells]
    lines: Index
    headed: bool = True
    notes: tuple[str, ...] = ()
    unit: str = "row"

    @classmethod
    def of(cls, rows: Any, name: str) -> Self:
        """A table from a data frame or a mapping of columns."""
        names = column_names(rows)
        if names is None and not isinstance(rows, Mapping):
            raise InputError(
                f"{name} must be a data frame or a mapping of columns; got {type(rows).__name__}"
            )
        keys = list(rows) if names is None else names
        check_names([tidy(str(k)) for k in keys], name)
        columns = {tidy(str(k)): Cells.of(map(_text, _values(rows[k], k, name))) for k in keys}
        lengths = {k: len(c) for k, c in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"{name} must have columns of one length; got {lengths}")
        n = next(iter(lengths.values()), 0)
        if not n:
            raise InputError(f"{name} must have at least one row and one column; got none")
        return cls(name, columns, np.arange(1, n + 1))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.lines)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The same table with other names of columns."""
        return replace(self, columns={names.get(k, k): c for k, c in self.columns.items()})

    def at(self, row: int) -> str:
        """Where a row stands, for errors."""
        return f"{self.name}, {self.unit} {self.lines[row]}"


def _values(column: Any, key: object, name: str) -> list[Any]:
    if isinstance(column, str | bytes) or not hasattr(column, "__iter__"):
        raise InputError(f"{name}: column {key!r} must hold a value a row; got {column!r}")
    for word in ("to_pylist", "to_list", "tolist"):  # Arrow, polars and pandas, numpy
        if hasattr(column, word):
            return list(getattr(column, word)())
    return list(column)


def _text(value: Any) -> str:
    """A value as a file would have it; None, NaN and their like are empty."""
    if isinstance(value, str):
        return value
    if isinstance(value, dt.date):  # a datetime is one; pandas' NaT is too, and says NaT
        return value.isoformat()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    return str(value.item() if isinstance(value, np.generic) else value)


def tidy(name: str) -> str:
    """The name of a column without marks and spaces too many."""
    return " ".join(name.replace("\ufeff", "").split())


def check_names(names: Sequence[str], name: str) -> None:
    """Raise if two columns have one name."""
    twice = [n for n, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(
            f"{name} must have a name for each column; got {quoted(twice)} more than once, at "
            f"{[j + 1 for j, n in enumerate(names) if n == twice[0]]}; rename one, or give names= "
            "(or header=false) if the file has no header"
        )
