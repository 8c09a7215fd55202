"""The folder in which a server keeps a run: name, events, history, costs, and a lock.

Only the owner of the folder can enter it, because it holds what the sites sent. At disclosure
level 5 this includes raw rows.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fedshift.core.files import locked, write_text
from fedshift.errors import FedshiftError
from fedshift.federation.ledger import Ledger

#: seconds that a second server waits for the first to end, which may have lost its SuperLink
PATIENCE = 20.0


class ServerRecord:
    """The server's files of a run, from which a server that was killed can continue the run.

    Parameters
    ----------
    folder : path
        Folder for the files, created if missing.
    task : str
        Digest of the task. A folder belongs to one task.

    Raises
    ------
    FedshiftError
        If the folder holds a run of another task.

    Attributes
    ----------
    run : str
        Name of the run. It stays the same after a restart.
    """

    def __init__(self, folder: Path | str, task: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.run = self._run_name(task)

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder. If the process is killed, the operating system releases the lock.

        Raises
        ------
        InUseError
            If another run is active in the folder and does not end within 20 s (`PATIENCE`).
        """
        advice = (
            "two runs at once would mix their rounds and spend the sites' privacy twice; wait "
            "until that run ends, or find it with `flwr list` and end it with `flwr stop RUN-ID`; "
            "then start this run again"
        )
        return locked(self.folder, patience=PATIENCE, advice=advice)

    def past(self, name: str) -> list[dict[str, Any]]:
        """Return the stored lines of "events" or "history"."""
        path = self._lines(name)
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8")
        if not text.endswith("\n"):  # killed in the middle of a line: drop it
            text = text[: text.rfind("\n") + 1]
            write_text(path, text)
        return [json.loads(line) for line in text.splitlines()]

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Append a line to "events" or "history" at once."""
        with self._lines(name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def rewrite(self, name: str, lines: list[dict[str, Any]]) -> None:
        """Replace all lines of "events" or "history"."""
        write_text(self._lines(name), "".join(json.dumps(line) + "\n" for line in lines))

    def save_ledger(self, ledger: Ledger) -> None:
        """Write the bytes and rows sent so far."""
        write_text(self.folder / "ledger.json", json.dumps(ledger.to_records()))

    def ledger(self) -> Ledger:
        """Return the ledger that was last written."""
        path = self.folder / "ledger.json"
        rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        return Ledger.from_records(rows)

    def _lines(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _run_name(self, task: str) -> str:
        path = self.folder / "run.json"
        if path.exists():
            notes = json.loads(path.read_text(encoding="utf-8"))
            if notes["task"] != task:
                raise FedshiftError(
                    f"{self.folder} holds a run of task {notes['task']}; got task {task}; choose "
                    "another folder, or remove this folder to begin anew; if the task file is the "
                    "same, use the version of fedshift that began the run"
                )
            return str(notes["run"])
        name = f"{secrets.token_hex(4)}-{task}"
        write_text(path, json.dumps({"run": name, "task": task}))
        return name
