"""The last sections: the tables, all settings, and the glossary."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fedshift.report.blocks import Heading, Section, figures, folded, sentences, table
from fedshift.report.format import UNKNOWN, count, share
from fedshift.report.markup import Child, Html, join, named, shortened, tag

#: deepest level of nested settings in the table
DEEPEST = 8
#: most classes whose proportions are listed
CLASSES = 6

GLOSSARY = {
    "AUC": "How often a classifier ranks a held-out row of one sample above a row of the other. "
    "0.5: no difference. 1: complete separation.",
    "concept shift": "For the same inputs the labels differ. Weights cannot correct this.",
    "coverage": "The part of the test distribution that training rows cover.",
    "covariate shift": "The inputs p(x) differ and p(y given x) does not.",
    "density ratio": "How many times more frequent a row is in deployment than in training.",
    "disclosure level": "What may leave a site: from model updates (0) to raw rows (5).",
    "distance": "The change of a column, 0 to 1: the largest gap between its two distribution "
    "functions, or the total variation of its category shares.",
    "ERM": "Plain federated training: every row has the same weight.",
    "ESS": "Effective sample size, (Σw)² / Σw²: the number of equally weighted rows that give "
    "equally precise results.",
    "FITW": "Weights that make a site's training rows represent its own test distribution.",
    "FTW": "Weights that make training rows represent the test distributions of all sites.",
    "joint shift": "The class proportions differ, and so do the inputs within classes.",
    "label shift": "The class proportions p(y) differ and p(x given y) does not.",
    "mean, sd": "The change of a column's mean, in standard deviations.",
    "no-harm test": "Accepts a weighted model only if its loss on held-out rows is lower, with the "
    "whole interval of the difference below zero.",
    "test rows": "Deployment rows: rows that the model will be used on, with or without labels.",
}


def data(record: Mapping[str, Any]) -> Section:
    """Make the section on the sites' tables."""
    head = [
        Heading("Site"),
        *figures("Training rows", "Test rows", "Columns", "Classes"),
        Heading("Class proportions in training"),
    ]
    rows: list[list[Child]] = [
        [
            named(s["site"]),
            count(s.get("train_rows")),
            count(s.get("test_rows")),
            _amount(s.get("columns")),
            _amount(s.get("classes")),
            _shares(s.get("train_distribution") or {}),
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


def _shares(shares: Mapping[str, Any]) -> Child:
    first = list(shares.items())[:CLASSES]
    texts = [join(named(c, longest=24), f" {share(p)}") for c, p in first]
    more = [f"and {len(shares) - CLASSES:,} more"] if len(shares) > CLASSES else []
    return join([*texts, *more], between=", ") if texts else UNKNOWN


def settings(record: Mapping[str, Any]) -> Section:
    """Make the section on settings and environment."""
    values = _pairs(record["settings"])
    ran = _pairs(record["environment"])
    body = join(
        folded(f"All settings ({len(values)})", _two(values, "Settings")),
        folded(f"Environment ({len(ran)})", _two(ran, "Environment")),
    )
    return Section("settings", "Settings", body)


def _two(pairs: Iterable[tuple[str, Any]], label: str) -> Html:
    head = [Heading("Name"), Heading("Value")]
    rows: list[list[Child]] = [
        [tag("code", shortened(name, 200)), tag("code", _value(value))] for name, value in pairs
    ]
    return table(head, rows, label=label)


def _pairs(value: Mapping[str, Any], before: str = "", depth: int = 1) -> list[tuple[str, Any]]:
    """Flatten nested settings to dotted names, in their order."""
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
    """Make the glossary."""
    terms = [(tag("dt", name), tag("dd", text)) for name, text in GLOSSARY.items()]
    return Section("glossary", "Glossary", tag("dl", terms, class_="glossary"))
