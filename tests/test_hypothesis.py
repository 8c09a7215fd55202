"""The same commit draws the same examples, whatever ran before."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st


def draws() -> list[str]:
    """What hypothesis draws for one test."""
    examples: list[str] = []

    @given(st.lists(st.floats()))
    def collect(values: list[float]) -> None:
        examples.append(repr(values))

    collect()
    return examples


@pytest.mark.skipif(bool(os.environ.get("FEDSHIFT_FUZZ")), reason="FEDSHIFT_FUZZ draws at random")
def test_examples_do_not_depend_on_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = draws()
    spec = importlib.util.spec_from_file_location("constants", tmp_path.resolve() / "constants.py")
    assert spec is not None
    (tmp_path / "constants.py").write_text("\n".join(f"A{i} = {i}.{i}" for i in range(100, 999)))
    monkeypatch.setitem(sys.modules, "constants", importlib.util.module_from_spec(spec))
    assert draws() == before
