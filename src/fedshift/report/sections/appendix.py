"""The tables that came in, every setting, and the words used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fedshift.report.markup import Child, Html, join, named, shortened, tag
from fedshift.report.parts import Column, Section, folded, sentences, table
from fedshift.report.spell import UNKNOWN, count, share

#: deepest level settings are taken apart to
DEEPEST = 8
#: most classes whose shares are written out
CLASSES = 6

GLOSSARY = {
    "AUC": "How often a classifier that has not seen them ranks a row of one sample above a row "
    "of another. 0.5: they cannot be told apart. 1: never confused.",
    "concept shift": "For the same inputs the labels differ. Weights cannot mend this.",
    "coverage": "The part of the data met in use that training rows can stand for.",
    "covariate shift": "Other inputs occur, labels follow from them as before.",
    "density ratio": "How many times more frequent a row is in use than in training: its weight.",
    "distance": "How far a column moved, 0 to 1: the largest gap between its two distribution "
    "functions, or the share of rows that changed category.",
    "ERM": "Plain federated training: every row counts the same.",
    "ESS, rows that count": "Effective sample size: as many equally weighted rows would give "
    "results as steady as the weighted ones.",
    "FITW": "Weights that make a site's training rows look like its own test rows.",
    "FTW": "Weights that make a site's training rows look like the test rows of all sites.",
    "label shift": "The classes occur in other proportions, rows of one class look the same.",
    "mean, sd": "How far the mean of a column moved, in its standard deviations.",
    "no-harm gate": "Takes a weighted model only if held-out rows show a gain beyond noise.",
    "privacy ladder": "What may leave a site, from nothing (rung 0) to raw rows (rung 5).",
    "test rows": "Rows the model will be used on, labelled or not.",
}


def data(record: Mapping[str, Any]) -> Section:
    """The sites as they were read."""
    head = [
        Column("Site"),
        Column("Training rows", "figure"),
        Column("Test rows", "figure"),
        Column("Columns", "figure"),
        Column("Classes", "figure"),
        Column("Shares of the classes in training"),
    ]
    rows: list[list[Child]] = [
        [
            named(s["site"]),
            count(s.get("train_rows")),
            count(s.get("test_rows")),
            _amount(s.get("columns")),
            _amount(s.get("classes")),
            _law(s.get("train_law") or {}),
        ]
        for s in record["sites"]
    ]
    notes = record.get("notes") or []
    body = join(
        table(head, rows, label="Sites"),
        tag("h3", "Notes on the tables") if notes else None,
        sentences(notes),
    )
    return Section("data", "Data", body)


def _amount(value: Any) -> str:
    return count(len(value) if isinstance(value, list | tuple) else value)


def _law(law: Mapping[str, Any]) -> Child:
    said = [join(named(c, longest=24), f" {share(p)}") for c, p in list(law.items())[:CLASSES]]
    more = [f"and {len(law) - CLASSES:,} more"] if len(law) > CLASSES else []
    return join([*said, *more], between=", ") if said else UNKNOWN


def settings(record: Mapping[str, Any]) -> Section:
    """Everything that was asked for and what ran it."""
    asked = _pairs(record["settings"])
    ran = _pairs(record["environment"])
    body = join(
        folded(f"All settings ({len(asked)})", _two(asked, "Settings")),
        folded(f"Environment ({len(ran)})", _two(ran, "Environment")),
    )
    return Section("settings", "Settings", body)


def _two(pairs: Iterable[tuple[str, Any]], label: str) -> Html:
    head = [Column("Name"), Column("Value")]
    rows: list[list[Child]] = [
        [tag("code", shortened(name, 200)), tag("code", _value(value))] for name, value in pairs
    ]
    return table(head, rows, label=label)


def _pairs(value: Mapping[str, Any], before: str = "", depth: int = 1) -> list[tuple[str, Any]]:
    """Nested settings as dotted names, in their order."""
    out: list[tuple[str, Any]] = []
    for key, inner in value.items():
        name = f"{before}{key}"
        if isinstance(inner, Mapping) and inner and depth < DEEPEST:
            out += _pairs(inner, f"{name}.", depth + 1)
        else:
            out.append((name, inner))
    return out


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return UNKNOWN
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(nested too deeply to show)"


def glossary(record: Mapping[str, Any]) -> Section:
    """The few terms a reader needs."""
    made = [(tag("dt", name), tag("dd", said)) for name, said in GLOSSARY.items()]
    return Section("glossary", "Glossary", tag("dl", made, class_="glossary"))
