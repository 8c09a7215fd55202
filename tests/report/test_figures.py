"""Round curves: every method is drawn, a panel for each table, the same every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from fedshift.report.comparison import Sheet
from fedshift.report.figures import draw_curves

CURVES = {
    "FTW": ([5, 10, 15], [0.1, 0.3, 0.2], [0.0, 0.2, 0.1], [0.2, 0.4, 0.3]),
    "A <b> & c": ([5], [0.1], [0.1], [0.1]),
}
SHEET = Sheet(title="One", header=("method",), rows=(("FTW",),), curves=CURVES)


def words(svg: Path) -> set[str]:
    texts = ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")
    return {"".join(t.itertext()).strip() for t in texts}


def test_every_method_and_table_is_drawn(tmp_path: Path) -> None:
    other = replace(SHEET, title="Two", figure="mse", curves_over="rank of the eigenvalue")
    svg = draw_curves([SHEET, other], tmp_path / "curves.svg")
    assert {"One", "Two", "iteration", "accuracy", "FTW", "A <b> & c"} <= words(svg)
    assert {"rank of the eigenvalue", "mse"} <= words(svg)
    alone = draw_curves([SHEET], tmp_path / "alone.svg")
    assert not {"Two", "mse"} & words(alone)


def test_a_drawing_is_the_same_every_time(tmp_path: Path) -> None:
    a, b = (draw_curves([SHEET], tmp_path / f"{i}.svg").read_bytes() for i in range(2))
    assert a == b
