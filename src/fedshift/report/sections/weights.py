"""The weights and the ratios behind them: how they spread, and whether they can be believed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.report.drawings import Axis, columns, scatter
from fedshift.report.markup import Child, Html, isolated, named, tag
from fedshift.report.parts import Section, facts, figure_of, not_run
from fedshift.report.spell import count, fixed, known, number, share


def weights(record: Mapping[str, Any]) -> Section:
    """A histogram a site."""
    found = record.get("weights")
    if not found:
        return not_run("weights", "Weights", "fedshift train SITES", "no weights were made.")
    cards = [_spread(site, w) for site, w in found.items()]
    said = tag(
        "p",
        "How much each training row counts. The line marks weight 1, where a row counts as it did "
        "without weights. A few bars far to the right mean that few rows carry the result.",
        class_="note",
    )
    return Section("weights", "Weights", tag("div", said, tag("div", cards, class_="cards small")))


def _spread(site: str, w: Mapping[str, Any]) -> Html:
    bins = w.get("histogram") or {}
    n, ess = w.get("n"), w.get("ess")
    part = f" ({share(ess / n)})" if known(n) and known(ess) and n > 0 else ""
    said = f"{isolated(site)}: weights of {count(n)} training rows, up to {number(w.get('max'))}"
    drawn = (
        columns(bins["edges"], bins["counts"], title=said, rule=1.0)
        if bins.get("counts")
        else tag("p", "No histogram was kept.")
    )
    told: dict[str, Child] = {
        "rows that count": f"{count(ess)} of {count(n)}{part}",
        "mean, largest": f"{number(w.get('mean'))}, {number(w.get('max'))}",
        "coverage": share(w.get("coverage")),
        "changes": w.get("changes") or "–",
    }
    return tag("article", tag("h3", named(site)), drawn, facts(told), class_="card")


def calibration(record: Mapping[str, Any]) -> Section:
    """A plot a site: what the ratio model says against what is."""
    found = {k: v for k, v in (record.get("calibration") or {}).items() if v}
    if not found:
        return not_run(
            "calibration", "Ratio calibration", "fedshift train SITES", "no ratio was checked."
        )
    cards = [_check(site, groups) for site, groups in found.items()]
    said = tag(
        "p",
        "Dots on the line mean that the ratio can be believed; each stands for a group of rows, "
        "larger ones for more rows. Below the line the estimate is too high for those rows, "
        "above it too low.",
        class_="note",
    )
    inner = tag("div", cards, class_="cards small")
    return Section("calibration", "Ratio calibration", tag("div", said, inner))


def _check(site: str, groups: Sequence[Mapping[str, Any]]) -> Html:
    exact = any(known(g.get("exact")) for g in groups)
    across, up = ("estimated", "exact") if exact else ("predicted", "observed")
    points = [
        (float(g[across]), float(g[up]), g.get("n"))
        for g in groups
        if known(g.get(across)) and known(g.get(up))
    ]
    ends = [v for x, y, _ in points for v in (x, y)]
    unit = not exact and all(0 <= v <= 1 for v in ends)
    axis = Axis(0.0, 1.0) if unit else Axis.around(ends, pad=0.08)
    name = "all sites" if site == "all" else site
    title = f"{isolated(name)}: {across} against {up}, {count(len(points), 'group')}"
    labels = (
        ("estimated log ratio →", "↑ exact log ratio")
        if exact
        else ("predicted chance of a test row →", "↑ observed share")
    )
    drawn = tag(
        "div",
        tag("p", labels[1]),
        scatter(points, axis, title=title),
        tag("p", labels[0]),
        class_="axes",
    )
    return tag(
        "article", tag("h3", named(name)), figure_of(drawn, _off(points, exact)), class_="card"
    )


def _off(points: Sequence[tuple[float, float, Any]], exact: bool) -> str:
    """The mean distance from the line in words, each group counting by its rows."""
    rows = [n if known(n) and n > 0 else 1.0 for *_, n in points]
    if not points:
        return "No group has both figures."
    gap = sum(n * abs(x - y) for (x, y, _), n in zip(points, rows, strict=True)) / sum(rows)
    if exact:
        return f"Ratios are off by a factor of {number(math.exp(min(gap, 50.0)))} in the mean."
    return f"Predicted and observed differ by {fixed(gap, 3)} in the mean."
