"""What a site keeps on its own disk, so that one that was killed goes on where it was.

Of a run: questions it has answered, weights, models, and what its client carries from round to
round. Of all runs together: what it has told and what privacy that cost, because a server that
comes back under another name must not get fresh noise or other tables.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor

from fedshift.core.files import atomic_path, write_text
from fedshift.errors import InputError
from fedshift.federation.client import Memory
from fedshift.federation.job import Stage
from fedshift.federation.messages import Message, MessageError, Seen, plain
from fedshift.federation.reference import BY_CLIENT
from fedshift.privacy.accountant import Accountant
from fedshift.privacy.counts import Releases
from fedshift.privacy.policy import Refused

#: rounds whose memory a site keeps: a server that resumes may ask for an earlier one again
KEPT = 3


class Shelf:
    """A site's memory of one run, and its books of all.

    Parameters
    ----------
    folder : path
        The site's own; made if it is not there, for its owner alone.
    message : Message
        The first question of the run.
    task : str
        Digest of the task the site has agreed to.

    Raises
    ------
    MessageError
        If the run's name cannot name a folder, or the question is for another task.
    InputError
        If a file of its own cannot be read.

    Attributes
    ----------
    run : str
    seen : Seen
        Questions that were answered.
    releases : Releases
        Tables of counts that were told.
    books : Accountant
        What privacy was spent.
    """

    def __init__(self, folder: Path, message: Message, task: str) -> None:
        run = message.header.run
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,120}", run) or run.startswith("."):
            raise MessageError("the name of a run must be letters, digits, '-', '_' and '.'")
        Seen(task).take(message)  # before a folder is made for it
        self.run, self._task, self._folder, self._home = run, task, folder, folder / run
        self._make()
        self._read()

    def _make(self) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)

    def _read(self) -> None:
        stamp = self._stamped()  # taken first: what is written meanwhile is read again
        notes, told = _notes(self._home / "site.json"), _notes(self._folder / "books.json")
        self.seen = Seen(self._task, notes.get("nonces", []))
        self._taken: dict[str, str] = dict(notes.get("taken", {}))
        self.releases = Releases.from_record(told.get("releases", {}))
        self.books = Accountant.from_record(told["books"]) if "books" in told else Accountant()
        self._stamp = stamp

    def _stamped(self) -> list[tuple[int, int, int] | None]:
        """Tells whether notes are those that were read; every write is a new file."""
        out: list[tuple[int, int, int] | None] = []
        for path in (self._folder / "books.json", self._home / "site.json"):
            said = path.stat() if path.exists() else None
            out.append(None if said is None else (said.st_ino, said.st_mtime_ns, said.st_size))
        return out

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Keep other processes of this site waiting; whether one of them wrote in between.

        A worker and a stand-in, or two runs at once, share a folder: each has to know what the
        other has answered and spent.
        """
        self._make()
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, or its process ends
            changed = self._stamp != self._stamped()
            if changed:
                self._read()
            yield changed

    def write(self) -> None:
        """Write down what was answered; to be done before the answer leaves."""
        told = {"releases": self.releases.to_record(), "books": self.books.to_record()}
        write_text(self._folder / "books.json", json.dumps(told))
        notes = {"nonces": self.seen.nonces, "taken": self._taken}
        write_text(self._home / "site.json", json.dumps(notes))
        self._stamp = self._stamped()

    def once(self, what: str, message: Message) -> None:
        """Hold the server to what it first sent for a purpose in this run.

        Answers about the same rows can be compared: two models that differ at one row tell
        whether it is there. A server that resumes sends the same again, and may.

        Raises
        ------
        Refused
            If it is something else now.
        """
        found = _digest(message)
        if self._taken.setdefault(what, found) != found:
            raise Refused(
                f"this site takes one {what} a run, and was sent another before; send the same "
                "again, or begin a new run"
            )

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors down under a name."""
        whole = {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}
        with atomic_path(self._home / f"{name}.safetensors") as temporary:
            temporary.write_bytes(to_safetensors(whole))

    def kept(self, name: str) -> dict[str, Tensor] | None:
        """What lies under a name."""
        path = self._home / f"{name}.safetensors"
        return load_file(str(path)) if path.exists() else None

    def memory(self, stage: Stage, number: int, client: str) -> list[Memory]:
        """What the client carried into a round, for every fold."""
        found = [(n, p) for n, p in self._memories(stage) if n <= number]
        stored = load_file(str(found[-1][1])) if found else {}
        out = []
        for j in range(stage.folds):
            task = stage.blank(j)
            begin, k = task.begin().tensors, task.names.index(client)
            names = [*BY_CLIENT, *(["stats"] if task.plan.norm == "local" else [])]
            own = {n: stored.get(f"{j}/{n}", begin[n][k]).clone() for n in names if n in begin}
            out.append(Memory(own))
        return out

    def shown(self, stage: Stage, number: int) -> list[Tensor]:
        """Parameters the server had shown in a round, for every fold.

        Raises
        ------
        MessageError
            If they are not here; the server then sends all parameters again.
        """
        stored = self.kept(_memory_of(stage, number + 1)) or {}
        if "0/shown" not in stored:
            raise MessageError(f"NeedsParameters: this site has none of round {number}")
        return [stored[f"{j}/shown"] for j in range(stage.folds)]

    def remember(
        self, stage: Stage, number: int, memories: list[Memory], shown: list[Tensor]
    ) -> None:
        """Put down what the client carries into a round, and the parameters it last saw."""
        parts = {f"{j}/{n}": t for j, m in enumerate(memories) for n, t in m.tensors.items()}
        if stage.plan.broadcast is not None:
            parts |= {f"{j}/shown": t for j, t in enumerate(shown)}
        if not parts:
            return
        self.keep(_memory_of(stage, number), parts)
        for old, path in self._memories(stage)[:-KEPT]:
            if old <= number:
                path.unlink(missing_ok=True)

    def _memories(self, stage: Stage) -> list[tuple[int, Path]]:
        found = self._home.glob(f"memory-{stage.name}-*.safetensors")
        return sorted((int(p.stem.rpartition("-")[2]), p) for p in found)


def _memory_of(stage: Stage, number: int) -> str:
    return f"memory-{stage.name}-{number:08d}"


def _digest(message: Message) -> str:
    """Of all that a question says, but for who asks and when."""
    head = [message.header.phase, message.header.round, sorted(message.facts.items())]
    data = hashlib.blake2b(json.dumps(head).encode(), digest_size=16)
    for name, array in sorted(message.arrays.items()):
        data.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        data.update(plain(array).tobytes())
    return data.hexdigest()


def _notes(path: Path) -> dict[str, Any]:
    """What was written down, or nothing."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(
            f"{path.parent.name}/{path.name} of this site must be a table in JSON, as the site "
            "wrote it; it is damaged; take it from a backup; removing it forgets what was "
            "answered and what privacy was spent"
        )
    return found
