"""What happened to a deployment and when, one JSON object a line."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class Events:
    """A list of events that is also a file, written to as they happen by any thread.

    `tell` is called with every event; what it raises is written down and goes no further, as it
    must not end the thread that something happened to.

    Every event has `time` (UTC), `at` (seconds since the list was begun) and `what`, a sentence;
    some have a `process` and other facts. A file that is already there is added to, so that a run
    that was begun again keeps its history.
    """

    def __init__(self, path: Path, *, tell: Callable[[str], None] | None = None) -> None:
        self.path = Path(path)
        self._tell = tell
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, what: str, **facts: str | int | float) -> None:
        """Write down what happened now, and tell it."""
        self._write(what, facts)
        if self._tell is None:
            return
        try:
            self._tell(what)
        except Exception as error:
            self._write(f"an event could not be told: {error!r}", {})

    def _write(self, what: str, facts: Mapping[str, str | int | float]) -> None:
        event: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "at": round(time.monotonic() - self._begin, 3),
            "what": what,
            **facts,
        }
        with self._lock:
            self._events.append(event)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event, ensure_ascii=False) + "\n")

    @property
    def seconds(self) -> float:
        """Seconds since the list was begun."""
        return time.monotonic() - self._begin

    def to_records(self) -> list[dict[str, Any]]:
        """All events so far, oldest first."""
        with self._lock:
            return [dict(event) for event in self._events]

    def __repr__(self) -> str:
        events = self.to_records()
        last = f"; last: {events[-1]['what']}" if events else ""
        return f"Events({len(events)}{last})"
