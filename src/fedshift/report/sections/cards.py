"""A card per site: its shift type, the columns that changed, and the overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.report.blocks import Section, badge, bars, facts, not_run, sentences
from fedshift.report.drawings import bar
from fedshift.report.format import chance, count, finite, fixed, known, number, share, signed, span
from fedshift.report.markup import Child, Html, isolated, named, tag
from fedshift.report.sections.shift import badge_text, main_finding

#: most columns and classes on a card
COLUMNS, CLASSES = 8, 8


def cards(record: Mapping[str, Any]) -> Section:
    """Make a card per site."""
    d = record.get("diagnosis")
    if d is None:
        return not_run("sites", "Site by site", "fedshift diagnose SITES", "no site was tested.")
    sites = {s["site"]: s for s in record["sites"]}
    estimates = (record.get("label_distributions") or {}).get("test") or {}
    cards = [_card(s, sites.get(s["site"], {}), estimates.get(s["site"])) for s in d["sites"]]
    return Section("sites", "Site by site", tag("div", cards, class_="cards"))


def _card(s: Mapping[str, Any], site: Mapping[str, Any], estimate: Sequence[Any] | None) -> Html:
    shift_type, tested = s["shift_type"], s["status"] in ("shift", "inconclusive")
    f = main_finding(s)
    size = f"AUC {fixed(f.get('auc'))} {span(f.get('low'), f.get('high'))}"
    rows = f"{count(s.get('train_rows'))} training, {count(s.get('test_rows'))} test rows"
    return tag(
        "article",
        tag("header", tag("h3", named(s["site"])), tag("p", rows)),
        tag(
            "p",
            badge(s["status"], badge_text(s)),
            " ",
            tag("span", size, class_="size") if known(f.get("auc")) else None,
        ),
        _questions(s["findings"]),
        tag("p", _sentence(shift_type.get("meaning") or ""), class_="meaning") if tested else None,
        _shares(site, estimate or []),
        _columns(s.get("columns") or []),
        _overlap(s.get("overlap") or {}, s.get("train_rows")),
        sentences(site.get("notes") or []),
        class_="card",
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}." if text else text


def _questions(findings: Sequence[Mapping[str, Any]]) -> Child:
    """List all tests, if there are several."""
    if len(findings) < 2:
        return None
    return facts(
        {
            f["question"]: f"{f['status']}, AUC {fixed(f.get('auc'))}, p {chance(f)}"
            for f in findings
        }
    )


def _shares(site: Mapping[str, Any], estimate: Sequence[Any]) -> Child:
    """List the class proportions in training and their estimates in deployment."""
    train = site.get("train_distribution") or {}
    now = dict(zip(site.get("classes") or [], estimate, strict=False))
    if len(train) < 2 or not set(train) & set(now):
        return None
    order = sorted(train, key=lambda c: -abs(finite(train[c], 0.0) - finite(now.get(c), 0.0)))
    rows = [
        (
            named(c, longest=28),
            bar(now.get(c), title=f"{isolated(c)}: about {share(now.get(c))} in deployment"),
            [share(train[c]), "→", share(now.get(c))],
        )
        for c in order[:CLASSES]
    ]
    rest = len(order) - CLASSES
    more = tag("p", f"and {count(rest, 'class', 'classes')}", class_="more") if rest > 0 else None
    return [
        bars(rows, ("Classes", "training", "", "deployment (estimate)")),
        more,
    ]


def _columns(columns: Sequence[Mapping[str, Any]]) -> Child:
    if not columns:
        return None
    most = sorted(columns, key=lambda c: -finite(c.get("distance"), 0.0))[:COLUMNS]
    rows = [
        (
            named(c["name"], longest=36),
            bar(c.get("distance"), series=1, title=f"{isolated(c['name'])}: {_change(c)}"),
            [fixed(c.get("distance")), signed(c.get("difference"))],
        )
        for c in most
    ]
    rest = len(columns) - COLUMNS
    more = tag("p", f"and {count(rest, 'column')} with smaller changes", class_="more")
    table = bars(rows, ("Columns that changed most", "distance", "mean, sd"))
    return [table, more if rest > 0 else None]


def _change(c: Mapping[str, Any]) -> str:
    return f"distance {fixed(c.get('distance'))}, adjusted p {number(c.get('adjusted'), 2)}"


def _overlap(o: Mapping[str, Any], rows: Any) -> Child:
    head = tag("h4", "Overlap")
    if o.get("reason") or not known(o.get("ess")):
        return [head, tag("p", f"Unknown: {o.get('reason') or 'not measured'}.")]
    parts = {
        "effective training rows": (o.get("share"), f"{count(o['ess'])} of {count(rows)}"),
        "test distribution covered": (o.get("coverage"), share(o.get("coverage"))),
        "test rows without similar training rows": (o.get("outside"), share(o.get("outside"))),
    }
    table = bars(
        (name, bar(part, title=f"{name}: {text}"), [text]) for name, (part, text) in parts.items()
    )
    largest = f"Largest density ratio at a training row: {number(o.get('largest'))}."
    poor = "Weights would depend on few rows or miss part of the test distribution."
    return [
        head,
        table,
        tag("p", largest, class_="more"),
        tag("p", badge("shift", "poor overlap"), f" {poor}") if o.get("poor") else None,
    ]
