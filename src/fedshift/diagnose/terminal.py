"""Print a diagnosis in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fedshift.diagnose.diagnosis import Comparison, Diagnosis, SiteDiagnosis
from fedshift.report.comparison import Sheet, terminal_width, wrap
from fedshift.report.comparison import render as render_sheets

#: colours; every status is also a word
STYLES = {
    "shift": "bold red",
    "too small to matter": "yellow",
    "no shift found": "green",
    "inconclusive": "dim",
}


def render(diagnosis: Diagnosis, console: Console | None = None, *, verbose: bool = False) -> None:
    """Print the outcome and a table of all comparisons.

    A table shows the columns that fit. With `verbose` it shows all, and sentences explain each
    comparison.
    """
    width = terminal_width() if console is None else console.width
    outcome, *details = (wrap(sentence, width) for sentence in diagnosis.sentences())
    sheets = [_sheet("Training rows against test rows", diagnosis.sites)]
    if diagnosis.between:
        others = diagnosis.between[0].other
        sheets.append(_sheet(f"Training rows against those of {others}", diagnosis.between))
    tables = Text(render_sheets(sheets, width=width, verbose=verbose))
    for status, style in STYLES.items():
        tables.highlight_regex(rf"(?m)(?<=  ){status}(?=  |$)", style)
    console = console or Console()
    for text in (outcome, "", tables, *(details if verbose else ())):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _sheet(title: str, comparisons: Sequence[Comparison]) -> Sheet:
    rows = [{"site": c.site, "status": c.status, **_figures(c)} for c in comparisons]
    header = tuple(name for name in rows[0] if any(row[name] for row in rows))
    return Sheet(title=title, header=header, rows=tuple(tuple(r[n] for n in header) for r in rows))


def _figures(c: Comparison) -> dict[str, str]:
    """The cells of a comparison; those that matter most come first."""
    f, overlap = c.main, c.overlap if isinstance(c, SiteDiagnosis) else None
    known = not math.isnan(f.auc)
    first, second, *_ = (*(v.name for v in c.columns), "", "")
    rows = overlap is not None and not math.isnan(overlap.ess)
    return {
        "type": str(c.shift_type) if c.status == "shift" else "",
        "AUC": f"{f.auc:.2f}" if known else "",
        "ESS": f"{overlap.ess:.0f} ({overlap.share:.0%})" if overlap and rows else "",
        "largest change": first,
        "p": f.p_text.removeprefix("p ") if known else "",
        "AUC, 95 %": f"{f.low:.2f} to {f.high:.2f}" if known else "",
        "second change": second,
    }
