"""Golden records: this code does what the record says, and the check sees changes."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

Script = Callable[[str], ModuleType]


@pytest.fixture
def golden(script: Script) -> ModuleType:
    return script("golden")


@pytest.mark.slow
def test_this_code_does_what_the_record_says(golden: ModuleType) -> None:
    command = [sys.executable, golden.__file__, "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASS  ") == len(json.loads(golden.RECORD.read_text())["cases"])


def test_a_step_size_changed_by_a_ten_thousandth_is_seen(golden: ModuleType) -> None:
    def run(lr: float) -> Any:
        return golden.measure(golden.recipe("smoke/gaussian", ["FTW"], f"plan.lr={lr!r}"))

    before = run(0.02)
    assert golden.Difference.of(before, run(0.02)).parameters == 0
    found = golden.Difference.of(before, run(0.02 * (1 + 1e-4)))
    assert not found.passes(golden.HERE)
    assert not found.choices


@pytest.fixture
def small(golden: ModuleType) -> dict[str, Any]:
    """A record of one case with few and one with many parameters."""

    def case(count: int) -> Any:
        v = torch.linspace(-1, 2, count, dtype=torch.float64)
        return golden.Case({"model": "linear"}, {"erm": [0.5, 40.0]}, {"erm": golden.sketch([v])})

    cases = {str(count): lambda change, count=count: case(count) for count in (7, 5000)}
    kept = {name: golden.measure(run) for name, run in cases.items()}
    return {"cases": cases, "record": {"machine": golden.machine(), "cases": kept}}


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "choice": lambda c: c["choices"].update(model="mlp"),
    "score": lambda c: c["scores"].update(erm=[0.5021, 40.0]),
    "error above 1": lambda c: c["scores"].update(erm=[0.5, 40.081]),
    "score that is no number": lambda c: c["scores"].update(erm=[math.nan, 40.0]),
    "score of another model": lambda c: c["scores"].update(label=[0.5]),
    "fewer parameters": lambda c: c["parameters"]["erm"].update(count=6),
    "ledger": lambda c: c["ledger"].update(train=[1, 2, 3]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_is_missed(
    name: str, golden: ModuleType, small: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert golden.check(small["record"], small["cases"]) == 0
    other = copy.deepcopy(small["record"])
    CHANGES[name](other["cases"]["5000"])
    assert golden.check(other, small["cases"]) == 1
    assert capsys.readouterr().out.count("MISS  5000") == 1


def test_a_case_of_one_side_only_is_missed(golden: ModuleType, small: dict[str, Any]) -> None:
    assert golden.check(small["record"], {"7": small["cases"]["7"]}) == 1
    assert golden.check({**small["record"], "cases": {}}, small["cases"]) == 1


@pytest.mark.parametrize("count", [7, 5000])
def test_the_move_of_parameters_is_relative_to_their_norm(golden: ModuleType, count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    v, d = torch.randn(2, count, dtype=torch.float64, generator=generator)
    now = v + 1e-5 * d * v.norm() / d.norm()
    found = golden.moved(golden.sketch([v]), golden.sketch([now[: count // 2], now[count // 2 :]]))
    assert found == pytest.approx(1e-5, rel=0.3)


def test_elsewhere_parameters_may_move_further(
    golden: ModuleType, small: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    record = small["record"]
    for case in record["cases"].values():
        case["parameters"]["erm"]["values"][0] *= 1 + 1e-4
        case["ledger"]["train"] = [1, 2, 3]
    assert golden.check(record, small["cases"]) == 1
    record["machine"] = {**record["machine"], "processor": "another"}
    assert golden.check(record, small["cases"]) == 0
    assert "may move by 0.001" in capsys.readouterr().out


def test_a_case_whose_choice_flips_is_not_written(golden: ModuleType, tmp_path: Path) -> None:
    def steady(change: float) -> Any:
        return golden.Case({"model": "linear"})

    def flips(change: float) -> Any:
        return golden.Case({"model": "mlp" if change else "linear"})

    path = tmp_path / "golden.json"
    assert golden.write(path, {"steady": steady, "flips": flips}) == 1
    assert not path.exists()
    assert golden.write(path, {"steady": steady}) == 0
    assert golden.check(json.loads(path.read_text()), {"steady": steady}) == 0
