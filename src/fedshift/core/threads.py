"""Use one thread for small work, where starting several takes longer than they save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

#: numbers in the data, or products in a step, below which one thread is fastest
SMALL = 5_000_000


@contextmanager
def threads_for(size: int) -> Iterator[None]:
    """Run the body on one thread if `size` is at most 5 million, on all threads otherwise.

    `size` is the number of values in the data, or of products in one step of the computation.
    On a busy machine, threads that wait for each other in every small step take many times as long
    as one thread.
    """
    if size > SMALL:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
