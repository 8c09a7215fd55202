"""The reference engine: plain code, one client after another.

Other engines must give the same results.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fedshift.federation.aggregate import aggregate
from fedshift.federation.client import Broadcast, Client, Memory, Reply, momentum
from fedshift.federation.compress import show
from fedshift.federation.engine import Engine, Log
from fedshift.federation.optimise import step
from fedshift.federation.task import Batch, State, follow
from fedshift.learn.norm import mix_moments

#: entries of a state with a row for every client
BY_CLIENT = ("local", "local_m", "local_v", "local_t", "ck", "error")


class Reference(Engine):
    """Runs a plan one client at a time."""

    def _load(self, state: State) -> None:
        device = self.task.x.device
        self._state = State(state.round, {n: t.to(device) for n, t in state.tensors.items()})

    @property
    def state(self) -> State:
        """A copy of the run's state."""
        return State(
            self._state.round, {n: t.cpu().clone() for n, t in self._state.tensors.items()}
        )

    def _advance(self, rounds: int) -> Log:
        first, clients, losses = self._state.round, [], []
        for number in range(first, first + rounds):
            who = self.task.participants(number)
            clients.append(who)
            losses.append(self._round(number, [int(k) for k in who]))
        m, steps = self.task.n_participants, self.task.plan.n_steps
        return Log(first, np.array(clients).reshape(-1, m), np.array(losses).reshape(-1, m, steps))

    def _round(self, number: int, who: list[int]) -> list[list[float]]:
        plan, t = self.task.plan, self._state.tensors
        params = t["params"] if plan.broadcast is None else t["shown"]
        message = Broadcast(params, None if plan.norm == "local" else t.get("stats"), t.get("c"))
        if plan.norm == "synchronous" and self.task.stats_layout.size:
            losses = self._together(number, who, message)
        else:
            replies = [self._client(k).reply(number, message) for k in who]
            losses = [r.losses for r in replies]
            self._aggregate(who, replies)
        if plan.broadcast is not None:
            show(plan.broadcast, t)
        follow(t, plan.average)
        self._state.round = number + 1
        return losses

    def _client(self, k: int) -> Client:
        """A client with views of its own rows of the state."""
        t = self._state.tensors
        names = [*BY_CLIENT, *(["stats"] if self.task.plan.norm == "local" else [])]
        return Client(self.task, k, Memory({n: t[n][k] for n in names if n in t}))

    def _aggregate(self, who: list[int], replies: list[Reply]) -> None:
        aggregate(self.task, self._state.tensors, who, replies)

    def _step(self, update: Tensor) -> None:
        t = self._state.tensors
        step(self.task.plan.rule, t["params"], update, t)

    def _together(self, number: int, who: list[int], message: Broadcast) -> list[list[float]]:
        """Losses of a round in one pass, as if clients exchanged moments at every layer."""
        task = self.task
        batches = [task.batches(k, number)[0] for k in who]
        factors = task.share[who] * task.scale * len(who)  # the loss divides by all rows
        joint = _joined(batches, factors)
        client = self._client(who[0])
        _, grad, _, moments = client.differentiate(joint, message.params, None)
        assert moments is not None
        assert message.stats is not None
        losses = self._losses(batches, joint, message.params)
        self._step(grad)
        self._state.tensors["stats"] = torch.stack(
            mix_moments(
                message.stats[0], message.stats[1], moments[0], moments[1], momentum(task.model)
            )
        )
        return losses

    def _losses(self, batches: list[Batch], joint: Batch, params: Tensor) -> list[list[float]]:
        task = self.task
        with torch.no_grad():
            scores = torch.func.functional_call(
                task.model, task.layout.views(params), (joint.x,)
            ).split([len(b.y) for b in batches])
        return [
            [float(b.row_losses(task.loss, s).mean())] for s, b in zip(scores, batches, strict=True)
        ]


def _joined(batches: list[Batch], factors: Iterable[float]) -> Batch:
    """All rows in one batch, each client's coefficients times its factor."""
    pairs = list(zip(batches, factors, strict=True))
    ys = [b.other_y for b in batches if b.other_y is not None]
    cs = [b.other_coefficient * f for b, f in pairs if b.other_coefficient is not None]
    offsets = [b.offset for b in batches if b.offset is not None]
    return Batch(
        torch.cat([b.x for b in batches]),
        torch.cat([b.y for b in batches]),
        torch.cat([b.coefficient * f for b, f in pairs]),
        torch.cat(ys) if ys else None,
        torch.cat(cs) if cs else None,
        torch.cat(offsets) if offsets else None,
    )
