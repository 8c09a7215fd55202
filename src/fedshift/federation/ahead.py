"""Random choices of many rounds at once, as tensors where they are needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedshift.federation.task import Task


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Random choices of some rounds (or, without the first axis, of one).

    Attributes
    ----------
    who : Tensor (rounds, R, m)
        Participants.
    rows : Tensor (rounds, R, m, steps, B)
    crops : Tensor (rounds, R, m, steps, B, 3), optional
    keep : Tensor (rounds, R, m, steps), optional
        Shares of blended rows.
    """

    who: Tensor
    rows: Tensor
    crops: Tensor | None
    keep: Tensor | None

    @property
    def parts(self) -> tuple[Tensor | None, ...]:
        """All of them."""
        return self.who, self.rows, self.crops, self.keep

    def __getitem__(self, i: int) -> Drawn:
        """One round's."""
        return Drawn(self.who[i], self.rows[i], *(t if t is None else t[i] for t in self.parts[2:]))

    def clone(self) -> Drawn:
        """Tensors of its own."""
        return Drawn(
            self.who.clone(),
            self.rows.clone(),
            *(t if t is None else t.clone() for t in self.parts[2:]),
        )

    def copy_(self, other: Drawn) -> None:
        """Take over the values of another."""
        for own, new in zip(self.parts, other.parts, strict=True):
            if own is not None and new is not None:
                own.copy_(new)

    def step(self, s: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Rows, crops and shares of one step of one round."""
        crops, keep = (t if t is None else t[:, :, s] for t in self.parts[2:])
        return self.rows[:, :, s], crops, keep


def ahead_of(
    tasks: Sequence[Task], shift: Sequence[int], first: int, count: int
) -> tuple[npt.NDArray[np.int64], Drawn]:
    """Choices of `count` rounds from `first` on, of tasks that share a plan but for its seed.

    Parameters
    ----------
    shift : sequence of int
        Where the rows of each task begin in the data of all.

    Returns
    -------
    who : ndarray (count, R, m)
        Participants, on the host.
    drawn : Drawn
        On the tasks' device.
    """
    plan, runs, m = tasks[0].plan, len(tasks), tasks[0].n_participants
    steps, size = plan.n_steps, plan.batch_size
    who = np.empty((count, runs, m), dtype=np.int64)
    rows = np.empty((count, runs, m, steps, size), dtype=np.int64)
    crop = np.empty((*rows.shape, 3), dtype=np.int8) if plan.augment == "crop-flip" else None
    keep = np.empty(rows.shape[:-1]) if plan.mixup else None
    drawn: dict[tuple[int, int], int] = {}
    for r, task in enumerate(tasks):
        twin = drawn.setdefault((id(task.x), task.plan.seed), r)
        if twin != r and plan.importance != "sampling":  # the same rows, weighted otherwise
            who[:, r] = who[:, twin]
            rows[:, r] = rows[:, twin] - shift[twin] + shift[r]
            for part in (crop, keep):
                if part is not None:
                    part[:, r] = part[:, twin]
            continue
        who[:, r] = task.participants_of(first, count)
        rows[:, r] = _rows(task, who[:, r], first) + shift[r]
        if crop is not None:
            crop[:, r] = task.round_crops(who[:, r], first)
        if keep is not None:
            keep[:, r] = task.round_shares(who[:, r], first)
    device = tasks[0].x.device
    optional = (None if part is None else _moved(part, device) for part in (crop, keep))
    return who, Drawn(_moved(who, device), _moved(rows, device), *optional)


def _rows(task: Task, who: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.int64]:
    """Rows of the clients (count, m) of rounds `first` and on, (count, m, steps, B)."""
    count, steps = len(who), task.plan.n_steps
    out = np.empty((*who.shape, steps, task.plan.batch_size), dtype=np.int64)
    if isinstance(task.plan.participation, int):
        for i, clients in enumerate(who):
            for j, k in enumerate(clients):
                out[i, j] = task.batch_rows(int(k), first + i)
        return out
    for j, k in enumerate(who[0]):  # always the same clients: all rounds at once
        batches = task.rows(int(k)).batches(first * steps, count * steps)
        out[:, j] = (batches + task.start[k]).reshape(out[:, j].shape)
    return out


def _moved(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """On the device, without waiting for what it has still to do."""
    host = torch.as_tensor(array)
    if device.type != "cuda":
        return host
    return host.pin_memory().to(device, non_blocking=True)
