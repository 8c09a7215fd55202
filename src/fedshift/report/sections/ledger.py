"""What left the sites: rows and bytes by disclosure level, phase and site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedshift.report.blocks import Heading, Section, figures, folded, not_run, table
from fedshift.report.drawings import key
from fedshift.report.format import UNKNOWN, count, known, size
from fedshift.report.markup import Child, Html, join, named, tag

#: the disclosure levels, from model updates to raw rows
DISCLOSURE_LEVELS = (
    "updates of the model, the mean weight, and scores on labelled test rows",
    "class proportions, and other totals over all rows of a site",
    "gradients of a ratio model",
    "counts of rows in bins",
    "generated rows from a model of the data",
    "raw rows without labels",
)


#: headings of the cells of `Totals`
AMOUNTS = figures("Rows that left", "Sent", "Received")


@dataclass(frozen=True)
class Totals:
    """Totals of ledger entries: bytes up, bytes down, rows."""

    up: float
    down: float
    rows: float

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]]) -> Totals:
        """Add up entries; unknown values are skipped."""
        every = list(entries)
        return cls(*(sum(e[k] for e in every if known(e.get(k))) for k in ("up", "down", "rows")))

    def cells(self) -> list[str]:
        """Return table cells: rows, bytes sent, bytes received."""
        return [count(self.rows), size(self.up), size(self.down)]


def highest(entries: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the highest disclosure level at which anything was sent; None if nothing was."""
    used = [
        int(e["disclosure_level"])
        for e in entries
        if known(e.get("disclosure_level")) and (Totals.of([e]).up or Totals.of([e]).rows)
    ]
    return max(used, default=None)


def ledger(record: Mapping[str, Any]) -> Section:
    """Make the section."""
    entries = record.get("ledger")
    if entries is None:
        return not_run("ledger", "What left the sites", "fedshift train SITES", "nothing was sent.")
    body = join(
        tag("p", tag("strong", headline(entries)), " ", _rest(entries)),
        _levels_list(entries),
        tag("h3", "By phase"),
        _grouped(entries, "phase", "Phase"),
        tag("h3", "By site"),
        _grouped(entries, "client", "Site"),
        folded("Every entry", _every(entries)),
    )
    return Section("ledger", "What left the sites", body)


def headline(entries: Sequence[Mapping[str, Any]]) -> str:
    """Write in a sentence whether rows left the sites."""
    rows = Totals.of(entries).rows
    if not rows:
        return "No row of data left any site."
    sites = len({e["client"] for e in entries if known(e.get("rows")) and e["rows"] > 0})
    return f"{count(rows, 'row')} of data left {count(sites, 'site')}."


def _rest(entries: Sequence[Mapping[str, Any]]) -> str:
    total = Totals.of(entries)
    return f"In total, sites sent {size(total.up)} and received {size(total.down)}."


def _levels_list(entries: Sequence[Mapping[str, Any]]) -> Html:
    """List the disclosure levels; those in use have a filled shape."""
    levels = []
    for level, what in enumerate(DISCLOSURE_LEVELS):
        mine = [e for e in entries if e.get("disclosure_level") == level]
        sums = Totals.of(mine)
        used = bool(sums.up or sums.rows)
        sites = len({e["client"] for e in mine})
        rows = f", {count(sums.rows, 'row')}" if sums.rows else ""
        text = f"{size(sums.up)}{rows} from {count(sites, 'site')}" if used else "not used"
        levels.append(
            tag(
                "li",
                key(1 if used else 0, hollow=not used),
                tag("b", str(level)),
                tag("span", what),
                tag("span", text, class_="used"),
                class_="on" if used else "off",
            )
        )
    return tag("ol", levels[::-1], class_="ladder", reversed=True, aria_label="Disclosure levels")


def _grouped(entries: Sequence[Mapping[str, Any]], by: str, title: str) -> Html:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for e in entries:
        groups.setdefault(e[by], []).append(e)
    head = [Heading(title), Heading("Level"), *AMOUNTS]
    rows: list[list[Child]] = [
        [named(name), _levels(mine), *Totals.of(mine).cells()] for name, mine in groups.items()
    ]
    last: list[Child] = ["Total", "", *Totals.of(entries).cells()]
    return table(head, rows, label=f"Ledger by {title.lower()}", last=last)


def _levels(entries: Iterable[Mapping[str, Any]]) -> str:
    used = sorted({int(e["disclosure_level"]) for e in entries if known(e.get("disclosure_level"))})
    return ", ".join(map(str, used)) or UNKNOWN


def _every(entries: Sequence[Mapping[str, Any]]) -> Html:
    head = [Heading("Site"), Heading("Phase"), Heading("Level"), *AMOUNTS]
    rows: list[list[Child]] = [
        [named(e["client"]), named(e["phase"]), _levels([e]), *Totals.of([e]).cells()]
        for e in entries
    ]
    return table(head, rows, label="Every entry of the ledger")
