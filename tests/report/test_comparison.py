"""Tables as text and Markdown: whole, aligned, and back from JSON."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

from fedshift.report.comparison import Sheet, render


def sheet(methods: int = 2) -> Sheet:
    names = [f"M{i}" for i in range(methods)]
    return Sheet(
        title="A <b> | [red]title[/]",
        header=("method", "ours", "verdict"),
        rows=tuple((m, ".8200 ± .0497", "below by .012" if m == "M0" else "") for m in names),
        notes=("a < b & c", "FTW > ERM: holds"),
        curves={m: ([5, 10], [0.1, 0.2], [0.0, 0.1], [0.2, 0.3]) for m in names},
        curves_over="rank",
    )


def test_sheets_come_back_from_json() -> None:
    for whole in (sheet(), Sheet(title="t", header=("a",), rows=(("1",),))):
        table = json.loads(json.dumps(asdict(whole)))
        again = Sheet.of_dict({**table, "dots": {}, "calibration": {}})  # of older files
        assert (again.header, again.rows, again.notes) == (whole.header, whole.rows, whole.notes)
        assert again.curves_over == whole.curves_over
        assert list(again.curves) == list(whole.curves)
        for format in ("text", "markdown"):
            assert render([again], format) == render([whole], format)


def test_markdown_has_as_many_cells_in_every_row() -> None:
    text = render([sheet(), sheet(3)], "markdown")
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) == 4 + 5
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {4}
    assert tables[1] == "| :--- | ---: | :--- |"
    assert "## A \\<b\\> \\| [red]title[/]" in text
    assert "- FTW \\> ERM: holds" in text


def test_text_shows_words_as_they_are_in_columns() -> None:
    wide = Sheet(title="t", header=("a", "n"), rows=(("long", "9"), ("b", "10.5")))
    assert render([wide, sheet(1)]) == (
        "t\n\na        n\n----  ----\nlong     9\nb     10.5\n\n"
        "A <b> | [red]title[/]\n\n"
        "method           ours  verdict\n"
        "------  -------------  -------------\n"
        "M0      .8200 ± .0497  below by .012\n\n"
        "- a < b & c\n- FTW > ERM: holds\n"
    )
