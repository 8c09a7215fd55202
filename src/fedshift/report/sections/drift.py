"""Drift: new deployment rows against the rows that the weights were estimated from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshift.report.blocks import (
    Heading,
    Section,
    badge,
    figures,
    folded,
    not_run,
    sentences,
    table,
)
from fedshift.report.drawings import Axis, Line, scale
from fedshift.report.format import UNKNOWN, count, known, number
from fedshift.report.markup import Child, join, named, tag
from fedshift.report.sections.shift import auc_axis, finding_cells

#: status of the badge of each verdict
VERDICTS = {
    "re-estimate": "shift",
    "keep the weights": "no shift found",
    "inconclusive": "inconclusive",
}
#: the next step
ADVICE = {
    "re-estimate": "Re-estimate the weights: the deployment data shifted.",
    "keep the weights": "Keep the weights: the deployment data did not shift by enough to matter.",
    "inconclusive": "Inconclusive: at some site there are too few rows to test.",
}


def drift(record: Mapping[str, Any]) -> Section:
    """Make the section."""
    result = record.get("drift")
    if result is None:
        return not_run(
            "drift",
            "Drift since training",
            "fedshift diagnose NEW --since RUN",
            "no new deployment rows were compared.",
        )
    findings = [s["finding"] for s in result["sites"]]
    axis, labels = auc_axis(findings), any(s.get("labels") for s in result["sites"])
    head = [
        Heading("Site"),
        Heading("Verdict"),
        Heading("Earlier against new rows", "plot", scale(axis, title="AUC")),
        *figures("AUC, 95%", "p, adjusted", "Earlier, new rows"),
        Heading("Largest change", "list"),
        *([Heading("Change of class proportions", "figure")] if labels else []),
    ]
    rows = [
        [*_site(s, axis), *([_change(s.get("labels"))] if labels else [])] for s in result["sites"]
    ]
    verdict = result.get("verdict") or ""
    body = join(
        tag("p", tag("strong", ADVICE.get(verdict, verdict or UNKNOWN))),
        table(head, rows, label="Drift of every site", stack=True),
        folded("In words", sentences(result.get("sentences") or [])),
    )
    return Section("drift", "Drift since training", body)


def _site(s: Mapping[str, Any], axis: Axis) -> list[Child]:
    f = s["finding"]
    rules, strong = [Line(0.5, strong=True)], s["verdict"] == "re-estimate"
    most = [named(c["name"], longest=30) for c in s.get("columns") or []][:3]
    return [
        named(s["site"]),
        badge(VERDICTS.get(s["verdict"], "inconclusive"), s["verdict"]),
        *finding_cells(s["site"], f, axis, rules, strong=strong),
        f"{count(f.get('source_rows'))}, {count(f.get('target_rows'))}",
        join(most, between=", ") if most else UNKNOWN,
    ]


def _change(labels: Mapping[str, Any] | None) -> str:
    """Write the total variation between two label distributions."""
    if labels is None:
        return UNKNOWN
    gaps = [
        abs(a - b)
        for a, b in zip(labels["before"], labels["now"], strict=False)
        if known(a) and known(b)
    ]
    return number(sum(gaps) / 2) if gaps else UNKNOWN
