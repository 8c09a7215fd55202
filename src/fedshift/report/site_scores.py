"""What the federation is worth to each site, in sentences and as a table, from a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedshift.learn.evaluate import FIGURES, figure_text
from fedshift.report.comparison import Sheet
from fedshift.report.format import count, known, number, size, span

#: heading of a score of the model that a site trains alone, beside the federated model's
ALONE = "alone"
#: most sites that a sentence names, and most characters of a site's name in a terminal
NAMES, LONGEST = 3, 20


def first_lines(record: Mapping[str, Any], write: Callable[[str], str] = str) -> list[str]:
    """Write where sites are better off alone, and that the training was a simulation.

    `write` marks up the name of a site.
    """
    scores = record.get("scores") or []
    worth = [worth_line(scores[0], write)] if scores else []
    return [*worth, *([text] if (text := simulation(record)) else [])]


def worth_line(part: Mapping[str, Any], write: Callable[[str], str]) -> str:
    """Write in a sentence where sites are better off alone; `write` marks up a site's name."""
    every, better, rows = part["differences"], part["better_alone"], part["rows"]
    loss = "MSE" if part["figure"] == "mse" else "log loss"
    sites = count(len(part["federated"]), "site")
    few = len(part["federated"]) - len(every)
    rest = f" Too few rows to compare at {few}." if few else ""
    if not better:
        good = sum(d["high"] < 0 for d in every.values())
        return (
            f"On {rows}, no site is clearly better off alone; the federated model is clearly "
            f"better than training alone at {good} of {sites}.{rest}"
        )
    each = [
        f"{write(n)} ({loss} {number(d['risk'])} alone, {number(d['risk'] + d['value'])} "
        f"federated; 95% interval of the difference {span(d['low'], d['high'], number)})"
        for n in better[:NAMES]
        for d in (every[n],)
    ]
    more = [f"{len(better) - NAMES} more"] if len(better) > NAMES else []
    return (
        f"Training alone is better at {len(better)} of {sites}, on {rows}: "
        f"{', '.join([*each, *more])}.{rest}"
    )


def simulation(record: Mapping[str, Any]) -> str:
    """Write how much every site exchanged; empty if the record does not hold it."""
    exchanges = record.get("exchanges") or {}
    if not exchanges:
        return ""
    sent = dict.fromkeys(exchanges, 0)
    for entry in record.get("ledger") or []:
        if entry["client"] in sent and known(entry.get("up")):
            sent[entry["client"]] += entry["up"]
    return (
        f"Simulation on one machine: a site sent up to {count(max(exchanges.values()))} messages, "
        f"{size(max(sent.values()))}. To train over a network, use 'fedshift deploy'."
    )


def score_table(part: Mapping[str, Any], most: int | None = None) -> Sheet:
    """Make a table of the scores of all sites and their means.

    With `most`, only so many sites are shown, and long names are cut.
    """
    names, scores = FIGURES[part["figure"]], {k: _by_site(part[k]) for k in ("federated", "local")}
    columns = [(k, n) for n in names for k in scores if n != "constant" or k == "federated"]
    sites = list(scores["federated"])

    def cells(title: str, of: list[str]) -> tuple[str, ...]:
        title = title if most is None or len(title) <= LONGEST else f"{title[: LONGEST - 1]}…"
        return (
            title,
            *(figure_text(part["figure"], n, _mean(scores[k], n, of)) for k, n in columns),
        )

    shown = sites[:most]
    rows = [*(cells(site, [site]) for site in shown), cells("mean", sites)]
    notes = ["alone: a model of the same kind that the site trains on its own rows only"]
    more = len(sites) - len(shown)
    return Sheet(
        title=f"Scores on {part['rows']}",
        header=("site", *(names[n] if k == "federated" else ALONE for k, n in columns)),
        rows=tuple(rows if len(sites) > 1 else rows[:1]),
        notes=(*notes, *([f"{more} more sites are in the record and the report"] if more else [])),
    )


def _by_site(rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {row["client"]: row for row in rows}


def _mean(rows: Mapping[str, Mapping[str, Any]], name: str, sites: list[str]) -> float | None:
    """Mean score of the sites that have it; None if a site lacks the model."""
    values = [v for s in sites if known(v := rows.get(s, {}).get(name))]
    return sum(values) / len(values) if values and all(s in rows for s in sites) else None
