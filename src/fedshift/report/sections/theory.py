"""What the bounds say: eigenvalues of both sides, and the terms of the ratio's error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.report.drawings import bar
from fedshift.report.markup import Child, Html, isolated, join, named, tag
from fedshift.report.parts import Column, Section, figure_of, not_run, sentences, table
from fedshift.report.spell import count, finite, known, number, share

#: terms of `fedshift.theory.RatioError` in words
TERMS = {
    "train_term": "noise at training rows",
    "test_term": "noise at test rows",
    "deviation": "an unlucky sample",
    "bias": "the clamp",
    "bound_term": "the estimated bound",
}


def theory(record: Mapping[str, Any]) -> Section:
    """The section."""
    found = record.get("theory")
    if not found:
        return not_run("theory", "What theory says", "fedshift train SITES", "nothing was bounded.")
    body = join(
        sentences(found.get("sentences") or []),
        _spectrum(found.get("spectrum") or []),
        _bounds(found.get("bounds") or []),
    )
    return Section("theory", "What theory says", body)


def _spectrum(found: Sequence[Mapping[str, Any]]) -> Html | None:
    if not found:
        return None
    keys = ("client", "directions", "holding")
    reasons = dict.fromkeys(k for row in found for k in row if k not in keys)
    head = [
        Column("Site"),
        Column("Directions in which weights can help", "plot"),
        Column("Holds", "figure"),
        *(Column(f"Fails: {why}", "figure") for why in reasons),
    ]
    rows = [[*_holding(row), *(count(row.get(why)) for why in reasons)] for row in found]
    said = (
        "Directions (eigenvectors of the inputs) in which test rows do not vary so much more than "
        "training rows that no weight could help. The condition is necessary for the paper's "
        "bound, not sufficient for a gain."
    )
    return join(
        tag("h3", "Eigenvalue condition"),
        figure_of(table(head, rows, label="Eigenvalue condition", stack=True), said),
    )


def _holding(row: Mapping[str, Any]) -> list[Child]:
    n, held = finite(row.get("directions")), finite(row.get("holding"))
    part = held / n if known(n) and known(held) and n > 0 else None
    said = f"{count(row.get('holding'))} of {count(row.get('directions'))}"
    return [named(row["client"]), bar(part, title=f"{isolated(row['client'])}: {said}"), said]


def _bounds(found: Sequence[Mapping[str, Any]]) -> Html | None:
    if not found:
        return None
    names = list(dict.fromkeys(k for row in found for k in row.get("terms") or {}))
    head = [
        Column("Site"),
        *(Column(TERMS.get(k, k), "figure") for k in names),
        Column("Total", "figure"),
        Column("It says"),
    ]
    rows = [_bound(row, names) for row in found]
    said = (
        "Terms of the bound on the error of each site's ratio, with their part of the total. "
        "A bound above what always holds says nothing; it does not say that the ratio is bad."
    )
    return join(
        tag("h3", "Bound on the ratio's error"),
        figure_of(table(head, rows, label="Bound on the ratio's error", stack=True), said),
    )


def _bound(row: Mapping[str, Any], names: Sequence[str]) -> list[Child]:
    terms, total = row.get("terms") or {}, finite(row.get("total"))
    return [
        named(row["site"]),
        *(_term(TERMS.get(k, k), terms.get(k), total) for k in names),
        tag("strong", number(row.get("total"))),
        tag("small", row.get("status") or ""),
    ]


def _term(name: str, value: Any, total: float) -> Child:
    part = value / total if known(value) and known(total) and total > 0 else None
    return [number(value), bar(part, title=f"{name}: {share(part)} of the total")]
