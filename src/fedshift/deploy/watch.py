"""A process that is restarted when it dies, with growing pauses.

A SuperLink is Flower's server process; a SuperNode is the process at a site.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fedshift.deploy.event_log import EventLog
from fedshift.deploy.processes import Process


class Watched:
    """Restarts one process when it ends, and logs its starts and ends.

    The SuperLink rejects the key of a killed SuperNode until the old session ends, about a minute
    later. Until then every new SuperNode exits soon after its start and reports that its key is not
    registered. So starts are repeated: `pause` seconds after the first exit. The pause
    doubles after each further exit, up to `longest` seconds.

    Parameters
    ----------
    process : Process
        The process; the method `start` starts it.
    ready : callable
        Returns whether the process is ready for work.
    events : EventLog
    patience : float
        How many seconds to keep restarting a process that was ready once.
    debut : float
        How many seconds to keep restarting a process that was never ready.
    pause, longest : float
        First and longest pause between two starts, in seconds.
    """

    def __init__(
        self,
        process: Process,
        ready: Callable[[Process], bool],
        events: EventLog,
        *,
        patience: float = 180.0,
        debut: float = 10.0,
        pause: float = 1.0,
        longest: float = 8.0,
    ) -> None:
        self.process = process
        self.ready = False
        self.given_up = False
        self.starts = 0
        self._is_ready, self._events = ready, events
        self._patience, self._limit = patience, debut
        self._first, self._longest = pause, longest
        self._down: float | None = None
        self._pause, self._next, self._failures = pause, 0.0, 0

    @property
    def name(self) -> str:
        """Name of the process in events."""
        return self.process.name

    @property
    def settled(self) -> bool:
        """Whether the process is ready, or will not be started again."""
        return self.ready or self.given_up

    def start(self) -> None:
        """Start the process, and from now on restart it whenever it ends."""
        self.given_up = self.ready = False
        if self._down is None:
            self._down = time.monotonic()
        self._pause, self._failures = self._first, 0
        self._launch()

    def step(self) -> None:
        """Check the process once. One thread calls this repeatedly."""
        if self.given_up:
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
        self._log(f"{self.name} {again} after {down:.1f} s", seconds=round(down, 3))

    def _went_down(self, now: float) -> None:
        self._down = self._down or now
        if self.ready:
            self._log(f"{self.name} died: {self.process.why()}")
        else:
            self._failures += 1
            if self._failures == 1:
                self._log(f"{self.name} ended before it was ready: {self._reason()}; trying again")
        self.ready = False
        self._next, self._pause = now + self._pause, min(2 * self._pause, self._longest)
        if now - self._down > self._limit:
            self.given_up = True
            tries = f"after {self._failures} failed starts"
            self._log(f"{self.name} will not be started again {tries}: {self._reason()}")

    def _reason(self) -> str:
        lines = [line.strip() for line in self.process.output().splitlines()]
        errors = [line for line in lines if "Failed" in line or "rror" in line]
        return f"{self.process.why()} ({errors[-1][:200]})" if errors else self.process.why()

    def _log(self, what: str, **facts: str | int | float) -> None:
        self._events.add(what, process=self.name, **facts)
