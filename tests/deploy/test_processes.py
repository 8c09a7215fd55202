"""Processes: started, seen, killed, and nobody left; with small programs in place of Flower."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedshift.deploy import guard
from fedshift.deploy.errors import DeployError
from fedshift.deploy.processes import PORTS, Process, free_ports, listening

# a parent that starts a child in a session of its own, as the SuperLink does, and both stay
FAMILY = """
import subprocess, sys, time
child = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
subprocess.Popen(child, start_new_session=True)
print("both there", flush=True)
time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)
"""


def program(folder: Path, code: str, *, name: str = "it", tag: str | None = None) -> Process:
    return Process(
        name,
        [sys.executable, "-S", "-c", code],
        environment=dict(os.environ),
        tag=tag or str(folder),
        log=folder / f"{name}.log",
    )


def wait(until: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def test_output_is_that_of_the_last_start(folder: Path) -> None:
    it = program(folder, "import os; print('number', os.getpid())")
    assert it.output() == ""
    assert it.why() == "it was never started"
    said = []
    for _ in range(2):
        it.start()
        wait(lambda: not it.running)
        said.append(it.output())
    assert said[0] != said[1]
    assert it.log.read_text() == "".join(said)
    assert it.why() == "ended with exit code 0"
    assert it.pid is None


def test_kill_and_end(folder: Path) -> None:
    it = program(folder, "import time; time.sleep(60)")
    it.start()
    assert it.running
    with pytest.raises(DeployError, match="already running"):
        it.start()
    it.kill()
    assert it.why() == "killed by SIGKILL"
    it.start()
    it.end()
    assert it.why() == "killed by SIGTERM"
    it.end()  # once more does no harm


def test_one_that_will_not_end_is_killed(folder: Path) -> None:
    it = program(folder, STUBBORN)
    it.start()
    wait(lambda: "deaf" in it.output())
    it.end(patience=0.2)
    assert it.why() == "killed by SIGKILL"


def test_a_program_that_is_not_there(folder: Path) -> None:
    it = Process("ghost", [str(folder / "no")], environment={}, tag="t", log=folder / "log")
    with pytest.raises(DeployError, match="cannot start ghost"):
        it.start()


def test_grandchildren_in_other_sessions_are_found_and_ended(folder: Path) -> None:
    it = program(folder, FAMILY)
    it.start()
    wait(lambda: "both" in it.output())
    both = guard.members(str(folder))
    assert it.pid in both
    assert len(both) == 2
    assert guard.members(str(folder), part="it") == both
    assert guard.members(str(folder), part="other") == []
    assert guard.members(str(folder)[:-1]) == []  # the whole tag, not its beginning
    assert guard.end(str(folder)) == 0
    assert guard.members(str(folder)) == []
    assert not it.running


def test_orphans_are_found_and_a_new_start_clears_them(folder: Path) -> None:
    it, other = program(folder, FAMILY), program(folder, FAMILY, name="other")
    for process in (it, other):
        process.start()
        wait(lambda p=process: "both" in p.output())
    it.kill()
    (orphan,) = guard.members(str(folder), part="it")
    it.start()
    wait(lambda: "both" in it.output())
    assert orphan not in guard.members(str(folder))
    assert len(guard.members(str(folder), part="other")) == 2
    assert guard.end(str(folder)) == 0
    assert not it.running
    assert not other.running


def test_the_deaf_are_killed_and_counted(folder: Path) -> None:
    it = program(folder, STUBBORN)
    it.start()
    wait(lambda: "deaf" in it.output())
    assert guard.end(str(folder), patience=0.2) == 1
    wait(lambda: not it.running)


def test_the_guard_acts_when_its_owner_is_killed(folder: Path) -> None:
    owner = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-I", {guard.__file__!r}, {str(folder)!r}], stdin=subprocess.PIPE,
                 start_new_session=True)
subprocess.Popen([sys.executable, "-S", "-c", {FAMILY!r}], env={{"{guard.TAG}": {str(folder)!r}}})
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"both there\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait(lambda: not guard.members(str(folder)))


def test_ports() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert set(ports) <= set(PORTS)
    with socket.create_server(("127.0.0.1", ports[0])):
        assert listening(ports[0])
        assert ports[0] not in free_ports(len(PORTS) // 2)
    assert not listening(ports[0])
    with pytest.raises(DeployError, match=r"127\.0\.0\.1 must have 12001 free ports; got \d+"):
        free_ports(len(PORTS) + 1)
