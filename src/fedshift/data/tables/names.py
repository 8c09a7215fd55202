"""Columns by one name at all sites, and the settings spelled as the tables do."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from fedshift.data.tables.cells import Table
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.values import listed, one_spelling
from fedshift.errors import InputError


def aligned(tables: Sequence[Table], named: bool) -> tuple[list[Table], list[str]]:
    """Tables that call the same column by the same name, and what was done for it.

    Parameters
    ----------
    named : bool
        Whether the user has told the names of columns without a header.
    """
    _check_headers(tables, named)
    word = one_spelling([list(t.columns) for t in tables])
    notes = [
        f"Column {old!r} of {listed(t.name for t in tables if old in t.columns)} is taken for "
        f"{new!r} of the others."
        for old, new in word.items()
        if old != new
    ]
    return [t.renamed(word) for t in tables], notes


def toward(table: Table, known: Collection[str]) -> Table:
    """A table whose columns have the known names, where they differ by case only."""
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


def _check_headers(tables: Sequence[Table], named: bool) -> None:
    bare = [t for t in tables if not t.headed]
    headed = [t for t in tables if t.headed]
    if named or not bare:
        return
    if headed:
        raise InputError(
            f"all files must have a header, or none; {bare[0].name} has none and {headed[0].name} "
            "has one; add it, or say names= or header="
        )
    widths = {len(t.columns): t.name for t in bare}
    if len(widths) > 1:
        told = ", ".join(f"{name} has {n}" for n, name in widths.items())
        raise InputError(
            f"files without a header must have as many columns each; {told}; tell their names with "
            "names="
        )


def resolved(settings: TableSettings, tables: Sequence[Table]) -> TableSettings:
    """Settings that spell columns as the tables do.

    Raises
    ------
    InputError
        If a column that is named is in no table, with the nearest that is.
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
        f"{key} must name columns of the tables ({listed(known, 30)}); got {name!r}{hint}"
    )
