"""One screen: the decision, what left the sites, the biggest shift, the gain, what to mind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.report.markup import Child, Html, isolated, join, named, tag
from fedshift.report.scores import Scores
from fedshift.report.sections.gate import decision, reason
from fedshift.report.sections.ledger import RUNGS, Sums, headline, highest
from fedshift.report.sections.shift import main_finding
from fedshift.report.spell import count, fixed, known, listed, number, size, span

#: most warnings shown
WARNINGS = 6


def summary(record: Mapping[str, Any]) -> Html:
    """The head of the page."""
    tiles = [_left(record), _shift(record), _expected(record), _measured(record)]
    minded = warnings(record)
    watch = (
        tag(
            "div",
            tag("h2", "Before you use it"),
            tag("ul", (tag("li", w) for w in minded)),
            class_="watch",
        )
        if minded
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
        return [tag("p", decision(gate), class_="big"), tag("p", reason(gate))]
    said = (record.get("diagnosis") or {}).get("sentences") or []
    advice = said[0] if said else "Nothing was compared yet."
    command = "fedshift train SITES" if said else "fedshift diagnose SITES"
    return [
        tag("p", "Not decided yet.", class_="big"),
        tag("p", f"{advice} ", "Next: ", tag("code", command), "."),
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
    found = record.get("ledger")
    if found is None:
        return _tile("What left the sites", "–", "Nothing was sent or booked.", "#ledger")
    total, top = Sums.of(found), highest(found)
    rung = f"; highest rung {top} of 5: {RUNGS[top]}" if top is not None and 0 <= top <= 5 else ""
    rows = count(total.rows, "row") if total.rows else "No rows"
    return _tile("What left the sites", rows, f"{size(total.up)} sent{rung}.", "#ledger")


def _shift(record: Mapping[str, Any]) -> Html:
    found = record.get("diagnosis")
    if found is None:
        return _tile("Biggest shift", "–", "Sites were not compared.", "#shift")
    moved = [s for s in found["sites"] if s["status"] == "shift"]
    n = len(found["sites"])
    if not moved:
        return _tile(
            "Biggest shift",
            "None found",
            f"Training and test rows of {count(n, 'site')} were compared.",
            "#shift",
        )
    worst = max(moved, key=lambda s: main_finding(s).get("auc") or 0.0)
    auc = fixed(main_finding(worst).get("auc"))
    most = [isolated(c["name"], longest=28) for c in worst.get("columns") or []][:2]
    said = f"{worst['kind']['name']} shift, AUC {auc}" + (f", most in {listed(most)}" * bool(most))
    return _tile(
        "Biggest shift",
        named(worst["site"], longest=28),
        f"{said}. Shift at {len(moved)} of {count(n, 'site')}.",
        "#shift",
    )


def _expected(record: Mapping[str, Any]) -> Html:
    scores = Scores.of(record)
    told = {s: scores.value(r) for s, r in scores.expected.items() if known(scores.value(r))}
    if told:
        worst = (min if scores.measure == "accuracy" else max)(told, key=lambda s: told[s])
        mean = sum(told.values()) / len(told)
        return _tile(
            "Expected in use",
            scores.write(mean),
            [
                f"{scores.name}, mean over sites, without test labels; worst ",
                named(worst, longest=28),
                f" at {scores.write(told[worst])}.",
            ],
            "#effect",
        )
    effect = (record.get("diagnosis") or {}).get("predicted_effect") or {}
    if known(effect.get("gain")):
        word = "lower" if effect["gain"] >= 0 else "higher"
        within = span(effect.get("low"), effect.get("high"), number)
        return _tile(
            "Expected of weights",
            f"{number(abs(effect['gain']), 2)} {word}",
            f"log loss, forecast by a quick linear model; gain {within}.",
            "#sites",
        )
    return _tile("Expected in use", "–", "Nothing was estimated.", "#effect")


def _measured(record: Mapping[str, Any]) -> Html:
    scores = Scores.of(record)
    before, after = scores.means()
    if not known(after):
        why = "No test row has a label." if "evaluation" in record else "Not measured."
        return _tile("Measured", "–", why, "#effect")
    if scores.same:
        return _tile("Measured", scores.write(after), f"{scores.name}, mean over sites.", "#effect")
    worse = len(scores.worse())
    said = (
        f"{scores.name} {scores.write(before)} → {scores.write(after)}, mean over sites; worse at "
    )
    return _tile(
        "Measured",
        scores.change(before, after),
        f"{said}{worse or 'no'} site{'s' * (worse > 1)}.",
        "#effect",
    )


# -- what to mind --------------------------------------------------------------------------------


def warnings(record: Mapping[str, Any]) -> list[Child]:
    """What a careful reader would ask about, most serious first."""
    grave, mild = _of_sites(record)
    found = [*_of_ledger(record), *grave, *_of_effect(record), *_of_drift(record), *mild]
    return found[:WARNINGS]


def _of_ledger(record: Mapping[str, Any]) -> list[Child]:
    found = record.get("ledger") or []
    return [headline(found)] if Sums.of(found).rows else []


def _of_sites(record: Mapping[str, Any]) -> tuple[list[Child], list[Child]]:
    """What weights cannot mend, and what could not be seen."""
    sites = (record.get("diagnosis") or {}).get("sites") or []
    moved = [s for s in sites if s["status"] == "shift"]
    concept = [s for s in moved if s["kind"]["name"] == "concept"]
    poor = [s for s in sites if (s.get("overlap") or {}).get("poor")]
    unseen = [s for s in moved if s["kind"]["name"] == "covariate or concept"]
    silent = [s for s in sites if s["status"] == "cannot tell"]
    grave = _told(concept, "labels differ at the same inputs, which weights cannot mend")
    grave += _told(poor, "weights would rest on few rows or leave part of the test law out")
    mild = _told(
        unseen,
        "inputs moved, and whether labels still follow from them cannot be seen without test "
        "labels; label a few rows",
    )
    return grave, mild + _told(silent, "too few rows to tell whether anything shifted")


def _told(sites: Sequence[Mapping[str, Any]], said: str) -> list[Child]:
    return [join(_names(sites), f": {said}.")] if sites else []


def _names(sites: Sequence[Mapping[str, Any]]) -> Html:
    shown = [tag("strong", named(s["site"])) for s in sites[:4]]
    more = [f"and {len(sites) - 4} more"] if len(sites) > 4 else []
    return join([*shown, *more], between=", ")


def _of_effect(record: Mapping[str, Any]) -> list[Child]:
    scores = Scores.of(record)
    out: list[Child] = []
    worse = scores.worse()
    if worse:
        names = _names([{"site": s} for s in worse])
        out.append(join(names, ": measured worse with the model taken than without weights."))
    inside, n = scores.agreement()
    if n and inside < n:
        out.append(f"The expected figure missed the measured one at {n - inside} of {n} sites.")
    return out


def _of_drift(record: Mapping[str, Any]) -> list[Child]:
    found = (record.get("drift") or {}).get("sites") or []
    moved = [s for s in found if s["verdict"] == "re-estimate"]
    if not moved:
        return []
    return [join(_names(moved), ": the data moved since the weights were made; estimate anew.")]
