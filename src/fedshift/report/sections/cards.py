"""A card a site: what shifted there, in which columns, and how many rows can stand for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedshift.report.drawings import bar
from fedshift.report.markup import Child, Html, isolated, join, named, tag
from fedshift.report.parts import Section, badge, bars, facts, not_run, sentences
from fedshift.report.sections.shift import kind_of, main_finding
from fedshift.report.spell import chance, count, finite, fixed, known, number, share, signed, span

#: most columns and classes shown on a card
COLUMNS, CLASSES = 8, 8

#: the forecast for a site in words
FORECAST = {
    "helps": "Weights should help here",
    "does not matter": "Weights should not matter here",
    "hurts": "Weights should do harm here",
    "cannot tell": "Whether weights help here cannot be told",
}


def cards(record: Mapping[str, Any]) -> Section:
    """All sites."""
    found = record.get("diagnosis")
    if found is None:
        return not_run("sites", "Site by site", "fedshift diagnose SITES", "no site was examined.")
    told = {s["site"]: s for s in record["sites"]}
    made = [
        _card(s, told.get(s["site"], {}), _sentence(found, k), found.get("classes") or [])
        for k, s in enumerate(found["sites"])
    ]
    return Section("sites", "Site by site", tag("div", made, class_="cards"))


def _sentence(found: Mapping[str, Any], k: int) -> str | None:
    """What the diagnosis says of its k-th site: the outcome comes first, then site after site."""
    said = found.get("sentences") or []
    site = found["sites"][k]["site"]
    return said[k + 1] if k + 1 < len(said) and said[k + 1].startswith(site) else None


def _card(
    s: Mapping[str, Any], told: Mapping[str, Any], sentence: str | None, classes: Sequence[str]
) -> Html:
    kind = s["kind"]
    shifted = s["status"] == "shift"
    f = main_finding(s)
    size = f"AUC {fixed(f.get('auc'))} {span(f.get('low'), f.get('high'))}"
    rows = f"{count(s.get('train_rows'))} training, {count(s.get('test_rows'))} test rows"
    return tag(
        "article",
        tag("header", tag("h3", named(s["site"])), tag("p", rows)),
        tag(
            "p",
            badge(s["status"], kind_of(s)),
            " ",
            tag("span", size, class_="size") if known(f.get("auc")) else None,
        ),
        _asked(s["findings"]),
        tag("p", _ended(kind.get("meaning") or ""), class_="meaning") if shifted else None,
        _laws(told, kind.get("label_law"), classes),
        _columns(s.get("columns") or []),
        _overlap(s.get("overlap") or {}, s.get("train_rows")),
        tag("p", _forecast(s.get("predicted_effect") or {}), class_="forecast"),
        tag("details", tag("summary", "In one sentence"), tag("p", sentence)) if sentence else None,
        sentences(told.get("notes") or []),
        class_="card",
    )


def _ended(said: str) -> str:
    return said if not said or said.endswith(".") else f"{said}."


def _asked(findings: Sequence[Mapping[str, Any]]) -> Child:
    """Every question, where there was more than one."""
    if len(findings) < 2:
        return None
    return facts(
        {
            f["question"]: f"{f['status']}, AUC {fixed(f.get('auc'))}, p {chance(f)}"
            for f in findings
        }
    )


def _laws(told: Mapping[str, Any], law: Sequence[Any] | None, classes: Sequence[str]) -> Child:
    """Shares of the classes in training and, where they were estimated, in use."""
    train = told.get("train_law") or {}
    now = _by_class(law or [], classes, told.get("classes"))
    if len(train) < 2 or not set(train) & set(now):
        return None
    moved = sorted(train, key=lambda c: -abs(finite(train[c], 0.0) - finite(now.get(c), 0.0)))
    rows = [
        (
            named(c, longest=28),
            bar(now.get(c), title=f"{isolated(c)}: {share(now.get(c))} in use"),
            [share(train[c]), "→", share(now.get(c))],
        )
        for c in moved[:CLASSES]
    ]
    rest = len(moved) - CLASSES
    more = tag("p", f"and {count(rest, 'class', 'classes')}", class_="more") if rest > 0 else None
    return [bars(rows, ("Classes", "training", "", "in use")), more]


def _by_class(law: Sequence[Any], classes: Sequence[str], names: Any) -> dict[str, Any]:
    """Shares by the names the site gives its classes; a diagnosis may only know their numbers."""
    words = names if isinstance(names, list | tuple) else []
    told = [str(words[int(c)]) if c.isdecimal() and int(c) < len(words) else c for c in classes]
    return dict(zip(told, law, strict=False))


def _columns(columns: Sequence[Mapping[str, Any]]) -> Child:
    if not columns:
        return None
    most = sorted(columns, key=lambda c: -finite(c.get("distance"), 0.0))[:COLUMNS]
    rows = [
        (
            named(c["name"], longest=36),
            bar(c.get("distance"), series=1, title=f"{isolated(c['name'])}: {_moved(c)}"),
            [fixed(c.get("distance")), signed(c.get("difference"))],
        )
        for c in most
    ]
    rest = len(columns) - COLUMNS
    more = tag("p", f"and {count(rest, 'column')} that moved less", class_="more")
    made = bars(rows, ("Columns that moved most", "distance", "mean, sd"))
    return [made, more if rest > 0 else None]


def _moved(c: Mapping[str, Any]) -> str:
    return f"distance {fixed(c.get('distance'))}, adjusted p {number(c.get('adjusted'), 2)}"


def _overlap(o: Mapping[str, Any], rows: Any) -> Child:
    head = tag("h4", "Overlap")
    if o.get("reason") or not known(o.get("ess")):
        return [head, tag("p", f"Cannot be told: {o.get('reason') or 'not measured'}.")]
    said = {
        "training rows that count": (o.get("share"), f"{count(o['ess'])} of {count(rows)}"),
        "test law they stand for": (o.get("coverage"), share(o.get("coverage"))),
        "test rows out of reach": (o.get("outside"), share(o.get("outside"))),
    }
    made = bars(
        (name, bar(part, title=f"{name}: {words}"), [words]) for name, (part, words) in said.items()
    )
    largest = f"Largest ratio at a training row: {number(o.get('largest'))}."
    poor = "Weights would rest on few rows or leave part of the test law out."
    return [
        head,
        made,
        tag("p", largest, class_="more"),
        tag("p", badge("shift", "poor overlap"), f" {poor}") if o.get("poor") else None,
    ]


def _forecast(effect: Mapping[str, Any]) -> Html:
    said = FORECAST.get(effect.get("verdict", ""), FORECAST["cannot tell"])
    gain = effect.get("gain")
    if not known(gain) or (gain == 0 and effect.get("low") == 0):
        return join(tag("strong", said), ".")
    word = "lower" if gain >= 0 else "higher"
    return join(
        tag("strong", said),
        f". Forecast: log loss {number(abs(gain), 2)} {word}; gain "
        f"{span(effect.get('low'), effect.get('high'), partial(number, digits=2))}.",
    )
