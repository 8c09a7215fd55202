"""What sites are told of the server's parameters in a round: all, or how far to move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedshift.federation.client import Broadcast
from fedshift.federation.compress import pack, show, unpack
from fedshift.federation.job import Stage
from fedshift.federation.messages import Array, Fact, Message, MessageError
from fedshift.federation.task import State, Task

#: names of a round's arrays by those of the state
TOLD = {"params": "params", "stats": "stats", "c": "control"}


class Telling:
    """The server's side: who holds which parameters.

    Without `Plan.broadcast` everybody is told all of them, always. With it, a site that answered
    in the last round is told the change since; whoever was away, or lost what it held, is told all.

    Parameters
    ----------
    stage : Stage
    """

    def __init__(self, stage: Stage) -> None:
        self._scheme = stage.plan.broadcast
        self._held: dict[str, int] = {}
        self._changes: dict[str, Array] = {}

    def questions(
        self, names: Iterable[str], number: int, states: Sequence[State]
    ) -> dict[str, tuple[Mapping[str, Array], Mapping[str, Fact]]]:
        """Arrays and facts for every site."""
        whole = {f"{j}/{n}": a for j, s in enumerate(states) for n, a in self._told(s).items()}
        few = {n: a for n, a in whole.items() if not n.endswith("/params")} | self._changes
        return {
            name: (few, {"since": number - 1})
            if self._changes and self._held.get(name) == number - 1
            else (whole, {})
            for name in names
        }

    def heard(self, names: Iterable[str], number: int) -> None:
        """These answered in a round, so they hold what they were shown."""
        self._held |= dict.fromkeys(names, number)

    def lost(self, name: str) -> None:
        """Somebody says that it holds nothing."""
        self._held.pop(name, None)

    def moved(self, states: Sequence[State]) -> None:
        """The server made its step: what is shown follows."""
        if self._scheme is None:
            return
        self._changes = {}
        for j, state in enumerate(states):
            packed = pack(self._scheme, show(self._scheme, state.tensors), 0.0)
            self._changes |= {f"{j}/change/{n}": a for n, a in packed.items()}

    def _told(self, state: State) -> dict[str, Array]:
        t = state.tensors
        seen = {**t, "params": t["params" if self._scheme is None else "shown"]}
        return {new: seen[n].cpu().numpy() for n, new in TOLD.items() if n in seen}


def read_told(task: Task, message: Message, fold: int, held: Tensor | None) -> Broadcast:
    """The site's side: what the server says at the beginning of a round, checked.

    Parameters
    ----------
    task : Task
    message : Message
    fold : int
    held : Tensor, optional
        Parameters the site holds, where it was told a change.

    Raises
    ------
    MessageError
        If something is missing, of another shape, or not finite.
    """
    begin = task.begin().tensors
    found: dict[str, Tensor] = {}
    for name, new in TOLD.items():
        if name not in begin or (name == "stats" and task.plan.norm == "local"):
            continue
        if name == "params" and held is not None:
            found[new] = held + _change(task, message, fold, held)
        else:
            array = message.array(f"{fold}/{new}", tuple(begin[name].shape))
            found[new] = torch.tensor(array).to(begin[name])
    moved = {n: t.to(task.x.device) for n, t in found.items()}
    return Broadcast(moved["params"], moved.get("stats"), moved.get("control"))


def _change(task: Task, message: Message, fold: int, held: Tensor) -> Tensor:
    head = f"{fold}/change/"
    own = {n.removeprefix(head): a for n, a in message.arrays.items() if n.startswith(head)}
    try:
        change = unpack(task.plan.broadcast, own, task.layout.size).to(held)
    except ValueError as error:
        raise MessageError(f"the change of the parameters: {error}") from None
    if change.shape != held.shape or not bool(torch.isfinite(change).all()):
        raise MessageError(f"the change of the parameters must be {len(held)} finite numbers")
    return change
