"""A diagnosis on a screen."""

from __future__ import annotations

import math
import textwrap

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedshift.diagnose.diagnosis import Comparison, Diagnosis, SiteDiagnosis

#: never colour alone: every status is a word too
STYLES = {
    "shift": "bold red",
    "too small to matter": "yellow",
    "no shift found": "green",
    "cannot tell": "dim",
}


def render(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Print a table of all comparisons, then the sentences."""
    console = console or Console()
    table = Table(title="What shifted")
    for name in (
        "site",
        "against",
        "status",
        "kind",
        "AUC",
        "p",
        "most in",
        "rows that count",
        "weighting",
    ):
        table.add_column(name, overflow="fold")
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
        c.kind.name if c.status == "shift" else "",
        f"{f.auc:.2f} \\[{f.low:.2f}, {f.high:.2f}]" if known else "",
        f.p_text.removeprefix("p ") if known else "",
        escape(", ".join(v.name for v in c.columns[:2])),
    ]
    if isinstance(c, SiteDiagnosis):
        rows = "" if math.isnan(c.overlap.ess) else f"{c.overlap.ess:.0f} ({c.overlap.share:.0%})"
        return [*out, rows, c.predicted_effect.verdict]
    return [*out, "", ""]
