"""Write tables of runs as text or Markdown."""

from __future__ import annotations

import re
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


def render(sheets: Sequence[Sheet], format: str = "text") -> str:
    """Write tables in the format "text" (aligned columns) or "markdown" (with headings)."""
    return "\n\n".join(_render(sheet, markdown=format == "markdown") for sheet in sheets) + "\n"


def _render(sheet: Sheet, *, markdown: bool) -> str:
    spell = _escape if markdown else str
    right = [_right(sheet, j) for j in range(len(sheet.header))]
    rows = [[spell(cell) for cell in row] for row in (sheet.header, *sheet.rows)]
    if markdown:
        start, between, end = "| ", " | ", " |"
        widths = [0] * len(right)
        rule = ["---:" if r else ":---" for r in right]
    else:
        start, between, end = "", "  ", ""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rule = ["-" * width for width in widths]
    lines = []
    for row in (rows[0], rule, *rows[1:]):
        columns = zip(row, widths, right, strict=True)
        cells = [cell.rjust(w) if r else cell.ljust(w) for cell, w, r in columns]
        lines.append((start + between.join(cells) + end).rstrip())
    notes = [f"- {spell(note)}" for note in sheet.notes]
    title = f"{'## ' if markdown else ''}{spell(sheet.title)}"
    return "\n".join([title, "", *lines, "", *notes]).strip()


def _right(sheet: Sheet, column: int) -> bool:
    """Whether a column holds numbers and so is aligned right."""
    cells = [row[column] for row in sheet.rows if row[column]]
    return column > 0 and all(re.match(r"[-+−]?[\d.]", cell) for cell in cells)


def _escape(text: str) -> str:
    return re.sub(r"([\\|*_<>`])", r"\\\1", text).replace("\n", " ")
