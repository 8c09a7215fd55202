"""What both engines share: logs, faults that name the client, and runs side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError, TrainingDiverged
from fedshift.federation.engine import Log
from fedshift.federation.fused import Fused, Runs
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, TopK
from fedshift.federation.reference import Reference
from fedshift.federation.task import Task
from fedshift.learn.models import MLP, Linear

ENGINES = [Reference, Fused]
engines = pytest.mark.parametrize("engine", ENGINES)


def federation(shape: tuple[int, ...] = (3,), n: int = 12) -> Federation:
    rng = np.random.default_rng(0)
    return Federation(
        tuple(
            ClientData(
                f"ward-{k}",
                rng.normal(k, 1, (n, *shape)),
                rng.integers(0, 2, n),
                rng.normal(size=(4, *shape)),
            )
            for k in range(3)
        )
    )


def close(a: Any, b: Any) -> None:
    assert a.tensors.keys() == b.tensors.keys()
    for name, x in a.tensors.items():
        torch.testing.assert_close(x, b.tensors[name], rtol=1e-10, atol=1e-10, msg=name)


def net(*, batch_norm: bool = True) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MLP((3,), 2, (5,), batch_norm=batch_norm)


# -- faults --------------------------------------------------------------------------------------


@engines
def test_a_row_too_large_stops_and_names_client_round_and_batch(engine: Any) -> None:
    fed = federation()
    fed["ward-1"].x[:] = 1.0
    fed["ward-1"].x[5] = 1e30  # finite, its squared error is not
    plan = FedAvg(rounds=4, local_steps=3, batch_size=2, local_lr=1e-3, seed=2)
    task = Task.of(fed, Linear((3,), 1), plan, loss="squared")
    task = Task(**{**vars_of(task), "y": task.y.float()})
    hit = [
        (number, step)
        for number in range(4)
        for step, rows in enumerate(task.batch_rows(1, number))
        if 12 + 5 in rows
    ]
    # the model starts at zero and the row does not show until it has moved a little
    with pytest.raises(TrainingDiverged) as caught:
        engine(task).advance(4)
    number, step = next(h for h in hit if h > (0, 0))
    assert f"client 'ward-1' in round {number}, batch {step} of 3" in str(caught.value)
    assert "inf" in str(caught.value)
    assert "clip the weights" in str(caught.value)


def vars_of(task: Task) -> dict[str, Any]:
    names = ("names", "x", "y", "weight", "start", "model", "plan", "loss")
    return {n: getattr(task, n) for n in names}


@engines
@pytest.mark.parametrize("norm", ["averaged", "synchronous", "group"])
def test_a_nan_row_stops_fedsgd(engine: Any, norm: Any) -> None:
    fed = federation()
    fed["ward-2"].x[7, 1] = np.nan
    plan = FedSGD(iterations=20, batch_size=3, norm=norm, seed=1)
    task = Task.of(fed, net(), plan)
    first = next(i for i in range(20) if 24 + 7 in task.batch_rows(2, i))
    with pytest.raises(TrainingDiverged) as caught:
        engine(task).advance(20)
    # with synchronous BatchNorm it reaches all clients of that round at once
    who = "ward-0" if norm == "synchronous" else "ward-2"
    said = f"the loss became nan for client {who!r} in round {first}, batch 0 of 1"
    assert said in str(caught.value)


@engines
def test_weights_too_large_stop_and_name_the_client(engine: Any) -> None:
    weights = {f"ward-{k}": np.ones(12) for k in range(3)}
    weights["ward-0"] = np.full(12, 3e38)  # a float32, but not the sum of some
    task = Task.of(federation(), net(), FedSGD(iterations=3, batch_size=8), weights=weights)
    with pytest.raises(TrainingDiverged, match=r"inf for client 'ward-0' in round 0, batch 0 of 1"):
        engine(task).advance(3)


@engines
def test_rounds_before_the_fault_stand(engine: Any) -> None:
    fed = federation()
    fed["ward-2"].x[7, 1] = np.nan
    task = Task.of(fed, net(), FedSGD(iterations=20, batch_size=3, seed=1))
    first = next(i for i in range(20) if 24 + 7 in task.batch_rows(2, i))
    run = engine(task)
    log = run.advance(first)
    assert np.isfinite(log.losses).all()
    assert run.state.round == first
    assert run.state.tensors["params"].isfinite().all()
    with pytest.raises(TrainingDiverged, match=f"round {first}"):
        run.advance(1)


def test_the_first_fault_is_named() -> None:
    task = Task.of(federation(), net(), FedAvg(participation=2))
    losses = np.ones((3, 2, 4))
    losses[2, 0, 0] = losses[1, 1, 3] = np.nan
    log = Log(10, np.array([[0, 1], [0, 2], [1, 2]]), losses)
    with pytest.raises(TrainingDiverged, match=r"nan for client 'ward-2' in round 11, batch 3 of"):
        log.check(task)
    Log(0, log.clients, np.ones((3, 2, 4))).check(task)


# -- logs ----------------------------------------------------------------------------------------


@engines
@pytest.mark.parametrize(
    "plan",
    [
        FedSGD(iterations=4, batch_size=5, participation=2, lr=0.1),
        FedAvg(rounds=4, local_steps=2, batch_size=5, participation=2),
    ],
)
def test_a_log_tells_who_took_part_and_the_loss_before_the_step(engine: Any, plan: Any) -> None:
    weights = {f"ward-{k}": np.linspace(0.1, 2, 12) for k in range(3)}
    task = Task.of(federation(), net(batch_norm=False), plan, weights=weights, dtype=torch.float64)
    run = engine(task)
    run.advance(1)
    before = task.module(run.state)
    log = run.advance(3)
    assert log.first == 1
    assert log.clients.shape == (3, 2)
    assert log.losses.shape == (3, 2, plan.n_steps)
    for i in range(3):
        assert log.clients[i].tolist() == task.participants(1 + i).tolist()
    for j, k in enumerate(log.clients[0]):
        batch = task.batches(int(k), 1)[0]
        loss = (batch.coefficient * task.loss(before(batch.x), batch.y)).mean()
        assert log.losses[0, j, 0] == pytest.approx(loss.item(), rel=1e-10)


@engines
def test_no_rounds_are_no_rounds(engine: Any) -> None:
    task = Task.of(federation(), net(), FedAvg(local_steps=2))
    run = engine(task)
    log = run.advance(0)
    assert log.clients.shape == (0, 3)
    assert log.losses.shape == (0, 3, 2)
    close(run.state, task.begin())


@engines
def test_a_state_is_a_copy(engine: Any) -> None:
    task = Task.of(federation(), net(), FedSGD(batch_size=4))
    run, other = engine(task), engine(task)
    for t in run.state.tensors.values():
        t.fill_(7)
    begun = task.begin()
    third = engine(task, begun)
    run.advance(3)
    other.advance(3)
    third.advance(3)
    for name, t in run.state.tensors.items():
        assert torch.equal(t, other.state.tensors[name])
        assert torch.equal(t, third.state.tensors[name])
    assert begun.round == 0
    close(begun, task.begin())


# -- one client in a round -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        FedSGD(iterations=6, batch_size=4, participation=1, compression=TopK(0.2)),
        FedSGD(iterations=6, batch_size=4, participation=("ward-1",), compression=QSGD(4)),
        FedAvg(rounds=6, batch_size=4, participation=1, local_steps=2, compression=TopK(0.2)),
        FedSGD(iterations=6, batch_size=4, participation=1, norm="synchronous", optimizer="sgd"),
        FedSGD(iterations=6, batch_size=4, participation=1, norm="local", optimizer="sgd"),
        FedAvg(rounds=6, batch_size=4, participation=1, local_steps=2, scaffold=True),
    ],
    ids=lambda p: repr(p)[:70],
)
def test_one_client_a_round(plan: Any) -> None:
    task = Task.of(federation(), net(), plan, dtype=torch.float64)
    slow, fast = Reference(task), Fused(task)
    a, b = slow.advance(6), fast.advance(6)
    assert a.losses.shape == b.losses.shape == (6, 1, plan.n_steps)
    np.testing.assert_allclose(a.losses, b.losses, rtol=1e-9)
    close(slow.state, fast.state)


# -- models by type, and models that cannot be stacked --------------------------------------------


class Odd(nn.Module):
    """A parameter outside any layer, beside BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.the__gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.the__gain * self.net(x)


class Tied(nn.Module):
    """The same layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        first = net(batch_norm=False)
        self.one = nn.Linear(3, 3)
        self.rest = nn.Sequential(nn.Tanh(), self.one, first)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.one(x))


MODELS: dict[str, Any] = {"odd": Odd, "tied": Tied, "one layer": lambda: nn.Linear(3, 2)}
PLANS = [
    # not Adam: a bias before BatchNorm has a gradient of rounding, which Adam scales up
    FedSGD(iterations=5, batch_size=4, optimizer="sgd", lr=0.1),
    FedAvg(rounds=5, batch_size=4, local_steps=2),
    FedSGD(iterations=5, batch_size=4, norm="local", optimizer="sgd", lr=0.1),
    FedSGD(iterations=5, batch_size=4, norm="synchronous", optimizer="sgd"),
    FedSGD(iterations=5, batch_size=4, compression=TopK(0.3), optimizer="sgd"),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("plan", PLANS, ids=lambda p: repr(p)[:70])
def test_any_model_alone_and_side_by_side(model: str, plan: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = MODELS[model]()
    weights = {f"ward-{k}": np.linspace(0, k + 1, 12) for k in range(3)}
    tasks = [
        Task.of(federation(), made, plan, weights=w, dtype=torch.float64) for w in (None, weights)
    ]
    together = Runs(tasks)
    logs = together.advance(5)
    for task, state, log in zip(tasks, together.states(), logs, strict=True):
        slow, fast = Reference(task), Fused(task)
        expected = slow.advance(5)
        fast.advance(5)
        close(slow.state, fast.state)
        close(slow.state, state)
        np.testing.assert_allclose(log.losses, expected.losses, rtol=1e-9)


def test_runs_side_by_side_must_fit() -> None:
    plan = FedSGD(iterations=3, batch_size=4)
    base = Task.of(federation(), net(), plan)
    others: list[tuple[Task, str]] = [
        (
            Task.of(federation(), net(), FedSGD(iterations=3, batch_size=5)),
            "may differ in seed and client_weights only",
        ),
        (
            Task.of(federation(), net(), FedAvg(batch_size=4)),
            "may differ in seed and client_weights only",
        ),
        (Task.of(federation(), Linear((3,), 2), plan), "the same model, loss"),
        (Task.of(Federation(federation().clients[:2]), net(), plan), "number of clients"),
        (Task.of(federation(), net(), plan, loss="squared"), "the same model, loss"),
    ]
    for other, message in others:
        with pytest.raises(InputError, match=message):
            Runs([base, other])
    state = Reference(base)
    state.advance(1)
    with pytest.raises(InputError, match="the same number of rounds"):
        Runs([base, base], [base.begin(), state.state])


@pytest.mark.parametrize("engine", [Reference, Fused])
def test_small_steps_take_one_thread_and_large_ones_all(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Watched(Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.get_num_threads())
            return super().forward(x)

    rng = np.random.default_rng(0)
    client = ClientData("a", rng.normal(size=(8, 3)), rng.integers(0, 2, 8), np.ones((1, 3)))
    task = Task.of(Federation((client,)), Watched((3,), 2), FedSGD(batch_size=4))
    assert task.step_size == 8 * 1 * 4
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        engine(task).advance(1)
        monkeypatch.setattr("fedshift.federation.engine.STEP", 31)
        engine(task).advance(1)
    finally:
        torch.set_num_threads(before)
    assert (seen[0], seen[-1]) == (1, 2)
