"""Before and after: every site's score without and with weights, forecast and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedshift.report.blocks import (
    Heading,
    Section,
    figure_of,
    legend,
    not_run,
    ranged,
    sentences,
    table,
)
from fedshift.report.drawings import Axis, Mark, key, scale, strip
from fedshift.report.format import UNKNOWN, count, known, listed
from fedshift.report.markup import Child, Html, isolated, join, named, tag
from fedshift.report.scores import Score, Scores
from fedshift.report.site_scores import score_table

#: a column of figures: its heading, its cell for a site, and its cell for all sites
Figures = tuple[str, Callable[[str], Child], Child]


def effect(record: Mapping[str, Any]) -> Section:
    """Make the section."""
    scores = Scores.of(record)
    if not scores.sites():
        what = "nothing was trained or measured."
        if "evaluation" in record:
            what = "there are no test labels to measure with, and no forecast."
        return not_run("effect", "Before and after", "fedshift train SITES", what)
    order = [s["site"] for s in record["sites"]]
    sites = sorted(scores.sites(), key=lambda s: order.index(s) if s in order else len(order))
    parts = [_legend(scores, record), _table(scores, sites)]
    body = join(
        tag("p", _lead(record, scores)),
        figure_of(parts, _caption(scores)),
        sentences(_notes(scores)),
        *map(_worth, record.get("scores") or []),
    )
    return Section("effect", "Before and after", body)


def _worth(part: Mapping[str, Any]) -> Html:
    """Make the table of all scores on one kind of rows, beside those of training alone."""
    sheet = score_table(part)
    head = [Heading(text, "figure" if i else "words") for i, text in enumerate(sheet.header)]
    rows = [[named(row[0]), *row[1:]] for row in sheet.rows]
    return figure_of(table(head, rows[:-1], label=sheet.title, last=rows[-1]), f"{sheet.title}.")


def _table(scores: Scores, sites: Sequence[str]) -> Html:
    axis, figures = _axis(scores), _figures(scores)
    over = scale(axis, title=f"Scale of {scores.name}", share=scores.measure == "accuracy")
    title = scores.name[:1].upper() + scores.name[1:]
    head = [Heading("Site"), Heading(title, "plot", over)]
    head += [Heading(heading, "figure") for heading, _, _ in figures]
    rows = [
        [named(site), _strip(site, scores, axis), *(cell(site) for _, cell, _ in figures)]
        for site in sites
    ]
    before, after = scores.means()
    last: list[Child] | None = None
    if known(after) and len(rows) > 1:
        marks = [] if scores.same else [Mark(before)]
        means = strip(axis, [*marks, Mark(after, series=1)], title=f"Mean {scores.write(after)}")
        last = ["Mean over sites", means, *(foot for _, _, foot in figures)]
    return table(head, rows, label=f"{title} of every site", last=last, stack=True)


def _figures(scores: Scores) -> list[Figures]:
    """List the columns that are not empty."""

    def cell(rows: Mapping[str, Score]) -> Callable[[str], Child]:
        return lambda site: ranged(*scores.texts(rows.get(site)))

    def change(site: str) -> Child:
        pair = (scores.value(part.get(site)) for part in (scores.before, scores.after))
        return _change(scores, *pair)

    before, after = scores.means()
    rows = {**scores.before, **scores.after}
    measured = "Measured" if scores.same else "After"
    out: list[Figures] = []
    if scores.before and not scores.same:
        out.append(("Before", cell(scores.before), scores.write(before)))
    if scores.after:
        out.append((measured, cell(scores.after), scores.write(after)))
    if scores.before and scores.after and not scores.same:
        out.append(("Change", change, _change(scores, before, after)))
    if scores.expected:
        out.append(("Forecast", cell(scores.expected), ""))
    if rows:
        out.append(("Labelled rows", lambda site: count(rows.get(site, {}).get("n")), ""))
    return out


def _change(scores: Scores, before: float, after: float) -> Child:
    text = scores.change(before, after)
    if text == UNKNOWN:
        return text
    if before == after:
        return tag("span", "no change", class_="dull")
    good = scores.better(before, after)
    return tag(
        "span", ranged(text, "better" if good else "worse"), class_="good" if good else "bad"
    )


def _axis(scores: Scores) -> Axis:
    rows = [r for part in (scores.before, scores.after, scores.expected) for r in part.values()]
    axis = Axis.around(v for r in rows for v in (scores.value(r), r.get("low"), r.get("high")))
    most = 1.0 if scores.measure == "accuracy" else axis.high
    return Axis(max(0.0, axis.low), min(most, axis.high))


def _strip(site: str, scores: Scores, axis: Axis) -> Html:
    parts = [(scores.after, 1, "measured"), (scores.expected, 2, "forecast")]
    if not scores.same:
        parts = [(scores.before, 0, "before"), (scores.after, 1, "after"), parts[1]]
    mine = [(part[site], k, word) for part, k, word in parts if site in part]
    marks = [
        Mark(scores.value(row), row.get("low"), row.get("high"), series=k, hollow=k == 2)
        for row, k, _ in mine
    ]
    text = ", ".join(" ".join((word, *scores.texts(row))) for row, _, word in mine)
    return strip(axis, marks, title=f"{isolated(site)}: {text}")


def _legend(scores: Scores, record: Mapping[str, Any]) -> Html:
    chosen = isolated(str(record.get("choice") or "the chosen model"))
    entries = []
    if scores.before and not scores.same:
        entries.append((key(0), "before: no weights"))
    if scores.after:
        entries.append((key(1), "measured" if scores.same else f"after: {chosen}"))
    if scores.expected:
        entries.append((key(2, hollow=True), "forecast without test labels"))
    return legend(*entries)


def _lead(record: Mapping[str, Any], scores: Scores) -> str:
    if not (scores.before or scores.after):
        why = "Nothing was measured"
        if "evaluation" in record:
            why = "No test row has a label, so nothing could be measured"
        return f"{why}. The scores below are forecasts without test labels."
    if scores.same:
        return "The model without weights was chosen, so before and after are the same."
    (before, after), worse = scores.means(), [isolated(s) for s in scores.worse()]
    return (
        f"Mean {scores.name} over {count(len(scores.before), 'site')}: {scores.write(before)} "
        f"without weights, {scores.write(after)} with the chosen model "
        f"({scores.change(before, after)}). Worse at {listed(worse, 5) if worse else 'no site'}."
    )


def _caption(scores: Scores) -> str:
    text = "Each mark is the score on a site's own test rows; the line is its 95% interval."
    if scores.before and scores.after and not scores.same:
        text += (
            " Both models are measured on the same rows, so a difference can be real although the "
            "intervals overlap. The no-harm test compares the models row by row."
        )
    inside, n = scores.agreement()
    if n:
        text += f" The measured score is in the forecast interval at {inside} of {n} sites."
    return text


def _notes(scores: Scores) -> list[str]:
    """List the notes on the forecasts, each once with all its sites."""
    sites: dict[str, list[str]] = {}
    for site, row in scores.expected.items():
        if row.get("note"):
            sites.setdefault(row["note"], []).append(isolated(site))
    return [f"Forecast for {listed(names)}: {note}." for note, names in sites.items()]
