"""Small drawings as SVG, written by hand.

Positions along x are per cent of the width, positions along y are pixels: a drawing fills whatever
width it is given, on a phone or on paper, and its text keeps its size. Colours come from the page's
style by class (``s0``, ``s1``, ... with a shape each), so that they suit light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fedshift.report.markup import Html, tag
from fedshift.report.spell import fixed, known, number

#: outlines about the origin, one a series: circle, square, diamond, triangle
SHAPES = (
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "M-4.5-4.5h9v9h-9z",
    "M0-6L6 0L0 6L-6 0z",
    "M0-6L5.5 4.5h-11z",
)


@dataclass(frozen=True)
class Axis:
    """A straight scale from `low` to `high`, as per cent of a width.

    Examples
    --------
    >>> Axis(0.5, 1.0).at(0.75), Axis(0.5, 1.0).ticks()
    ('50%', [0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    """

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[Any], *, pad: float = 0.06) -> Axis:
        """The scale that shows all known values, with a little room beside them."""
        seen = [float(v) for v in values if known(v)] or [0.0, 1.0]
        low, high = min(seen), max(seen)
        room = pad * (high - low) or abs(high) * 0.1 or 1.0
        return cls(low - room, high + room)

    def part(self, value: float) -> float:
        """Position from 0 to 1; what lies outside is shown at the end."""
        width = self.high - self.low
        at = (value - self.low) / width if math.isfinite(width) and width > 0 else 0.5
        return min(1.0, max(0.0, at))

    def at(self, value: float) -> str:
        """Position as SVG wants it."""
        return percent(self.part(value))

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers within, about so many."""
        step = self._step(about)
        if step is None:
            return []
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{k * step:.12g}") + 0.0 for k in range(first, last + 1)]

    def labels(self, about: int = 5, *, share: bool = False) -> list[str]:
        """The ticks in words, with as many places as it takes to tell them apart.

        Examples
        --------
        >>> Axis(0.986, 1.0).labels(share=True), Axis(-1.0, 2.0).labels(3)
        (['99.0%', '99.5%', '100.0%'], ['−1', '0', '1', '2'])
        """
        step = self._step(about) or 1.0
        unit, sign = (100, "%") if share else (1, "")
        places = -math.floor(math.log10(step * unit) + 1e-9)
        if not -6 < places < 6:
            far = max(abs(self.low), abs(self.high))
            digits = 2 + max(1, math.ceil(math.log10(far / step)))
            return [f"{number(unit * v, digits)}{sign}" for v in self.ticks(about)]
        return [f"{fixed(unit * v, max(0, places))}{sign}" for v in self.ticks(about)]

    def _step(self, about: int) -> float | None:
        """Between ticks: 1, 2 or 5 times a power of ten."""
        width = self.high - self.low
        if not (math.isfinite(width) and width > 0):
            return None
        raw = width / about
        unit = 10.0 ** math.floor(math.log10(raw))
        return next((unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999), None)


def percent(part: float) -> str:
    """A part of a width.

    Examples
    --------
    >>> percent(0.25), percent(1 / 3)
    ('25%', '33.33%')
    """
    return f"{100 * part:.2f}".rstrip("0").rstrip(".") + "%"


@dataclass(frozen=True)
class Mark:
    """A dot with its interval; the series gives shape and colour."""

    value: Any
    low: Any = None
    high: Any = None
    series: int = 0
    hollow: bool = False


@dataclass(frozen=True)
class Rule:
    """A line across a drawing where something has a meaning, such as no difference."""

    value: float
    strong: bool = False


def drawing(title: str, height: float, *children: Html | Iterable[Html], kind: str) -> Html:
    """A drawing as wide as its place; the title is read out, and shown by a resting mouse."""
    label = tag("title", title)
    return tag("svg", label, children, class_=kind, role="img", width="100%", height=f"{height:g}")


def strip(axis: Axis, marks: Sequence[Mark], *, title: str, rules: Sequence[Rule] = ()) -> Html:
    """Dots with intervals along one axis, one under the other."""
    shown = [m for m in marks if known(m.value)]
    height = 14 + 13 * max(1, len(shown))
    lines = [_grid(axis, v, height) for v in axis.ticks()]
    lines += [_rule(axis, r, height) for r in rules]
    dots = [_dot(axis, m, 13.5 + 13 * i) for i, m in enumerate(shown)]
    return drawing(title, height, lines, dots, kind="strip")


def scale(axis: Axis, *, title: str, share: bool = False) -> Html:
    """The numbers along the axis, to stand above strips."""
    ticks = zip(axis.ticks(), axis.labels(share=share), strict=True)
    made = [tag("text", said, x=axis.at(v), y=12, text_anchor="middle") for v, said in ticks]
    return drawing(title, 16, made, kind="scale")


def bar(part: Any, *, title: str, series: int = 0) -> Html:
    """A part of one as a bar in a box."""
    width = percent(min(1.0, max(0.0, part))) if known(part) else "0%"
    box = tag("rect", class_="box", width="100%", height=8, rx=2)
    return drawing(
        title, 8, box, tag("rect", class_=f"s{series}", width=width, height=8, rx=2), kind="bar"
    )


def columns(
    edges: Sequence[Any], counts: Sequence[Any], *, title: str, rule: float | None = None
) -> Html:
    """A histogram. All bars are as wide, whatever their edges, which are written below."""
    tall, n = 84.0, max(1, len(counts))
    top = max((c for c in counts if known(c)), default=0) or 1
    bars = [
        _column(i / n, 1 / n, c / top, tall) for i, c in enumerate(counts) if known(c) and c > 0
    ]
    base = tag("line", class_="axis", x1="0%", x2="100%", y1=6 + tall, y2=6 + tall)
    shown = sorted({0, n // 4, n // 2, 3 * n // 4, n}) if n >= 8 else range(n + 1)
    labels = [
        tag("text", number(edges[i], 2), x=percent(i / n), y=tall + 20, text_anchor=_anchor(i / n))
        for i in shown
    ]
    place = _place(edges, rule)
    at = None if place is None else percent(place)
    line = [tag("line", class_="rule strong", x1=at, x2=at, y1=0, y2=6 + tall)] if at else []
    return drawing(title, tall + 26, line, bars, base, labels, kind="plot")


def _column(start: float, width: float, part: float, tall: float) -> Html:
    return tag(
        "rect",
        class_="s0",
        x=percent(start + 0.08 * width),
        y=f"{6 + tall * (1 - part):.1f}",
        width=percent(0.84 * width),
        height=f"{tall * part:.1f}",
    )


def scatter(points: Sequence[tuple[float, float, Any]], axis: Axis, *, title: str) -> Html:
    """Points (x, y, rows) on a square scale, with the line on which both are the same."""
    tall, ticks = 150.0, list(zip(axis.ticks(4), axis.labels(4), strict=True))

    def up(value: float, by: float = 8) -> str:
        return f"{by + tall * (1 - axis.part(value)):.1f}"

    grid = [_grid(axis, v, tall + 8, top=8) for v, _ in ticks]
    grid += [tag("line", class_="grid", x1="0%", x2="100%", y1=up(v), y2=up(v)) for v, _ in ticks]
    same = tag("line", class_="same", x1="0%", x2="100%", y1=8 + tall, y2=8)
    most = max((n for *_, n in points if known(n)), default=1) or 1
    dots = [
        tag("circle", class_="dot s0", cx=axis.at(x), cy=up(y), r=_radius(n, most))
        for x, y, n in points
    ]
    labels = [
        (
            tag("text", said, x=axis.at(v), y=tall + 22, text_anchor="middle"),
            tag("text", said, x="-6", y=up(v, 12), text_anchor="end"),
        )
        for v, said in ticks
    ]
    return drawing(title, tall + 28, grid, same, dots, *labels, kind="plot square")


def _radius(rows: Any, most: float) -> str:
    """Of a dot whose area grows with its rows."""
    return f"{3 + 3 * math.sqrt(rows / most):.1f}" if known(rows) and rows >= 0 else "4.0"


def key(series: int, *, hollow: bool = False) -> Html:
    """The shape of a series, for a legend or a badge."""
    shape = tag("path", class_=_looks(series, hollow), d=SHAPES[series % len(SHAPES)])
    return tag(
        "svg", shape, class_="key", viewBox="-8 -8 16 16", width=14, height=14, aria_hidden="true"
    )


def _dot(axis: Axis, mark: Mark, y: float) -> Html:
    looks = _looks(mark.series, mark.hollow)
    line = None
    if known(mark.low) and known(mark.high):
        line = tag(
            "line",
            class_=f"whisker {looks}",
            x1=axis.at(mark.low),
            x2=axis.at(mark.high),
            y1=f"{y:g}",
            y2=f"{y:g}",
        )
    shape = tag("path", class_=f"dot {looks}", d=SHAPES[mark.series % len(SHAPES)])
    return tag("g", line, tag("svg", shape, x=axis.at(mark.value), y=f"{y:g}"))


def _looks(series: int, hollow: bool) -> str:
    return f"s{series}" + (" hollow" if hollow else "")


def _grid(axis: Axis, value: float, height: float, top: float = 0) -> Html:
    at = axis.at(value)
    return tag("line", class_="grid", x1=at, x2=at, y1=f"{top:g}", y2=f"{height:g}")


def _rule(axis: Axis, rule: Rule, height: float) -> Html:
    at = axis.at(rule.value)
    looks = "rule strong" if rule.strong else "rule"
    return tag("line", class_=looks, x1=at, x2=at, y1=0, y2=f"{height:g}")


def _anchor(part: float) -> str:
    return "start" if part == 0 else "end" if part == 1 else "middle"


def _place(edges: Sequence[Any], value: float | None) -> float | None:
    """Where a value lies among bars of equal width, from 0 to 1; None if it lies outside."""
    if value is None or not all(map(known, edges)):
        return None
    for i, (a, b) in enumerate(pairwise(edges)):
        if a <= value <= b and a < b:
            return float((i + (value - a) / (b - a)) / (len(edges) - 1))
    return None
