"""No text can become markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from fedshift.report.markup import LONGEST, Html, isolated, join, named, shortened, tag, text

#: letters of every kind, halves of characters and control characters among them
WORDS = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(
    ["<script>alert(1)</script>", "\"'><img src=x onerror=y>", "&lt;", "]]>", "-->", "\u202ex"]
)


class Reader(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.attributes: dict[str, str | None] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def fit(value: str) -> str:
    """What a page can hold of a text."""
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", value)


@given(WORDS, WORDS)
def test_any_text_comes_back_as_it_was(value: str, title: str) -> None:
    page = tag("p", value, title=title)
    page.encode("utf-8")
    read = Reader(page)
    assert read.tags == ["p"]
    assert read.text == fit(value)
    assert read.attributes == {"title": fit(title)}


@given(WORDS)
def test_a_name_is_one_element(name: str) -> None:
    read = Reader(named(name))
    assert read.tags == ["bdi"]
    whole = name.strip() and len(name) <= LONGEST
    assert read.text == (fit(name) if whole else fit(shortened(name)))


def test_only_markup_is_left_as_it_is() -> None:
    inner = tag("b", "x")
    assert tag("p", inner, "<b>", [inner, [None, "&"]]) == "<p><b>x</b>&lt;b&gt;<b>x</b>&amp;</p>"
    assert join(["a", inner], "<", between=", ") == "a, <b>x</b>, &lt;"
    assert isinstance(text("a"), Html)


def test_attributes_are_left_out_or_bare() -> None:
    assert tag("details", open=True, hidden=False, title=None) == "<details open></details>"
    assert tag("line", x1="1%", class_="a") == '<line x1="1%" class="a"/>'
    assert tag("meta", name="n") == '<meta name="n">'


def test_long_names_are_cut_and_kept_whole_in_their_title() -> None:
    read = Reader(named("x" * 500))
    assert read.text == "x" * (LONGEST - 1) + "…"
    assert read.attributes == {"class": "long", "title": "x" * 399 + "…"}
    assert shortened("  ") == "(no name)"
    assert isolated("\u202eabc") == "\u2068\u202eabc\u2069"
