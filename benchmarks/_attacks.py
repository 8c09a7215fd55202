"""What a hostile client does: to its shared rows, to its label law, to what it sends each round.

The last client is the hostile one. It knows everything: the others' rows, laws and settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedshift.data.federation import Federation
from fedshift.defence.neighbours import distances
from fedshift.defence.robust import Report, Robust, combine
from fedshift.federation.client import Reply
from fedshift.federation.engine import Log
from fedshift.federation.reference import Reference
from fedshift.federation.task import Task

Array = NDArray[Any]
#: what gradients are multiplied by
INFLATION = 1000.0


def aimed(federation: Federation, rng: np.random.Generator) -> Array:
    """Near-copies of one training row of the first client.

    Of its common class, the row that looks most like what the honest clients are used on: with
    all the weight on it, the model takes their rows for that class.
    """
    victim = federation[0]
    rows = victim.x[victim.y == np.bincount(victim.y).argmax()]
    used = np.concatenate([c.test_x for c in federation.clients[:-1]])
    apart = distances(_flat(rows), _flat(used))
    row = rows[np.argmin(np.sort(apart, axis=1)[:, :10].mean(axis=1))]
    copies = row + 0.01 * rng.normal(size=(_many(federation), *row.shape))
    return np.clip(copies, 0.0, 1.0).astype(victim.x.dtype)


def far(federation: Federation, rng: np.random.Generator) -> Array:
    """Rows that look like nothing."""
    like = federation.clients[-1].test_x
    shape = (_many(federation), *like.shape[1:])
    return rng.normal(50.0, 10.0, size=shape).astype(like.dtype)


def mirrored(federation: Federation, rng: np.random.Generator) -> Array:
    """Rows of the others' common training classes: their shift leads away, this leads back."""
    parts = [c.x[c.y == np.bincount(c.y).argmax()] for c in federation.clients[:-1]]
    each = _many(federation) // len(parts)
    return np.concatenate([p[rng.choice(len(p), each)] for p in parts])


def _many(federation: Federation) -> int:
    """Rows a hostile client sends: ten times as many as it should."""
    return 10 * len(federation.clients[-1].test_x)


def _flat(x: Array) -> Array:
    return x.reshape(len(x), -1).astype(np.float64)


POOLS: dict[str, Callable[[Federation, np.random.Generator], Array]] = {
    "aimed at one record": aimed,
    "far garbage": far,
    "mirrored shift": mirrored,
}


def false_laws(federation: Federation) -> dict[str, Array]:
    """Test label laws a hostile client may report."""
    train = [np.bincount(c.y, minlength=10) / len(c.y) for c in federation.clients[:-1]]
    mirror = np.mean(train, axis=0)
    rarest = np.zeros_like(mirror)
    rarest[np.argmin(train[0])] = 1.0
    return {
        "mirrored shift": mirror,
        "all on one class": rarest,
        "no law: sums to 1000": INFLATION * mirror,
    }


class Attacked(Reference):
    """The reference engine with the last client's updates multiplied, and a robust server.

    Parameters
    ----------
    inflation : float
        1: everybody is honest.
    robust : Robust or None
        None: the plain sum.
    """

    def __init__(self, task: Task, *, inflation: float = 1.0, robust: Robust | None = None) -> None:
        self.inflation, self.robust = inflation, robust or Robust(clip=None)
        self.reports: list[Report] = []
        super().__init__(task)

    def run(self) -> Log:
        """All rounds, whatever the losses are."""
        return self._advance(self.task.plan.n_rounds)

    def _aggregate(self, who: list[int], replies: list[Reply]) -> None:
        task = self.task
        last = len(task.names) - 1
        sent = [
            replace(r, update=r.update * self.inflation) if k == last else r
            for k, r in zip(who, replies, strict=True)
        ]
        part = task.share[who] * task.scale
        names = [task.names[k] for k in who]
        update, report = combine([r.update for r in sent], part, self.robust, names=names)
        self.reports.append(report)
        self._step(update)


def accuracy(task: Task, engine: Any, federation: Federation) -> float:
    """Mean accuracy of all clients but the last on their test rows."""
    model = task.module(engine.state)
    found = []
    for c in federation.clients[:-1]:
        with torch.inference_mode():
            scores = model(torch.as_tensor(c.test_x, dtype=torch.float32))
        found.append(float((scores.argmax(1).numpy() == c.test_y).mean()))
    return float(np.mean(found))
