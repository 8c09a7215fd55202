"""What left the sites: rows and bytes, by rung of the privacy ladder, by phase and by site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedshift.report.drawings import key
from fedshift.report.markup import Child, Html, join, named, tag
from fedshift.report.parts import Column, Section, folded, not_run, table
from fedshift.report.spell import UNKNOWN, count, known, size

#: the privacy ladder, from nothing to raw rows
RUNGS = (
    "updates of the model; nothing about the data met in use",
    "label shares and other counts of whole columns",
    "gradients of a ratio model",
    "counts of rows in bins",
    "made-up rows from a model of the data",
    "raw rows without labels",
)


@dataclass(frozen=True)
class Sums:
    """Entries of the ledger, added up."""

    up: float
    down: float
    rows: float

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]]) -> Sums:
        """The sum; what is not known counts nothing."""
        every = list(entries)
        return cls(*(sum(e[k] for e in every if known(e.get(k))) for k in ("up", "down", "rows")))

    def cells(self) -> list[str]:
        """Rows, bytes sent, bytes read."""
        return [count(self.rows), size(self.up), size(self.down)]


def highest(entries: Iterable[Mapping[str, Any]]) -> int | None:
    """The highest rung something was sent on."""
    used = [
        int(e["rung"])
        for e in entries
        if known(e.get("rung")) and (Sums.of([e]).up or Sums.of([e]).rows)
    ]
    return max(used, default=None)


def ledger(record: Mapping[str, Any]) -> Section:
    """The section."""
    found = record.get("ledger")
    if found is None:
        return not_run(
            "ledger", "What left the sites", "fedshift train SITES", "nothing was sent or booked."
        )
    body = join(
        tag("p", tag("strong", headline(found)), " ", _rest(found)),
        _ladder(found),
        tag("h3", "By phase"),
        _grouped(found, "phase", "Phase"),
        tag("h3", "By site"),
        _grouped(found, "client", "Site"),
        folded("Every entry", _every(found)),
    )
    return Section("ledger", "What left the sites", body)


def headline(found: Sequence[Mapping[str, Any]]) -> str:
    """Whether rows left, in a sentence."""
    rows = Sums.of(found).rows
    if not rows:
        return "No row of data left any site."
    sites = len({e["client"] for e in found if known(e.get("rows")) and e["rows"] > 0})
    return f"{count(rows, 'row')} of data left {count(sites, 'site')}."


def _rest(found: Sequence[Mapping[str, Any]]) -> str:
    total = Sums.of(found)
    return f"In all {size(total.up)} were sent by sites and {size(total.down)} read by them."


def _ladder(found: Sequence[Mapping[str, Any]]) -> Html:
    """The rungs, with a filled shape where something was sent."""
    made = []
    for rung, what in enumerate(RUNGS):
        mine = [e for e in found if e.get("rung") == rung]
        sums = Sums.of(mine)
        used = bool(sums.up or sums.rows)
        sites = len({e["client"] for e in mine})
        rows = f", {count(sums.rows, 'row')}" if sums.rows else ""
        said = f"{size(sums.up)}{rows} from {count(sites, 'site')}" if used else "not used"
        made.append(
            tag(
                "li",
                key(1 if used else 0, hollow=not used),
                tag("b", str(rung)),
                tag("span", what),
                tag("span", said, class_="used"),
                class_="on" if used else "off",
            )
        )
    return tag("ol", made[::-1], class_="ladder", reversed=True, aria_label="Privacy ladder")


def _grouped(found: Sequence[Mapping[str, Any]], by: str, title: str) -> Html:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for e in found:
        groups.setdefault(e[by], []).append(e)
    head = [
        Column(title),
        Column("Rung"),
        Column("Rows that left", "figure"),
        Column("Sent", "figure"),
        Column("Read", "figure"),
    ]
    rows: list[list[Child]] = [
        [named(name), _rungs(mine), *Sums.of(mine).cells()] for name, mine in groups.items()
    ]
    last: list[Child] = ["Total", "", *Sums.of(found).cells()]
    return table(head, rows, label=f"Ledger by {title.lower()}", last=last)


def _rungs(entries: Iterable[Mapping[str, Any]]) -> str:
    used = sorted({int(e["rung"]) for e in entries if known(e.get("rung"))})
    return ", ".join(map(str, used)) or UNKNOWN


def _every(found: Sequence[Mapping[str, Any]]) -> Html:
    head = [
        Column("Site"),
        Column("Phase"),
        Column("Rung"),
        Column("Rows that left", "figure"),
        Column("Sent", "figure"),
        Column("Read", "figure"),
    ]
    rows: list[list[Child]] = [
        [
            named(e["client"]),
            named(e["phase"]),
            _rungs([e]),
            count(e.get("rows")),
            size(e.get("up")),
            size(e.get("down")),
        ]
        for e in found
    ]
    return table(head, rows, label="Every entry of the ledger")
