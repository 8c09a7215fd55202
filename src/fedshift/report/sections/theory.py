"""The eigenvalue check: in how many directions of the inputs can weights help?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshift.report.blocks import Heading, Section, figure_of, figures, not_run, table
from fedshift.report.drawings import bar
from fedshift.report.format import count, finite, known
from fedshift.report.markup import Child, isolated, named


def theory(record: Mapping[str, Any]) -> Section:
    """Make the section."""
    spectrum = (record.get("theory") or {}).get("spectrum")
    title = "Eigenvalue condition"
    if not spectrum:
        return not_run("theory", title, "fedshift train SITES", "no eigenvalues were compared.")
    keys = ("client", "directions", "holding")
    reasons = dict.fromkeys(k for row in spectrum for k in row if k not in keys)
    head = [
        Heading("Site"),
        Heading("Directions in which weights can help", "plot"),
        *figures("Holds", *(f"Fails: {why}" for why in reasons)),
    ]
    rows = [[*_holding(row), *(count(row.get(why)) for why in reasons)] for row in spectrum]
    caption = (
        "Directions are the eigenvectors of the second-moment matrix of the inputs. Theorem 2 of "
        "Ramezani-Kebrya et al. (TMLR 2023), a bound on the risk of weighted ridge regression, "
        "needs a condition in each direction. Where it fails, no weights satisfy the theorem; "
        "the table counts the reasons. Where it holds, a gain is possible but not certain."
    )
    return Section("theory", title, figure_of(table(head, rows, label=title, stack=True), caption))


def _holding(row: Mapping[str, Any]) -> list[Child]:
    n, met = finite(row.get("directions")), finite(row.get("holding"))
    part = met / n if known(n) and known(met) and n > 0 else None
    text = f"{count(row.get('holding'))} of {count(row.get('directions'))}"
    return [named(row["client"]), bar(part, title=f"{isolated(row['client'])}: {text}"), text]
