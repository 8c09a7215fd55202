"""The no-harm evidence: candidates against the model without weights, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshift.report.drawings import Axis, Mark, Rule, scale, strip
from fedshift.report.markup import Child, Html, isolated, join, named, tag
from fedshift.report.parts import (
    Column,
    Section,
    badge,
    figure_of,
    folded,
    model_name,
    not_run,
    ranged,
    table,
)
from fedshift.report.spell import count, finite, known, number, share, span


def gate(record: Mapping[str, Any]) -> Section:
    """The section."""
    found = record.get("gate")
    if found is None:
        return not_run(
            "gate", "No-harm evidence", "fedshift train SITES", "no models were compared."
        )
    every, taken = found["differences"], found["choice"] != found["baseline"]
    body = join(
        tag("p", tag("strong", decision(found)), " ", (reason(found) or "") if taken else ""),
        _candidates(found) if every else tag("p", "Nothing was weighed against it."),
        _refused(found),
        [_by_site(d, found) for d in every if d.get("clients")],
    )
    return Section("gate", "No-harm evidence", body)


def decision(found: Mapping[str, Any]) -> str:
    """What was taken, in a sentence."""
    if found["choice"] == found["baseline"]:
        return "Keep the model without weights."
    return f"Use the weighted model ({isolated(found['choice'])})."


def reason(found: Mapping[str, Any]) -> str | None:
    """Why, in a sentence."""
    taken = [d for d in found["differences"] if d["candidate"] == found["choice"]]
    if not taken:
        said = [f"{isolated(k)}: {why}" for k, why in (found.get("reasons") or {}).items()]
        return f"{'; '.join(said)}." if said else None
    d = taken[0]
    risk, value = finite(d.get("risk")), finite(d.get("value"))
    if not (known(risk) and known(value)):
        return None
    part = f" ({share(value / risk)})" if risk > 0 else ""
    level = found.get("level")
    within = span(d.get("low"), d.get("high"), number)
    return (
        "On held-out training rows, weighted to stand for the data met in use, the loss "
        f"{'falls' if value < 0 else 'rises'} from {number(risk)} to {number(risk + value)}{part}; "
        f"{share(level)} interval of the change {within}."
    )


def _candidates(found: Mapping[str, Any]) -> Html:
    every = found["differences"]
    limits = [_limit(d, found) for d in every]
    values = [v for d in every for v in (d.get("value"), d.get("low"), d.get("high"))]
    axis = Axis.around([*values, *limits, 0.0])
    head = [
        Column("Candidate"),
        Column("Verdict"),
        Column("Change of the loss", "plot", scale(axis, title="Change of the loss")),
        Column(f"Change, {share(found.get('level'))} interval", "figure"),
        Column("Loss without weights", "figure"),
        Column("Rows that count", "figure"),
    ]
    rows = [_candidate(d, found, axis, limit) for d, limit in zip(every, limits, strict=True)]
    said = (
        "Left of the thick line a candidate loses less than the model without weights, on the "
        f"same held-out rows. It is taken if the change lies left{_beyond(found)} and its interval "
        "does not reach the thin line, the harm that is allowed "
        f"({share(found.get('margin'))} of the loss)."
    )
    return figure_of(table(head, rows, label="Candidates", stack=True), said)


def _beyond(found: Mapping[str, Any]) -> str:
    gain = finite(found.get("gain"))
    return f" by at least {number(gain)} standard errors" if known(gain) and gain > 0 else ""


def _limit(d: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    return finite(found.get("margin")) * finite(d.get("risk"))


def _candidate(
    d: Mapping[str, Any], found: Mapping[str, Any], axis: Axis, limit: float
) -> list[Child]:
    taken = d["candidate"] == found["choice"]
    rules = [Rule(0.0, strong=True), *([Rule(limit)] if known(limit) else [])]
    mark = Mark(d.get("value"), d.get("low"), d.get("high"), series=1 if taken else 0)
    said = f"{number(d.get('value'))} {span(d.get('low'), d.get('high'), number)}"
    return [
        model_name(d["candidate"]),
        badge("no shift found", "taken") if taken else badge("cannot tell", "not taken"),
        strip(axis, [mark], title=f"{isolated(d['candidate'])}: {said}", rules=rules),
        ranged(number(d.get("value")), span(d.get("low"), d.get("high"), number)),
        number(d.get("risk")),
        count(d.get("ess")),
    ]


def _refused(found: Mapping[str, Any]) -> Html | None:
    """Why the others were not taken."""
    passed = {d["candidate"] for d in found["differences"] if _passes(d, found)}
    made = [
        tag(
            "li",
            named(name),
            ": ",
            "it passed, and the one taken gains more" if name in passed else why,
            ".",
        )
        for name, why in (found.get("reasons") or {}).items()
        if name != found["choice"]
    ]
    return tag("ul", made, class_="said") if made else None


def _passes(d: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a candidate could have been taken."""
    enough = finite(d.get("ess")) >= finite(found.get("min_ess"))
    gain, error = finite(found.get("gain")), finite(d.get("error"))
    least = gain * error if known(gain) and known(error) else 0.0
    value = finite(d.get("value"))
    return enough and value < 0 and -value >= least and finite(d.get("high")) <= _limit(d, found)


def _by_site(d: Mapping[str, Any], found: Mapping[str, Any]) -> Html:
    clients = d["clients"]
    axis = Axis.around([*(c.get("value") for c in clients.values()), 0.0])
    head = [
        Column("Site"),
        Column("Change of the loss", "plot", scale(axis, title="Change of the loss")),
        Column("Change", "figure"),
        Column("Rows that count", "figure"),
        Column("Held-out rows", "figure"),
    ]
    rows = [
        [
            named(site),
            strip(
                axis,
                [Mark(c.get("value"), series=1)],
                rules=[Rule(0.0, strong=True)],
                title=f"{isolated(site)}: {number(c.get('value'))}",
            ),
            number(c.get("value")),
            count(c.get("ess")),
            count(c.get("n")),
        ]
        for site, c in clients.items()
    ]
    label = f"{d['candidate']}, site by site"
    made = table(head, rows, label=label, stack=True)
    return folded(
        [named(d["candidate"]), ", site by site"], made, open=d["candidate"] == found["choice"]
    )
