"""What the tests of a deployment share."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `faults`

APP = Path(__file__).parent / "app"
collect_ignore = ["app"]  # a Flower app, not tests


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest the mark of tests that start Flower's processes."""
    config.addinivalue_line("markers", "flower: starts Flower's processes; skipped without flwr")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs Flower where it is not installed, and its minutes unless asked for."""
    missing = not os.access(Path(sys.executable).parent / "flower-superlink", os.X_OK)
    for item in items:
        if not item.get_closest_marker("flower"):
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason="flwr is not installed"))
        elif item.get_closest_marker("slow") and not os.environ.get("FEDSHIFT_SLOW"):
            why = "takes minutes; FEDSHIFT_SLOW=1 pytest -m flower tests/deploy runs it"
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def app() -> Path:
    """Folder of the tiny Flower app."""
    return APP


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that no process may know of once the test is over."""
    yield tmp_path
    end = time.monotonic() + 1.0  # a guard whose work is done still has to leave
    while (left := knowing(tmp_path)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not left, f"processes left behind: {left}"


@pytest.fixture(scope="session")
def left() -> Callable[[Path], dict[int, str]]:
    """Look for processes that know of a folder."""
    return knowing


def knowing(folder: Path) -> dict[int, str]:
    """Processes that name the folder in their environment or arguments, this one left out.

    Another way to look than the one the fleet has, so that the two check each other.
    """
    out = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if str(folder).encode() in told and state != "Z" and int(entry.name) != os.getpid():
            out[int(entry.name)] = (entry / "comm").read_text().strip()
    return out
