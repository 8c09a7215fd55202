"""What all tests share: what hypothesis draws, and skips where a full data set is absent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# before numpy is imported: workers that each start a thread a core wait for one another
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

sys.path.insert(0, str(Path(__file__).parent))  # for `known_distributions`

from fedshift.data.sources import available

# the same examples everywhere; FEDSHIFT_FUZZ=1 searches at random
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("fuzz", derandomize=False, deadline=None)
FUZZ = bool(os.environ.get("FEDSHIFT_FUZZ"))
hypothesis.settings.load_profile("fuzz" if FUZZ else "same")
if not FUZZ:
    # hypothesis also draws constants of the modules imported so far: with -n, or with a part of
    # the tests, they differ
    providers._get_local_constants = lambda: providers._local_constants


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``data("mnist")`` unless the set is on this machine."""
    for mark in item.iter_markers("data"):
        for name in mark.args:
            if not available(name):
                pytest.skip(f"data set {name!r} is not here: set FEDSHIFT_DATA to its folder")
