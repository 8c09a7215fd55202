"""The HTML page around a report: one file with its style inside.

A Content-Security-Policy in the page forbids every request and every script, so even a mistake in
a section cannot make the browser contact anyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from fedshift.report.blocks import Section
from fedshift.report.markup import Html, tag

#: no script, image, font or connection; only the style inside the page
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(title: str, body: Html, *, contents: Sequence[Section] = (), foot: str = "") -> str:
    """Make a complete HTML page.

    Parameters
    ----------
    title : str
        Title of the window.
    body : Html
        Content, with the heading of the page.
    contents : sequence of Section
        Sections for the list of contents; empty for no list.
    foot : str
        The last line of the page.
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
    inner = tag("div", main, tag("footer", foot) if foot else None)
    frame = tag("div", _contents(contents), inner, class_="frame" if contents else "frame alone")
    whole = tag("html", head, tag("body", skip, frame), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


@cache
def style() -> Html:
    """Return the CSS of all pages."""
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
