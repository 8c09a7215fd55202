"""One contract over the engines: the same plan from the same seed gives the same parameters."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedshift.data.federation import ClientData, Federation
from fedshift.federation.fused import Fused, Runs
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Optimizer, Sign, TopK
from fedshift.federation.reference import Reference
from fedshift.federation.task import Task
from fedshift.learn.models import MODELS, build

ROUNDS = 20
SIZES = (37, 20, 51, 9)  # none a multiple of the batch, one smaller than it


class Net(nn.Module):
    """Every kind of layer an engine treats on its own."""

    def __init__(self) -> None:
        super().__init__()
        # no bias: BatchNorm takes it out again, its gradient is rounding, and Adam scales that up
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.down = nn.Sequential(nn.Conv2d(4, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4))
        self.fc = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.conv(x)))
        return self.fc(torch.tanh(self.down(x)).flatten(1))


class Odd(Net):
    """A parameter outside any layer: stacking by type is impossible."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * super().forward(x)


def federation() -> Federation:
    rng = np.random.default_rng(0)
    return Federation(
        tuple(
            ClientData(
                f"c{k}",
                rng.normal(k / 3, 1 + k / 4, (n, 2, 6, 6)),
                rng.integers(0, 3, n),
                rng.normal(size=(5, 2, 6, 6)),
            )
            for k, n in enumerate(SIZES)
        )
    )


def weights(objective: str) -> dict[str, Any] | None:
    rng = np.random.default_rng(1)
    if objective == "erm":
        return None
    spread = {"fitw": 0.5, "ftw": 1.0, "focus": 1.0}[objective]
    return {f"c{k}": np.exp(rng.normal(0, spread, n)) for k, n in enumerate(SIZES)}


def task(plan: Any, objective: str, dtype: torch.dtype, model: type[nn.Module] = Net) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = model().to(dtype)
    return Task.of(federation(), net, plan, weights=weights(objective), dtype=dtype)


FOCUS = {"client_weights": {"c0": 2.0, "c1": 0.0}}
PLANS: dict[str, Any] = {
    "fedsgd-adam": lambda **k: FedSGD(iterations=ROUNDS, lr=3e-3, **k),
    "fedsgd-sgd": lambda **k: FedSGD(
        iterations=ROUNDS, lr=0.02, optimizer="sgd", momentum=0.9, weight_decay=1e-3, **k
    ),
    "fedsgd-adamw": lambda **k: FedSGD(
        iterations=ROUNDS, lr=3e-3, optimizer="adamw", weight_decay=0.1, **k
    ),
    "fedsgd-yogi": lambda **k: FedSGD(iterations=ROUNDS, lr=3e-3, optimizer="yogi", **k),
    "fedsgd-topk": lambda **k: FedSGD(iterations=ROUNDS, compression=TopK(0.1), **k),
    "fedsgd-qsgd": lambda **k: FedSGD(iterations=ROUNDS, compression=QSGD(8), **k),
    "fedsgd-sign": lambda **k: FedSGD(
        iterations=ROUNDS, optimizer="sgd", compression=Sign(16), broadcast=Sign(8), **k
    ),
    "fedsgd-shown": lambda **k: FedSGD(
        iterations=ROUNDS, optimizer="sgd", lr=0.02, momentum=0.5, broadcast=TopK(0.2), **k
    ),
    "fedsgd-sampling": lambda **k: FedSGD(iterations=ROUNDS, importance="sampling", **k),
    "fedsgd-augmented": lambda **k: FedSGD(iterations=ROUNDS, augment="crop-flip", **k),
    "fedsgd-mixup": lambda **k: FedSGD(
        iterations=ROUNDS, mixup=0.7, average=0.9, augment="crop-flip", **k
    ),
    "fedsgd-logits": lambda **k: FedSGD(iterations=ROUNDS, importance="logits", tail=1.5, **k),
    "fedsgd-rows": lambda **k: FedSGD(iterations=ROUNDS, average_by="rows", **k),
    "fedavg": lambda **k: FedAvg(rounds=ROUNDS, local_steps=3, local_momentum=0.5, **k),
    "fedavg-logits": lambda **k: FedAvg(
        rounds=ROUNDS, local_steps=2, importance="logits", mixup=0.5, **k
    ),
    "fedavg-mixup": lambda **k: FedAvg(
        rounds=ROUNDS, local_steps=3, mixup=1.0, average=0.95, importance="sampling", **k
    ),
    "fedavg-none": lambda **k: FedAvg(rounds=ROUNDS, local_steps=2, normalise="none", **k),
    "fedprox": lambda **k: FedAvg(rounds=ROUNDS, local_steps=3, prox=0.1, weight_decay=1e-3, **k),
    "scaffold": lambda **k: FedAvg(rounds=ROUNDS, local_steps=3, scaffold=True, **k),
    "scaffold-rows": lambda **k: FedAvg(
        rounds=ROUNDS, local_steps=2, scaffold=True, average_by="rows", **k
    ),
    "fedavg-adam": lambda **k: FedAvg(
        rounds=ROUNDS, local_steps=2, server=Optimizer("adam", 1e-2), **k
    ),
    "fedavg-topk": lambda **k: FedAvg(rounds=ROUNDS, local_steps=2, compression=TopK(0.2), **k),
    "fedavg-shown": lambda **k: FedAvg(
        rounds=ROUNDS, local_steps=2, broadcast=Sign(8), average=0.9, **k
    ),
    "fedavg-qsgd": lambda **k: FedAvg(rounds=ROUNDS, local_steps=2, compression=QSGD(16), **k),
}
NORMS = ("averaged", "local", "synchronous", "group")
PARTICIPATION: dict[str, Any] = {"all": None, "random": 2, "fixed": ("c2", "c0")}
OBJECTIVES = ("erm", "ftw", "fitw", "focus")


def possible(plan: str, norm: str) -> bool:
    """Synchronous BatchNorm needs clients that meet in every step."""
    return norm != "synchronous" or not (
        plan.startswith(("fedavg", "fedprox", "scaffold"))
        or plan.endswith(("topk", "qsgd", "sign", "shown"))
    )


CASES = [(p, n, w) for p, n, w in itertools.product(PLANS, NORMS, PARTICIPATION) if possible(p, n)]


def compare(a: Any, b: Any, rtol: float) -> None:
    assert a.round == b.round == ROUNDS
    assert a.tensors.keys() == b.tensors.keys()
    for name, x in a.tensors.items():
        y = b.tensors[name]
        assert x.dtype == y.dtype
        scale = float(x.abs().max()) or 1.0
        torch.testing.assert_close(x, y, rtol=rtol, atol=rtol * scale, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize(("plan", "norm", "who"), CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fused_equals_reference(plan: str, norm: str, who: str, dtype: torch.dtype) -> None:
    if dtype == torch.float32 and plan.endswith(("sign", "shown")):
        pytest.skip("whose sign or place is sent hangs on the last digit of numbers near zero")
    rtol = 1e-10 if dtype == torch.float64 else 1e-5
    for objective in OBJECTIVES:
        extra = FOCUS if objective == "focus" else {}
        made = PLANS[plan](
            batch_size=8, norm=norm, participation=PARTICIPATION[who], seed=3, **extra
        )
        t = task(made, objective, dtype)
        slow, fast = Reference(t), Fused(t)
        first, second = slow.advance(ROUNDS), fast.advance(ROUNDS)
        np.testing.assert_array_equal(first.clients, second.clients)
        np.testing.assert_allclose(first.losses, second.losses, rtol=100 * rtol)
        compare(slow.state, fast.state, rtol)


@pytest.mark.parametrize("plan", ["fedavg", "scaffold", "fedsgd-topk"])
@pytest.mark.parametrize("norm", ["averaged", "local"])
def test_a_model_with_parameters_outside_layers(plan: str, norm: str) -> None:
    made = PLANS[plan](batch_size=8, norm=norm, seed=3)
    t = task(made, "ftw", torch.float64, Odd)
    slow, fast = Reference(t), Fused(t)
    slow.advance(ROUNDS)
    fast.advance(ROUNDS)
    compare(slow.state, fast.state, 1e-10)


@pytest.mark.parametrize(
    "plan", ["fedsgd-adam", "fedavg", "scaffold", "fedsgd-mixup", "fedsgd-logits"]
)
@pytest.mark.parametrize("norm", ["averaged", "local", "group"])
@pytest.mark.parametrize("who", ["all", "random"])
def test_runs_side_by_side_equal_runs_alone(plan: str, norm: str, who: str) -> None:
    tasks = [
        task(
            PLANS[plan](batch_size=8, norm=norm, participation=PARTICIPATION[who], seed=seed),
            objective,
            torch.float64,
        )
        for seed in (0, 1)
        for objective in ("erm", "ftw")
    ]
    together = Runs(tasks)
    logs = together.advance(ROUNDS)
    for t, state, log in zip(tasks, together.states(), logs, strict=True):
        alone = Fused(t)
        expected = alone.advance(ROUNDS)
        np.testing.assert_array_equal(expected.clients, log.clients)
        compare(alone.state, state, 1e-10)


@pytest.mark.parametrize("plan", ["fedsgd-sgd", "fedavg", "scaffold"])
@pytest.mark.parametrize("norm", NORMS)
def test_bfloat16_rounds_the_arithmetic_and_nothing_else(plan: str, norm: str) -> None:
    if not possible(plan, norm):
        pytest.skip("clients do not meet in every step")
    t = task(PLANS[plan](batch_size=8, norm=norm, seed=3), "ftw", torch.float32)
    exact, rounded = Fused(t), Fused(t, amp=True)
    first, second = exact.advance(5), rounded.advance(5)
    assert not np.array_equal(first.losses, second.losses)
    np.testing.assert_allclose(first.losses, second.losses, rtol=0.05, atol=0.05)
    begin = Fused(t).state.tensors["params"]
    for name, x in exact.state.tensors.items():
        assert rounded.state.tensors[name].dtype == x.dtype
    moved = exact.state.tensors["params"] - begin
    off = rounded.state.tensors["params"] - exact.state.tensors["params"]
    assert float(off.norm()) < 0.1 * float(moved.norm())


@pytest.mark.parametrize(
    "plan", [FedSGD(iterations=1, optimizer="sgd"), FedAvg(rounds=1, local_steps=1)]
)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_in_bfloat16(model: str, plan: FedSGD | FedAvg) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 24, 16, 16)), rng.integers(0, 3, (3, 24))
    data = Federation(tuple(ClientData(f"c{k}", x[k], y[k], x[k][:2]) for k in range(3)))
    maker = functools.partial(MODELS[model], **({"width": 8} if model == "resnet18" else {}))
    t = Task.of(data, build(maker, (16, 16), 3, seed=0), replace(plan, batch_size=16))
    begin = t.begin().tensors["params"]
    for runs in ([t], [t, t]):  # one copy of the parameters, several
        exact, rounded = Runs(runs), Runs(runs, amp=True)
        losses = [r.advance(1)[0].losses for r in (exact, rounded)]
        np.testing.assert_allclose(*losses, rtol=0.05)
        moved, off = (r.states()[-1].tensors["params"] - begin for r in (exact, rounded))
        assert not torch.equal(moved, off)
        assert float(torch.cosine_similarity(moved, off, dim=0)) > 0.9


@pytest.mark.parametrize("engine", [Reference, Fused])
@pytest.mark.parametrize(
    "plan", ["fedsgd-adam", "fedsgd-topk", "scaffold", "fedsgd-augmented", "fedavg-mixup"]
)
def test_a_stopped_run_goes_on_to_the_same_bits(engine: Any, plan: str) -> None:
    made = PLANS[plan](batch_size=8, norm="local", participation=2, seed=5)
    t = task(made, "ftw", torch.float32)
    whole = engine(t)
    whole.advance(ROUNDS)
    part = engine(t)
    part.advance(7)
    rest = engine(t, part.state)
    rest.advance(ROUNDS - 7)
    for name, x in whole.state.tensors.items():
        assert torch.equal(x, rest.state.tensors[name]), name
