"""Use one thread for small work, where starting several takes longer than they save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

#: values in the data up to which one thread is fastest
SMALL = 5_000_000
#: products in a training step up to which one thread is fastest: some ten milliseconds
STEP = 40_000_000


@contextmanager
def threads_for(size: int, small: int = SMALL) -> Iterator[None]:
    """Run the body on one thread if `size` is at most `small`, on all threads otherwise.

    `size` is the number of values in the data, or of products in one step of the computation
    (then `small` is `STEP`). On a busy machine, threads that wait for each other in every small
    step take many times as long as one thread.
    """
    if size > small:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
