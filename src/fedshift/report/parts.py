"""The pieces sections are made of: tables, badges, bars with words, sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedshift.report.drawings import key
from fedshift.report.markup import Child, Html, join, named, tag

#: what is said of a site, with the shape and the class of its badge
STATUSES = {
    "shift": (3, "bad"),
    "too small to matter": (2, "mild"),
    "no shift found": (0, "good"),
    "cannot tell": (1, "dull"),
}
#: names of models and what they stand for
MODELS = {
    "erm": "no weights",
    "ftw": "weighted for all sites' test data",
    "fitw": "weighted for each site's own test data",
    "label": "weighted by label",
    "covariate": "weighted by input",
}


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Attributes
    ----------
    id : str
        Of its heading, for links.
    title : str
    body : Html
    ran : bool
        False if the record has nothing for it.
    """

    id: str
    title: str
    body: Html
    ran: bool = True

    def html(self) -> Html:
        """With its heading."""
        heading = tag("h2", self.title, id=self.id)
        looks = None if self.ran else "idle"
        return tag("section", heading, self.body, aria_labelledby=self.id, class_=looks)


def not_run(id: str, title: str, command: str, what: str) -> Section:
    """A section that has nothing to show, and how to get it."""
    said = tag("p", f"Not run: {what} ", tag("code", command), " adds it.", class_="absent")
    return Section(id, title, said, ran=False)


@dataclass(frozen=True)
class Column:
    """A column of a table: words, figures (to the right), or drawings (as wide as can be)."""

    title: str
    kind: str = "words"
    over: Html | None = None

    def head(self) -> Html:
        """Its heading; drawings have their scale in it."""
        return tag("th", self.title, self.over, scope="col", class_=self._class)

    def cell(self, value: Child) -> Html:
        """One of its cells, which knows its heading where a phone shows one under the other."""
        inner = value if self.kind == "plot" else tag("span", value)
        return tag("td", inner, class_=self._class, data_label=self.title)

    @property
    def _class(self) -> str | None:
        return None if self.kind == "words" else self.kind


def table(
    head: Sequence[Column],
    rows: Iterable[Sequence[Child]],
    *,
    label: str,
    last: Sequence[Child] | None = None,
    stack: bool = False,
) -> Html:
    """A table in a box of its own, which scrolls if it is too wide.

    Parameters
    ----------
    head : sequence of Column
    rows : iterable of as many cells
        The first one is the name of the row.
    label : str
        Read out as the name of the table.
    last : sequence of cells, optional
        A row that stands for all.
    stack : bool
        On a phone the cells of a row stand one under the other.
    """
    body = [_row(head, row) for row in rows]
    foot = None if last is None else tag("tfoot", _row(head, last))
    top = tag("thead", tag("tr", (c.head() for c in head)))
    made = tag(
        "table",
        tag("caption", label, class_="unseen"),
        top,
        tag("tbody", body),
        foot,
        class_="stack" if stack else None,
    )
    return wide(made, label)


def wide(inner: Html, label: str) -> Html:
    """A box that scrolls by itself, by keyboard too."""
    return tag("div", inner, class_="wide", tabindex="0", role="group", aria_label=label)


def _row(head: Sequence[Column], row: Sequence[Child]) -> Html:
    first = tag("th", row[0], scope="row")
    return tag("tr", first, (c.cell(v) for c, v in zip(head[1:], row[1:], strict=True)))


def badge(status: str, said: str | None = None) -> Html:
    """A status as a shape and a word; colour only helps."""
    series, looks = STATUSES.get(status, STATUSES["cannot tell"])
    return tag("span", key(series), said or status, class_=f"badge {looks}")


def figure_of(body: Child, caption: Child) -> Html:
    """A drawing or table with what is said under it."""
    return tag("figure", body, tag("figcaption", caption))


def legend(*entries: tuple[Html, str]) -> Html:
    """Shapes and what they stand for."""
    return tag("p", (tag("span", shape, said) for shape, said in entries), class_="legend")


def facts(pairs: Mapping[str, Child]) -> Html:
    """Names and values side by side."""
    made = (tag("div", tag("dt", k), tag("dd", v)) for k, v in pairs.items())
    return tag("dl", made, class_="facts")


def ranged(value: str, interval: str) -> Child:
    """A figure with its interval under it."""
    return [value, tag("small", interval, class_="range") if interval else None]


def sentences(said: Iterable[str]) -> Html | None:
    """A list of sentences, or nothing."""
    made = [tag("li", one) for one in said]
    return tag("ul", made, class_="said") if made else None


def folded(title: Child, body: Child, *, open: bool = False) -> Html:
    """What opens by a click or a key; paper shows it open."""
    return tag("details", tag("summary", title), tag("div", body), open=open)


def bars(rows: Iterable[tuple[Child, Html, Sequence[str]]], head: Sequence[str] = ()) -> Html:
    """A small table of names, bars and figures; `head` names the first and the last columns."""
    made = [
        tag("tr", tag("th", name, scope="row"), tag("td", drawn, class_="plot"), _cells(said))
        for name, drawn, said in rows
    ]
    top = None
    if head:
        over = [tag("th", h, scope="col") for h in head[1:]]
        top = tag("thead", tag("tr", tag("td", head[0]), tag("td"), over))
    return tag("table", top, tag("tbody", made), class_="bars")


def _cells(said: Sequence[str]) -> list[Html]:
    return [tag("td", one) for one in said]


def model_name(name: str) -> Html:
    """A model's name and what it stands for."""
    said = MODELS.get(name.lower())
    return join(named(name), tag("small", f" {said}") if said else None)
