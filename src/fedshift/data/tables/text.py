"""Text to cells: encodings, separators, headers, quotes and ragged rows."""

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

from fedshift.data.tables.cells import Cells, Codes, Index, Table, check_names, tidy
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.values import count_rows, listed, number
from fedshift.errors import InputError

#: rows turned into cells at a time
BLOCK = 65_536
#: rows the separator and the header are judged by
SAMPLE = 50
#: separators, the likeliest first where several fit
SEPARATORS = ("\t", ";", "|", ",")
#: share of rows of one length from which no other separator is looked for
CLEAR = 0.9
_SPACES = re.compile(r"[ \t]+")
_MAGIC = {
    b"PAR1": "a Parquet file; rename it to .parquet",
    b"PK\x03\x04": "a zip or Excel file; save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel file; save the sheet as CSV",
}


def decoded(content: bytes, name: str) -> tuple[str, list[str]]:
    """What a file says, and how it was read where that needs saying."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{name} must be a whole gzip file; {error}; copy it again") from None
    if not content.strip():
        raise InputError(f"{name} must hold a header and rows; it is empty; fill or remove it")
    for magic, what in _MAGIC.items():
        if content.startswith(magic):
            raise InputError(f"{name} must be text; it is {what}")
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    for encoding in ("utf-16",) if wide else ("utf-8-sig", "cp1252", "latin-1"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        text = text.rstrip("\x1a")  # what old programs end a file with
        control = re.search(r"[\x00-\x08\x0e-\x1f]", text)
        if control is None:
            told = encoding in ("cp1252", "latin-1")
            return text, [f"{name} is not UTF-8: read as Windows-1252."] if told else []
        break
    raise InputError(
        f"{name} must be text; it holds bytes that no text has; save the table as CSV or Parquet"
    )


def parsed(text: str, settings: TableSettings, name: str, notes: list[str]) -> Table:
    empty: list[int] = []
    reader = _filled(_rows(text, _separator(text), name), empty)
    sample = list(islice(reader, SAMPLE))
    if not sample:
        raise InputError(f"{name} must hold a header and rows; it is empty; fill or remove it")
    cells = [[tidy(c) for c in row] for _, row in sample]
    headed, names = _header(cells, settings, name)
    if not headed and not settings.names:
        notes.append(f"{name} has no header: its columns are called {names[0]!r} and so on.")
    if headed and settings.names and names != cells[0]:
        notes.append(f"{name}: its header ({listed(cells[0], 4)}) gives way to the names told.")
    check_names(names, name)
    rows = chain(sample[1:] if headed else sample, reader)
    columns, lines = _columns(rows, names, name)
    if not len(lines):
        raise InputError(f"{name} must hold rows; got a header and nothing below it; remove it")
    _check_quotes(columns, text, name)
    if empty:
        notes.append(
            f"{name}: {count_rows(len(empty))} without content left out, the first in line "
            f"{empty[0]}."
        )
    return Table(name, columns, lines, headed, tuple(notes), "line")


def _rows(text: str, separator: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Rows with their lines, without blank lines."""
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


def _filled(
    rows: Iterator[tuple[int, list[str]]], empty: list[int]
) -> Iterator[tuple[int, list[str]]]:
    """Rows in which something stands; the lines of the others are put down in `empty`."""
    for line, row in rows:
        if any(c and not c.isspace() for c in row):
            yield line, row
        else:
            empty.append(line)


def _separator(text: str) -> str:
    """The separator that gives most of the first rows one and the same length, more than one."""
    fit = {s: _evenness(text, s) for s in SEPARATORS}
    best = max(SEPARATORS, key=lambda s: fit[s]) if any(fit.values()) else ","
    return " " if fit[best] < CLEAR and _evenness(text, " ") > fit[best] else best


def _evenness(text: str, separator: str) -> float:
    """Share of the first rows that have the commonest length, if that is more than one."""
    try:
        lengths = Counter(len(r) for _, r in islice(_rows(text, separator, ""), SAMPLE))
    except InputError:  # the wrong separator leaves cells too long
        return 0.0
    width, count = max(lengths.items(), key=lambda item: item[1], default=(1, 0))
    return count / lengths.total() if width > 1 else 0.0


def _header(sample: list[list[str]], settings: TableSettings, name: str) -> tuple[bool, list[str]]:
    """Whether the first row is a header, and the names of the columns."""
    first, names = sample[0], list(settings.names)
    if names:
        known = {c.casefold() for c in names}
        same = 2 * sum(c.casefold() in known for c in first) >= len(first)
        if same and settings.header is not False:
            return True, first
        headed = _above_numbers(sample) if settings.header is None else settings.header
        if len(first) == len(names) - 1 and settings.label in names:  # rows to be predicted
            names.remove(settings.label)
        if len(first) != len(names):
            raise InputError(
                f"{name} has {len(first)} columns; names must tell as many; got "
                f"{len(settings.names)}"
            )
        return headed, names
    if settings.header if settings.header is not None else _is_header(sample):
        return True, [c or f"unnamed {j + 1}" for j, c in enumerate(first)]
    return False, [f"column {j + 1}" for j in range(len(first))]


def _is_header(sample: list[list[str]]) -> bool:
    """Names are words (or count the columns), and none is met again below its own column."""
    first, rows = sample[0], sample[1:]
    if len(first) > 2 and first == [str(j) for j in range(len(first))]:  # as pandas writes it
        return True
    if any(number(c) is not None or c == "?" for c in first):
        return False
    below = [{row[j] for row in rows if j < len(row)} for j in range(len(first))]
    return not rows or not all(c in seen for c, seen in zip(first, below, strict=True))


def _above_numbers(sample: list[list[str]]) -> bool:
    """Whether the first row has words only, and the next numbers in half of its cells."""
    first, second = sample[0], sample[1] if len(sample) > 1 else []
    count = sum(number(c) is not None for c in second)
    return not any(number(c) is not None for c in first) and 2 * count >= len(first)


def _columns(
    rows: Iterator[tuple[int, list[str]]], names: Sequence[str], name: str
) -> tuple[dict[str, Cells], Index]:
    """Cells by column, a block of rows at a time, so that no text is kept twice."""
    index: list[dict[str, int]] = [{} for _ in names]
    codes: list[list[Codes]] = [[] for _ in names]
    lines: list[int] = []
    while block := list(islice(rows, BLOCK)):
        lines += [line for line, _ in block]
        even = [_even(row, len(names), name, line) for line, row in block]
        for known, found, column in zip(index, codes, zip(*even, strict=True), strict=True):
            each = [known.setdefault(c.strip(), len(known)) for c in column]
            found.append(np.array(each, dtype=np.int32))
    columns = {
        key: Cells(tuple(known), np.concatenate(found) if found else np.empty(0, np.int32))
        for key, known, found in zip(names, index, codes, strict=True)
    }
    return columns, np.array(lines, dtype=np.intp)


def _even(row: list[str], width: int, name: str, line: int) -> list[str]:
    """A row of the right length; separators at its end may be too many."""
    if len(row) == width:
        return row
    if len(row) > width and not any(c.strip() for c in row[width:]):
        return row[:width]
    raise InputError(
        f"{name}, line {line}: a row must have {width} cells, as the first has; got {len(row)}; "
        "mend the row, or quote cells that hold the separator"
    )


def _check_quotes(columns: Mapping[str, Cells], text: str, name: str) -> None:
    """Raise if a quote that is never closed has swallowed lines."""
    for key, cells in columns.items() if text.count('"') % 2 else ():
        if "\n" in cells.levels[cells.codes[-1]]:
            raise InputError(
                f"{name}, column {key!r}: a quote is opened and never closed, in the last row "
                "that can be told apart; close it or remove it"
            )
