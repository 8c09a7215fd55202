"""What a site keeps on its own disk, so that one that was killed goes on where it was.

Of a run: questions it has answered, weights, models, and what its client carries from round to
round. Of all runs together: what it has told and what privacy that cost, because a server that
comes back under another name must not get fresh noise or other tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor

from fedshift.core.files import atomic_path, write_text
from fedshift.federation.client import Memory
from fedshift.federation.job import Stage
from fedshift.federation.messages import Message, MessageError, Seen
from fedshift.federation.reference import BY_CLIENT
from fedshift.privacy.accountant import Accountant
from fedshift.privacy.counts import Releases

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
        self.run, self._folder, self._home = run, folder, folder / run
        self._home.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.seen = Seen(task, _notes(self._home / "site.json").get("nonces", []))
        told = _notes(folder / "books.json")
        self.releases = Releases.from_record(told.get("releases", {}))
        self.books = Accountant.from_record(told["books"]) if "books" in told else Accountant()

    def write(self) -> None:
        """Write down what was answered; to be done before the answer leaves."""
        told = {"releases": self.releases.to_record(), "books": self.books.to_record()}
        write_text(self._folder / "books.json", json.dumps(told))
        write_text(self._home / "site.json", json.dumps({"nonces": self.seen.nonces}))

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


def _notes(path: Path) -> dict[str, Any]:
    """What was written down, or nothing."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found
