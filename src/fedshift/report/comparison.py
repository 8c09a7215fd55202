"""Write tables as text, no wider than the terminal, or as Markdown."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

#: by method: positions, and the mean, lowest and highest value at each position
Curves = Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]]


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table with notes and curves.

    Attributes
    ----------
    title : str
    header : tuple of str
        Column titles; the first column holds words.
    rows : tuple of tuple of str
    notes : tuple of str
        Lines below the table.
    figure : str
        Quantity that the curves show, for example "accuracy".
    curves : mapping of method to (positions, mean, lowest, highest)
        See `fedshift.report.figures.draw_curves`.
    curves_over : str
        Quantity of the positions, for example "iteration".
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    figure: str = "accuracy"
    curves: Curves = field(default_factory=dict)
    curves_over: str = "iteration"

    @classmethod
    def of_dict(cls, table: Mapping[str, Any]) -> Sheet:
        """Make a sheet from a dict of its fields, as read from JSON; other keys are ignored."""
        known = {f.name: table[f.name] for f in fields(cls) if f.name in table}
        words = {k: tuple(table[k]) for k in ("header", "notes")}
        return cls(**{**known, **words, "rows": tuple(map(tuple, table["rows"]))})


def terminal_width() -> int:
    """Columns of the terminal, or of the variable COLUMNS; without either, as many as it takes."""
    return shutil.get_terminal_size((10_000, 24)).columns


def wrap(text: str, width: int | None = None) -> str:
    """Wrap text between words; a word longer than `width`, the terminal's by default, is whole."""
    whole: Any = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": "  "}
    return textwrap.fill(text, width or terminal_width(), **whole)


def render(
    sheets: Sequence[Sheet], format: str = "text", *, width: int | None = None, verbose: bool = True
) -> str:
    """Write tables in the format "text" (aligned columns) or "markdown" (with headings).

    Parameters
    ----------
    sheets : sequence of Sheet
    format : {"text", "markdown"}
    width : int, optional
        Longest line of text; by default as long as the terminal's. No cell is cut: a table that is
        too wide becomes several, each with the first column, which has its own lines if it is wide.
    verbose : bool
        False keeps the first of these tables only, and names the columns that are left out.
    """
    if format == "markdown":
        return "\n\n".join(map(_markdown, sheets)) + "\n"
    return "\n\n".join(_text(s, width or terminal_width(), verbose) for s in sheets) + "\n"


def _markdown(sheet: Sheet) -> str:
    rule = ["---:" if _right(sheet, j) else ":---" for j in range(len(sheet.header))]
    header, *rows = ([*map(_escape, row)] for row in (sheet.header, *sheet.rows))
    lines = [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]
    notes = [f"- {_escape(note)}" for note in sheet.notes]
    return "\n".join([f"## {_escape(sheet.title)}", "", *lines, "", *notes]).strip()


def _text(sheet: Sheet, width: int, verbose: bool) -> str:
    columns, widths = [], []
    for j, column in enumerate(zip(sheet.header, *sheet.rows, strict=True)):
        widths.append(max(map(len, column)))
        align = str.rjust if _right(sheet, j) else str.ljust
        columns.append(
            [align(cell, widths[j]) for cell in (*column[:1], "-" * widths[j], *column[1:])]
        )
    apart = 2 * widths[0] > width and len(widths) > 1  # the first column has lines of its own
    blocks = _blocks(widths[1:], width, used=0 if apart else widths[0])
    lines = [sheet.title, ""]
    for block in blocks if verbose else blocks[:1]:
        for i, first in enumerate(columns[0]):
            row = "  ".join(["" if apart else first, *(columns[j + 1][i] for j in block)])
            lines += [first] * (apart and i != 1) + [row]
        lines.append("")
    left = ", ".join(sheet.header[j + 1] for block in blocks[1:] for j in block)
    more = [f"columns that do not fit: {left}; --verbose prints them"] * bool(left and not verbose)
    lines += [f"- {note}" for note in (*sheet.notes, *more)]
    lines = [line.rstrip() for line in lines]
    return "\n".join(line if len(line) <= width else wrap(line, width) for line in lines).strip()


def _blocks(widths: Sequence[int], width: float, *, used: int) -> list[list[int]]:
    """Share out columns: each block has, in order, those that fit beside the `used` width."""
    blocks: list[list[int]] = []
    rest = list(range(len(widths)))
    while rest or not blocks:
        block: list[int] = []
        for j in rest:
            if not block or used + sum(2 + widths[i] for i in (*block, j)) <= width:
                block.append(j)
        rest = [j for j in rest if j not in block]
        blocks.append(block)
    return blocks


def _right(sheet: Sheet, column: int) -> bool:
    """Whether a column holds numbers and so is aligned right."""
    cells = [row[column] for row in sheet.rows if row[column]]
    return column > 0 and all(re.match(r"[-+−]?[\d.]", cell) for cell in cells)


def _escape(text: str) -> str:
    return re.sub(r"([\\|*_<>`])", r"\\\1", text).replace("\n", " ")
