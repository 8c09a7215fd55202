"""Run a Flower app on this machine: keys, processes, the run, its results, and the clean-up.

A SuperLink is Flower's server process; a SuperNode, or node, is the process at a site. An app has
two parts: the ServerApp runs beside the SuperLink, the ClientApp at each SuperNode.
"""

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

from fedshift.deploy import flwr_cli
from fedshift.deploy.errors import DeployError
from fedshift.deploy.event_log import EventLog
from fedshift.deploy.fleet import Fleet, Helper
from fedshift.errors import InputError, option

#: file that the ServerApp writes at the end
RESULT = "result.json"
Lines = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished run.

    Parameters
    ----------
    folder
        Folder with `record/` (the app's own files), `logs/` and `events.jsonl`.
    result
        The content of `record/result.json`, which the ServerApp wrote at its end.
    seconds
        Seconds from the start until the results were written.
    start_seconds
        Seconds from the start until all nodes were accepted.
    attempts
        How many times the run was submitted: more than once if the SuperLink died.
    events
        Events, oldest first.
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
            f"{again}; results in {self.folder / 'record'})"
        )


def run_local(
    app: Path,
    *,
    clients: Iterable[str],
    folder: Path,
    tls: bool = True,
    run_config: Mapping[str, flwr_cli.Scalar] | None = None,
    node_config: Mapping[str, Mapping[str, flwr_cli.Scalar]] | None = None,
    helpers: Mapping[str, Helper] | None = None,
    on_line: Lines | None = None,
    on_event: Lines | None = None,
    on_start: Callable[[Fleet], None] | None = None,
    timeout: float = 1800.0,
    attempts: int = 5,
) -> Finished:
    """Run a Flower app with a SuperLink and SuperNodes on this machine, until it has results.

    The ServerApp finds its folder in the setting `record`, which this function sets. The app's
    `pyproject.toml` must declare this setting. The ServerApp stores checkpoints in the folder and
    writes `result.json` at its end.

    If the SuperLink dies, Flower loses the run. The SuperLink is then started again, the run is
    submitted again with the same folder, and the app continues from its checkpoint. SuperNodes that
    die are started again. `events.jsonl` logs all of this. Keys and the SuperLink's database are
    removed after a finished run, and stay for inspection after a failed run.

    Parameters
    ----------
    app
        Folder of the app, with its `pyproject.toml`.
    clients
        Names of the clients.
    folder
        Folder for all files of the run. If it holds a stopped run, this run continues. It must not
        hold a finished run.
    tls
        Whether to encrypt and to accept only nodes with registered keys.
    run_config
        Settings that override those of the app.
    node_config
        For each client, settings that its ClientApp finds in `context.node_config`.
    helpers
        Other processes to keep running; see `Fleet`.
    on_line, on_event
        Called with each line of the ServerApp's log, and with each event.
    on_start
        Called with the `Fleet` when all nodes are connected, before the run is submitted.
    timeout
        Seconds for the whole run.
    attempts
        Largest number of times to submit the run.

    Raises
    ------
    InputError
        If the app, the clients or the folder cannot be used.
    DeployError
        If a process cannot start, the run fails, or it takes longer than `timeout`.
    """
    folder = Path(folder).resolve()
    record = folder / "record"
    check_folder(app, folder)
    home = _fresh(folder / "fleet", time.strftime("%Y%m%d-%H%M%S"))
    events = EventLog(folder / "events.jsonl", on_event=on_event)
    with Fleet(
        home,
        clients,
        tls=tls,
        node_config=node_config,
        events=events,
        logs=folder / "logs",
        helpers=helpers,
    ) as fleet:
        fleet.start()
        start_seconds = events.seconds
        if on_start is not None:
            on_start(fleet)
        config = flwr_cli.write_run_config(
            home / "run.toml", {**(run_config or {}), "record": str(record)}
        )
        run = _Run(fleet, flwr_cli.run(Path(app), config), record / RESULT, on_line)
        tries = run.to_the_end(until=time.monotonic() + timeout - events.seconds, attempts=attempts)
        seconds = events.seconds
        events.add(f"results written after {seconds:.1f} s", seconds=round(seconds, 3))
    shutil.rmtree(home, ignore_errors=True)  # keys and messages, which are no longer needed
    return Finished(
        folder=folder,
        result=json.loads((record / RESULT).read_text(encoding="utf-8")),
        seconds=seconds,
        start_seconds=start_seconds,
        attempts=tries,
        events=tuple(events.to_records()),
    )


class _Run:
    """The run of an app, submitted again when the SuperLink dies."""

    def __init__(
        self, fleet: Fleet, command: list[str], result: Path, on_line: Lines | None
    ) -> None:
        self._fleet, self._command, self._result = fleet, command, result
        self._on_line = on_line
        self._log = fleet.logs / "run.log"

    def to_the_end(self, *, until: float, attempts: int) -> int:
        """Submit until there are results; return the number of attempts."""
        link = self._fleet.superlink
        for attempt in range(1, attempts + 1):
            again = "" if attempt == 1 else f" again, attempt {attempt}"
            self._fleet.events.add(f"run submitted{again}", attempt=attempt)
            if self._submit(until):
                return attempt
            self._fleet.wait(lambda: link.settled, timeout=60.0)
            if not link.ready:
                break
        log = self._fleet.logs / "superlink.log"
        raise DeployError(f"the SuperLink died and did not restart: {self._fleet!r}; see {log}")

    def _submit(self, until: float) -> bool:
        """Submit once; return True if there are results, or False if the SuperLink died."""
        starts = self._fleet.superlink.starts
        process = self._fleet.flwr(self._command)
        log: list[str] = []
        reader = threading.Thread(target=self._read, args=(process, log), daemon=True)
        reader.start()
        try:
            while not self._result.exists():
                if self._link_died(starts):
                    return False
                if process.poll() is not None:
                    reader.join(timeout=5.0)
                    return self._after_the_end(starts, log)
                if time.monotonic() > until:
                    why = f"the run did not finish in time; allow more with {option('timeout')}"
                    raise DeployError(f"{why}; the end of {self._log}:\n{_end(log)}")
                time.sleep(0.1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5.0)  # the last lines of its log
            return True
        finally:
            _finish(process, reader)

    def _after_the_end(self, starts: int, log: list[str]) -> bool:
        for _ in range(20):  # a dead SuperLink ends the stream before we have checked it
            if self._result.exists():
                return True
            if self._link_died(starts):
                return False
            time.sleep(0.1)
        why = f"the run ended without writing {self._result}; correct the cause and run it again"
        raise DeployError(f"{why}; the end of {self._log}:\n{_end(log)}")

    def _link_died(self, starts: int) -> bool:
        link = self._fleet.superlink
        return link.starts != starts or not link.ready

    def _read(self, process: subprocess.Popen[str], log: list[str]) -> None:
        assert process.stdout is not None
        with self._log.open("a", encoding="utf-8") as file:
            for line in map(flwr_cli.plain, process.stdout):
                file.write(line)
                file.flush()
                log.append(line)
                self._forward(line.rstrip("\n"))

    def _forward(self, line: str) -> None:
        if self._on_line is None:
            return
        try:
            self._on_line(line)
        except Exception as error:  # must not stop the reader: the pipe would fill
            self._fleet.events.add(f"on_line failed: {error!r}")


def _finish(process: subprocess.Popen[str], reader: threading.Thread) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    reader.join(timeout=5.0)
    if process.stdout is not None:
        process.stdout.close()


def _end(log: list[str]) -> str:
    return flwr_cli.last_lines("".join(log), lines=20)


def check_folder(app: Path, folder: Path) -> None:
    """Check that the app exists and that the folder holds no finished run.

    Raises
    ------
    InputError
        If the app is missing, or the folder holds a finished run.
    """
    result = Path(folder) / "record" / RESULT
    if not (Path(app) / "pyproject.toml").is_file():
        raise InputError(f"{app} has no pyproject.toml; give the folder of a Flower app")
    if result.exists():
        raise InputError(
            f"{folder} already holds a finished run; choose another folder, or remove {result}"
        )


def _fresh(parent: Path, name: str) -> Path:
    """Create a new folder, so that keys and databases of an earlier fleet are not used again."""
    number = 0
    while (path := parent / f"{name}{f'-{number}' if number else ''}").exists():
        number += 1
    path.mkdir(parents=True, mode=0o700)
    return path
