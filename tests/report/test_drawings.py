"""Scales hold what they show; drawings hold no number that is none."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedshift.report.drawings import (
    Axis,
    Line,
    Mark,
    bar,
    columns,
    key,
    percent,
    scale,
    strip,
)

NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.none() | st.integers()
FINITE = st.floats(-1e6, 1e6)


@given(st.lists(FINITE, min_size=1), FINITE, FINITE)
@example([1.0, 1.0000001], 0.0, 1.0)
@example([1e-9, 3e-9], 0.0, 1.0)
@example([3e11, 8e11], 0.0, 1.0)
def test_an_axis_shows_all_and_keeps_order(values: list[float], a: float, b: float) -> None:
    axis = Axis.around(values)
    assert all(0 <= axis.part(v) <= 1 for v in values)
    low, high = sorted((a, b))
    assert axis.part(low) <= axis.part(high)
    ticks = axis.ticks()
    assert len(set(axis.labels())) == len(set(axis.labels(share=True))) == len(ticks)
    assert 1 <= len(ticks) <= 8
    assert ticks == sorted(ticks)
    room = 1e-9 * max(1.0, abs(axis.low), abs(axis.high))
    assert all(axis.low - room <= t <= axis.high + room for t in ticks)


def test_an_axis_by_hand() -> None:
    axis = Axis(0.5, 1.0)
    assert [axis.at(v) for v in (0.5, 0.75, 0.9, 1.0)] == ["0%", "50%", "80%", "100%"]
    assert (axis.at(0.1), axis.at(7.0)) == ("0%", "100%")
    assert Axis(-0.13, 0.06).ticks() == [-0.1, -0.05, 0.0, 0.05]
    assert Axis.around([3.0]) == Axis(2.7, 3.3)
    assert Axis(0.776, 0.964).labels(share=True) == ["80%", "85%", "90%", "95%"]
    assert Axis(0.9, 1.0).labels(2, share=True) == ["90%", "95%", "100%"]
    assert Axis.around([None, math.nan]) == Axis(-0.06, 1.06)
    assert percent(0.12345) == "12.35%"


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=4), NUMBERS)
def test_drawings_bear_any_number(marks: list[tuple[object, object, object]], part: object) -> None:
    axis = Axis.around([v for m in marks for v in m])
    dots = [Mark(v, low, high, series=i) for i, (v, low, high) in enumerate(marks)]
    drawn = strip(axis, dots, title="t", rules=[Line(0.0)]) + scale(axis, title="t")
    drawn += bar(part, title="t") + columns([0, 1, part], [part, 2], title="t", rule=1.0)
    assert not re.search(r"nan|inf|None", re.sub(r"<text.*?</text>", "", drawn))
    numbers = re.findall(r'(?:x1|x2|x|cx|width)="(-?[\d.]+)%"', drawn)
    assert all(-1e-9 <= float(n) <= 100 for n in numbers)


def test_a_strip_has_a_shape_and_an_interval_a_mark() -> None:
    marks = [Mark(0.6, 0.5, 0.7), Mark(0.8, None, 0.9, series=1), Mark(None)]
    drawn = strip(Axis(0.0, 1.0), marks, title="a & b", rules=[Line(0.5, strong=True)])
    assert drawn.count("<path") == 2
    assert drawn.count("whisker") == 1
    assert 'x1="50%" x2="70%"' in drawn
    assert "<title>a &amp; b</title>" in drawn
    assert 'role="img"' in drawn
    assert drawn.count('class="rule strong"') == 1


def test_series_differ_in_shape_not_in_colour_alone() -> None:
    assert len({re.search(r'd="(.*?)"', key(k)).group(1) for k in range(4)}) == 4  # type: ignore[union-attr]


def test_a_histogram_has_equal_bars_and_marks_one_within_its_bin() -> None:
    drawn = columns([0.0, 0.5, 2.0, 8.0], [10, 5, 0], title="t", rule=1.0)
    bars = re.findall(r'<rect class="s0" x="(.*?)%" y=".*?" width="(.*?)%" height="(.*?)"', drawn)
    assert [float(h) for *_, h in bars] == [84.0, 42.0]
    assert len({w for _, w, _ in bars}) == 1
    # a third of the way into the second of three bins
    assert f'x1="{percent((1 + 1 / 3) / 3)}"' in drawn
    assert "rule" not in columns([2.0, 3.0], [1], title="t", rule=1.0)


@pytest.mark.parametrize("n", [1, 3, 8, 30])
def test_a_histogram_writes_both_ends(n: int) -> None:
    drawn = columns(list(range(n + 1)), [1] * n, title="t")
    assert ">0</text>" in drawn
    assert f">{n}</text>" in drawn
