"""Distribution shifts: every comparison with its effect size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.report.blocks import (
    Heading,
    Section,
    badge,
    figures,
    folded,
    not_run,
    ranged,
    sentences,
    table,
)
from fedshift.report.drawings import Axis, Line, Mark, scale, strip
from fedshift.report.format import UNKNOWN, chance, count, finite, fixed, known, span
from fedshift.report.markup import Child, Html, isolated, join, named, tag


def shift(record: Mapping[str, Any]) -> Section:
    """Make the section: tests within sites and between them."""
    diagnosis = record.get("diagnosis")
    if diagnosis is None:
        return not_run("shift", "What shifted", "fedshift diagnose SITES", "nothing was compared.")
    bar = finite(diagnosis.get("smallest"))
    every = [f for c in (*diagnosis["sites"], *diagnosis["between"]) for f in c["findings"]]
    axis = auc_axis(every)
    rules = [Line(0.5, strong=True), *([Line(bar)] if known(bar) else [])]
    body = join(
        tag("h3", "Training rows against test rows, site by site"),
        _comparisons(diagnosis["sites"], axis, rules, "Training against test rows of every site"),
        _between(diagnosis["between"], axis, rules),
        tag("p", _reading(diagnosis), class_="note"),
        _others(diagnosis),
    )
    return Section("shift", "What shifted", body)


def auc_axis(findings: Sequence[Mapping[str, Any]]) -> Axis:
    """Make an axis from ½ to 1, or from slightly below ½ if an interval reaches there."""
    lows = [f.get("low") for f in findings] + [f.get("auc") for f in findings]
    return Axis(min(0.5, max(0.4, min(map(float, filter(known, lows)), default=0.5))), 1.0)


def _between(pairs: Sequence[Any], axis: Axis, rules: Sequence[Line]) -> Html | None:
    if not pairs:
        return None
    tests = _comparisons(pairs, axis, rules, "Training rows of every site against other sites")
    return join(tag("h3", "Training rows between sites"), tests)


def _comparisons(pairs: Sequence[Any], axis: Axis, rules: Sequence[Line], label: str) -> Html:
    head = [
        Heading("Site"),
        Heading("Result"),
        Heading("AUC", "plot", scale(axis, title="AUC, from 0.5 (no difference) to 1")),
        *figures("AUC, 95%", "p, adjusted"),
        Heading("Largest change", "list"),
    ]
    rows = [_comparison(c, axis, rules) for c in pairs]
    return table(head, rows, label=label, stack=True)


def _comparison(c: Mapping[str, Any], axis: Axis, rules: Sequence[Line]) -> list[Child]:
    f = main_finding(c)
    status = badge(c["status"], badge_text(c))
    test = tag("small", f"test: {f['question']}", class_="range")
    most = [named(v["name"], longest=30) for v in c.get("columns") or []][:2]
    return [
        [named(c["site"]), tag("small", " against ", named(c["other"]))],
        [status, test] if known(f.get("auc")) else status,
        *finding_cells(c["site"], f, axis, rules, strong=c["status"] == "shift"),
        join(most, between=", ") if most else UNKNOWN,
    ]


def finding_cells(
    site: str, f: Mapping[str, Any], axis: Axis, rules: Sequence[Line], *, strong: bool
) -> list[Child]:
    """The AUC of a finding as a drawing and as numbers, and its p-value."""
    auc, interval = fixed(f.get("auc")), span(f.get("low"), f.get("high"))
    mark = Mark(f.get("auc"), f.get("low"), f.get("high"), series=1 if strong else 0)
    title = f"{isolated(site)}: AUC {auc} {interval}"
    plot = strip(axis, [mark], title=title, rules=rules)
    return [plot, ranged(auc, interval), chance(f)]


def badge_text(c: Mapping[str, Any]) -> str:
    """Write the shift type for a badge, or the status if there is no shift."""
    name, concept = str(c["shift_type"]["name"]), c["shift_type"].get("concept")
    if c["status"] != "shift":
        return str(c["status"])
    types = [*([] if name in ("none", "inconclusive") else [name]), *(["concept"] * bool(concept))]
    return f"{' and '.join(types)} shift".strip()


def main_finding(c: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the finding that decides the status; of several, the one with the largest AUC."""
    mine = [f for f in c["findings"] if f["status"] == c["status"]] or list(c["findings"])
    none: dict[str, Any] = {"question": UNKNOWN, "status": "inconclusive"}
    return max(mine, key=lambda f: f["auc"] if known(f.get("auc")) else -1.0, default=none)


def _reading(diagnosis: Mapping[str, Any]) -> str:
    tests, alpha, bar = diagnosis.get("tests"), diagnosis.get("alpha"), diagnosis.get("smallest")
    return (
        "AUC is how often a classifier ranks a held-out row of one set above a row of the other: "
        f"0.5 means no difference, 1 complete separation. Below {fixed(bar)} (thin line) a "
        f"difference is too small to matter, even if it is significant. p-values are adjusted for "
        f"{count(tests)} tests. If nothing shifted, the probability of any false alarm is at most "
        f"{fixed(alpha)}."
    )


def _others(diagnosis: Mapping[str, Any]) -> Html | None:
    """List the diagnosis's sentences that are not about a single site."""
    texts = sentences((diagnosis.get("sentences") or [])[1 + len(diagnosis["sites"]) :])
    return folded("In words", texts) if texts else None
