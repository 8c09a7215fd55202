"""What sites answered, read and checked: everything here comes from outside."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from fedshift.defence.calibration import Sums
from fedshift.defence.ratios import check_law
from fedshift.defence.robust import check_update
from fedshift.federation.client import Reply
from fedshift.federation.compress import unpack
from fedshift.federation.job import Job, Stage
from fedshift.federation.messages import Array, Message, MessageError
from fedshift.federation.task import Task
from fedshift.learn.evaluate import ClientScore

#: longest update taken from anybody, before robust rules look at it
HUGE = 1e8
#: cuts of log ratios for a bound from counts
EDGES = np.linspace(-6.0, 8.0, 29)
#: largest count of rows taken from anybody; sums of such counts stay exact
MOST = 2**31


class Heard(NamedTuple):
    """What a site said in a round, fold by fold; no losses where they are kept back."""

    replies: list[Reply]
    losses: list[float]
    parts: list[float]


def read_reply(message: Message, stage: Stage, tasks: list[Task]) -> Heard:
    """A site's replies for all folds.

    Raises
    ------
    MessageError, ValueError
        If anything is missing, of another shape, not finite or huge.
    """
    out = Heard([], [], [])
    for j, task in enumerate(tasks):
        size, dtype = task.layout.size, task.x.dtype
        own = {
            n.removeprefix(f"{j}/"): a for n, a in message.arrays.items() if n.startswith(f"{j}/")
        }
        vector = unpack(task.plan.compression, own, size)
        why = check_update(vector, size, HUGE)
        if why is not None:
            raise MessageError(f"update: {why}")
        if f"{j}/loss" in message.facts:
            out.losses.append(_finite(message, f"{j}/loss"))
        out.parts.append(_finite(message, f"{j}/part", 0.0, 2.0) if stage.name == "ratio" else 1.0)
        stats, control = _stats(message, j, task), _control(message, j, task)
        out.replies.append(Reply(vector.to(dtype), stats, control, []))
    return out


def _finite(message: Message, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    value: float = message.fact(name, float)
    if not (math.isfinite(value) and low <= value <= high):
        raise MessageError(f"{name} is {value}")
    return value


def read_cells(message: Message, clients: int) -> list[Any]:
    """Counts of cells along every client's log ratio, which are hidden, and 1 / ε of each table."""
    shape = (clients, len(EDGES) + 1)
    counts, hidden = (message.array(n, shape, "i") for n in ("counts", "hidden"))
    shown = np.where(hidden > 0, 0, counts)
    if (shown < 0).any() or (shown != counts).any() or not shown.any(axis=1).all():
        raise MessageError("counts must be ≥ 0, some in every row, and 0 where they are hidden")
    if (counts > MOST).any():
        raise MessageError(f"counts must be at most {MOST:,}; got {counts.max():,}")
    noise = message.array("noise", (clients,))
    if (noise < 0).any():
        raise MessageError(f"noise must be 1 / ε of every table, 0 for none; got {noise.min()}")
    return [counts.tolist(), hidden.tolist(), noise.tolist()]


def read_sums(message: Message, size: int) -> Sums:
    """Slope and curvature of a calibration."""
    slope = message.array("slope", (size,)).astype(np.float64)
    curve = message.array("curve", (size, size)).astype(np.float64)
    return Sums(slope, (curve + curve.T) / 2)


def read_law(message: Message, classes: int) -> list[float]:
    law = message.array("law", (classes,)).astype(np.float64)
    why = check_law(law, classes)
    if why is not None:
        raise MessageError(f"its label law has {why}")
    out: list[float] = (law / law.sum()).tolist()
    return out


def read_pool(message: Message, job: Job) -> Array:
    rows = message.array("rows")
    if rows.shape[1:] != job.shape or not 1 <= len(rows) <= job.ratio.quota:
        raise MessageError(
            f"a pool has 1 to {job.ratio.quota} rows of shape {job.shape}; got {rows.shape}"
        )
    return rows


def read_score(message: Message, job: Job) -> ClientScore:
    """A site's figures."""
    table = json.loads(message.fact("score", str))
    for name, value in table.items():
        number = type(value) in (int, float) and math.isfinite(value)
        if name != "client" and value is not None and not number:
            raise MessageError(f"{name} of a score must be a number; got {value!r:.50}")
    found = ClientScore(**table)
    high = 1.0 if job.loss == "cross-entropy" else math.inf
    if (found.mse is None) != (high == 1.0) or not 0 <= float(found.value) <= high:
        raise MessageError(f"a score cannot be {found!r:.200}")
    return found


def _stats(message: Message, j: int, task: Task) -> torch.Tensor | None:
    if not task.stats_layout.size or task.plan.norm == "local":
        return None
    stats = message.array(f"{j}/stats", (2, task.stats_layout.size))
    if (stats[1] < 0).any() or np.abs(stats).max() > HUGE:
        raise MessageError("statistics have a negative variance or are huge")
    return torch.tensor(stats).to(task.x.dtype)


def _control(message: Message, j: int, task: Task) -> torch.Tensor | None:
    if not getattr(task.plan, "scaffold", False):
        return None
    control = torch.tensor(message.array(f"{j}/control", (task.layout.size,)))
    why = check_update(control, task.layout.size, HUGE)
    if why is not None:
        raise MessageError(f"control variate: {why}")
    return control.to(task.x.dtype)


def shared(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """The model of a state: its mean over rounds where the plan keeps one."""
    return {
        n: tensors.get(f"mean_{n}", tensors[n]).cpu().numpy()
        for n in ("params", "stats")
        if n in tensors
    }
