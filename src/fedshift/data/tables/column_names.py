"""Give each column one name at all sites.

The column names in the settings are changed to the spelling of the tables.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from fedshift.data.tables.cells import join, one_spelling
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.text_table import TextTable
from fedshift.errors import InputError


def align(tables: Sequence[TextTable], has_names: bool) -> tuple[list[TextTable], list[str]]:
    """Return tables with one name for the same column, and a note for each renamed column.

    Parameters
    ----------
    tables : sequence of TextTable
    has_names : bool
        Whether the settings name the columns of files without a header.
    """
    _check_headers(tables, has_names)
    word = one_spelling([list(t.columns) for t in tables])
    notes = [
        f"Column {old!r} of {join(t.name for t in tables if old in t.columns)} is read as {new!r}, "
        "its name in other files."
        for old, new in word.items()
        if old != new
    ]
    return [t.renamed(word) for t in tables], notes


def match_names(table: TextTable, known: Collection[str]) -> TextTable:
    """Return a table in which a known name replaces a column name that differs only in case.

    A name stays as it is if the table has the known name already, or if several names match.
    """
    lacking = [k for k in known if k not in table.columns]
    here, there = (Counter(map(str.casefold, names)) for names in (table.columns, known))
    once = {k.casefold(): k for k in lacking if there[k.casefold()] == 1}
    return table.renamed(
        {
            name: once[name.casefold()]
            for name in table.columns
            if name.casefold() in once and here[name.casefold()] == 1
        }
    )


def _check_headers(tables: Sequence[TextTable], has_names: bool) -> None:
    bare = [t for t in tables if not t.has_header]
    headed = [t for t in tables if t.has_header]
    if has_names or not bare:
        return
    if headed:
        raise InputError(
            f"all files must have a header, or none; {bare[0].name} has none and {headed[0].name} "
            "has one; add a header, or set names= or header="
        )
    widths = {len(t.columns): t.name for t in bare}
    if len(widths) > 1:
        sizes = ", ".join(f"{name} has {n}" for n, name in widths.items())
        raise InputError(
            f"files without a header must have equally many columns; {sizes}; set names= to name "
            "the columns"
        )


def resolve(settings: TableSettings, tables: Sequence[TextTable]) -> TableSettings:
    """Return settings that spell column names as the tables do.

    Raises
    ------
    InputError
        If a column of the settings is in no table; the message gives the nearest name.
    """
    known = list(dict.fromkeys(name for t in tables for name in t.columns))
    words = {
        name: _column(name, known, key)
        for key, names in {**settings.columns(), "missing": [*settings.missing]}.items()
        for name in names
        if name != "*"
    }
    changed: dict[str, Any] = {
        key: tuple(words[n] for n in names)
        if isinstance(getattr(settings, key), tuple)
        else words[names[0]]
        for key, names in settings.columns().items()
    }
    missing = {words.get(k, k): v for k, v in settings.missing.items()}
    return replace(settings, **changed, missing=missing)


def _column(name: str, known: Sequence[str], key: str) -> str:
    same = [k for k in known if k.casefold() == name.casefold()]
    if name in known or len(same) == 1:
        return name if name in known else same[0]
    fold = {k.casefold(): k for k in known}
    near = difflib.get_close_matches(name.casefold(), fold, n=1)
    hint = f"; did you mean {fold[near[0]]!r}?" if near else ""
    raise InputError(
        f"{key} must name columns of the tables ({join(known, 30)}); got {name!r}{hint}"
    )
