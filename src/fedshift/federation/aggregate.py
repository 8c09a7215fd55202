"""Aggregation of the clients' replies: parameters, BatchNorm statistics, control variates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedshift.core.samples import Float64Array
from fedshift.defence.robust import Robust, UpdateReport, combine
from fedshift.defence.statistics import draw_in, shorten
from fedshift.federation.client import Reply
from fedshift.federation.optimise import step
from fedshift.federation.plan import FedAvg
from fedshift.federation.task import Task
from fedshift.learn.norm import pool_moments


def aggregate(
    task: Task,
    tensors: dict[str, Tensor],
    who: Sequence[int] | npt.NDArray[np.int64],
    replies: Sequence[Reply],
    *,
    normaliser: Float64Array | None = None,
    cohort: Sequence[int] | npt.NDArray[np.int64] | None = None,
    robust: Robust | None = None,
) -> UpdateReport | None:
    r"""Update a state in place with the replies of a round.

    FedAvg takes the mean of the clients' steps with weights λ_k N_k. FedSGD takes the sum of the
    clients' gradients with weights λ_k. λ_k is the entry of client k in `Plan.client_weights`, and
    N_k is the number that divides the client's local loss (see `FedAvg`). If some clients of the
    round did not answer, FedSGD multiplies the sum by Σ_{cohort} λ / Σ_{answered} λ: the sum of λ_k
    over all clients of the round, divided by the sum over the clients that answered. This treats
    the missing clients as if they were like the clients that answered.

    Parameters
    ----------
    task : Task
        Task of the server; its rows are not read if `normaliser` is given.
    tensors : dict of str to Tensor
        Tensors of the state (`State.tensors`).
    who : positions of the clients that answered
    replies : replies of these clients, in the same order
    normaliser : array (K,), optional
        N_k of all K clients; by default computed from the task's weights.
    cohort : positions, optional
        Positions of all clients of the round; `who` by default.
    robust : Robust, optional
        Rule that combines the updates; by default they are summed, which trusts all clients.

    Returns
    -------
    UpdateReport or None
        Clients whose update was scaled down to a smaller norm, or left out; None if the updates
        were summed.
    """
    plan, who = task.plan, np.asarray(who, dtype=np.int64)
    cohort = who if cohort is None else np.asarray(cohort, dtype=np.int64)
    normaliser = task.normaliser if normaliser is None else normaliser
    updates = [r.update for r in replies]
    if isinstance(plan, FedAvg):
        part = task.share[who] * normaliser[who]
        part = part / max(part.sum(), 1e-300)
    else:
        part = task.share[who] * task.scale
        if len(cohort) > len(who):
            part = part * (task.share[cohort].sum() / max(task.share[who].sum(), 1e-300))
    report, keep = None, list(range(len(who)))
    if robust is None or not part.any():
        update = sum_of(part, updates)
    else:  # clients without a part in the update still have one in the statistics
        active = [i for i in keep if part[i] > 0]
        names = [task.names[who[i]] for i in active]
        update, report = combine([updates[i] for i in active], part[active], robust, names=names)
        gone = report.left_out
        keep = [i for i in keep if task.names[who[i]] not in gone]
    update = -update if isinstance(plan, FedAvg) else update
    step(plan.rule, tensors["params"], update, tensors)
    wary = report is not None and robust is not None and robust.clip is not None
    far = [False] * len(keep)
    if replies[0].stats is not None:
        shares = stat_shares(task.share[who[keep]])
        stats = torch.stack([s for i in keep if (s := replies[i].stats) is not None])
        if wary:
            stats, far = draw_in(stats)
        tensors["stats"] = torch.stack(pool_moments(stats[:, 0], stats[:, 1], shares.to(stats)))
    if replies[0].control is not None:
        control = [c for i in keep if (c := replies[i].control) is not None]
        if wary:
            control, long = shorten(control)
            far = [a or b for a, b in zip(far, long, strict=True)]
        tensors["c"] += sum_of(task.part_of_all(normaliser)[who[keep]], control)
    if report is not None and any(far):
        beside = [task.names[who[i]] for i, is_far in zip(keep, far, strict=True) if is_far]
        report = replace(report, beside=tuple(beside))
    return report


def sum_of(factors: Float64Array, parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of the parts, each multiplied by its factor."""
    out = torch.zeros_like(parts[0])
    for factor, part in zip(factors, parts, strict=True):
        out += float(factor) * part
    return out


def stat_shares(share: Float64Array) -> Tensor:
    """Return the weight of each client's BatchNorm statistics in the average over clients.

    The weight is λ_k / Σ_j λ_j, with λ_k = ``share[k]``. If every λ_k is 0, all weights are equal.
    """
    total = share.sum()
    return torch.as_tensor(share / total if total > 0 else np.full(len(share), 1 / len(share)))
