"""One file to a table of text cells: CSV and its cousins, plain or packed, and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedshift.data.tables.cells import Cells, Table, check_names, tidy
from fedshift.data.tables.find import is_parquet
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.text import decoded, parsed
from fedshift.errors import InputError


def read_table(path: Path, settings: TableSettings | None = None, *, name: str = "") -> Table:
    """Read a file.

    Text may be separated by commas, semicolons, tabs, bars or, failing these, spaces; encoded as
    UTF-8 (with or without a mark), UTF-16 with a mark, or else Windows-1252; and packed by gzip.

    Parameters
    ----------
    name : str
        What to call it in notes and errors; by default its path.

    Raises
    ------
    InputError
        If it cannot be read, is empty, has rows of different lengths or two columns of one name.
    """
    settings, name = TableSettings() if settings is None else settings, name or str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None
    if is_parquet(path):
        return _parquet(content, name)
    text, notes = decoded(content, name)
    return parsed(text, settings, name, notes)


def _parquet(content: bytes, name: str) -> Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            f"{name}: Parquet needs pyarrow; pip install 'fedshift[tables]', or save it as CSV"
        ) from None
    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read()
        keep = [j for j, n in enumerate(table.column_names) if not n.startswith("__index_level")]
        table = table.select(keep)
        names = [tidy(n) for n in table.column_names]
    except Exception as error:  # a damaged file makes the reader raise almost anything
        first = str(error).split("\n")[0][:200]
        raise InputError(f"{name} must be a whole Parquet file; {first}; write it again") from None
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
                f"{name}: column {key!r} is left out, as {table.column(j).type} is neither a "
                "number, a date nor text."
            )
    return Table(name, columns, np.arange(1, table.num_rows + 1), True, tuple(notes))


def _arrow_cells(column: Any, pa: Any) -> Cells:
    """Cells of an Arrow column; Arrow writes numbers so that they read back to the same bits."""
    packed = column.cast(pa.string()).combine_chunks().dictionary_encode()
    texts = [t.strip() for t in packed.dictionary.to_pylist()]
    index: dict[str, int] = {}
    new = [index.setdefault(t, len(index)) for t in texts]  # stripped, some may be the same
    nothing = index.setdefault("", len(index))
    codes = packed.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return Cells(tuple(index), np.array([*new, nothing], dtype=np.int32)[codes])
