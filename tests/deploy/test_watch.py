"""Watching: what dies comes back, what cannot come is given up, and the events say so."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedshift.deploy import guard
from fedshift.deploy.event_log import EventLog
from fedshift.deploy.fleet import Fleet
from fedshift.deploy.processes import Process
from fedshift.deploy.watch import Watched

# refused as often as the file says, as a SuperNode is whose old session is not yet over
CODE = """
import pathlib, sys, time
path = pathlib.Path(sys.argv[1])
left = int(path.read_text())
path.write_text(str(left - 1))
if left > 0:
    print("[code: 2004] Failed to activate", flush=True)
    raise SystemExit(1)
print("in", flush=True)
time.sleep(60)
"""


class Scene:
    """A watched program that is refused some times."""

    def __init__(self, folder: Path) -> None:
        self.refusals, self.tag = folder / "refusals", str(folder)
        self.events = EventLog(folder / "events.jsonl")
        process = Process(
            "node a",
            [sys.executable, "-S", "-c", CODE, str(self.refusals)],
            environment=dict(os.environ),
            tag=self.tag,
            log=folder / "log",
        )
        self.watched = Watched(
            process,
            lambda p: "in\n" in p.output(),
            self.events,
            pause=0.02,
            longest=0.04,
            debut=0.5,
            patience=30.0,
        )

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 15
        while not done():
            assert time.monotonic() < end
            self.watched.step()
            time.sleep(0.005)

    def said(self) -> list[str]:
        return [str(event["what"]) for event in self.events.to_records()]


@pytest.fixture
def scene(folder: Path) -> Iterator[Scene]:
    scene = Scene(folder)
    yield scene
    guard.end(scene.tag)
    scene.watched.process.end()


def test_what_is_killed_comes_back_when_it_is_let_in(scene: Scene) -> None:
    scene.refusals.write_text("0")
    scene.watched.start()
    scene.until(lambda: scene.watched.ready)
    scene.refusals.write_text("3")
    scene.watched.process.kill()
    scene.until(lambda: not scene.watched.ready)
    scene.until(lambda: scene.watched.ready)
    assert scene.watched.starts == 1 + 3 + 1
    first, died, refused, back = scene.said()
    assert first.startswith("node a is ready after")
    assert died == "node a died: killed by SIGKILL"
    assert (
        "ended before it was ready: ended with exit code 1 ([code: 2004] Failed to activate)"
        in refused
    )
    assert back.startswith("node a restarted after")


def test_what_never_gets_in_is_given_up(scene: Scene) -> None:
    scene.refusals.write_text("1000")
    scene.watched.start()
    assert not scene.watched.settled
    scene.until(lambda: scene.watched.settled)
    assert scene.watched.given_up
    assert not scene.watched.ready
    assert scene.watched.starts > 2
    assert f"not be started again after {scene.watched.starts} failed starts" in scene.said()[-1]
    scene.refusals.write_text("0")
    scene.watched.step()
    assert not scene.watched.process.running  # left alone until somebody starts it
    scene.watched.start()
    scene.until(lambda: scene.watched.ready)


def test_whoever_listens_cannot_end_a_thread(folder: Path) -> None:
    def deaf(what: str) -> None:
        raise ValueError(f"[/{what}]")

    events = EventLog(folder / "events.jsonl", on_event=deaf)
    events.add("one")
    said = [e["what"] for e in events.to_records()]
    assert said == ["one", "on_event failed: ValueError('[/one]')"]


def test_one_process_s_trouble_is_not_the_others(scene: Scene, folder: Path) -> None:
    class Odd(Watched):
        tries = 0

        def step(self) -> None:
            self.tries += 1
            raise OSError("disk full")

    scene.refusals.write_text("0")
    fleet = Fleet(folder, ["odd", "a"], events=scene.events)
    odd = Odd(
        Process("node odd", [], environment={}, tag="", log=folder / "odd"), bool, scene.events
    )
    fleet.nodes = {"odd": odd, "a": scene.watched}
    scene.watched.start()
    thread = threading.Thread(target=fleet._watch, daemon=True)
    thread.start()
    end = time.monotonic() + 15
    while not (scene.watched.ready and odd.tries > 2):
        assert time.monotonic() < end
        time.sleep(0.02)
    fleet._stopping.set()
    thread.join(10)
    assert not odd.given_up
    assert [s for s in scene.said() if "odd" in s] == [
        "node odd could not be checked: OSError('disk full')"
    ]


def test_events_are_a_file_that_is_added_to(folder: Path) -> None:
    heard: list[str] = []
    events = EventLog(folder / "deep" / "events.jsonl", on_event=heard.append)
    events.add("one", process="superlink", seconds=1.5)
    EventLog(folder / "deep" / "events.jsonl").add("two é")
    lines = [json.loads(line) for line in events.path.read_text(encoding="utf-8").splitlines()]
    assert [line["what"] for line in lines] == ["one", "two é"]
    assert lines[0] == events.to_records()[0]
    assert heard == ["one"]
    assert 0 <= lines[0]["at"] <= events.seconds
