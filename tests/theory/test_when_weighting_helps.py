"""The docs page on when weighting helps: its code runs and prints what it says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "when-weighting-helps.md"


def test_the_page_runs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    assert len(example.examples) >= 15
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0


def test_the_page_prints_the_counterexample() -> None:
    assert "0.445 with weights, 0.0091 without" in PAGE.read_text(encoding="utf-8")
