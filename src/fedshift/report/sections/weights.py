"""The weights: their distribution over the training rows of each site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshift.report.blocks import Section, facts, not_run
from fedshift.report.drawings import columns
from fedshift.report.format import count, known, number, share
from fedshift.report.markup import Child, Html, isolated, named, tag


def weights(record: Mapping[str, Any]) -> Section:
    """Make a histogram per site."""
    sites = record.get("weights")
    if not sites:
        return not_run("weights", "Weights", "fedshift train SITES", "there are no weights.")
    cards = [_spread(site, w) for site, w in sites.items()]
    note = tag(
        "p",
        "Weights of the training rows. The line marks weight 1, which changes nothing. A few bars "
        "far to the right mean that the result depends on few rows.",
        class_="note",
    )
    return Section("weights", "Weights", tag("div", note, tag("div", cards, class_="cards small")))


def _spread(site: str, w: Mapping[str, Any]) -> Html:
    bins = w.get("histogram") or {}
    n, ess = w.get("n"), w.get("ess")
    part = f" ({share(ess / n)})" if known(n) and known(ess) and n > 0 else ""
    title = f"{isolated(site)}: weights of {count(n)} training rows, up to {number(w.get('max'))}"
    plot = (
        columns(bins["edges"], bins["counts"], title=title, rule=1.0)
        if bins.get("counts")
        else tag("p", "The record has no histogram.")
    )
    values: dict[str, Child] = {
        "effective rows": f"{count(ess)} of {count(n)}{part}",
        "mean, largest": f"{number(w.get('mean'))}, {number(w.get('max'))}",
        "coverage": share(w.get("coverage")),
        "changes": w.get("changes") or "–",
    }
    return tag("article", tag("h3", named(site)), plot, facts(values), class_="card")
