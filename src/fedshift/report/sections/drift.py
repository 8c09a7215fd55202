"""Drift: has the data met in use moved since the weights were made?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshift.report.drawings import Axis, Mark, Rule, scale, strip
from fedshift.report.markup import Child, isolated, join, named, tag
from fedshift.report.parts import Column, Section, badge, folded, not_run, ranged, sentences, table
from fedshift.report.sections.shift import auc_axis
from fedshift.report.spell import UNKNOWN, chance, count, fixed, known, number, span

#: verdicts as badges
VERDICTS = {
    "re-estimate": "shift",
    "keep the weights": "no shift found",
    "cannot tell": "cannot tell",
}
#: what to do
ADVICE = {
    "re-estimate": "Estimate the ratios anew: the data met in use moved.",
    "keep the weights": "Keep the weights: the data met in use did not move beyond what matters.",
    "cannot tell": "Whether the data met in use moved cannot be told at every site.",
}


def drift(record: Mapping[str, Any]) -> Section:
    """The section."""
    found = record.get("drift")
    if found is None:
        return not_run(
            "drift",
            "Drift since the weights were made",
            "fedshift diagnose SITES --since NEW",
            "no later batch was compared.",
        )
    seen = [s["finding"] for s in found["sites"]]
    axis, law = auc_axis(seen), any(s.get("labels") for s in found["sites"])
    head = [
        Column("Site"),
        Column("Verdict"),
        Column("Then against now", "plot", scale(axis, title="AUC")),
        Column("AUC, 95%", "figure"),
        Column("p, adjusted", "figure"),
        Column("Rows then, now", "figure"),
        Column("Moved most", "list"),
        *([Column("Label law moved", "figure")] if law else []),
    ]
    rows = [[*_site(s, axis), *([_moved(s.get("labels"))] if law else [])] for s in found["sites"]]
    verdict = found.get("verdict") or ""
    body = join(
        tag("p", tag("strong", ADVICE.get(verdict, verdict or UNKNOWN))),
        table(head, rows, label="Drift of every site", stack=True),
        folded("In words", sentences(found.get("sentences") or [])),
    )
    return Section("drift", "Drift since the weights were made", body)


def _site(s: Mapping[str, Any], axis: Axis) -> list[Child]:
    f = s["finding"]
    words = f"{fixed(f.get('auc'))} {span(f.get('low'), f.get('high'))}"
    mark = Mark(
        f.get("auc"), f.get("low"), f.get("high"), series=1 if s["verdict"] == "re-estimate" else 0
    )
    most = [named(c["name"], longest=30) for c in s.get("columns") or []][:3]
    return [
        named(s["site"]),
        badge(VERDICTS.get(s["verdict"], "cannot tell"), s["verdict"]),
        strip(
            axis,
            [mark],
            title=f"{isolated(s['site'])}: AUC {words}",
            rules=[Rule(0.5, strong=True)],
        ),
        ranged(fixed(f.get("auc")), span(f.get("low"), f.get("high"))),
        chance(f),
        f"{count(f.get('source_rows'))}, {count(f.get('target_rows'))}",
        join(most, between=", ") if most else UNKNOWN,
    ]


def _moved(law: Mapping[str, Any] | None) -> str:
    """Total variation between two label laws."""
    if law is None:
        return UNKNOWN
    gaps = [
        abs(a - b) for a, b in zip(law["before"], law["now"], strict=False) if known(a) and known(b)
    ]
    return number(sum(gaps) / 2) if gaps else UNKNOWN
