"""The folder a server keeps of a run: its name, what happened, what it cost, and one run at a time.

The folder is its owner's alone: what sites sent lies in it, on rung 5 rows.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedshift.core.files import write_text
from fedshift.errors import FedshiftError
from fedshift.federation.ledger import Ledger

#: seconds for a server that lost its SuperLink to end, before the next one is refused
PATIENCE = 20.0


class Record:
    """What a server writes down, so that one that was killed goes on where it was.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    task : str
        Digest of the task; a folder belongs to one.

    Raises
    ------
    FedshiftError
        If the folder holds a run of another task.

    Attributes
    ----------
    run : str
        The name of the run, the same after a restart.
    """

    def __init__(self, folder: Path | str, task: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.run = self._named(task)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other run out of the folder; the lock of a process that was killed is gone.

        Raises
        ------
        FedshiftError
            If another run is at work in it, and stays.
        """
        end = time.monotonic() + PATIENCE
        with (self.folder / "lock").open("w") as file:
            while not _taken(file):
                if time.monotonic() > end:
                    raise FedshiftError(
                        f"another run is at work in {self.folder}; two at once would mix their "
                        "rounds and spend the sites' privacy twice; wait for it, or find it with "
                        "`flwr list` and end it with `flwr stop RUN-ID`, then start this one again"
                    )
                time.sleep(0.1)
            yield

    def past(self, name: str) -> list[dict[str, Any]]:
        """Lines written before, of "events" or "history"."""
        path = self._lines(name)
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8")
        if not text.endswith("\n"):  # killed in the middle of a line: it is not kept
            text = text[: text.rfind("\n") + 1]
            write_text(path, text)
        return [json.loads(line) for line in text.splitlines()]

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Write a line, at once."""
        with self._lines(name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def rewrite(self, name: str, lines: list[dict[str, Any]]) -> None:
        """Put other lines in the place of those written before."""
        write_text(self._lines(name), "".join(json.dumps(line) + "\n" for line in lines))

    def keep_ledger(self, ledger: Ledger) -> None:
        """Write down what has travelled so far."""
        write_text(self.folder / "ledger.json", json.dumps(ledger.to_records()))

    def ledger(self) -> Ledger:
        """What had travelled when it was last written down."""
        path = self.folder / "ledger.json"
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        return Ledger.from_records(kept)

    def _lines(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _named(self, task: str) -> str:
        path = self.folder / "run.json"
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["task"] != task:
                raise FedshiftError(
                    f"{self.folder} holds a run of task {kept['task']}; this is task {task}; give "
                    "another folder, or remove it to begin anew; if the task file is the same, "
                    "fedshift is another version: go on with the one the run was begun with"
                )
            return str(kept["run"])
        name = f"{secrets.token_hex(4)}-{task}"
        write_text(path, json.dumps({"run": name, "task": task}))
        return name


def _taken(file: IO[str]) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
