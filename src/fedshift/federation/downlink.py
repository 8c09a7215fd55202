"""What the server sends to sites in a round: all parameters, or the change of the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedshift.federation.client import Broadcast
from fedshift.federation.compress import pack, show, unpack
from fedshift.federation.deployment_task import Stage
from fedshift.federation.messages import Array, Fact, Message, MessageError
from fedshift.federation.task import State, Task

#: names of a round's arrays by those of the state
DOWNLINK = {"params": "params", "stats": "stats", "c": "control"}


class Downlink:
    """Computes what the server sends, and records which round's parameters each site has.

    Without `Plan.broadcast` every site receives all parameters in every round. With
    `Plan.broadcast`, a site that replied in the last round receives the compressed change of the
    parameters since that round. A site that did not reply, or lost its state, receives all
    parameters.

    Parameters
    ----------
    stage : Stage
    """

    def __init__(self, stage: Stage) -> None:
        self._scheme = stage.plan.broadcast
        self._rounds: dict[str, int] = {}
        self._changes: dict[str, Array] = {}

    def payloads(
        self, names: Iterable[str], number: int, states: Sequence[State]
    ) -> dict[str, tuple[Mapping[str, Array], Mapping[str, Fact]]]:
        """Return the arrays and facts to send to each named site in round `number`."""
        whole = {f"{j}/{n}": a for j, s in enumerate(states) for n, a in self._arrays(s).items()}
        few = {n: a for n, a in whole.items() if not n.endswith("/params")} | self._changes
        return {
            name: (few, {"since": number - 1})
            if self._changes and self._rounds.get(name) == number - 1
            else (whole, {})
            for name in names
        }

    def acknowledge(self, names: Iterable[str], number: int) -> None:
        """Store that these sites replied in a round, so they hold the parameters of that round."""
        self._rounds |= dict.fromkeys(names, number)

    def forget(self, name: str) -> None:
        """Store that a site holds no parameters."""
        self._rounds.pop(name, None)

    def update(self, states: Sequence[State]) -> None:
        """Compute, after the server's step, the change of the parameters for the next round."""
        if self._scheme is None:
            return
        self._changes = {}
        for j, state in enumerate(states):
            packed = pack(self._scheme, show(self._scheme, state.tensors), 0.0)
            self._changes |= {f"{j}/change/{n}": a for n, a in packed.items()}

    def _arrays(self, state: State) -> dict[str, Array]:
        t = state.tensors
        sent = {**t, "params": t["params" if self._scheme is None else "shown"]}
        return {new: sent[n].cpu().numpy() for n, new in DOWNLINK.items() if n in sent}


def read_downlink(task: Task, message: Message, fold: int, base: Tensor | None) -> Broadcast:
    """Read and check, at a site, what the server sends at the start of a round.

    Parameters
    ----------
    task : Task
    message : Message
    fold : int
    base : Tensor, optional
        Parameters that the site holds. They are needed if the message contains only the change of
        the parameters.

    Raises
    ------
    MessageError
        If an array is missing, has another shape, or is not finite.
    """
    begin = task.begin().tensors
    tensors: dict[str, Tensor] = {}
    for name, new in DOWNLINK.items():
        if name not in begin or (name == "stats" and task.plan.norm == "local"):
            continue
        if name == "params" and base is not None:
            tensors[new] = base + _change(task, message, fold, base)
        else:
            array = message.array(f"{fold}/{new}", tuple(begin[name].shape))
            tensors[new] = torch.tensor(array).to(begin[name])
    out = {n: t.to(task.x.device) for n, t in tensors.items()}
    return Broadcast(out["params"], out.get("stats"), out.get("control"))


def _change(task: Task, message: Message, fold: int, base: Tensor) -> Tensor:
    start = f"{fold}/change/"
    own = {n.removeprefix(start): a for n, a in message.arrays.items() if n.startswith(start)}
    try:
        change = unpack(task.plan.broadcast, own, task.layout.size).to(base)
    except ValueError as error:
        raise MessageError(f"the change of the parameters cannot be read: {error}") from None
    if change.shape != base.shape or not bool(torch.isfinite(change).all()):
        raise MessageError(f"the change of the parameters must be {len(base)} finite numbers")
    return change
