"""Tables whose cells are text, from a file, a data frame or a mapping of columns."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import column_names
from fedshift.data.tables.cells import quote
from fedshift.errors import InputError, option

Index = npt.NDArray[np.intp]
Codes = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TextColumn:
    """A column of text: its distinct cells (levels), and the level number of each row."""

    levels: tuple[str, ...]
    codes: Codes

    @classmethod
    def of(cls, cells: Iterable[str]) -> Self:
        """Return a column of these cells, stripped of spaces."""
        index: dict[str, int] = {}
        codes = [index.setdefault(c.strip(), len(index)) for c in cells]
        return cls(tuple(index), np.array(codes, dtype=np.int32))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.codes)

    def take(self, rows: Index) -> Self:
        """Return some rows, with the levels that occur in them."""
        levels, codes = np.unique(self.codes[rows], return_inverse=True)
        return type(self)(tuple(self.levels[i] for i in levels), codes.astype(np.int32))

    def counts(self) -> Counter[str]:
        """Return how often each level occurs."""
        counts = np.bincount(self.codes, minlength=len(self.levels)).tolist()
        return Counter(dict(zip(self.levels, counts, strict=True)))


@dataclass(frozen=True, eq=False)
class TextTable:
    """Columns of text, in the order of the file or frame.

    Attributes
    ----------
    name : str
        Name in notes and errors.
    columns : mapping of str to TextColumn
    lines : ndarray (n,)
        Line (or row) number of each row, counted from 1.
    has_header : bool
        Whether the file names its columns.
    notes : tuple of str
    unit : str
        What `lines` counts: "line" for text files, else "row".
    empty : tuple of int
        Lines without content, which are no rows of the table but still rows of the file.
    """

    name: str
    columns: Mapping[str, TextColumn]
    lines: Index
    has_header: bool = True
    notes: tuple[str, ...] = ()
    unit: str = "row"
    empty: tuple[int, ...] = ()

    @property
    def file_rows(self) -> Index:
        """Number (n,) of each row in the file, from 0, as `pandas.read_csv` counts."""
        return np.asarray(np.arange(len(self)) + np.searchsorted(self.empty, self.lines))

    @classmethod
    def of(cls, rows: Any, name: str) -> Self:
        """Return a table from a data frame or a mapping of columns."""
        names = column_names(rows)
        if names is None and not isinstance(rows, Mapping):
            raise InputError(
                f"{name} must be a data frame or a dict of columns; got {type(rows).__name__}"
            )
        keys = list(rows) if names is None else names
        check_names([tidy(str(k)) for k in keys], name)
        columns = {tidy(str(k)): TextColumn.of(map(_text, _values(rows[k], k, name))) for k in keys}
        lengths = {k: len(c) for k, c in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"{name} must have columns of equal length; got {lengths}")
        n = next(iter(lengths.values()), 0)
        if not n:
            raise InputError(f"{name} must have at least one row and one column; got none")
        return cls(name, columns, np.arange(1, n + 1))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.lines)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return the table with other column names."""
        return replace(self, columns={names.get(k, k): c for k, c in self.columns.items()})

    def at(self, row: int) -> str:
        """Return the file and line of a row, for messages."""
        return f"{self.name}, {self.unit} {self.lines[row]}"


def _values(column: Any, key: object, name: str) -> list[Any]:
    if isinstance(column, str | bytes) or not hasattr(column, "__iter__"):
        raise InputError(f"{name}: column {key!r} must have one value per row; got {column!r}")
    for word in ("to_pylist", "to_list", "tolist"):  # Arrow, polars and pandas, numpy
        if hasattr(column, word):
            return list(getattr(column, word)())
    return list(column)


def _text(value: Any) -> str:
    """Return a value as text, as a file would have it; None, NA and NaT are empty."""
    if isinstance(value, str):
        return value
    if isinstance(value, dt.date):  # also a datetime, and pandas' NaT, whose text is NaT
        return value.isoformat()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    return str(value.item() if isinstance(value, np.generic) else value)


def tidy(name: str) -> str:
    """Return a column name without byte order marks and extra spaces."""
    return " ".join(name.replace("\ufeff", "").split())


def check_names(names: Sequence[str], name: str) -> None:
    """Raise if two columns share a name."""
    twice = [n for n, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(
            f"{name} must have unique column names; got {quote(twice)} more than once, at "
            f"{[j + 1 for j, n in enumerate(names) if n == twice[0]]}; rename one; if the file has "
            f"no header, set {option('names')} or header = false in fedshift.toml"
        )
