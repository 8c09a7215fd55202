"""A process that ought to be running: started again when it dies, with growing pauses."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedshift.deploy.events import Events
from fedshift.deploy.processes import Process


class Watched:
    """Keeps one process running until told to stop, and writes down what became of it.

    A SuperNode that was killed is not let in again with the same key until the SuperLink has given
    up its old session, about a minute later; until then every new start ends by itself, with the
    same words as for a key that nobody registered. So starts are repeated: `pause` seconds after
    the first death, twice as long after each further one and at most `longest`. Whoever was ready
    before is given up `patience` seconds after its death; whoever never was, after `debut`.

    Parameters
    ----------
    process
        What to watch; it is started by `start`, not before.
    ready
        Whether it does its work by now.
    """

    def __init__(
        self,
        process: Process,
        ready: Callable[[Process], bool],
        events: Events,
        *,
        patience: float = 180.0,
        debut: float = 10.0,
        pause: float = 1.0,
        longest: float = 8.0,
    ) -> None:
        self.process = process
        self.ready = False
        self.given_up = False
        self.held = False  # down on purpose: left alone until it is started again
        self.starts = 0
        self._is_ready, self._events = ready, events
        self._patience, self._limit = patience, debut
        self._first, self._longest = pause, longest
        self._down: float | None = None
        self._pause, self._next, self._failures = pause, 0.0, 0

    @property
    def name(self) -> str:
        """What events call it."""
        return self.process.name

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for: it is ready, or will not be."""
        return self.ready or self.given_up or self.held

    def start(self) -> None:
        """Start it and take it for one that should run."""
        self.held = self.given_up = self.ready = False
        if self._down is None:
            self._down = time.monotonic()
        self._pause, self._failures = self._first, 0
        self._launch()

    def step(self) -> None:
        """Look at it once; called again and again by one thread."""
        if self.held or self.given_up:
            return
        if self.process.running:
            if not self.ready and self._is_ready(self.process):
                self._came_up()
        elif self.ready or self._next <= 0:
            self._went_down(time.monotonic())
        elif time.monotonic() >= self._next:
            self._launch()

    def _launch(self) -> None:
        self.starts += 1
        self._next = 0.0
        self.process.start()

    def _came_up(self) -> None:
        down = 0.0 if self._down is None else time.monotonic() - self._down
        again = "is ready" if self._limit != self._patience else "restarted"
        self.ready, self._limit = True, self._patience
        self._down, self._pause, self._failures = None, self._first, 0
        self._say(f"{self.name} {again} after {down:.1f} s", seconds=round(down, 3))

    def _went_down(self, now: float) -> None:
        self._down = self._down or now
        if self.ready:
            self._say(f"{self.name} died: {self.process.why()}")
        else:
            self._failures += 1
            if self._failures == 1:
                self._say(f"{self.name} did not get ready: {self._reason()}; trying again")
        self.ready = False
        self._next, self._pause = now + self._pause, min(2 * self._pause, self._longest)
        if now - self._down > self._limit:
            self.given_up = True
            self._say(f"{self.name} is given up after {self._failures} tries: {self._reason()}")

    def _reason(self) -> str:
        lines = [line.strip() for line in self.process.output().splitlines()]
        telling = [line for line in lines if "Failed" in line or "rror" in line]
        return f"{self.process.why()} ({telling[-1][:200]})" if telling else self.process.why()

    def _say(self, what: str, **facts: str | int | float) -> None:
        self._events.add(what, process=self.name, **facts)
