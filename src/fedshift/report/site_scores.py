"""What the federation is worth to each site, in sentences and as a table, from a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedshift.core.score_text import FIGURES, figure_text
from fedshift.report.comparison import Sheet
from fedshift.report.format import count, known, listed, number, size, span


def first_lines(record: Mapping[str, Any], write: Callable[[str], str] = str) -> list[str]:
    """Write where sites are better off alone, and that the training was a simulation.

    `write` marks up the name of a site.
    """
    out = [line for part in record.get("scores") or [] if (line := _worth(part, write))]
    if replies := record.get("replies"):
        sent = sum(e["up"] for e in record["ledger"]) / len(replies)
        out.append(
            f"Simulation on one machine: each site sent {count(max(replies.values()))} messages, "
            f"{size(sent)}. To train over a network, use 'fedshift deploy'."
        )
    return out


def _worth(part: Mapping[str, Any], write: Callable[[str], str]) -> str:
    every, n = part["differences"], len(part["federated"])
    loss = "MSE" if part["figure"] == "mse" else "log loss"
    worse = sorted((s for s in every if every[s]["low"] > 0), key=lambda s: -every[s]["value"])
    better = sum(d["high"] < 0 for d in every.values())
    names = [
        f"{write(s)} (federated {loss} higher by {number(every[s]['value'])} "
        f"{span(every[s]['low'], every[s]['high'], number)})"
        for s in worse
    ]
    text = f"{len(worse)} of {count(n, 'site')}: {listed(names)}" if worse else "no site"
    few = f"; too few rows to compare at {n - len(every)}" if len(every) < n else ""
    return (
        f"On {part['rows']}, beyond noise, training alone is better at {text}; federated training "
        f"is better at {better}{few}."
    )


def score_table(part: Mapping[str, Any], most: int | None = None) -> Sheet:
    """Make a table of the scores of sites, at most so many, and of the means over all sites."""
    names, scores = FIGURES[part["figure"]], {}
    for model in ("federated", "alone"):
        scores[model] = {row["client"]: row for row in part[model]}
    columns = [(m, n) for n in names for m in scores if (m, n) != ("alone", "constant")]

    def cell(model: str, name: str, sites: Sequence[str]) -> str:
        rows = [scores[model].get(site) for site in sites]
        values = [v for row in rows if row and known(v := row.get(name))]
        mean = sum(values) / len(values) if values and all(rows) else None
        return figure_text(part["figure"], name, mean)

    sites = list(scores["federated"])
    lines = {site: [site] for site in sites[:most]} | {f"mean of {count(len(sites))}": sites}
    return Sheet(
        title=f"Scores on {part['rows']}; alone: a model that the site trains on its rows only",
        header=("site", *(names[n] if m == "federated" else m for m, n in columns)),
        rows=tuple((title, *(cell(*c, of) for c in columns)) for title, of in lines.items()),
    )
