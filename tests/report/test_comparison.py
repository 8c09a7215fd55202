"""Tables as text, Markdown and pages: well formed, whole, and asking nothing of a network."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fedshift.errors import FedshiftError
from fedshift.report.comparison import Sheet, render

VOID = {"meta", "br", "hr", "img", "input", "link"}


def sheet(methods: int = 2, clients: int = 3, *, curves: bool = True) -> Sheet:
    names = [f"M{i}" for i in range(methods)]
    dots = {m: {f"c{j}": (0.5, 0.4, 0.7) for j in range(clients)} for m in names}
    lines = {m: ([5, 10], [0.1, 0.2], [0.0, 0.1], [0.2, 0.3]) for m in names}
    return Sheet(
        title="A <b> | [red]title[/]",
        header=("method", "ours", "verdict"),
        rows=tuple((m, ".8200 ± .0497", "below by .012" if m == "M0" else "") for m in names),
        notes=("a < b & c", "FTW > ERM: holds"),
        dots=dots,
        curves=lines if curves else {},
        dots_note="95 % interval",
    )


class Checker(HTMLParser):
    """Every tag closed in turn; ids, and what refers to them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.ids += [v or "" for k, v in attrs if k == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [v or "" for k, v in attrs if k == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_page_is_well_formed_and_needs_nothing_else() -> None:
    page = render([sheet(), sheet(7, 40, curves=False), sheet(1, 1)], "html")
    check = Checker()
    check.feed(page)
    check.close()
    assert check.open == []
    assert check.seen.count("svg") == 5
    assert check.seen.count("table") == 3
    assert not {"script", "link", "img", "iframe"} & set(check.seen)
    assert not re.search(r"https?:|//\w|@import|url\((?!#)", page)
    assert len(set(check.ids)) == len(check.ids)
    referred = re.findall(r'(?:href="|url\()#([^")]+)', page)
    assert referred
    assert set(referred) <= set(check.ids)
    assert "a < b & c" in check.text
    assert "A <b> | [red]title[/]" in check.text
    assert "@media print" in page


def test_a_page_is_the_same_every_time() -> None:
    assert render([sheet()], "html") == render([sheet()], "html")


def test_sheets_come_back_from_json() -> None:
    whole = replace(sheet(), calibration={"M0": ([0.5, 1.0], [0.25, 2.0])}, curves_over="rank")
    again = Sheet.of_dict(json.loads(json.dumps(whole.to_dict())))
    assert (again.header, again.rows, again.notes) == (whole.header, whole.rows, whole.notes)
    assert again.curves_over == "rank"
    for format in ("text", "markdown", "html"):
        assert render([again], format) == render([whole], format)
    assert Sheet.of_dict(whole.to_dict()) == whole
    small = Sheet(title="t", header=("a",), rows=(("1",),))
    assert Sheet.of_dict(json.loads(json.dumps(small.to_dict()))) == small


def test_a_plot_for_what_there_is() -> None:
    plain = Sheet(title="t", header=("a",), rows=(("1",),))
    groups = {"M0": ([0.5], [0.25])}
    lines = sheet().curves
    for options, said in (
        ({}, []),
        ({"calibration": groups}, ["Estimated against exact log ratios"]),
        ({"curves": lines, "curves_note": "Curves.", "curves_over": "rank"}, ["Curves."]),
        ({"curves": lines, "curves_note": "C.", "calibration": groups}, ["C.", "Estimated"]),
    ):
        page = render([replace(plain, **options)], "html")
        captions = re.findall(r"<figcaption>(.*?)</figcaption>", page, re.DOTALL)
        assert len(captions) == len(said) == page.count("<svg")
        assert all(c.startswith(s) for c, s in zip(captions, said, strict=True))
        assert (">rank<" in page) == ("curves_over" in options)


def test_without_matplotlib_a_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fedshift.report.figures", None)
    with pytest.raises(FedshiftError, match=r"fedshift\[report\]"):
        render([sheet()], "html")
    assert "M0" in render([sheet()], "markdown")


def test_markdown_has_as_many_cells_in_every_row() -> None:
    text = render([sheet(), sheet(3)], "markdown")
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) == 4 + 5
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {4}
    assert tables[1] == "| :--- | ---: | :--- |"
    assert "## A \\<b\\> \\| [red]title[/]" in text
    assert "- FTW \\> ERM: holds" in text


def test_text_shows_words_as_they_are() -> None:
    text = render([sheet()])
    assert text.startswith("A <b> | [red]title[/]\n")
    assert "below by .012" in text
    assert "a < b & c" in text
    assert "\x1b" not in text
