"""Answer jobs for one peer: JSON lines in, JSON lines out.

Run from the folder above with the peer's interpreter, for example::

    echo '{"task": "digits", "seed": 0, "method": "KLIEP"}' | python -m peers._worker densratio

The first line out names the peer's methods and version. Each answer holds ``nmse`` (None where
the method has no ratios at new rows), ``accuracy`` of the downstream test (None where the task
has none) and ``seconds`` of the fit, or ``error``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
from _tasks import ALL_TASKS, downstream, nmse

from peers import Method


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the body after so many seconds."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def answer(job: dict[str, Any], method: Method | None, limit: int) -> dict[str, Any]:
    """Fit a method on one sample and score it; None stands for one with nothing to score."""
    if method is None:
        return {**job, "error": "has ratios at the source rows only"}
    sample = ALL_TASKS[job["task"]].make(job["seed"])
    np.random.seed(job["seed"])  # noqa: NPY002 - several peers draw from the global generator
    try:
        with limited(limit):
            start = time.perf_counter()
            fitted = method(sample.source, sample.target)
            seconds = time.perf_counter() - start
            error = (
                None
                if fitted.ratio is None
                else nmse(fitted.ratio(sample.heldout), sample.log_ratio)
            )
            accuracy = None
            if sample.test is not None:
                at_source = fitted.source
                if at_source is None and fitted.ratio is not None:
                    at_source = fitted.ratio(sample.source)
                accuracy = downstream(sample, at_source)
    except Exception as fault:  # the peer's failure is a result
        return {**job, "error": f"{type(fault).__name__}: {fault}"[:200]}
    if any(value is not None and not math.isfinite(value) for value in (error, accuracy)):
        return {**job, "error": "the ratios are not finite or sum to nothing"}
    return {**job, "nmse": error, "accuracy": accuracy, "seconds": seconds}


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", help="a module of this package")
    parser.add_argument("--limit", type=int, default=300, help="seconds a fit may take")
    args = parser.parse_args()
    # Only answers may go to the standard output: what the peer prints, also from C, is dropped.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    module = importlib.import_module(f"peers.{args.peer}")
    print(
        json.dumps({"methods": list(module.METHODS), "version": version(module.PACKAGE)}),
        file=answers,
    )
    source_only = getattr(module, "SOURCE_ONLY", set())
    for line in sys.stdin:
        job = json.loads(line)
        blind = job["method"] in source_only and not ALL_TASKS[job["task"]].labelled
        method = None if blind else module.METHODS[job["method"]]
        print(json.dumps(answer(job, method, args.limit)), file=answers)


if __name__ == "__main__":
    main()
