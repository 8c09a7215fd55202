"""Drawings for pages: every point is there, ids are their own, the same every time."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from fedshift.report.figures import COLOURS, calibration_svg, curves_svg, dots_svg

GROUPS = {
    "exact": ([-2.0, 0.0, 3.0], [-2.0, 0.0, 3.0]),
    "A <b> & c": ([-1.0, 0.5], [-2.5, 1.0]),
}
CURVES = {
    "FTW": ([5, 10, 15], [0.1, 0.3, 0.2], [0.0, 0.2, 0.1], [0.2, 0.4, 0.3]),
    "ERM": ([5], [0.1], [0.1], [0.1]),
}
DOTS = {"FTW": {"a": (0.5, 0.4, 0.7), "b": (0.6, 0.6, 0.6)}, "ERM": {"b": (0.2, 0.1, 0.3)}}


def drawn(svg: str) -> ElementTree.Element:
    """The drawing as XML, which it is once it says what its links are."""
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns:xlink="x" ', 1))


def words(svg: str) -> list[str]:
    return ["".join(t.itertext()).strip() for t in drawn(svg).iter("text")]


def points(svg: str) -> list[tuple[float, float]]:
    """Where the marks of scatters are, in the drawing's own units."""
    marks = re.findall(r'<use [^>]*?x="([\d.]+)" y="([\d.]+)" style="fill: (#\w+)', svg)
    return [(float(x), float(y)) for x, y, colour in marks if colour.upper() in COLOURS]


def test_right_estimates_lie_on_the_line() -> None:
    svg = calibration_svg({"exact": GROUPS["exact"]}, prefix="k")
    found = points(svg)[:3]  # then the legend's
    line = next(re.finditer(r'd="M ([\d.]+) ([\d.]+)\s+L ([\d.]+) ([\d.]+)\s*" [^>]*#999999', svg))
    x0, y0, x1, y1 = map(float, line.groups())
    for x, y in found:
        assert (y - y0) * (x1 - x0) == pytest.approx((y1 - y0) * (x - x0), abs=0.5)
    assert found[0] == pytest.approx((x0, y0), abs=1e-3)
    assert found[2] == pytest.approx((x1, y1), abs=1e-3)


def test_every_group_and_method_is_drawn() -> None:
    svg = calibration_svg(GROUPS, prefix="k")
    assert len(points(svg)) == 5 + 2  # two in the legend
    assert {"exact log ratio", "estimated log ratio", "exact", "A <b> & c"} <= set(words(svg))
    high = points(calibration_svg({"a": ([5.0, 0.0], [0.0, 5.0])}, prefix="k"))
    assert high[0][1] < high[1][1]  # estimated too high stands above, on the left
    assert high[0][0] < high[1][0]


@pytest.mark.parametrize("over", ["iteration", "rank of the eigenvalue"])
def test_curves_say_what_they_run_over(over: str) -> None:
    svg = curves_svg(CURVES, figure="accuracy", prefix="c", over=over)
    assert {over, "accuracy", "FTW", "ERM"} <= set(words(svg))
    assert svg == curves_svg(CURVES, figure="accuracy", prefix="c", over=over)
    if over == "iteration":
        assert svg == curves_svg(CURVES, figure="accuracy", prefix="c")


def test_drawings_share_a_page() -> None:
    svgs = [
        calibration_svg(GROUPS, prefix="a"),
        calibration_svg(GROUPS, prefix="b"),
        curves_svg(CURVES, figure="accuracy", prefix="c"),
        dots_svg(DOTS, figure="accuracy", prefix="d"),
    ]
    ids = [re.findall(r'\sid="([^"]+)"', svg) for svg in svgs]
    assert len({i for own in ids for i in own}) == sum(map(len, ids))
    for svg, own in zip(svgs, ids, strict=True):
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', svg)) <= set(own)
        assert svg.startswith('<svg role="img" ')
