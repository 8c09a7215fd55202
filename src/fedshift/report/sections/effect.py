"""Before and after: every site's figure without and with weights, expected and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedshift.report.drawings import Axis, Mark, key, scale, strip
from fedshift.report.markup import Child, Html, isolated, join, named, tag
from fedshift.report.parts import (
    Column,
    Section,
    figure_of,
    legend,
    measure,
    not_run,
    ranged,
    sentences,
    sites_of,
    table,
)
from fedshift.report.spell import UNKNOWN, count, finite, known, listed, number, share, signed, span

#: names of models and what they stand for
MODELS = {
    "erm": "no weights",
    "ftw": "weighted for all sites' test data",
    "fitw": "weighted for each site's own test data",
    "label": "weighted by label",
    "covariate": "weighted by input",
}


@dataclass(frozen=True)
class Scores:
    """What was measured and expected of every site, with the words for it."""

    measure: str
    before: Mapping[str, Mapping[str, Any]]
    after: Mapping[str, Mapping[str, Any]]
    expected: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Scores:
        """From a record; what is missing is empty."""
        made = record.get("evaluation") or {}
        parts = [made.get("erm") or [], made.get("chosen") or [], record.get("expected") or []]
        name = measure(r for part in parts for r in part)
        before, after = ({r["client"]: r for r in part} for part in parts[:2])
        return cls(name, before, after, {r["site"]: r for r in parts[2]})

    def value(self, row: Mapping[str, Any] | None) -> float:
        """The figure of a row; NaN where there is none."""
        return finite((row or {}).get(self.measure))

    def write(self, value: Any) -> str:
        """A figure in words."""
        return share(value, 1) if self.measure == "accuracy" else number(value)

    def tick(self, value: float) -> str:
        """A figure on an axis."""
        return share(value) if self.measure == "accuracy" else number(value)

    def told(self, row: Mapping[str, Any] | None) -> tuple[str, str]:
        """A figure and its interval."""
        if row is None or not known(self.value(row)):
            return UNKNOWN, ""
        return self.write(self.value(row)), span(row.get("low"), row.get("high"), self.write)

    def change(self, before: float, after: float) -> str:
        """What weights changed: points of accuracy, or per cent of the mse."""
        if not (known(before) and known(after)):
            return UNKNOWN
        by = after - before
        if self.measure == "accuracy":
            return f"{signed(100 * by, 1)} points"
        return f"{signed(100 * by / before, 0)}%" if before else signed(by, 3)

    def means(self) -> tuple[float, float]:
        """Before and after, over sites that have both; each counts the same."""
        pairs = [
            (self.value(row), self.value(self.after.get(site))) for site, row in self.before.items()
        ]
        pairs = [p for p in pairs if known(p[0]) and known(p[1])]
        n = len(pairs)
        if not n:
            return float("nan"), float("nan")
        return sum(a for a, _ in pairs) / n, sum(b for _, b in pairs) / n

    def worse(self) -> list[str]:
        """Sites at which the model that was taken did worse than the one without weights."""
        sign = 1 if self.measure == "accuracy" else -1
        return [
            site
            for site, row in self.before.items()
            if sign * (self.value(self.after.get(site)) - self.value(row)) < 0
        ]


def effect(record: Mapping[str, Any]) -> Section:
    """The section."""
    scores = Scores.of(record)
    if not (scores.before or scores.after or scores.expected):
        what = "nothing was trained or measured."
        if "evaluation" in record:
            what = "there are no test labels to measure with, and nothing was estimated."
        return not_run("effect", "Before and after", "fedshift train SITES", what)
    sites = _all_sites(record, scores)
    same = record.get("choice") == _baseline(record)
    axis = _axis(scores)
    rows = [_row(site, scores, axis, same) for site in sites]
    body = join(
        tag("p", _lead(record, scores, same)),
        figure_of(
            [_legend(scores, record, same), _table(scores, rows, axis, same)],
            _caption(scores, same),
        ),
        sentences(_notes(scores)),
    )
    return Section("effect", "Before and after", body)


def model_name(name: str) -> Html:
    """A model's name and what it stands for."""
    said = MODELS.get(name.lower())
    return join(named(name), tag("small", f" {said}") if said else None)


def _baseline(record: Mapping[str, Any]) -> str:
    return str((record.get("gate") or {}).get("baseline", "erm"))


def _all_sites(record: Mapping[str, Any], scores: Scores) -> list[str]:
    known_sites = [*sites_of(record), *scores.before, *scores.after, *scores.expected]
    some = {*scores.before, *scores.after, *scores.expected}
    return [s for s in dict.fromkeys(known_sites) if s in some]


def _axis(scores: Scores) -> Axis:
    rows = [r for part in (scores.before, scores.after, scores.expected) for r in part.values()]
    values = [v for r in rows for v in (scores.value(r), r.get("low"), r.get("high"))]
    axis = Axis.around(values)
    if scores.measure == "accuracy":
        return Axis(max(0.0, axis.low), min(1.0, axis.high))
    return Axis(max(0.0, axis.low), axis.high)


def _row(site: str, scores: Scores, axis: Axis, same: bool) -> list[Child]:
    before, after = scores.before.get(site), scores.after.get(site)
    expected = scores.expected.get(site)
    parts = [] if same else [(before, 0, "before")]
    parts += [(after or (before if same else None), 1, "after"), (expected, 2, "expected")]
    marks = [
        Mark(scores.value(row), row.get("low"), row.get("high"), series=k, hollow=k == 2)
        for row, k, _ in parts
        if row is not None
    ]
    said = ", ".join(
        " ".join((word, *scores.told(row))) for row, _, word in parts if row is not None
    )
    return [
        named(site),
        strip(axis, marks, title=f"{isolated(site)}: {said}"),
        *([] if same else [ranged(*scores.told(before))]),
        ranged(*scores.told(after or before)),
        *([] if same else [_change(scores, scores.value(before), scores.value(after))]),
        ranged(*scores.told(expected)),
        count((after or before or {}).get("n")),
    ]


def _change(scores: Scores, before: float, after: float) -> Child:
    said = scores.change(before, after)
    if said == UNKNOWN or before == after:
        return said if said == UNKNOWN else tag("span", "no change", class_="dull")
    better = (after > before) == (scores.measure == "accuracy")
    word = "better" if better else "worse"
    return tag("span", ranged(said, word), class_="good" if better else "bad")


def _table(scores: Scores, rows: Sequence[Sequence[Child]], axis: Axis, same: bool) -> Html:
    head = [
        Column("Site"),
        Column(
            scores.measure.replace("mse", "MSE").replace("acc", "Acc"),
            "plot",
            scale(axis, title=f"Scale of {scores.measure}", write=scores.tick),
        ),
        *([] if same else [Column("Before", "figure")]),
        Column("Measured" if same else "After", "figure"),
        *([] if same else [Column("Change", "figure")]),
        Column("Expected", "figure"),
        Column("Labelled rows", "figure"),
    ]
    before, after = scores.means()
    last: list[Child] | None = None
    if known(before) and len(rows) > 1:
        marks = [Mark(after, series=1)] if same else [Mark(before), Mark(after, series=1)]
        last = ["Mean over sites", strip(axis, marks, title=f"Mean: {scores.write(after)}")]
        last += [] if same else [scores.write(before)]
        last += [scores.write(after)]
        last += [] if same else [_change(scores, before, after)]
        last += ["", ""]
    return table(head, rows, label=f"{scores.measure} of every site", last=last, stack=True)


def _legend(scores: Scores, record: Mapping[str, Any], same: bool) -> Html:
    chosen = str(record.get("choice") or "the model taken")
    entries = [] if same else [(key(0), "before: no weights")]
    if scores.after or same:
        entries += [(key(1), "measured" if same else f"after: {isolated(chosen)}")]
    if scores.expected:
        entries += [(key(2, hollow=True), "expected before deployment, without test labels")]
    return legend(*entries)


def _lead(record: Mapping[str, Any], scores: Scores, same: bool) -> Child:
    if not (scores.before or scores.after):
        why = "Nothing was measured"
        if "evaluation" in record:
            why = "No test row has a label, so nothing could be measured"
        return f"{why}; what follows are estimates made without test labels."
    before, after = scores.means()
    if same:
        return "The model without weights was kept, so before and after are the same."
    worse = scores.worse()
    name = scores.measure.replace("mse", "MSE")
    said = (
        f"Mean {name} over {count(len(scores.before), 'site')}: {scores.write(before)} without "
        f"weights, {scores.write(after)} with the model taken ({scores.change(before, after)}). "
    )
    return said + (
        f"Worse at {', '.join(isolated(s) for s in worse[:5])}"
        f"{f' and {len(worse) - 5} more' if len(worse) > 5 else ''}."
        if worse
        else "Worse at no site."
    )


def _caption(scores: Scores, same: bool) -> str:
    said = "Shapes are figures on each site's own test rows, lines their 95% intervals. "
    if scores.before and scores.after and not same:
        said += (
            "Both models are measured on the same rows, so intervals may overlap although a "
            "difference is real; the no-harm evidence compares them row by row. "
        )
    inside, n = agreement(scores)
    if n:
        said += f"The measured figure lies within the expected interval at {inside} of {n} sites."
    return said


def _notes(scores: Scores) -> list[str]:
    """What was said of the estimates, once for all sites of which it was said."""
    sites: dict[str, list[str]] = {}
    for site, row in scores.expected.items():
        if row.get("note"):
            sites.setdefault(row["note"], []).append(isolated(site))
    return [f"Expected at {listed(who)}: {note}." for note, who in sites.items()]


def agreement(scores: Scores) -> tuple[int, int]:
    """Sites whose measured figure lies in the expected interval, and sites that have both."""
    pairs = [
        (row, scores.value(scores.after.get(site)))
        for site, row in scores.expected.items()
        if known(row.get("low")) and known(row.get("high"))
    ]
    told = [(row, v) for row, v in pairs if known(v)]
    return sum(row["low"] <= v <= row["high"] for row, v in told), len(told)
