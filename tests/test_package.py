"""The door: light to open, sorted, complete, no room importing upwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fedshift
from fedshift import ratio

ROOT = Path(__file__).parents[1]


def run(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_import_is_light() -> None:
    code = """
import sys, time, torch
start = time.perf_counter()
import fedshift
print(time.perf_counter() - start, *sorted(set(sys.modules) & {"flwr", "matplotlib", "sklearn"}))
"""
    seconds, *heavy = run(code).split()
    assert float(seconds) < 0.5
    assert not heavy


@pytest.mark.parametrize("module", [fedshift, ratio])
def test_every_name_of_the_door_opens(module) -> None:
    assert module.__all__ == sorted(module.__all__, key=lambda n: (not n.isupper(), n))
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Oracle'"):
        module.Oracle  # noqa: B018


def test_imports_run_downhill() -> None:
    command = [Path(sys.executable).parent / "lint-imports", "--config", ROOT / "pyproject.toml"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout


def test_readme_example_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = readme.split("```python\n")[1].split("```")[0]
    assert 10 <= len(example.strip().splitlines()) <= 20
    assert "ESS" in run(example)
