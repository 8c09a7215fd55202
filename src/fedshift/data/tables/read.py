"""Read one file into a table of text cells: delimited text, plain or gzipped, or Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedshift.data.tables.delimited import decode, parse_table
from fedshift.data.tables.folder import is_parquet
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.text_table import TextColumn, TextTable, check_names, tidy
from fedshift.errors import InputError, install_hint


def read_table(path: Path, settings: TableSettings | None = None, *, name: str = "") -> TextTable:
    """Return the table in a file.

    The separator of text is a comma, semicolon, tab or vertical bar, or else spaces. The encoding
    is UTF-8 with or without a byte order mark, UTF-16 with a byte order mark, or else Windows-1252.
    Text may be gzipped.

    Parameters
    ----------
    path : Path
    settings : TableSettings, optional
    name : str
        Name in notes and errors; the path by default.

    Raises
    ------
    InputError
        If the file cannot be read or is empty, its rows differ in length, or two columns share a
        name.
    """
    settings, name = TableSettings() if settings is None else settings, name or str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{name} cannot be read: {why}; check its path and permissions") from None
    if is_parquet(path):
        return _parquet(content, name)
    text, notes = decode(content, name)
    return parse_table(text, settings, name, notes)


def _parquet(content: bytes, name: str) -> TextTable:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            f"{name}: Parquet needs pyarrow; save it as CSV, or, {install_hint('tables')}"
        ) from None
    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read()
        keep = [j for j, n in enumerate(table.column_names) if not n.startswith("__index_level")]
        table = table.select(keep)
        names = [tidy(n) for n in table.column_names]
    except Exception as error:  # a damaged file makes the reader raise almost anything
        first = str(error).split("\n")[0][:200]
        raise InputError(f"{name} must be a whole Parquet file; {first}; save it again") from None
    if not table.num_rows or not names:
        raise InputError(
            f"{name} must hold rows and columns; got {table.num_rows} rows and {len(names)} columns"
        )
    names = [n or f"unnamed {j + 1}" for j, n in enumerate(names)]
    check_names(names, name)
    columns, notes = {}, []
    for j, key in enumerate(names):
        try:
            columns[key] = _arrow_cells(table.column(j), pa)
        except (pa.ArrowException, ValueError):
            notes.append(
                f"{name}: column {key!r} is left out: its type, {table.column(j).type}, is not a "
                "number, a date or text."
            )
    return TextTable(name, columns, np.arange(1, table.num_rows + 1), True, tuple(notes))


def _arrow_cells(column: Any, pa: Any) -> TextColumn:
    """Return an Arrow column as text; Arrow writes numbers that parse to the same bits."""
    packed = column.cast(pa.string()).combine_chunks().dictionary_encode()
    texts = [t.strip() for t in packed.dictionary.to_pylist()]
    index: dict[str, int] = {}
    new = [index.setdefault(t, len(index)) for t in texts]  # stripped texts may be equal
    empty = index.setdefault("", len(index))
    codes = packed.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return TextColumn(tuple(index), np.array([*new, empty], dtype=np.int32)[codes])
