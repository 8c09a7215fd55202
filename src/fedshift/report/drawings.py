"""Small drawings as SVG.

Positions along x are per cent of the width and positions along y are pixels, so a drawing fills any
width and its text keeps its size. Colours come from the page's style by class (``s0``, ``s1``, ...,
each with its own shape), so they suit light mode, dark mode and print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fedshift.report.format import fixed, known, number
from fedshift.report.markup import Html, tag

#: outlines around the origin, one per series: circle, square, diamond, triangle
SHAPES = (
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "M-4.5-4.5h9v9h-9z",
    "M0-6L6 0L0 6L-6 0z",
    "M0-6L5.5 4.5h-11z",
)


@dataclass(frozen=True)
class Axis:
    """A linear scale from `low` to `high`, as per cent of a width.

    Examples
    --------
    >>> Axis(0.5, 1.0).at(0.75), Axis(0.5, 1.0).ticks()
    ('50%', [0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    """

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[Any], *, pad: float = 0.06) -> Axis:
        """Return a scale that covers all finite values, with a margin on both sides."""
        finite = [float(v) for v in values if known(v)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        room = pad * (high - low) or abs(high) * 0.1 or 1.0
        return cls(low - room, high + room)

    def part(self, value: float) -> float:
        """Return a position from 0 to 1; values outside the scale go to its ends."""
        width = self.high - self.low
        at = (value - self.low) / width if math.isfinite(width) and width > 0 else 0.5
        return min(1.0, max(0.0, at))

    def at(self, value: float) -> str:
        """Return a position as SVG text, such as "50%"."""
        return percent(self.part(value))

    def ticks(self, about: int = 5) -> list[float]:
        """Return round numbers within the scale, roughly `about` of them."""
        step = self._step(about)
        if step is None:
            return []
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{k * step:.12g}") + 0.0 for k in range(first, last + 1)]

    def labels(self, about: int = 5, *, share: bool = False) -> list[str]:
        """Return the ticks as text, with enough decimal places that they all differ.

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
        """Distance between ticks: 1, 2 or 5 times a power of ten."""
        width = self.high - self.low
        if not (math.isfinite(width) and width > 0):
            return None
        raw = width / about
        unit = 10.0 ** math.floor(math.log10(raw))
        return next((unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999), None)


def percent(part: float) -> str:
    """Write a part of a width, from 0 to 1, as per cent.

    Examples
    --------
    >>> percent(0.25), percent(1 / 3)
    ('25%', '33.33%')
    """
    return f"{100 * part:.2f}".rstrip("0").rstrip(".") + "%"


@dataclass(frozen=True)
class Mark:
    """A dot with an optional interval; the series sets shape and colour."""

    value: Any
    low: Any = None
    high: Any = None
    series: int = 0
    hollow: bool = False


@dataclass(frozen=True)
class Line:
    """A reference line across a drawing, for example at no difference."""

    value: float
    strong: bool = False


def drawing(title: str, height: float, *children: Html | Iterable[Html], kind: str) -> Html:
    """Make a full-width SVG; its title is for screen readers and appears on hover."""
    label = tag("title", title)
    return tag("svg", label, children, class_=kind, role="img", width="100%", height=f"{height:g}")


def strip(axis: Axis, marks: Sequence[Mark], *, title: str, rules: Sequence[Line] = ()) -> Html:
    """Draw dots with intervals along one axis, one below the other."""
    dots = [m for m in marks if known(m.value)]
    height = 14 + 13 * max(1, len(dots))
    lines = [_upright(axis.at(v), height, "grid") for v in axis.ticks()]
    for rule in rules:
        looks = "rule strong" if rule.strong else "rule"
        lines.append(_upright(axis.at(rule.value), height, looks))
    shapes = [_dot(axis, m, 13.5 + 13 * i) for i, m in enumerate(dots)]
    return drawing(title, height, lines, shapes, kind="strip")


def scale(axis: Axis, *, title: str, share: bool = False) -> Html:
    """Draw the numbers along an axis, to be placed above strips."""
    ticks = zip(axis.ticks(), axis.labels(share=share), strict=True)
    texts = [tag("text", text, x=axis.at(v), y=12, text_anchor="middle") for v, text in ticks]
    return drawing(title, 16, texts, kind="scale")


def bar(part: Any, *, title: str, series: int = 0) -> Html:
    """Draw a part, from 0 to 1, as a bar in a box."""
    width = percent(min(1.0, max(0.0, part))) if known(part) else "0%"
    box = tag("rect", class_="box", width="100%", height=8, rx=2)
    return drawing(
        title, 8, box, tag("rect", class_=f"s{series}", width=width, height=8, rx=2), kind="bar"
    )


def columns(
    edges: Sequence[Any], counts: Sequence[Any], *, title: str, rule: float | None = None
) -> Html:
    """Draw a histogram whose bars all have equal width; the bin edges are written below."""
    tall, n = 84.0, max(1, len(counts))
    top = max((c for c in counts if known(c)), default=0) or 1
    bars = [
        _column(i / n, 1 / n, c / top, tall) for i, c in enumerate(counts) if known(c) and c > 0
    ]
    base = tag("line", class_="axis", x1="0%", x2="100%", y1=6 + tall, y2=6 + tall)
    at = sorted({0, n // 4, n // 2, 3 * n // 4, n}) if n >= 8 else range(n + 1)
    labels = [
        tag("text", number(edges[i], 2), x=percent(i / n), y=tall + 20, text_anchor=_anchor(i / n))
        for i in at
    ]
    place = _place(edges, rule)
    x = None if place is None else percent(place)
    line = [tag("line", class_="rule strong", x1=x, x2=x, y1=0, y2=6 + tall)] if x else []
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


def key(series: int, *, hollow: bool = False) -> Html:
    """Draw the shape of a series, for a legend or a badge."""
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


def _upright(x: str, height: float, looks: str) -> Html:
    return tag("line", class_=looks, x1=x, x2=x, y1=0, y2=f"{height:g}")


def _anchor(part: float) -> str:
    return "start" if part == 0 else "end" if part == 1 else "middle"


def _place(edges: Sequence[Any], value: float | None) -> float | None:
    """Position of a value among bars of equal width, from 0 to 1; None if it is outside."""
    if value is None or not all(map(known, edges)):
        return None
    for i, (a, b) in enumerate(pairwise(edges)):
        if a <= value <= b and a < b:
            return float((i + (value - a) / (b - a)) / (len(edges) - 1))
    return None
