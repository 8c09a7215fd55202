"""The state that a site keeps on its own disk, so that a site that was killed can continue.

For each run the site keeps answered requests, weights, models, and the client's memory: what it
needs from earlier rounds, such as compression errors. Over all runs the site keeps the tables
of counts that it has released and the privacy spent. A server that starts a new run under another
name receives the same tables with the same noise, so it cannot average the noise out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from fedshift.core.files import read_json, write_text
from fedshift.core.tensors import write_tensors
from fedshift.errors import InputError
from fedshift.federation.client import Memory
from fedshift.federation.deployment_task import Stage
from fedshift.federation.messages import AnsweredNonces, Message, MessageError, plain
from fedshift.federation.reference import BY_CLIENT
from fedshift.privacy.accountant import Accountant
from fedshift.privacy.counts import Releases
from fedshift.privacy.policy import Refused

#: rounds whose memory a site keeps: a server that resumes may request an earlier one again
ROUNDS = 3


class SiteState:
    """A site's state of one run, and its account of the privacy spent in all runs.

    Parameters
    ----------
    folder : path
        The site's own folder. It is created if missing; only its owner can enter it.
    message : Message
        The first request of the run.
    task : str
        Digest of the task that the site has agreed to.

    Raises
    ------
    MessageError
        If the run's name is not a valid folder name, or the request is for another task.
    InputError
        If one of the site's files cannot be read.

    Attributes
    ----------
    run : str
        Name of the run.
    nonces : AnsweredNonces
        Nonces of the requests that the site has answered.
    releases : Releases
        Tables of counts that the site has released.
    books : Accountant
        Account of the privacy that the site has spent.
    """

    def __init__(self, folder: Path, message: Message, task: str) -> None:
        run = message.header.run
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,120}", run) or run.startswith("."):
            raise MessageError("the name of a run must be letters, digits, '-', '_' and '.'")
        AnsweredNonces(task).add(message)  # before a folder is created for it
        self.run, self._task, self._folder, self._home = run, task, folder, folder / run
        self._make()
        self._read()

    def _make(self) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)

    def _read(self) -> None:
        stamp = self._stamps()  # first: what is written meanwhile is read again
        notes, books = _notes(self._home / "site.json"), _notes(self._folder / "books.json")
        self.nonces = AnsweredNonces(self._task, notes.get("nonces", []))
        self._digests: dict[str, str] = dict(notes.get("taken", {}))
        self.releases = Releases.from_record(books.get("releases", {}))
        self.books = Accountant.from_record(books["books"]) if "books" in books else Accountant()
        self._stamp = stamp

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """Return marks of the files that change with every write, because a write is a new file."""
        out: list[tuple[int, int, int] | None] = []
        for path in (self._folder / "books.json", self._home / "site.json"):
            info = path.stat() if path.exists() else None
            out.append(None if info is None else (info.st_ino, info.st_mtime_ns, info.st_size))
        return out

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Make other processes of this site wait while the block runs.

        Yield True if another process has changed the site's files since this process last read
        them. A worker and the process
        that replaces it, or two runs at once, share a folder. Each must know which requests the
        other has answered and what privacy it has spent.
        """
        import fcntl  # not on Windows

        self._make()
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, or its process ends
            changed = self._stamp != self._stamps()
            if changed:
                self._read()
            yield changed

    def write(self) -> None:
        """Write answered requests and spent privacy to the disk, before the reply leaves."""
        books = {"releases": self.releases.to_record(), "books": self.books.to_record()}
        write_text(self._folder / "books.json", json.dumps(books))
        notes = {"nonces": self.nonces.recent, "taken": self._digests}
        write_text(self._home / "site.json", json.dumps(notes))
        self._stamp = self._stamps()

    def once(self, what: str, message: Message) -> None:
        """Refuse a message that differs from the first message with the same purpose in this run.

        Otherwise a server could compare replies about the same rows. With two models whose outputs
        differ for one row only, it would learn whether the site has this row. A server that
        continues a run sends the same message again, which is allowed.

        Raises
        ------
        Refused
            If the message differs.
        """
        digest = _digest(message)
        if self._digests.setdefault(what, digest) != digest:
            raise Refused(
                f"this site accepts one {what} per run; got a {what} that differs from the first; "
                "send the first one again, or begin a new run"
            )

    def save(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors to the run's folder under a name."""
        write_tensors(self._home / f"{name}.safetensors", tensors)

    def load(self, name: str) -> dict[str, Tensor] | None:
        """Return the tensors that were saved under a name; None if there are none."""
        path = self._home / f"{name}.safetensors"
        return load_file(str(path)) if path.exists() else None

    def memory(self, stage: Stage, number: int, client: str) -> list[Memory]:
        """Return the client's memory at the start of a round, for every fold."""
        paths = [path for n, path in self._memories(stage) if n <= number]
        stored = load_file(str(paths[-1])) if paths else {}
        out: list[Memory] = []
        for j in range(stage.folds):
            task = stage.blank(j)
            begin, k = task.begin().tensors, task.names.index(client)
            names = [*BY_CLIENT, *(["stats"] if task.plan.norm == "local" else [])]
            own = {n: stored.get(f"{j}/{n}", begin[n][k]).clone() for n in names if n in begin}
            out.append(own)
        return out

    def params(self, stage: Stage, number: int) -> list[Tensor]:
        """Return the parameters that the server sent in a round, for every fold.

        Raises
        ------
        MessageError
            If the site does not have these parameters. The server then sends all parameters again.
        """
        stored = self.load(_memory_of(stage, number + 1)) or {}
        if "0/shown" not in stored:
            raise MessageError(f"NeedsParameters: this site has no parameters of round {number}")
        return [stored[f"{j}/shown"] for j in range(stage.folds)]

    def remember(
        self, stage: Stage, number: int, memories: list[Memory], params: list[Tensor]
    ) -> None:
        """Write the client's memory for a round, and the parameters that were last received."""
        parts = {f"{j}/{n}": t for j, m in enumerate(memories) for n, t in m.items()}
        if stage.plan.broadcast is not None:
            parts |= {f"{j}/shown": t for j, t in enumerate(params)}
        if not parts:
            return
        self.save(_memory_of(stage, number), parts)
        for old, path in self._memories(stage)[:-ROUNDS]:
            if old <= number:
                path.unlink(missing_ok=True)

    def _memories(self, stage: Stage) -> list[tuple[int, Path]]:
        paths = self._home.glob(f"memory-{stage.name}-*.safetensors")
        return sorted((int(p.stem.rpartition("-")[2]), p) for p in paths)


def _memory_of(stage: Stage, number: int) -> str:
    return f"memory-{stage.name}-{number:08d}"


def _digest(message: Message) -> str:
    """Return a digest of a request without its run and nonce."""
    head = [message.header.phase, message.header.round, sorted(message.facts.items())]
    data = hashlib.blake2b(json.dumps(head).encode(), digest_size=16)
    for name, array in sorted(message.arrays.items()):
        data.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        data.update(plain(array).tobytes())
    return data.hexdigest()


def _notes(path: Path) -> dict[str, Any]:
    """Return the notes in a JSON file, if it is there."""
    notes = read_json(path) if path.exists() else {}
    if notes is None:
        raise InputError(
            f"{path.parent.name}/{path.name} of this site must be a JSON table, as the site wrote "
            "it, but is damaged; restore it from a backup; if you remove it, the site forgets "
            "which requests it answered and what privacy it spent"
        )
    return notes
