"""The public names: light to import, complete, no package importing upwards."""

from __future__ import annotations

import ast
import inspect
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
def test_every_public_name_loads(module) -> None:
    assert dir(module) == module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Oracle'"):
        module.Oracle  # noqa: B018


@pytest.mark.parametrize("module", [fedshift, ratio])
def test_type_checkers_see_the_same_names(module) -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If)).body
    assert sorted(a.asname for node in block for a in node.names) == module.__all__
    for node in block:
        exec(ast.unparse(node), seen := {})  # the same object by either way
        for alias in node.names:
            assert seen[alias.asname] is getattr(module, alias.name)


def test_names_for_users_are_at_the_top() -> None:
    names = {"FederatedAuto", "FederatedClassifier", "FederatedMLLS", "MultiSource", "diagnose"}
    assert names | {"load", "privacy", "run", "train"} <= set(fedshift.__all__)
    assert inspect.isfunction(fedshift.train)
    assert inspect.isfunction(fedshift.load)
    assert inspect.ismodule(fedshift.theory.pooling)


def test_imports_run_downhill() -> None:
    command = [Path(sys.executable).parent / "lint-imports", "--config", ROOT / "pyproject.toml"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout


def test_readme_example_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = readme.split("```python\n")[1].split("```")[0]
    assert 10 <= len(example.strip().splitlines()) <= 20
    assert "ESS" in run(example)
