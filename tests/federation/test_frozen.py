"""Parameters that need no gradient, and those a model does not use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedshift as fs
from fedshift.errors import InputError
from fedshift.federation.fused import Fused, Runs
from fedshift.federation.reference import Reference
from fedshift.federation.task import Task

PLANS: dict[str, Any] = {
    "fedsgd": fs.FedSGD(iterations=5, lr=0.01, batch_size=8),
    "fedavg": fs.FedAvg(rounds=5, local_steps=2, batch_size=8),
    "local": fs.FedSGD(iterations=5, lr=0.01, batch_size=8, norm="local"),
}


class Net(nn.Module):
    """A frozen layer, a frozen BatchNorm and a parameter nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)
        self.idle = nn.Parameter(torch.ones(2))
        for p in (*self.body.parameters(), *self.norm.parameters()):
            p.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.norm(self.body(x))))
        return out


def federation() -> fs.Federation:
    rng = np.random.default_rng(0)
    return fs.Federation.of(
        {
            f"c{k}": (
                rng.normal(k, 1, (20, 3)),
                rng.integers(0, 2, 20),
                rng.normal(size=(4, 3)),
            )
            for k in range(3)
        }
    )


def net(seed: int = 0) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net().double()


@pytest.mark.parametrize("plan", list(PLANS))
def test_frozen_parameters_stay_and_engines_agree(plan: str) -> None:
    model = net()
    task = Task.of(federation(), model, PLANS[plan], dtype=torch.float64)
    assert set(task.layout.shapes) == {"head.weight", "head.bias", "idle"}
    states = []
    for engine in (Reference, Fused):
        run = engine(task)
        run.advance(5)
        states.append(run.state)
        trained = task.module(run.state)
        assert torch.equal(trained.body.weight, model.body.weight)
        assert torch.equal(trained.norm.weight, model.norm.weight)
        assert torch.equal(trained.idle, model.idle)
        assert not torch.equal(trained.head.weight, model.head.weight)
    for name, t in states[0].tensors.items():
        torch.testing.assert_close(t, states[1].tensors[name], rtol=1e-10, atol=1e-12)


def test_runs_side_by_side_need_the_same_frozen_parameters() -> None:
    tasks = [Task.of(federation(), net(s), PLANS["fedsgd"], dtype=torch.float64) for s in (0, 1)]
    with pytest.raises(InputError, match=r"body\.weight"):
        Runs(tasks)


def test_nothing_to_train_is_refused() -> None:
    model = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(InputError, match="parameters to train"):
        Task.of(federation(), model, PLANS["fedsgd"])


def test_client_weights_that_are_all_zero_are_refused() -> None:
    plan = fs.FedSGD(iterations=1, client_weights={f"c{k}": 0.0 for k in range(3)})
    with pytest.raises(InputError, match="client_weights must have a number above 0"):
        Task.of(federation(), nn.Linear(3, 2), plan)
