"""A log of what happens in a deployment: one JSON object per line."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class EventLog:
    """A list of events that is also a file; any thread may add to it.

    Every event has `time` (UTC), `at` (seconds since the log was opened) and `what`, a sentence.
    Some have a `process` (its name) and further values. New events are added to the end of an
    existing file, so a run that is started again keeps its history.

    Parameters
    ----------
    path : Path
        The file.
    on_event : callable, optional
        Called with the sentence of each event. If it raises an error, the error is logged, and the
        thread goes on.
    """

    def __init__(self, path: Path, *, on_event: Callable[[str], None] | None = None) -> None:
        self.path = Path(path)
        self._on_event = on_event
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, what: str, **facts: str | int | float) -> None:
        """Log an event now, and call `on_event`."""
        self._write(what, facts)
        if self._on_event is None:
            return
        try:
            self._on_event(what)
        except Exception as error:
            self._write(f"on_event failed: {error!r}", {})

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
        """Seconds since the log was opened."""
        return time.monotonic() - self._begin

    def to_records(self) -> list[dict[str, Any]]:
        """Return all events so far, oldest first."""
        with self._lock:
            return [dict(event) for event in self._events]
