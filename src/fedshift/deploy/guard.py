"""Ends all processes of a fleet, whoever started them and whatever became of their parents.

Flower's processes start others, some in a session of their own, so neither parents nor process
groups find them all. What every descendant does have is the environment it inherited: a fleet
writes a tag into it, and whoever carries the tag belongs to the fleet.

Run as a program, this is the fleet's guard. It waits until the pipe on its standard input closes,
which happens when the program at the other end ends in whatever way, `kill -9` included, and then
ends what is left. Only the standard library is imported: it starts in hundredths of a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

#: environment variables: which fleet, and which of its processes it descends from
TAG, PART = "FEDSHIFT_FLEET", "FEDSHIFT_PART"


def members(tag: str, *, part: str | None = None) -> list[int]:
    """Numbers of the running processes that carry the tag, this one left out.

    With `part`, only that process of the fleet and what it started.

    Needs /proc; on systems without it the list is empty and only what a fleet started itself is
    ended (Flower's own children watch their parents and follow within a second).
    """
    marks = {f"{TAG}={tag}".encode(), *([f"{PART}={part}".encode()] if part else [])}
    out = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            if marks <= set((entry / "environ").read_bytes().split(b"\0")):
                out.append(int(entry.name))
    return [pid for pid in out if pid != os.getpid()]


def end(tag: str, *, part: str | None = None, patience: float = 6.0) -> int:
    """Ask members to end, insist after `patience` seconds; returns how many were insisted on.

    Returns when none is left. New ones may be born while we look, so looking is repeated.
    """
    asked: set[int] = set()
    killed: set[int] = set()
    until = time.monotonic() + patience
    while alive := members(tag, part=part):
        late = time.monotonic() >= until
        for pid in alive:
            if late:
                killed.add(pid)
                _signal(pid, signal.SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                _signal(pid, signal.SIGTERM)
        if time.monotonic() > until + 10.0:  # one that even SIGKILL does not reach
            break
        time.sleep(0.05)
    return len(killed)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end(sys.argv[1], patience=3.0)
