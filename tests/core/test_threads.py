"""Small work runs on one thread and leaves the setting as it was."""

from __future__ import annotations

import torch

from fedshift.core.threads import SMALL, threads_for


def test_one_thread_for_small_work_only() -> None:
    before = torch.get_num_threads()
    with threads_for(10):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with threads_for(SMALL + 1):
        assert torch.get_num_threads() == before
