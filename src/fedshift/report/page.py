"""The page around a report: one file, its style inside, nothing asked of a network.

The page carries a rule that forbids the browser every request and every script
(Content-Security-Policy), so even a mistake in a section could not make it call anyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from fedshift.report.markup import Html, tag
from fedshift.report.parts import Section

#: no script, no image, no font, no connection: only the style that is written in the page
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(title: str, body: Html, *, contents: Sequence[Section] = (), foot: str = "") -> str:
    """A whole page.

    Parameters
    ----------
    title : str
        Of the window.
    body : Html
        With the heading of the page.
    contents : sequence of Section
        What the list of contents leads to; none without.
    foot : str
        The last line.
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", style()),
    )
    skip = tag("a", "Skip to the report", class_="skip", href="#main")
    main = tag("main", body, id="main", tabindex="-1")
    beside = tag("div", main, tag("footer", foot) if foot else None)
    frame = tag("div", _contents(contents), beside, class_="frame" if contents else "frame alone")
    whole = tag("html", head, tag("body", skip, frame), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


@cache
def style() -> Html:
    """The style of all pages."""
    file = resources.files("fedshift.report").joinpath("page.css")
    return Html(file.read_text(encoding="utf-8"))


def _contents(sections: Sequence[Section]) -> Html | None:
    if not sections:
        return None
    items = [
        tag("li", tag("a", s.title, None if s.ran else tag("small", " not run"), href=f"#{s.id}"))
        for s in sections
    ]
    items.insert(0, tag("li", tag("a", "Summary", href="#main")))
    return tag("nav", tag("ol", items), aria_label="Contents")
