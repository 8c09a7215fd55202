"""Small drawings as SVG, written by hand.

Positions along x are per cent of the width, positions along y are pixels: a drawing fills whatever
width it is given, on a phone or on paper, and its text keeps its size. Colours come from the page's
style by class (``s0``, ``s1``, ... with a shape each), so that they suit light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fedshift.report.markup import Html, tag
from fedshift.report.spell import known, number

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
    def around(
        cls, values: Iterable[Any], *, hold: Sequence[float] = (), pad: float = 0.06
    ) -> Axis:
        """The scale that shows all known values, and those of `hold` at least."""
        seen = [float(v) for v in values if known(v)] + list(hold) or [0.0, 1.0]
        low, high = min(seen), max(seen)
        room = pad * (high - low) or abs(high) * 0.1 or 1.0
        return cls(
            low if low in hold else low - room,
            high if high in hold else high + room,
        )

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
        width = self.high - self.low
        if not (math.isfinite(width) and width > 0):
            return []
        raw = width / about
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) + 0.0 for k in range(first, last + 1)]


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
    strong: bool = field(default=False)


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


def scale(axis: Axis, *, title: str, write: Any = number) -> Html:
    """The numbers along the axis, to stand above strips."""
    ticks = [tag("text", write(v), x=axis.at(v), y=12, text_anchor="middle") for v in axis.ticks()]
    return drawing(title, 16, ticks, kind="scale")


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
        tag(
            "rect",
            class_="s0",
            x=percent((i + 0.08) / n),
            y=f"{6 + tall * (1 - c / top):.1f}",
            width=percent(0.84 / n),
            height=f"{tall * (c / top):.1f}",
        )
        for i, c in enumerate(counts)
        if known(c) and c > 0
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


def scatter(
    points: Sequence[tuple[float, float, Any]], axis: Axis, *, title: str, write: Any = number
) -> Html:
    """Points (x, y, rows) on a square scale, with the line on which both are the same."""
    tall = 150.0

    def up(value: float) -> float:
        return 8 + tall * (1 - axis.part(value))

    ticks = axis.ticks(4)
    grid = [_grid(axis, v, tall + 8, top=8) for v in ticks]
    grid += [
        tag("line", class_="grid", x1="0%", x2="100%", y1=f"{up(v):.1f}", y2=f"{up(v):.1f}")
        for v in ticks
    ]
    same = tag("line", class_="same", x1="0%", x2="100%", y1=8 + tall, y2=8)
    most = max((n for *_, n in points if known(n)), default=1) or 1
    dots = [
        tag(
            "circle",
            class_="dot s0",
            cx=axis.at(x),
            cy=f"{up(y):.1f}",
            r=f"{3 + 3 * math.sqrt(n / most) if known(n) and n >= 0 else 4:.1f}",
        )
        for x, y, n in points
    ]
    labels = [tag("text", write(v), x=axis.at(v), y=tall + 22, text_anchor="middle") for v in ticks]
    labels += [
        tag("text", write(v), x="-6", y=f"{up(v) + 4:.1f}", text_anchor="end") for v in ticks
    ]
    return drawing(title, tall + 28, grid, same, dots, labels, kind="plot square")


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
