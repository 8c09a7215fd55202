"""Speed beside another commit: the processes answer, and the bars are judged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.fixture
def against(script: Script) -> ModuleType:
    return script("_against")


def test_a_process_times_its_own_checkout(against: ModuleType, tmp_path: Path) -> None:
    with against.Side(against.ROOT) as side:
        answer = side.block("A")
        assert answer["clock"] > 0
        assert answer["processor"] > 0
    with pytest.raises(RuntimeError):  # of another folder, or of none
        against.Side(tmp_path)


def test_a_checkout_is_there_as_long_as_it_is_needed(against: ModuleType) -> None:
    git = ["git", "-C", str(against.ROOT), "rev-parse", "--verify", "--quiet", "HEAD"]
    if subprocess.run(git, capture_output=True).returncode:
        pytest.skip("this is no checkout of a repository")
    with against.checkout("HEAD") as root:
        assert (root / "src" / "fedshift" / "__init__.py").is_file()
    assert not root.exists()


@pytest.mark.parametrize(("ratio", "status"), [(0.975, 0), (0.965, 1)])
def test_bars_are_judged_by_the_median_of_processor_time(
    ratio: float,
    status: int,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    training = script("training")

    def measured(commit: str, blocks: int) -> dict[str, dict[str, list[float]]]:
        assert (commit, blocks) == ("abc", 8)
        return {name: {"processor": [0.1, ratio, 9.0], "clock": [0.5]} for name in "ABCD"}

    monkeypatch.setattr(training, "measure_against", measured)
    path = tmp_path / "speed.json"
    command = ["training.py", "--against", "abc", "--quick"]
    monkeypatch.setattr("sys.argv", command)
    assert training.main() == status
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("sys.argv", [*command, "--json", str(path)])
    assert training.main() == status
    assert json.loads(path.read_text())["against"] == "abc"
    assert capsys.readouterr().out.count("A: speed now / at abc") == 2
