"""Attacks of a hostile client: on its rows, label distribution, rounds and reported weights.

The last client is the hostile one. It knows the other clients' rows, distributions and settings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedshift.data.federation import Federation
from fedshift.defence.neighbours import distances
from fedshift.defence.robust import Robust, UpdateReport, combine
from fedshift.federation.client import Reply
from fedshift.federation.coordinator import Coordinator, TooFewReplies
from fedshift.federation.deployment_task import DeploymentTask
from fedshift.federation.engine import Log
from fedshift.federation.messages import Message
from fedshift.federation.reference import Reference
from fedshift.federation.site import Site
from fedshift.federation.task import Task
from fedshift.federation.transport import InProcess
from fedshift.learn.models import MLP
from fedshift.privacy.policy import Privacy

Array = NDArray[Any]
#: factor of the gradients
INFLATION = 1000.0


def aimed(federation: Federation, rng: np.random.Generator) -> Array:
    """Near-copies of one training row of the first client.

    It is the row of the common class that is most similar to the honest clients' test rows. With
    all the weight on it, the model assigns their rows to that class.
    """
    victim = federation[0]
    rows = victim.x[victim.y == np.bincount(victim.y).argmax()]
    used = np.concatenate([c.test_x for c in federation.clients[:-1]])
    apart = distances(_flat(rows), _flat(used))
    row = rows[np.argmin(np.sort(apart, axis=1)[:, :10].mean(axis=1))]
    copies = row + 0.01 * rng.normal(size=(_many(federation), *row.shape))
    return np.clip(copies, 0.0, 1.0).astype(victim.x.dtype)


def far(federation: Federation, rng: np.random.Generator) -> Array:
    """Rows of noise, far from all data."""
    like = federation.clients[-1].test_x
    shape = (_many(federation), *like.shape[1:])
    return rng.normal(50.0, 10.0, size=shape).astype(like.dtype)


def mirrored(federation: Federation, rng: np.random.Generator) -> Array:
    """Rows of the others' common training classes, which reverse the shift."""
    parts = [c.x[c.y == np.bincount(c.y).argmax()] for c in federation.clients[:-1]]
    each = _many(federation) // len(parts)
    return np.concatenate([p[rng.choice(len(p), each)] for p in parts])


def _many(federation: Federation) -> int:
    """Number of rows that a hostile client sends: ten times as many as it should."""
    return 10 * len(federation.clients[-1].test_x)


def _flat(x: Array) -> Array:
    return x.reshape(len(x), -1).astype(np.float64)


POOLS: dict[str, Callable[[Federation, np.random.Generator], Array]] = {
    "aimed at one record": aimed,
    "far garbage": far,
    "mirrored shift": mirrored,
}


def false_distributions(federation: Federation) -> dict[str, Array]:
    """Test label distributions that a hostile client may report."""
    train = [np.bincount(c.y, minlength=10) / len(c.y) for c in federation.clients[:-1]]
    mirror = np.mean(train, axis=0)
    rarest = np.zeros_like(mirror)
    rarest[np.argmin(train[0])] = 1.0
    return {
        "mirrored shift": mirror,
        "all on one class": rarest,
        "no distribution: sums to 1000": INFLATION * mirror,
    }


class Attacked(Reference):
    """The reference engine with the last client's updates multiplied, and a robust server.

    Parameters
    ----------
    inflation : float
        Factor of the last client's updates; 1 means that all clients are honest.
    robust : Robust or None
        None means the plain sum.
    """

    def __init__(self, task: Task, *, inflation: float = 1.0, robust: Robust | None = None) -> None:
        self.inflation, self.robust = inflation, robust or Robust(clip=None)
        self.reports: list[UpdateReport] = []
        super().__init__(task)

    def run(self) -> Log:
        """Run all rounds, even if losses are not finite."""
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


class Lying:
    """A site that computes correct answers and changes them before it sends them.

    Parameters
    ----------
    site : Site
    mean_weight : float, optional
        The mean weight that it reports.
    **factors
        Factors of its arrays by name: update, stats.
    """

    def __init__(self, site: Site, *, mean_weight: float | None = None, **factors: float) -> None:
        self.site, self.mean_weight, self.factors = site, mean_weight, factors

    def handle(self, message: Message) -> Message:
        """Answer a question."""
        answer = self.site.handle(message)
        facts = dict(answer.facts)
        if self.mean_weight is not None and "mean_weight" in facts:
            facts["mean_weight"] = self.mean_weight
        arrays = {
            name: (a * self.factors.get(name.partition("/")[2], 1.0)).astype(a.dtype)
            for name, a in answer.arrays.items()
        }
        return replace(answer, facts=facts, arrays=arrays)


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model with BatchNorm, whose statistics are sent."""
    return MLP(shape, classes, hidden=(32,), batch_norm=True)


def deployed(
    job: DeploymentTask, federation: Federation, lies: dict[str, float] | None
) -> tuple[dict[str, Any], float]:
    """Run rounds of a coordinator and its sites with exact ratios; return facts and accuracy.

    The accuracy is that of the honest sites, and 0 if their training diverges before the end.
    """
    with tempfile.TemporaryDirectory() as folder:
        sites: dict[str, Any] = {
            c.name: Site(
                job,
                c,
                Path(folder) / c.name,
                privacy=Privacy(disclosure_level=0),
                log_ratio=federation.exact_log_ratio(c.name),
            )
            for c in federation
        }
        bad = federation.clients[-1].name
        sites[bad] = Lying(sites[bad], **(lies or {}))
        server = Coordinator(job, InProcess(sites), Path(folder) / "server")
        try:
            lines = server.run()["evaluation"]
        except TooFewReplies:
            return server.facts, 0.0
    scores = [line["accuracy"] for line in lines if line["client"] != bad]
    return server.facts, float(np.mean(scores))


def accuracy(task: Task, engine: Any, federation: Federation) -> float:
    """Mean accuracy of all clients but the last on their test rows."""
    model = task.module(engine.state)
    shares = []
    for c in federation.clients[:-1]:
        with torch.inference_mode():
            scores = model(torch.as_tensor(c.test_x, dtype=torch.float32))
        shares.append(float((scores.argmax(1).numpy() == c.test_y).mean()))
    return float(np.mean(shares))
