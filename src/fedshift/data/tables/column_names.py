"""Give each column one name at all sites.

The column names in the settings are changed to the spelling of the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedshift.core.params import suggestion
from fedshift.data.tables.cells import join, one_spelling
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.text_table import TextTable
from fedshift.errors import InputError, option


def align(
    tables: Sequence[TextTable], has_names: bool
) -> tuple[list[TextTable], dict[str, str], list[str]]:
    """Return tables with one name for the same column, this name by spelling, and notes.

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
    return [t.renamed(word) for t in tables], word, notes


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
            f"has one; add a header, or set {option('names')} or header in fedshift.toml"
        )
    widths = {len(t.columns): t.name for t in bare}
    if len(widths) > 1:
        sizes = ", ".join(f"{name} has {n}" for n, name in widths.items())
        raise InputError(
            f"files without a header must have equally many columns; {sizes}; name "
            f"the columns with {option('names')}"
        )


def resolve(settings: TableSettings, names: Mapping[str, str]) -> TableSettings:
    """Return settings that spell column names as the aligned tables do.

    Parameters
    ----------
    settings : TableSettings
    names : mapping of str to str
        The name of each column in the aligned tables, by each spelling in a file.

    Raises
    ------
    InputError
        If a column of the settings is in no file, spelled exactly so; the message suggests a name.
    """
    by_key = {**settings.columns(), "missing": tuple(k for k in settings.missing if k != "*")}
    for key, columns in by_key.items():
        for name in columns:
            if name not in names:
                raise InputError(
                    f"{option(key)} must name columns of the tables ({join(names, 30)}); got "
                    f"{name!r}{suggestion(name, names)}"
                )
    changed: dict[str, Any] = {
        key: tuple(names[c] for c in columns)
        if isinstance(getattr(settings, key), tuple)
        else names[columns[0]]
        for key, columns in settings.columns().items()
    }
    missing = {names.get(k, k): v for k, v in settings.missing.items()}
    return replace(settings, **changed, missing=missing)
