"""What all tests share: those that need a full data set skip where it is absent."""

from __future__ import annotations

import os

# before numpy is imported: workers that each start a thread a core wait for one another
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from fedshift.data.sources import available


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``data("mnist")`` unless the set is on this machine."""
    for mark in item.iter_markers("data"):
        for name in mark.args:
            if not available(name):
                pytest.skip(f"data set {name!r} is not here: set FEDSHIFT_DATA to its folder")
