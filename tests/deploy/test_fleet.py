"""Real SuperLinks and SuperNodes on loopback: who is let in, what survives, what is left behind.

Most seconds here are Flower's own: a command loads for one, a node looks for messages every three,
and a node that was killed is not let in again for a minute.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from faults import kill_node, kill_superlink, survivors

from fedshift.deploy import flwr_cli
from fedshift.deploy.errors import DeployError
from fedshift.deploy.fleet import Fleet
from fedshift.deploy.keys import write_node_key
from fedshift.deploy.local_run import Finished, run_local
from fedshift.deploy.processes import Process, free_ports
from fedshift.errors import InputError

pytestmark = pytest.mark.flower


def wait(until: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def answered(finished: Finished) -> list[list[str]]:
    return [entry["clients"] for entry in finished.result["rounds"]]


def said(finished: Finished) -> str:
    return "\n".join(str(event["what"]) for event in finished.events)


class Accident:
    """Does something once, when a line of the ServerApp's log begins as told."""

    def __init__(self, line: str, act: Callable[[Fleet], None]) -> None:
        self.line, self.act = line, act
        self.fleet: Fleet | None = None
        self.done = False

    def start(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def read(self, line: str) -> None:
        if self.fleet is not None and not self.done and line.startswith(self.line):
            self.done = True
            self.act(self.fleet)


def test_a_round_over_tls_with_three_nodes(app: Path, folder: Path) -> None:
    lines: list[str] = []
    fleets: list[Fleet] = []

    finished = run_local(
        app,
        clients=["ward-1", "ward-2", "ward-3"],
        folder=folder / "run",
        run_config={"nodes": 3},
        on_line=lines.append,
        on_start=fleets.append,
    )
    assert answered(finished) == [["ward-1", "ward-2", "ward-3"]]
    assert finished.attempts == 1
    assert 0 < finished.start_seconds < finished.seconds
    assert "round 0: ['ward-1', 'ward-2', 'ward-3']" in lines
    assert "Uvicorn running on https://" in (folder / "run/logs/superlink.log").read_text()
    for name in ("ward-1", "ward-2", "ward-3"):
        assert f"node {name} is ready" in said(finished)
        assert "Sent successfully" in (folder / f"run/logs/node-{name}.log").read_text()
    assert finished.events[-1]["what"] == "all processes ended"
    assert survivors(fleets[0]) == []
    assert not list((folder / "run/fleet").iterdir())  # no key is kept
    with pytest.raises(InputError, match="already holds a finished run"):
        run_local(app, clients=["client-1"], folder=folder / "run")


def test_without_tls_and_a_run_that_fails_is_told_in_its_own_words(app: Path, folder: Path) -> None:
    with pytest.raises(DeployError, match="asked to fail"):
        run_local(app, clients=["client-1"], folder=folder, tls=False, run_config={"fail": True})
    assert not (folder / "record" / "result.json").exists()
    assert not list(folder.glob("fleet/*/keys"))
    finished = run_local(app, clients=["client-1"], folder=folder, tls=False)
    assert answered(finished) == [["client-1"]]


class Unregistered(Fleet):
    """A fleet that never tells the SuperLink of its last node's key."""

    def _register(self, public_keys: Iterable[Path]) -> None:
        super()._register(list(public_keys)[:-1])


def test_a_wrong_key_is_turned_away_and_the_others_go_on(app: Path, folder: Path) -> None:
    with Unregistered(folder, ["a", "b", "stranger"]) as fleet:
        fleet.start()
        assert [node.ready for node in fleet.nodes.values()] == [True, True, False]
        assert fleet.nodes["stranger"].given_up
        intruders = [intruder(fleet, folder, *how) for how in (("key", True), ("ca", False))]
        config = flwr_cli.write_run_config(
            folder / "run.toml", {"nodes": 2, "record": str(folder / "record")}
        )
        output, _ = fleet.flwr(flwr_cli.run(app, config)).communicate(timeout=120)
        assert "round 0: ['a', 'b']" in output
        for process in intruders:
            assert not process.running
            assert flwr_cli.NODE_READY not in process.output()
    told = "\n".join(str(event["what"]) for event in fleet.events.to_records())
    assert "node stranger will not be started again" in told
    assert "[code: 2004] Failed to activate SuperNode." in told
    assert survivors(fleet) == []


def intruder(fleet: Fleet, folder: Path, name: str, with_key: bool) -> Process:
    """A SuperNode with a key that nobody knows, or with none at all."""
    assert fleet.keys is not None
    command = flwr_cli.supernode(
        fleet.port,
        free_ports(1)[0],
        ca=fleet.keys.ca,
        key=write_node_key(folder, name),
        config={"client": "a"},
    )
    process = Process(
        f"intruder {name}",
        command if with_key else command[:-2],
        environment=flwr_cli.environment(folder / name),
        tag=fleet.tag,
        log=folder / f"{name}.log",
    )
    process.start()
    return process


def test_a_killed_superlink_comes_back_and_the_run_goes_on(app: Path, folder: Path) -> None:
    accident = Accident("round 0", kill_superlink)
    finished = run_local(
        app,
        clients=["client-1", "client-2"],
        folder=folder,
        run_config={"nodes": 2, "rounds": 2},
        on_line=accident.read,
        on_start=accident.start,
    )
    assert finished.attempts == 2
    assert finished.result["resumed_at"] == 1  # round 0 was not done again
    assert answered(finished) == [["client-1", "client-2"]] * 2
    story = said(finished)
    assert "superlink died: killed by SIGKILL" in story
    assert "superlink restarted after" in story
    assert "run submitted again, attempt 2" in story
    assert "node client-1 died" not in story


@pytest.mark.slow  # a killed node is kept out for a minute
def test_a_node_killed_in_a_round_is_missed_and_comes_back(app: Path, folder: Path) -> None:
    def kill_at_work(fleet: Fleet) -> None:
        log = fleet.nodes["client-1"].process
        wait(lambda: "ROUND 1" in log.output().split("Sending:")[-1])  # it has been asked
        kill_node(fleet, "client-1")

    accident = Accident("round 0", kill_at_work)
    finished = run_local(
        app,
        clients=["client-1", "client-2"],
        folder=folder,
        run_config={"nodes": 2, "rounds": 2, "work": 2.0, "deadline": 12.0, "whole": True},
        on_line=accident.read,
        on_start=accident.start,
    )
    rounds = answered(finished)
    assert rounds[0] == rounds[-1] == ["client-1", "client-2"]
    assert rounds[1] == ["client-2"]
    story = said(finished)
    assert "node client-1 died: killed by SIGKILL" in story
    assert "node client-1 restarted after" in story
    assert finished.attempts == 1


# a shell starts what it puts in the background deaf to Ctrl-C, and children inherit that
SCRIPT = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from fedshift.deploy.local_run import run_local
run_local(Path(sys.argv[1]), clients=["client-1"], folder=Path(sys.argv[2]),
          run_config={"work": 60.0}, on_line=lambda line: print(line, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(
    app: Path, folder: Path, number: signal.Signals, left: Callable[[Path], dict[int, str]]
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(app), str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    log = folder / "logs" / "node-client-1.log"
    wait(lambda: log.exists() and "Start `flwr-clientapp`" in log.read_text())
    there = set(left(folder).values())
    assert {"flower-superlin", "flower-supernod", "flower-superexe", "flwr-serverapp"} <= there
    program.send_signal(number)
    program.wait(timeout=60)
    wait(lambda: not left(folder), seconds=30)
    expected: dict[int, Any] = {signal.SIGINT: {1, 130, -2}, signal.SIGTERM: {143}}
    assert program.returncode in expected.get(number, {-9})
