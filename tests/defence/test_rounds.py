"""Rounds of real clients through `combine`: the same for honest ones, survived with a liar."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedshift.data.federation import Federation
from fedshift.defence.robust import Robust, check_update, combine
from fedshift.demo import digits_federation
from fedshift.federation.client import Reply
from fedshift.federation.plan import FedSGD
from fedshift.federation.reference import Reference
from fedshift.federation.task import Task
from fedshift.learn.models import build


class Combined(Reference):
    """A server that combines; the last client multiplies what it sends."""

    inflation = 1.0
    robust = Robust(clip=None)

    def _aggregate(self, who: list[int], replies: list[Reply]) -> None:
        replies[-1] = replace(replies[-1], update=replies[-1].update * self.inflation)
        for r in replies:
            assert check_update(r.update, self.task.layout.size, 1e9) is None
        part = self.task.share[who] * self.task.scale
        self._step(combine([r.update for r in replies], part, self.robust)[0])


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits_federation(seed=0)


def task_of(federation: Federation, iterations: int) -> Task:
    weights = {c.name: np.exp(federation.exact_log_ratio(c.name)) for c in federation}
    plan = FedSGD(iterations=iterations, lr=0.01, batch_size=32)
    return Task.of(federation, build("linear", (8, 8), 10, seed=0), plan, weights=weights)


def accuracy(federation: Federation, inflation: float, robust: Robust) -> float:
    engine = Combined(task_of(federation, 200))
    engine.inflation, engine.robust = inflation, robust
    engine.advance(200)
    model = engine.task.module(engine.state)
    right = []
    for c in federation.clients[:-1]:
        with torch.inference_mode():
            labels = model(torch.as_tensor(c.test_x)).argmax(1).numpy()
        right.append(float((labels == c.test_y).mean()))
    return float(np.mean(right))


def test_honest_rounds_are_the_references_bit_for_bit(federation: Federation) -> None:
    plain, combined = Reference(task_of(federation, 5)), Combined(task_of(federation, 5))
    plain.advance(5)
    combined.advance(5)
    for name, tensor in plain.state.tensors.items():
        assert torch.equal(tensor, combined.state.tensors[name])


def test_an_inflating_client_is_survived(federation: Federation) -> None:
    plain = Robust(clip=None)
    nobody = accuracy(federation, 1.0, plain)
    undefended = accuracy(federation, 1000.0, plain)
    defended = accuracy(federation, 1000.0, Robust())
    assert undefended < nobody - 0.05
    assert defended > nobody - 0.02
