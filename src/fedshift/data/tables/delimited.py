"""Parse delimited text: encoding, separator, header, quotes and rows of uneven length."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

import numpy as np

from fedshift.data.tables.cells import count_rows, join, number
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.text_table import Codes, Index, TextColumn, TextTable, check_names, tidy
from fedshift.errors import InputError, option

#: rows parsed at a time
BLOCK = 65_536
#: rows that decide the separator and the header
SAMPLE = 50
#: separators; the first wins where several fit equally well
SEPARATORS = ("\t", ";", "|", ",")
#: share of rows of equal length from which spaces are not tried
CLEAR = 0.9
_SPACES = re.compile(r"[ \t]+")
_MAGIC = {
    b"PAR1": "a Parquet file; rename it to .parquet",
    b"PK\x03\x04": "a zip or Excel file; save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel file; save the sheet as CSV",
}


def decode(content: bytes, name: str) -> tuple[str, list[str]]:
    """Return the text of a file, and a note if it is not UTF-8."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{name} must be a whole gzip file; {error}; copy it again") from None
    if not content.strip():
        raise InputError(f"{name} must hold a header and rows; it is empty; fill or remove it")
    for magic, what in _MAGIC.items():
        if content.startswith(magic):
            raise InputError(f"{name} must be text; got {what}")
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    for encoding in ("utf-16",) if wide else ("utf-8-sig", "cp1252", "latin-1"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        text = text.rstrip("\x1a")  # old programs end a file with it
        control = re.search(r"[\x00-\x08\x0e-\x1f]", text)
        if control is None:
            legacy = encoding in ("cp1252", "latin-1")
            return text, [f"{name} is not UTF-8; it is read as Windows-1252."] if legacy else []
        break
    raise InputError(
        f"{name} must be text; got bytes that are not text; save the table as CSV or Parquet"
    )


def parse_table(text: str, settings: TableSettings, name: str, notes: list[str]) -> TextTable:
    """Return the table in a text, with notes on its header and empty rows."""
    empty: list[int] = []
    reader = _skip_empty(_rows(text, _separator(text), name), empty)
    sample = list(islice(reader, SAMPLE))
    if not sample:
        raise InputError(f"{name} must hold a header and rows; it is empty; fill or remove it")
    cells = [[tidy(c) for c in row] for _, row in sample]
    has_header, names = _header(cells, settings, name)
    if not has_header and not settings.names:
        notes.append(
            f"{name} has no header; its columns are {names[0]!r}, …; {option('names')} renames "
            "them."
        )
    if has_header and settings.names and names != cells[0]:
        notes.append(f"{name}: the header ({join(cells[0], 4)}) is replaced by {option('names')}.")
    check_names(names, name)
    rows = chain(sample[1:] if has_header else sample, reader)
    columns, lines = _columns(rows, names, name)
    if not len(lines):
        raise InputError(f"{name} must hold rows; got a header only; add rows or remove the file")
    _check_quotes(columns, text, name)
    if empty:
        notes.append(
            f"{name}: left out {count_rows(len(empty))} without content, the first in line "
            f"{empty[0]}."
        )
    return TextTable(name, columns, lines, has_header, tuple(notes), "line", tuple(empty))


def _rows(text: str, separator: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with their line numbers, without blank lines."""
    stream: Iterable[str] = io.StringIO(text, newline="")
    if separator == " ":
        stream = (_SPACES.sub(" ", line.strip(" \t\r\n")) + "\n" for line in stream)
    reader = csv.reader(stream, delimiter=separator, skipinitialspace=True)
    try:
        for row in reader:
            if len(row) > 1 or (row and row[0].strip()):
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(
            f"{name}, line {reader.line_num}: {error}; check the quotes, or save the table as "
            "Parquet"
        ) from None


def _skip_empty(
    rows: Iterator[tuple[int, list[str]]], empty: list[int]
) -> Iterator[tuple[int, list[str]]]:
    """Yield rows that have content; add the line numbers of the others to `empty`."""
    for line, row in rows:
        if any(c and not c.isspace() for c in row):
            yield line, row
        else:
            empty.append(line)


def _separator(text: str) -> str:
    """Return the separator for which most of the first rows have the same length above one."""
    fit = {s: _evenness(text, s) for s in SEPARATORS}
    best = max(SEPARATORS, key=lambda s: fit[s]) if any(fit.values()) else ","
    return " " if fit[best] < CLEAR and _evenness(text, " ") > fit[best] else best


def _evenness(text: str, separator: str) -> float:
    """Return the share of the first rows with the most common length; 0 if that is one cell."""
    try:
        lengths = Counter(len(r) for _, r in islice(_rows(text, separator, ""), SAMPLE))
    except InputError:  # with a wrong separator cells can be too long
        return 0.0
    width, count = max(lengths.items(), key=lambda item: item[1], default=(1, 0))
    return count / lengths.total() if width > 1 else 0.0


def _header(sample: list[list[str]], settings: TableSettings, name: str) -> tuple[bool, list[str]]:
    """Return whether the first row is a header, and the column names."""
    first, names = sample[0], list(settings.names)
    if names:
        known = {c.casefold() for c in names}
        same = 2 * sum(c.casefold() in known for c in first) >= len(first)
        if same and settings.header is not False:
            return True, first
        has_header = _above_numbers(sample) if settings.header is None else settings.header
        if len(first) == len(names) - 1 and settings.label in names:  # deployment rows
            names.remove(settings.label)
        if len(first) != len(names):
            raise InputError(
                f"{option('names')} must have one name per column of {name}, {len(first)}; got "
                f"{len(settings.names)}; correct it"
            )
        return has_header, names
    if settings.header if settings.header is not None else _is_header(sample):
        return True, [c or f"unnamed {j + 1}" for j, c in enumerate(first)]
    return False, [f"column {j + 1}" for j in range(len(first))]


def _is_header(sample: list[list[str]]) -> bool:
    """Return whether the first row is a header.

    A header holds no number, unless it counts the columns, and some of its cells do not occur
    again in their columns.
    """
    first, rows = sample[0], sample[1:]
    if len(first) > 2 and first == [str(j) for j in range(len(first))]:  # as pandas writes it
        return True
    if any(number(c) is not None or c == "?" for c in first):
        return False
    below = [{row[j] for row in rows if j < len(row)} for j in range(len(first))]
    return not rows or not all(c in values for c, values in zip(first, below, strict=True))


def _above_numbers(sample: list[list[str]]) -> bool:
    """Return whether the first row has words only and half of the second row is numbers."""
    first, second = sample[0], sample[1] if len(sample) > 1 else []
    count = sum(number(c) is not None for c in second)
    return not any(number(c) is not None for c in first) and 2 * count >= len(first)


def _columns(
    rows: Iterator[tuple[int, list[str]]], names: Sequence[str], name: str
) -> tuple[dict[str, TextColumn], Index]:
    """Return the columns and line numbers, block by block so that no text is stored twice."""
    index: list[dict[str, int]] = [{} for _ in names]
    codes: list[list[Codes]] = [[] for _ in names]
    lines: list[int] = []
    while block := list(islice(rows, BLOCK)):
        lines += [line for line, _ in block]
        even = [_even(row, len(names), name, line) for line, row in block]
        for lookup, parts, column in zip(index, codes, zip(*even, strict=True), strict=True):
            each = [lookup.setdefault(c.strip(), len(lookup)) for c in column]
            parts.append(np.array(each, dtype=np.int32))
    columns = {
        key: TextColumn(tuple(lookup), np.concatenate(parts) if parts else np.empty(0, np.int32))
        for key, lookup, parts in zip(names, index, codes, strict=True)
    }
    return columns, np.array(lines, dtype=np.intp)


def _even(row: list[str], width: int, name: str, line: int) -> list[str]:
    """Return the row at the right length; it may end in extra separators."""
    if len(row) == width:
        return row
    if len(row) > width and not any(c.strip() for c in row[width:]):
        return row[:width]
    raise InputError(
        f"{name}, line {line}: a row must have {width} cells, like the first row; got {len(row)}; "
        "correct the row, or quote cells that hold the separator"
    )


def _check_quotes(columns: Mapping[str, TextColumn], text: str, name: str) -> None:
    """Raise if a quote that is never closed contains the last lines."""
    for key, cells in columns.items() if text.count('"') % 2 else ():
        if "\n" in cells.levels[cells.codes[-1]]:
            raise InputError(
                f"{name}, column {key!r}: a quote must be closed; got an open one in the last row "
                "that could be parsed; close or remove it"
            )
