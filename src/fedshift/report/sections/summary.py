"""The first screen: decision, disclosure, largest shift, forecast, measured gain, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.report.format import count, fixed, known, listed, size
from fedshift.report.markup import Child, Html, isolated, join, named, tag
from fedshift.report.scores import Scores
from fedshift.report.sections.gate import decision, reason
from fedshift.report.sections.ledger import DISCLOSURE_LEVELS, Totals, headline, highest
from fedshift.report.sections.shift import badge_text, main_finding
from fedshift.report.site_scores import first_lines

#: most warnings in the summary
WARNINGS = 6


def summary(record: Mapping[str, Any]) -> Html:
    """Make the top of the page."""
    tiles = [_left(record), _shift(record), _expected(record), _measured(record)]
    items = warnings(record)
    watch = (
        tag(
            "div",
            tag("h2", "Before you use it"),
            tag("ul", (tag("li", w) for w in items)),
            class_="watch",
        )
        if items
        else None
    )
    return tag(
        "header",
        tag("p", _facts(record), class_="facts-line"),
        tag("h1", named(record["title"], longest=200)),
        tag("div", _decision(record), class_="decision"),
        tag("div", tiles, class_="tiles"),
        watch,
        class_="summary",
    )


def _facts(record: Mapping[str, Any]) -> Child:
    sites = record["sites"]
    rows = [
        f"{count(sum(s[k] for s in sites if known(s.get(k))))} {word} rows"
        for k, word in (("train_rows", "training"), ("test_rows", "test"))
    ]
    model = record.get("model")
    version = record["environment"].get("fedshift")
    parts: list[Child] = [
        record["created"],
        count(len(sites), "site"),
        *rows,
        join("model: ", named(model)) if model else None,
        f"fedshift {version}" if isinstance(version, str) else None,
    ]
    return join([p for p in parts if p is not None], between=" · ")


def _decision(record: Mapping[str, Any]) -> Child:
    gate = record.get("gate")
    if gate is not None:
        more = [tag("p", text) for text in first_lines(record, isolated)]
        return [tag("p", decision(gate), class_="big"), tag("p", reason(gate)), *more]
    if record.get("diagnosis") is None:
        command, purpose = "fedshift diagnose SITES", "compares the sites"
    else:
        command = "fedshift train SITES"
        purpose = "uses weights only if they help on held-out rows"
    return [
        tag("p", "Not decided yet.", class_="big"),
        tag("p", "Next: ", tag("code", command), f" {purpose}."),
    ]


def _tile(title: str, big: Child, small: Child, href: str) -> Html:
    return tag(
        "a",
        tag("span", title, class_="what"),
        tag("strong", big),
        tag("span", small),
        href=href,
        class_="tile",
    )


def _left(record: Mapping[str, Any]) -> Html:
    entries = record.get("ledger")
    if entries is None:
        return _tile("What left the sites", "–", "Nothing was sent.", "#ledger")
    total, top = Totals.of(entries), highest(entries)
    disclosure_level = (
        f"; highest disclosure level {top} of 5: {DISCLOSURE_LEVELS[top]}"
        if top is not None and 0 <= top <= 5
        else ""
    )
    rows = count(total.rows, "row") if total.rows else "No rows"
    return _tile(
        "What left the sites", rows, f"{size(total.up)} sent{disclosure_level}.", "#ledger"
    )


def _shift(record: Mapping[str, Any]) -> Html:
    diagnosis = record.get("diagnosis")
    if diagnosis is None:
        return _tile("Largest shift", "–", "Sites were not compared.", "#shift")
    shifted = [s for s in diagnosis["sites"] if s["status"] == "shift"]
    n = len(diagnosis["sites"])
    if not shifted:
        return _tile(
            "Largest shift",
            "None found",
            f"Training and test rows of {count(n, 'site')} were compared.",
            "#shift",
        )
    worst = max(shifted, key=lambda s: main_finding(s).get("auc") or 0.0)
    auc = fixed(main_finding(worst).get("auc"))
    most = [isolated(c["name"], longest=28) for c in worst.get("columns") or []][:2]
    text = f"{badge_text(worst)}, AUC {auc}" + (f", largest change in {listed(most)}" * bool(most))
    return _tile(
        "Largest shift",
        named(worst["site"], longest=28),
        f"{text}. Shift at {len(shifted)} of {count(n, 'site')}.",
        "#shift",
    )


def _expected(record: Mapping[str, Any]) -> Html:
    scores = Scores.of(record)
    values = {s: scores.value(r) for s, r in scores.expected.items() if known(scores.value(r))}
    if values:
        worst = (min if scores.measure == "accuracy" else max)(values, key=lambda s: values[s])
        mean = sum(values.values()) / len(values)
        return _tile(
            "Forecast",
            scores.write(mean),
            [
                f"{scores.name}, mean over sites, without test labels; worst ",
                named(worst, longest=28),
                f" at {scores.write(values[worst])}.",
            ],
            "#effect",
        )
    return _tile("Forecast", "–", "There is no forecast.", "#effect")


def _measured(record: Mapping[str, Any]) -> Html:
    scores = Scores.of(record)
    before, after = scores.means()
    if not known(after):
        why = "No test row has a label." if "evaluation" in record else "Not measured."
        return _tile("Measured", "–", why, "#effect")
    if scores.same:
        return _tile("Measured", scores.write(after), f"{scores.name}, mean over sites.", "#effect")
    worse = len(scores.worse())
    text = (
        f"{scores.name} {scores.write(before)} → {scores.write(after)}, mean over sites; worse at "
    )
    return _tile(
        "Measured",
        scores.change(before, after),
        f"{text}{worse or 'no'} site{'s' * (worse > 1)}.",
        "#effect",
    )


# -- warnings ------------------------------------------------------------------------------------


def warnings(record: Mapping[str, Any]) -> list[Child]:
    """List the warnings, most serious first."""
    grave, mild = _of_sites(record)
    items = [*_of_ledger(record), *grave, *_of_effect(record), *_of_drift(record), *mild]
    return items[:WARNINGS]


def _of_ledger(record: Mapping[str, Any]) -> list[Child]:
    entries = record.get("ledger") or []
    return [headline(entries)] if Totals.of(entries).rows else []


def _of_sites(record: Mapping[str, Any]) -> tuple[list[Child], list[Child]]:
    """List warnings about sites: what weights cannot correct, then what evidence is missing."""
    sites = (record.get("diagnosis") or {}).get("sites") or []
    shifted = [s for s in sites if s["status"] == "shift"]
    concept = [s for s in shifted if s["shift_type"].get("concept")]
    poor = [s for s in sites if (s.get("overlap") or {}).get("poor")]
    unlabelled = [s for s in shifted if s["shift_type"].get("concept", False) is None]
    few = [s for s in sites if s["status"] == "inconclusive"]
    grave = _warning(concept, "labels differ at the same inputs, which weights cannot correct")
    grave += _warning(poor, "weights would depend on few rows or miss part of the test data")
    mild = _warning(
        unlabelled,
        "the inputs shifted, and without test labels it is unknown whether p(y given x) stayed "
        "the same; label a few rows",
    )
    return grave, mild + _warning(few, "too few rows to test for a shift")


def _warning(sites: Sequence[Mapping[str, Any]], text: str) -> list[Child]:
    return [join(_names(sites), f": {text}.")] if sites else []


def _names(sites: Sequence[Mapping[str, Any]]) -> Html:
    names = [tag("strong", named(s["site"])) for s in sites[:4]]
    more = [f"and {len(sites) - 4} more"] if len(sites) > 4 else []
    return join([*names, *more], between=", ")


def _of_effect(record: Mapping[str, Any]) -> list[Child]:
    scores = Scores.of(record)
    out: list[Child] = []
    worse = scores.worse()
    if worse:
        names = _names([{"site": s} for s in worse])
        out.append(join(names, ": the chosen model is worse than the one without weights."))
    inside, n = scores.agreement()
    if n and inside < n:
        out.append(f"The forecast interval misses the measured score at {n - inside} of {n} sites.")
    return out


def _of_drift(record: Mapping[str, Any]) -> list[Child]:
    sites = (record.get("drift") or {}).get("sites") or []
    shifted = [s for s in sites if s["verdict"] == "re-estimate"]
    if not shifted:
        return []
    return [join(_names(shifted), ": the data shifted since training; re-estimate the weights.")]
