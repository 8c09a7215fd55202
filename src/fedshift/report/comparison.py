"""Tables beside one another as text, Markdown, or a page that needs nothing else."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from fedshift.errors import FedshiftError
from fedshift.report.markup import Html, join, tag
from fedshift.report.page import page

if TYPE_CHECKING:  # figures needs matplotlib, which text and Markdown do not
    from fedshift.report.figures import Calibrated, Curves, Dots

FORMATS = ("text", "markdown", "html")
#: how wide text is where there is no screen to ask
WIDTH = 160


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One table with what is said under it, and what its plots show.

    Attributes
    ----------
    title : str
    header : tuple of str
        The first column is words, the others figures or words.
    rows : tuple of tuple of str
    notes : tuple of str
    figure : str
        What is plotted: "accuracy" or "mse".
    dots, curves : mapping
        See `fedshift.report.figures.dots_svg` and `curves_svg`; nothing is drawn of empty ones.
    dots_note, curves_note : str
        What the intervals of the dots are; what the curves show.
    curves_over : str
        What runs along the curves.
    calibration : mapping of method to (estimated, exact)
        Mean log ratios of groups of training rows.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    figure: str = "accuracy"
    dots: Dots = field(default_factory=dict)
    curves: Curves = field(default_factory=dict)
    dots_note: str = ""
    curves_note: str = ""
    curves_over: str = "iteration"
    calibration: Calibrated = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def of_dict(cls, told: Mapping[str, Any]) -> Sheet:
        """From what `to_dict` gave, after JSON."""
        words = {k: tuple(told[k]) for k in ("header", "notes")}
        return cls(**{**told, **words, "rows": tuple(map(tuple, told["rows"]))})


def render(sheets: Sequence[Sheet], format: str = "text") -> str:
    """Sheets in one of `FORMATS`."""
    writers = {"text": to_text, "markdown": to_markdown, "html": to_html}
    return writers[format](sheets)


def to_text(sheets: Sequence[Sheet], *, width: int = WIDTH) -> str:
    """Tables drawn with lines."""
    file = io.StringIO()
    show(sheets, Console(file=file, width=width, color_system=None))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def show(sheets: Sequence[Sheet], console: Console) -> None:
    """Print tables drawn with lines."""
    for i, sheet in enumerate(sheets):
        if i:
            console.print()
        console.print(f"[bold]{escape_markup(sheet.title)}[/]", highlight=False)
        table = Table()
        for j, name in enumerate(sheet.header):
            table.add_column(escape_markup(name), justify="right" if _right(sheet, j) else "left")
        for row in sheet.rows:
            table.add_row(*map(escape_markup, row))
        console.print(table)
        for note in sheet.notes:
            console.print(note, markup=False, highlight=False)


def to_markdown(sheets: Sequence[Sheet]) -> str:
    """Pipe tables, each under a heading."""
    parts = []
    for sheet in sheets:
        rule = ["---:" if _right(sheet, j) else ":---" for j in range(len(sheet.header))]
        rows = [[_markdown(cell) for cell in row] for row in (sheet.header, *sheet.rows)]
        lines = ["| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])]
        notes = [f"- {_markdown(note)}" for note in sheet.notes]
        parts.append("\n".join([f"## {_markdown(sheet.title)}", "", *lines, "", *notes]).strip())
    return "\n\n".join(parts) + "\n"


def to_html(sheets: Sequence[Sheet], *, title: str = "Runs compared") -> str:
    """One page with its style and its plots inside: no other file, no network."""
    body = [Html(_section(sheet, f"s{i}")) for i, sheet in enumerate(sheets)]
    return page(title, join(tag("h1", title), body))


def _section(sheet: Sheet, prefix: str) -> str:
    def cells(row: Sequence[str]) -> str:
        made = []
        for j, cell in enumerate(row):
            kind = ' class="figure"' if _right(sheet, j) else ""
            tag, scope = ("td", "") if row is not sheet.header else ("th", ' scope="col"')
            if tag == "td" and j == 0:
                tag, scope = "th", ' scope="row"'
            made.append(f"<{tag}{scope}{kind}>{escape(cell)}</{tag}>")
        return f"<tr>{''.join(made)}</tr>"

    rows = "\n".join(cells(row) for row in sheet.rows)
    notes = "\n".join(f"<li>{escape(note)}</li>" for note in sheet.notes)
    return (
        f'<section class="compared">\n<h2>{escape(sheet.title)}</h2>\n<div class="wide"><table>\n'
        f"<thead>{cells(sheet.header)}</thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>\n"
        + (f"<ul>\n{notes}\n</ul>\n" if notes else "")
        + "".join(
            f"<figure>\n{svg}\n<figcaption>{escape(said)}</figcaption>\n</figure>\n"
            for said, svg in _plots(sheet, prefix).items()
        )
        + "</section>"
    )


def _plots(sheet: Sheet, prefix: str) -> Mapping[str, str]:
    """Drawings by what is said under them."""
    if not (sheet.dots or sheet.curves or sheet.calibration):
        return {}
    try:
        from fedshift.report.figures import calibration_svg, curves_svg, dots_svg
    except ImportError:
        raise FedshiftError(
            "a page with plots needs matplotlib; install fedshift[report], or take --format "
            "markdown"
        ) from None
    out, figure = {}, sheet.figure
    if sheet.dots:
        said = f"{figure.capitalize()} of each client; {sheet.dots_note}."
        out[said] = dots_svg(sheet.dots, figure=figure, prefix=f"{prefix}d")
    if sheet.curves:
        out[sheet.curves_note] = curves_svg(
            sheet.curves, figure=figure, over=sheet.curves_over, prefix=f"{prefix}c"
        )
    if sheet.calibration:
        said = (
            "Estimated against exact log ratios, means of groups of training rows of like "
            "estimate, all clients and seeds; on the line where the estimate is right."
        )
        out[said] = calibration_svg(sheet.calibration, prefix=f"{prefix}k")
    return out


def _right(sheet: Sheet, column: int) -> bool:
    """Whether a column has figures, which stand under one another."""
    cells = [row[column] for row in sheet.rows if row[column]]
    return column > 0 and all(re.match(r"[-+−]?[\d.]", cell) for cell in cells)


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_<>`])", r"\\\1", text).replace("\n", " ")
