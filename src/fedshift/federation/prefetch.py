"""Random choices of many rounds at once, as tensors on the device."""

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
class Draws:
    """Random choices of several rounds; for a single round the tensors lack the first axis.

    R is the number of runs, m the number of participants of a round, steps the number of batches of
    a participant in a round, and B the number of rows in a batch.

    Attributes
    ----------
    who : Tensor (rounds, R, m)
        Positions of the participants.
    rows : Tensor (rounds, R, m, steps, B)
        Positions of the rows of every batch.
    crops : Tensor (rounds, R, m, steps, B, 3), optional
        Shifts and flip of every image (`fedshift.learn.augment.crops`).
    keep : Tensor (rounds, R, m, steps), optional
        With mixup: each row of a batch is blended with another row. `keep` is the share of the row
        itself, the same for all rows of a batch. The other row has 1 − `keep`.
    """

    who: Tensor
    rows: Tensor
    crops: Tensor | None
    keep: Tensor | None

    @property
    def parts(self) -> tuple[Tensor | None, ...]:
        """The tensors `who`, `rows`, `crops` and `keep`."""
        return self.who, self.rows, self.crops, self.keep

    def __getitem__(self, i: int) -> Draws:
        """The random choices of round `i`."""
        return Draws(self.who[i], self.rows[i], *(t if t is None else t[i] for t in self.parts[2:]))

    def clone(self) -> Draws:
        """A copy with tensors of its own."""
        return Draws(
            self.who.clone(),
            self.rows.clone(),
            *(t if t is None else t.clone() for t in self.parts[2:]),
        )

    def copy_(self, other: Draws) -> None:
        """Copy the values of another `Draws` into these tensors."""
        for own, new in zip(self.parts, other.parts, strict=True):
            if own is not None and new is not None:
                own.copy_(new)

    def step(self, s: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Rows, crops and mixup shares of step `s`, from the choices of one round."""
        crops, keep = (t if t is None else t[:, :, s] for t in self.parts[2:])
        return self.rows[:, :, s], crops, keep


def draw_rounds(
    tasks: Sequence[Task], shift: Sequence[int], first: int, count: int
) -> tuple[npt.NDArray[np.int64], Draws]:
    """Draw the random choices of `count` rounds, from round `first` on.

    The plans of the tasks may differ in their seeds only. R is the number of tasks, m the number of
    participants of a round.

    Parameters
    ----------
    shift : sequence of int
        Position of each task's first row in the data of all tasks.

    Returns
    -------
    who : ndarray (count, R, m)
        Positions of the participants, on the CPU.
    draws : Draws
        All random choices, on the tasks' device.
    """
    plan, runs, m = tasks[0].plan, len(tasks), tasks[0].n_participants
    steps, size = plan.n_steps, plan.batch_size
    who = np.empty((count, runs, m), dtype=np.int64)
    rows = np.empty((count, runs, m, steps, size), dtype=np.int64)
    crop = np.empty((*rows.shape, 3), dtype=np.int8) if plan.augment == "crop-flip" else None
    keep = np.empty(rows.shape[:-1]) if plan.mixup else None
    first_run: dict[tuple[int, int], int] = {}
    for r, task in enumerate(tasks):
        same = first_run.setdefault((id(task.x), task.seed), r)
        if same != r and plan.importance != "sampling":  # the same rows, weighted otherwise
            who[:, r] = who[:, same]
            rows[:, r] = rows[:, same] - shift[same] + shift[r]
            for part in (crop, keep):
                if part is not None:
                    part[:, r] = part[:, same]
            continue
        who[:, r] = task.participants_of(first, count)
        rows[:, r] = _rows(task, who[:, r], first) + shift[r]
        if crop is not None:
            crop[:, r] = task.round_crops(who[:, r], first)
        if keep is not None:
            keep[:, r] = task.round_shares(who[:, r], first)
    device = tasks[0].x.device
    optional = (None if part is None else _to_device(part, device) for part in (crop, keep))
    return who, Draws(_to_device(who, device), _to_device(rows, device), *optional)


def _rows(task: Task, who: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.int64]:
    """Rows of the clients (count, m) from round `first` on, (count, m, steps, B)."""
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


def _to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device, without waiting for the device's other work."""
    host = torch.as_tensor(array)
    if device.type != "cuda":
        return host
    return host.pin_memory().to(device, non_blocking=True)
