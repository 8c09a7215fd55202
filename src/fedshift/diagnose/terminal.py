"""Print a diagnosis in the terminal."""

from __future__ import annotations

import math
import textwrap

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedshift.diagnose.diagnosis import Comparison, Diagnosis, SiteDiagnosis

#: colours; every status is also a word
STYLES = {
    "shift": "bold red",
    "too small to matter": "yellow",
    "no shift found": "green",
    "inconclusive": "dim",
}


def render(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Print a table of all comparisons, then the diagnosis in sentences."""
    console = console or Console()
    table = Table(title="Distribution shifts")
    titles = "site, against, status, type, AUC, p, largest change in, ESS"
    for name in titles.split(", "):
        table.add_column(name, overflow="fold", min_width=12 if name == "status" else None)
    for c in (*diagnosis.sites, *diagnosis.between):
        style = STYLES[c.status]
        cells = [escape(c.site), escape(c.other), f"[{style}]{c.status}[/]", *_figures(c)]
        table.add_row(*cells)
    console.print(table)
    for sentence in diagnosis.sentences():
        wrapped = textwrap.fill(sentence, max(40, console.width - 1), subsequent_indent="  ")
        console.print(escape(wrapped), highlight=False)


def _figures(c: Comparison) -> list[str]:
    f = c.main
    known = not math.isnan(f.auc)
    out = [
        str(c.shift_type) if c.status == "shift" else "",
        f"{f.auc:.2f} \\[{f.low:.2f}, {f.high:.2f}]" if known else "",
        f.p_text.removeprefix("p ") if known else "",
        escape(", ".join(v.name for v in c.columns[:2])),
    ]
    if isinstance(c, SiteDiagnosis):
        rows = "" if math.isnan(c.overlap.ess) else f"{c.overlap.ess:.0f} ({c.overlap.share:.0%})"
        return [*out, rows]
    return [*out, ""]
