"""Ends all processes of a fleet, including those whose parents have ended.

A fleet is Flower's server process (SuperLink) with the processes of all sites (SuperNodes).
Flower's processes start others, some of them in a session of their own. So one cannot find
all of them by following parents or process groups. But every process inherits the environment of
its parent. A fleet writes a tag into the environment, and each process with the tag belongs to the
fleet.

Run as a program, this is the fleet's guard. It waits until the pipe on its standard input closes
and then ends the processes that are left. The pipe closes when the program at its other end ends
in any way, also by `kill -9`. Only the standard library is imported, so the guard starts in
hundredths of a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

#: environment variables: the fleet, and the process of the fleet from which this one descends
TAG, PART = "FEDSHIFT_FLEET", "FEDSHIFT_PART"


def members(tag: str, *, part: str | None = None) -> list[int]:
    """Return the ids of running processes with the tag, except the calling process.

    If `part` names a process of the fleet, return only the named process and those it started.

    The search needs /proc. Without /proc the list is empty, and a fleet ends only the processes
    that it started itself. Processes that Flower started watch their parents and end within a
    second after their parents.
    """
    marks = {f"{TAG}={tag}".encode(), *([f"{PART}={part}".encode()] if part else [])}
    out = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if marks <= set(_environment(entry).split(b"\0")):
                out.append(int(entry.name))
    return [pid for pid in out if pid != os.getpid()]


def _environment(entry: Path) -> bytes:
    """Return the environment of the process at /proc/PID.

    Linux shows none while a new process loads its program, so an empty one is read again. Kernel
    threads and processes that have ended have no program, and `readlink` raises OSError.
    """
    for _ in range(20):
        if environment := (entry / "environ").read_bytes():
            return environment
        (entry / "exe").readlink()
        time.sleep(0.001)
    return b""


def end(tag: str, *, part: str | None = None, patience: float = 6.0) -> int:
    """Send SIGTERM to members, and SIGKILL after `patience` seconds; return how many got SIGKILL.

    The search is repeated until no process is left, because new processes may start meanwhile.
    """
    warned: set[int] = set()
    killed: set[int] = set()
    until = time.monotonic() + patience
    while alive := members(tag, part=part):
        late = time.monotonic() >= until
        for pid in alive:
            if late:
                killed.add(pid)
                _signal(pid, signal.SIGKILL)
            elif pid not in warned:
                warned.add(pid)
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
