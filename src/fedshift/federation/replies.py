"""Functions that read replies. A reply comes from outside, so each function checks all values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from fedshift.defence.calibration import CalibrationSums
from fedshift.defence.ratios import check_label_distribution
from fedshift.defence.robust import check_update
from fedshift.federation.client import Reply
from fedshift.federation.compress import unpack
from fedshift.federation.deployment_task import DeploymentTask, Stage
from fedshift.federation.messages import Array, Message, MessageError
from fedshift.federation.task import Task
from fedshift.learn.evaluate import ClientScore

#: largest norm of an update that is accepted, before robust rules apply
HUGE = 1e8
#: edges of the bins of log ratios, for a bound from counts
EDGES = np.linspace(-6.0, 8.0, 29)
#: largest count of rows that is accepted; sums of such counts stay exact
MOST = 2**31


class SiteReplies(NamedTuple):
    """A site's replies of a round, its losses and its N_k (see `FedAvg`), one of each per fold.

    `losses` is empty if losses stay at the site. `parts`, the N_k, is 1 outside the ratio phase.
    """

    replies: list[Reply]
    losses: list[float]
    parts: list[float]


def read_reply(message: Message, stage: Stage, tasks: list[Task]) -> SiteReplies:
    """Return a site's replies for all folds.

    Raises
    ------
    MessageError, ValueError
        If a value is missing, has another shape, is not finite or is huge.
    """
    out = SiteReplies([], [], [])
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
        raise MessageError(f"{name} must be finite and in [{low:g}, {high:g}]; got {value}")
    return value


def read_cells(message: Message, clients: int) -> list[Any]:
    """Return counts, hidden bins and noise of each client's table, as three lists.

    A table counts the site's test rows in bins of one client's log ratio. Small counts are hidden:
    the bin's entry in the list of hidden bins is 1, and its count is 0. The noise of a table is
    1 / ε, with ε the privacy loss of the table, or 0 without noise.
    """
    shape = (clients, len(EDGES) + 1)
    counts, hidden = (message.array(n, shape, "i") for n in ("counts", "hidden"))
    visible = np.where(hidden > 0, 0, counts)
    if (visible < 0).any() or (visible != counts).any() or not visible.any(axis=1).all():
        raise MessageError("counts must be ≥ 0, some > 0 in every row, and 0 in hidden bins")
    if (counts > MOST).any():
        raise MessageError(f"counts must be at most {MOST:,}; got {counts.max():,}")
    noise = message.array("noise", (clients,))
    if (noise < 0).any():
        raise MessageError(f"noise must be ≥ 0: 1 / ε, or 0 without noise; got {noise.min()}")
    return [counts.tolist(), hidden.tolist(), noise.tolist()]


def read_sums(message: Message, size: int) -> CalibrationSums:
    """Return gradient and curvature (Hessian) of the calibration loss at a site."""
    slope = message.array("slope", (size,)).astype(np.float64)
    curve = message.array("curve", (size, size)).astype(np.float64)
    return CalibrationSums(slope, (curve + curve.T) / 2)


def read_distribution(message: Message, classes: int) -> list[float]:
    """Return a site's test label distribution, divided by its sum."""
    distribution = message.array("distribution", (classes,)).astype(np.float64)
    why = check_label_distribution(distribution, classes)
    if why is not None:
        raise MessageError(f"its label distribution has {why}")
    out: list[float] = (distribution / distribution.sum()).tolist()
    return out


def read_pool(message: Message, job: DeploymentTask) -> Array:
    """Return the rows that a site adds to the pool of test rows of all sites."""
    rows = message.array("rows")
    if rows.shape[1:] != job.shape or not 1 <= len(rows) <= job.ratio.quota:
        raise MessageError(
            f"rows must be 1 to {job.ratio.quota} rows of shape {job.shape}; got {rows.shape}"
        )
    return rows


def read_score(message: Message, job: DeploymentTask) -> ClientScore:
    """Return a site's scores."""
    table = json.loads(message.fact("score", str))
    for name, value in table.items():
        number = type(value) in (int, float) and math.isfinite(value)
        if name != "client" and value is not None and not number:
            raise MessageError(f"{name} of a score must be a number; got {value!r:.50}")
    score = ClientScore(**table)
    high = 1.0 if job.loss == "cross-entropy" else math.inf
    if (score.mse is None) != (high == 1.0) or not 0 <= float(score.value) <= high:
        raise MessageError(f"a score must be in [0, {high:g}]; got {score!r:.200}")
    return score


def _stats(message: Message, j: int, task: Task) -> torch.Tensor | None:
    if not task.stats_layout.size or task.plan.norm == "local":
        return None
    stats = message.array(f"{j}/stats", (2, task.stats_layout.size))
    if (stats[1] < 0).any() or np.abs(stats).max() > HUGE:
        raise MessageError(f"BatchNorm variances must be ≥ 0, and all moments at most {HUGE:g}")
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
    """Return the model of a state.

    Its parameters are the moving average over rounds if the plan has `average` > 0, otherwise the
    parameters of the last round.
    """
    return {
        n: tensors.get(f"mean_{n}", tensors[n]).cpu().numpy()
        for n in ("params", "stats")
        if n in tensors
    }
