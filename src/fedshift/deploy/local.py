"""A whole run on this machine: keys, processes, the app, its record, and an empty process table."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.deploy import commands
from fedshift.deploy.errors import DeployError
from fedshift.deploy.events import Events
from fedshift.deploy.fleet import Beside, Fleet
from fedshift.errors import InputError

#: file that the ServerApp writes, whole, when all is done
RESULT = "result.json"
Lines = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that came to its end.

    Parameters
    ----------
    folder
        Where all of it is: `record/` (the app's own files), `logs/`, `events.jsonl`.
    result
        What the ServerApp wrote as its record.
    seconds, start_seconds
        From the beginning to the record, and of these until all nodes were let in.
    attempts
        How often the run was submitted; more than once if the SuperLink died.
    events
        What happened, oldest first.
    """

    folder: Path
    result: Mapping[str, Any]
    seconds: float
    start_seconds: float
    attempts: int
    events: tuple[Mapping[str, Any], ...]

    def __repr__(self) -> str:
        again = f", submitted {self.attempts} times" if self.attempts > 1 else ""
        return (
            f"Finished(in {self.seconds:.1f} s, of which {self.start_seconds:.1f} s to start"
            f"{again}; record in {self.folder / 'record'})"
        )


def run_local(
    app: Path,
    *,
    clients: int | Iterable[str],
    folder: Path,
    tls: bool = True,
    run_config: Mapping[str, commands.Scalar] | None = None,
    node_config: Mapping[str, Mapping[str, commands.Scalar]] | None = None,
    beside: Mapping[str, Beside] | None = None,
    on_line: Lines | None = None,
    on_event: Lines | None = None,
    on_start: Callable[[Fleet], None] | None = None,
    timeout: float = 1800.0,
    attempts: int = 5,
) -> Finished:
    """Run a Flower app with a SuperLink and SuperNodes on loopback, from nothing to its record.

    The ServerApp is told a folder by the setting `record` (which the app's own configuration must
    name), keeps its checkpoint there and writes `result.json` there, whole, at its end. If the
    SuperLink dies, Flower's run is lost; it is then started again and the run submitted again with
    the same folder, where the app goes on from its checkpoint. SuperNodes that die are started
    again. All of it is in `events.jsonl`. Keys and the SuperLink's database are removed at the end
    of a run that finished, and kept for a look if it did not.

    Parameters
    ----------
    app
        Folder of the app, with its `pyproject.toml`.
    clients
        Names, or a number of them: "client-1", "client-2", …
    folder
        Where everything goes. It may hold the record of a run that was stopped, which then goes on;
        not one that is finished.
    tls
        Whether to encrypt and to let in only nodes with registered keys.
    run_config
        Overrides settings of the app.
    node_config
        For each client, what its ClientApp reads in `context.node_config`.
    beside
        Other processes to keep running; see `Fleet`.
    on_line, on_event
        Called with each line of the ServerApp's log, and with each event.
    on_start
        Called with the fleet when all nodes are there and the run is not yet submitted.
    timeout
        Seconds for all of it.
    attempts
        How often to submit the run at most.

    Raises
    ------
    InputError
        If the app, the clients or the folder cannot be used.
    DeployError
        If a process cannot be started, the run fails by itself, or the time is over.
    """
    folder = Path(folder).resolve()
    record = folder / "record"
    check_folder(app, folder)
    names = _names(clients)
    home = _fresh(folder / "fleet", time.strftime("%Y%m%d-%H%M%S"))
    events = Events(folder / "events.jsonl", tell=on_event)
    with Fleet(
        home,
        names,
        tls=tls,
        node_config=node_config,
        events=events,
        logs=folder / "logs",
        beside=beside,
    ) as fleet:
        fleet.start()
        start_seconds = events.seconds
        if on_start is not None:
            on_start(fleet)
        config = commands.write_run_config(
            folder / "run.toml", {**(run_config or {}), "record": str(record)}
        )
        run = _Run(fleet, commands.run(Path(app), config), record / RESULT, on_line)
        tries = run.to_the_end(until=time.monotonic() + timeout - events.seconds, attempts=attempts)
        seconds = events.seconds
        events.add(f"record written after {seconds:.1f} s", seconds=round(seconds, 3))
    shutil.rmtree(home, ignore_errors=True)  # keys and messages; nobody needs them any more
    return Finished(
        folder=folder,
        result=json.loads((record / RESULT).read_text(encoding="utf-8")),
        seconds=seconds,
        start_seconds=start_seconds,
        attempts=tries,
        events=tuple(events.to_records()),
    )


class _Run:
    """The run of an app, submitted as often as the SuperLink dies."""

    def __init__(
        self, fleet: Fleet, command: list[str], result: Path, on_line: Lines | None
    ) -> None:
        self._fleet, self._command, self._result = fleet, command, result
        self._on_line = on_line
        self._log = fleet.logs / "run.log"

    def to_the_end(self, *, until: float, attempts: int) -> int:
        """Submit until the record is there; returns how often that was."""
        link = self._fleet.superlink
        for attempt in range(1, attempts + 1):
            again = "" if attempt == 1 else f" again, attempt {attempt}"
            self._fleet.events.add(f"run submitted{again}", attempt=attempt)
            if self._submit(until):
                return attempt
            self._fleet.wait(lambda: link.settled, timeout=60.0)
            if not link.ready:
                break
        raise DeployError(f"the SuperLink died and the run could not go on: {self._fleet!r}")

    def _submit(self, until: float) -> bool:
        """Whether the record is there; False if the SuperLink died on the way."""
        starts = self._fleet.superlink.starts
        process = self._fleet.flwr(self._command)
        said: list[str] = []
        reader = threading.Thread(target=self._read, args=(process, said), daemon=True)
        reader.start()
        try:
            while not self._result.exists():
                if self._link_died(starts):
                    return False
                if process.poll() is not None:
                    reader.join(timeout=5.0)
                    return self._after_the_end(starts, said)
                if time.monotonic() > until:
                    raise DeployError(f"the time is over; the end of the log:\n{_end(said)}")
                time.sleep(0.1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5.0)  # the last lines of its log
            return True
        finally:
            _finish(process, reader)

    def _after_the_end(self, starts: int, said: list[str]) -> bool:
        for _ in range(20):  # a dead SuperLink ends the stream before we have looked at it
            if self._result.exists():
                return True
            if self._link_died(starts):
                return False
            time.sleep(0.1)
        raise DeployError(f"the run ended without a record; the end of its log:\n{_end(said)}")

    def _link_died(self, starts: int) -> bool:
        link = self._fleet.superlink
        return link.starts != starts or not link.ready or link.held

    def _read(self, process: subprocess.Popen[str], said: list[str]) -> None:
        assert process.stdout is not None
        with self._log.open("a", encoding="utf-8") as log:
            for line in map(commands.plain, process.stdout):
                log.write(line)
                log.flush()
                said.append(line)
                self._tell(line.rstrip("\n"))

    def _tell(self, line: str) -> None:
        if self._on_line is None:
            return
        try:
            self._on_line(line)
        except Exception as error:  # whoever listens must not stop the reader: the pipe would fill
            self._fleet.events.add(f"a line of the log could not be told: {error!r}")


def _finish(process: subprocess.Popen[str], reader: threading.Thread) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    reader.join(timeout=5.0)
    if process.stdout is not None:
        process.stdout.close()


def _end(said: list[str]) -> str:
    return commands.last_words("".join(said), lines=20)


def check_folder(app: Path, folder: Path) -> None:
    """See that there is an app, and a folder without a finished run.

    Raises
    ------
    InputError
        If not.
    """
    result = Path(folder) / "record" / RESULT
    if not (Path(app) / "pyproject.toml").is_file():
        raise InputError(f"app: {app} has no pyproject.toml; give the folder of a Flower app")
    if result.exists():
        raise InputError(
            f"folder: {folder} already holds a finished run; choose another or remove {result}"
        )


def _names(clients: int | Iterable[str]) -> list[str]:
    if isinstance(clients, str) or (isinstance(clients, int) and clients < 1):
        raise InputError(f"clients must be at least 1, or a list of names; got {clients!r}")
    if isinstance(clients, int):
        return [f"client-{number}" for number in range(1, clients + 1)]
    return list(clients)


def _fresh(parent: Path, name: str) -> Path:
    """A folder that was not there: keys and databases of an earlier fleet are not used again."""
    number = 0
    while (path := parent / f"{name}{f'-{number}' if number else ''}").exists():
        number += 1
    path.mkdir(parents=True, mode=0o700)
    return path
