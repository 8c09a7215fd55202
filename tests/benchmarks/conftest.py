"""Benchmark scripts, imported as they import one another."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A script of the benchmarks by name; they do not come with a source distribution."""
    if not FOLDER.is_dir():
        pytest.skip("there is no folder of benchmarks here")
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the scripts set themselves
    return importlib.import_module
