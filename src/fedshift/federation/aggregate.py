"""What the server makes of its clients' replies: one step, shared statistics, control variates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedshift.core.samples import Float64Array
from fedshift.defence.beside import draw_in, shorten
from fedshift.defence.robust import Report, Robust, combine
from fedshift.federation.client import Reply
from fedshift.federation.optimise import step
from fedshift.federation.plan import FedAvg
from fedshift.federation.task import Task
from fedshift.learn.norm import pooled


def aggregate(
    task: Task,
    tensors: dict[str, Tensor],
    who: Sequence[int] | npt.NDArray[np.int64],
    replies: Sequence[Reply],
    *,
    normaliser: Float64Array | None = None,
    asked: Sequence[int] | npt.NDArray[np.int64] | None = None,
    robust: Robust | None = None,
) -> Report | None:
    r"""Move a state on by the replies of a round, in place.

    FedAvg takes the mean of the clients' steps with parts λ_k N_k, FedSGD the sum of gradients
    with parts λ_k. Where some who were asked did not answer, the sum is scaled up by
    Σ_{asked} λ / Σ_{answered} λ, as if those missing were like those that answered.

    Parameters
    ----------
    task : Task
        Of the server; its rows are not looked at if `normaliser` is given.
    who : positions of the clients that answered
    replies : their replies
    normaliser : array (K,), optional
        N_k of every client; the task's own by default.
    asked : positions, optional
        All who were asked; `who` by default.
    robust : Robust, optional
        How updates are combined; a plain sum by default, everybody being trusted.

    Returns
    -------
    Report or None
        Whose update was shortened or left out.
    """
    plan, who = task.plan, np.asarray(who, dtype=np.int64)
    asked = who if asked is None else np.asarray(asked, dtype=np.int64)
    normaliser = task.normaliser if normaliser is None else normaliser
    updates = [r.update for r in replies]
    if isinstance(plan, FedAvg):
        part = task.share[who] * normaliser[who]
        part = part / max(part.sum(), 1e-300)
    else:
        part = task.share[who] * task.scale
        if len(asked) > len(who):
            part = part * (task.share[asked].sum() / max(task.share[who].sum(), 1e-300))
    report, kept = None, list(range(len(who)))
    if robust is None or not part.any():
        update = sum_of(part, updates)
    else:  # who has no part in the update still has one in the statistics
        heard = [i for i in kept if part[i] > 0]
        names = [task.names[who[i]] for i in heard]
        update, report = combine([updates[i] for i in heard], part[heard], robust, names=names)
        gone = report.left_out
        kept = [i for i in kept if task.names[who[i]] not in gone]
    server_step(task, tensors, -update if isinstance(plan, FedAvg) else update)
    wary = report is not None and robust is not None and robust.clip is not None
    far = [False] * len(kept)
    if replies[0].stats is not None:
        shares = stat_shares(task.share[who[kept]])
        stats = torch.stack([s for i in kept if (s := replies[i].stats) is not None])
        if wary:
            stats, far = draw_in(stats)
        tensors["stats"] = torch.stack(pooled(stats[:, 0], stats[:, 1], shares.to(stats)))
    if replies[0].control is not None:
        control = [c for i in kept if (c := replies[i].control) is not None]
        if wary:
            control, long = shorten(control)
            far = [a or b for a, b in zip(far, long, strict=True)]
        tensors["c"] += sum_of(task.part_of_all(normaliser)[who[kept]], control)
    if report is not None and any(far):
        beside = [task.names[who[i]] for i, is_far in zip(kept, far, strict=True) if is_far]
        report = replace(report, beside=tuple(beside))
    return report


def server_step(task: Task, tensors: dict[str, Tensor], update: Tensor) -> None:
    """One step of the server's rule."""
    own = {n: x for n, x in tensors.items() if n in ("m", "v", "t")}
    step(task.plan.rule, tensors["params"], update, own)


def sum_of(factors: Float64Array, parts: Sequence[Tensor]) -> Tensor:
    """Σ factor · part."""
    out = torch.zeros_like(parts[0])
    for factor, part in zip(factors, parts, strict=True):
        out += float(factor) * part
    return out


def stat_shares(share: Float64Array) -> Tensor:
    """How much each client's statistics count: λ_k, or all the same where every λ_k is 0."""
    total = share.sum()
    return torch.as_tensor(share / total if total > 0 else np.full(len(share), 1 / len(share)))
