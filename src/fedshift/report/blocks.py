"""Building blocks of sections: tables, badges, bars, lists of sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedshift.report.drawings import key
from fedshift.report.markup import Child, Html, join, named, tag

#: shape and CSS class of a badge by status
STATUSES = {
    "shift": (3, "bad"),
    "too small to matter": (2, "mild"),
    "no shift found": (0, "good"),
    "inconclusive": (1, "dull"),
}
#: descriptions of models by name
MODELS = {
    "erm": "no weights",
    "ftw": "weighted for all sites' test data",
    "fitw": "weighted for each site's own test data",
    "label": "weights depend on the label",
    "covariate": "weights depend on the inputs",
}


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Attributes
    ----------
    id : str
        The heading's id, for links.
    title : str
    body : Html
    ran : bool
        False if the record has no data for this section.
    """

    id: str
    title: str
    body: Html
    ran: bool = True

    def html(self) -> Html:
        """Return the section with its heading."""
        heading = tag("h2", self.title, id=self.id)
        looks = None if self.ran else "idle"
        return tag("section", heading, self.body, aria_labelledby=self.id, class_=looks)


def not_run(id: str, title: str, command: str, what: str) -> Section:
    """Make a section without data that names the command to run."""
    text = tag("p", f"Not run: {what} ", tag("code", command), " adds this.", class_="absent")
    return Section(id, title, text, ran=False)


@dataclass(frozen=True)
class Heading:
    """A table column and its kind: words, figure (numbers, aligned right), or plot (full width)."""

    title: str
    kind: str = "words"
    over: Html | None = None

    def head(self) -> Html:
        """Make the heading; the heading of a plot column holds the scale."""
        return tag("th", self.title, self.over, scope="col", class_=self._class)

    def cell(self, value: Child) -> Html:
        """Make a cell; it repeats its heading, which phones show beside the value."""
        inner = value if self.kind == "plot" else tag("span", value)
        return tag("td", inner, class_=self._class, data_label=self.title)

    @property
    def _class(self) -> str | None:
        return None if self.kind == "words" else self.kind


def figures(*titles: str) -> list[Heading]:
    """Headings of columns of numbers."""
    return [Heading(title, "figure") for title in titles]


def table(
    head: Sequence[Heading],
    rows: Iterable[Sequence[Child]],
    *,
    label: str,
    last: Sequence[Child] | None = None,
    stack: bool = False,
) -> Html:
    """Make a table in a box that scrolls if it is too wide.

    Parameters
    ----------
    head : sequence of Heading
    rows : iterable of sequences of cells
        One cell per heading; the first cell names the row.
    label : str
        Name of the table for screen readers.
    last : sequence of cells, optional
        A row of totals.
    stack : bool
        Whether phones show the cells of a row one below the other.
    """
    body = [_row(head, row) for row in rows]
    foot = None if last is None else tag("tfoot", _row(head, last))
    top = tag("thead", tag("tr", (c.head() for c in head)))
    inner = tag(
        "table",
        tag("caption", label, class_="unseen"),
        top,
        tag("tbody", body),
        foot,
        class_="stack" if stack else None,
    )
    # the box scrolls on its own, also by keyboard
    return tag("div", inner, class_="wide", tabindex="0", role="group", aria_label=label)


def _row(head: Sequence[Heading], row: Sequence[Child]) -> Html:
    first = tag("th", row[0], scope="row")
    return tag("tr", first, (c.cell(v) for c, v in zip(head[1:], row[1:], strict=True)))


def badge(status: str, text: str | None = None) -> Html:
    """Make a badge: a status as a shape, a colour and a word."""
    series, looks = STATUSES.get(status, STATUSES["inconclusive"])
    return tag("span", key(series), text or status, class_=f"badge {looks}")


def figure_of(body: Child, caption: Child) -> Html:
    """Make a drawing or table with a caption."""
    return tag("figure", body, tag("figcaption", caption))


def legend(*entries: tuple[Html, str]) -> Html:
    """Make a legend of shapes and their meaning."""
    return tag("p", (tag("span", shape, text) for shape, text in entries), class_="legend")


def facts(pairs: Mapping[str, Child]) -> Html:
    """Make a list of names and values side by side."""
    rows = (tag("div", tag("dt", k), tag("dd", v)) for k, v in pairs.items())
    return tag("dl", rows, class_="facts")


def ranged(value: str, interval: str) -> Child:
    """Put an interval below a number."""
    return [value, tag("small", interval, class_="range") if interval else None]


def sentences(texts: Iterable[str]) -> Html | None:
    """Make a list of sentences; None if there are none."""
    items = [tag("li", one) for one in texts]
    return tag("ul", items, class_="sentences") if items else None


def folded(title: Child, body: Child, *, open: bool = False) -> Html:
    """Make a block that opens by click or key, and is open in print."""
    return tag("details", tag("summary", title), tag("div", body), open=open)


def bars(rows: Iterable[tuple[Child, Html, Sequence[str]]], head: Sequence[str] = ()) -> Html:
    """Make a small table of names, bars and numbers; `head` has the titles of names and numbers."""
    lines = [
        tag("tr", tag("th", name, scope="row"), tag("td", drawing, class_="plot"), _cells(texts))
        for name, drawing, texts in rows
    ]
    top = None
    if head:
        over = [tag("th", h, scope="col") for h in head[1:]]
        top = tag("thead", tag("tr", tag("td", head[0]), tag("td"), over))
    return tag("table", top, tag("tbody", lines), class_="bars")


def _cells(texts: Sequence[str]) -> list[Html]:
    return [tag("td", one) for one in texts]


def model_name(name: str) -> Html:
    """Mark up a model's name with its description."""
    text = MODELS.get(name.lower())
    return join(named(name), tag("small", f" {text}") if text else None)
