"""The no-harm test: weighted models against the model without weights, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshift.report.blocks import (
    Heading,
    Section,
    badge,
    figure_of,
    figures,
    folded,
    model_name,
    not_run,
    ranged,
    table,
)
from fedshift.report.drawings import Axis, Line, Mark, scale, strip
from fedshift.report.format import count, finite, known, number, share, span
from fedshift.report.markup import Child, Html, isolated, join, named, tag


def gate(record: Mapping[str, Any]) -> Section:
    """Make the section."""
    test = record.get("gate")
    if test is None:
        return not_run("gate", "No-harm test", "fedshift train SITES", "no models were compared.")
    every, weighted = test["differences"], test["choice"] != test["baseline"]
    body = join(
        tag("p", tag("strong", decision(test)), " ", (reason(test) or "") if weighted else ""),
        _candidates(test) if every else tag("p", "There was no weighted candidate."),
        _refused(test),
        [_by_site(d, test) for d in every if d.get("clients")],
    )
    return Section("gate", "No-harm test", body)


def decision(test: Mapping[str, Any]) -> str:
    """Write the decision in a sentence."""
    if test["choice"] == test["baseline"]:
        return "Keep the model without weights."
    against = f", against the diagnosis: {test['objection']}" if test.get("objection") else ""
    return f"Use the weighted model ({isolated(test['choice'])}){against}."


def reason(test: Mapping[str, Any]) -> str | None:
    """Write the reason of the decision in a sentence."""
    chosen = [d for d in test["differences"] if d["candidate"] == test["choice"]]
    if not chosen:
        reasons = [f"{isolated(k)}: {why}" for k, why in (test.get("reasons") or {}).items()]
        return f"{'; '.join(reasons)}." if reasons else None
    d = chosen[0]
    risk, value = finite(d.get("risk")), finite(d.get("value"))
    if not (known(risk) and known(value)):
        return None
    part = f" ({share(value / risk)})" if risk > 0 else ""
    level = test.get("level")
    within = span(d.get("low"), d.get("high"), number)
    return (
        "On held-out training rows, weighted to represent the deployment data, the loss "
        f"{'falls' if value < 0 else 'rises'} from {number(risk)} to {number(risk + value)}{part}; "
        f"{share(level)} interval of the change {within}."
    )


def _candidates(test: Mapping[str, Any]) -> Html:
    every = test["differences"]
    values = [v for d in every for v in (d.get("value"), d.get("low"), d.get("high"))]
    axis, level = Axis.around([*values, 0.0]), share(test.get("level"))
    head = [
        Heading("Candidate"),
        Heading("Decision"),
        Heading("Change of the loss", "plot", scale(axis, title="Change of the loss")),
        *figures(f"Change, {level} interval", "Loss without weights", "Effective rows"),
    ]
    rows = [_candidate(d, test, axis) for d in every]
    caption = (
        "The dot is the change of the loss against the model without weights on the same held-out "
        "rows, the bar its interval, the thick line no change."
    )
    if "margin" not in test:  # records of 608c509 have another rule
        caption += " A candidate is accepted if its whole bar is left of the line."
    return figure_of(table(head, rows, label="Candidates", stack=True), caption)


def _candidate(d: Mapping[str, Any], test: Mapping[str, Any], axis: Axis) -> list[Child]:
    chosen = d["candidate"] == test["choice"]
    rules = [Line(0.0, strong=True)]
    mark = Mark(d.get("value"), d.get("low"), d.get("high"), series=1 if chosen else 0)
    text = f"{number(d.get('value'))} {span(d.get('low'), d.get('high'), number)}"
    return [
        model_name(d["candidate"]),
        badge("no shift found", "chosen") if chosen else badge("inconclusive", "not chosen"),
        strip(axis, [mark], title=f"{isolated(d['candidate'])}: {text}", rules=rules),
        ranged(number(d.get("value")), span(d.get("low"), d.get("high"), number)),
        number(d.get("risk")),
        count(d.get("ess")),
    ]


def _refused(test: Mapping[str, Any]) -> Html | None:
    """List why the other candidates were not chosen."""
    passed = {d["candidate"] for d in test["differences"] if _passes(d, test)}
    items = [
        tag(
            "li",
            named(name),
            ": ",
            "it passed, but the chosen model gains more" if name in passed else why,
            ".",
        )
        for name, why in (test.get("reasons") or {}).items()
        if name != test["choice"]
    ]
    return tag("ul", items, class_="sentences") if items else None


def _passes(d: Mapping[str, Any], test: Mapping[str, Any]) -> bool:
    """Whether a candidate passes the test."""
    return finite(d.get("high")) < 0 and finite(d.get("ess")) >= finite(test.get("min_ess"))


def _by_site(d: Mapping[str, Any], test: Mapping[str, Any]) -> Html:
    clients = d["clients"]
    axis = Axis.around([*(c.get("value") for c in clients.values()), 0.0])
    head = [
        Heading("Site"),
        Heading("Change of the loss", "plot", scale(axis, title="Change of the loss")),
        *figures("Change", "Effective rows", "Held-out rows"),
    ]
    rows = [
        [
            named(site),
            strip(
                axis,
                [Mark(c.get("value"), series=1)],
                rules=[Line(0.0, strong=True)],
                title=f"{isolated(site)}: {number(c.get('value'))}",
            ),
            number(c.get("value")),
            count(c.get("ess")),
            count(c.get("n")),
        ]
        for site, c in clients.items()
    ]
    label = f"{d['candidate']}, site by site"
    rows_by_site = table(head, rows, label=label, stack=True)
    return folded(
        [named(d["candidate"]), ", site by site"],
        rows_by_site,
        open=d["candidate"] == test["choice"],
    )
