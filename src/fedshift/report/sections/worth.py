"""What the federation is worth to each site: its scores beside those of training alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedshift.report.blocks import Heading, Section, figure_of, not_run, table
from fedshift.report.markup import Html, isolated, join, named, tag
from fedshift.report.site_scores import ALONE, score_table, worth_line


def worth(record: Mapping[str, Any]) -> Section:
    """Make the section."""
    title, parts = "What the federation is worth to each site", record.get("scores") or []
    if not parts:
        return not_run("worth", title, "fedshift train SITES", "no site trained alone.")
    return Section("worth", title, join(*map(_part, parts)))


def _part(part: Mapping[str, Any]) -> Html:
    """Make the sentence and the table of one kind of rows."""
    sheet = score_table(part)
    over = ["", *sheet.header]  # a column of training alone is named after the one before it
    head = [
        Heading(
            f"{before}, {ALONE}" if heading == ALONE else heading, "figure" if before else "words"
        )
        for before, heading in zip(over, sheet.header, strict=False)
    ]
    rows = [[named(row[0]), *row[1:]] for row in sheet.rows]
    sites, mean = (rows[:-1], rows[-1]) if len(rows) > 1 else (rows, None)
    body = table(head, sites, label=sheet.title, last=mean, stack=True)
    line = tag("p", worth_line(part, isolated))
    return join(tag("h3", sheet.title), line, figure_of(body, f"{'; '.join(sheet.notes)}."))
