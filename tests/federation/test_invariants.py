"""Distributions of training that hold whatever the engine: what weights, rows and clients must
amount to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedshift.data.federation import ClientData, Federation
from fedshift.federation.client import Client, Memory
from fedshift.federation.fused import Fused
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Optimizer, TopK
from fedshift.federation.reference import Reference
from fedshift.federation.task import Task
from fedshift.learn.models import Linear

engines = pytest.mark.parametrize("engine", [Reference, Fused])
ROUNDS = 12
SIZES = (11, 6, 15)
Weights = dict[str, np.ndarray]


def clients(sizes: tuple[int, ...] = SIZES) -> list[ClientData]:
    rng = np.random.default_rng(0)
    return [
        ClientData(
            f"c{k}",
            rng.normal(k / 2, 1, (n, 3)),
            rng.integers(0, 3, n),
            rng.normal(size=(4, 3)),
        )
        for k, n in enumerate(sizes)
    ]


def random_weights(sizes: tuple[int, ...] = SIZES) -> Weights:
    rng = np.random.default_rng(1)
    return {f"c{k}": np.exp(rng.normal(0, 1, n)) for k, n in enumerate(sizes)}


class Net(nn.Module):
    """BatchNorm without a bias before it: its gradient is rounding, and Adam scales that up."""

    def __init__(self, *, batch_norm: bool = True) -> None:
        super().__init__()
        self.one = nn.Linear(3, 6, bias=False)
        self.norm = nn.BatchNorm1d(6) if batch_norm else nn.Identity()
        self.two = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.norm(self.one(x))))


def net(*, batch_norm: bool = True) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(batch_norm=batch_norm).double()


def task(
    plan: Any,
    weights: Weights | None = None,
    who: list[ClientData] | None = None,
    model: nn.Module | None = None,
    dtype: torch.dtype = torch.float64,
) -> Task:
    fed = Federation(tuple(clients() if who is None else who))
    return Task.of(fed, model or net(), plan, weights=weights, dtype=dtype)


def trained(engine: Any, t: Task, rounds: int = ROUNDS) -> dict[str, Tensor]:
    run = engine(t)
    run.advance(rounds)
    tensors: dict[str, Tensor] = run.state.tensors
    return tensors


def close(a: Tensor, b: Tensor, tol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


PLANS: dict[str, Any] = {
    "fedsgd": lambda **k: FedSGD(iterations=ROUNDS, lr=0.01, **k),
    "fedavg": lambda **k: FedAvg(rounds=ROUNDS, local_steps=3, **k),
    "fedavg-none": lambda **k: FedAvg(rounds=ROUNDS, local_steps=3, normalise="none", **k),
    "scaffold": lambda **k: FedAvg(rounds=ROUNDS, local_steps=2, scaffold=True, **k),
    "topk": lambda **k: FedSGD(iterations=ROUNDS, lr=0.01, compression=TopK(0.3), **k),
    "qsgd": lambda **k: FedAvg(rounds=ROUNDS, local_steps=2, compression=QSGD(8), **k),
}
plans = pytest.mark.parametrize("plan", PLANS)


# -- weights 1 -----------------------------------------------------------------------------------


@engines
@plans
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_all_one_are_no_weights(engine: Any, plan: str, dtype: torch.dtype) -> None:
    made = PLANS[plan](batch_size=4)
    ones = {f"c{k}": np.ones(n) for k, n in enumerate(SIZES)}
    a = trained(engine, task(made, dtype=dtype))
    b = trained(engine, task(made, ones, dtype=dtype))
    assert all(torch.equal(a[n], b[n]) for n in a)


# -- one client ----------------------------------------------------------------------------------


def central(t: Task, optimizer: Any, model: nn.Module, rounds: int) -> nn.Module:
    """A plain training loop on the same batches."""
    model.train()
    step = optimizer(model.parameters())
    w = t.weight
    for number in range(rounds):
        for rows in t.batch_rows(0, number):
            step.zero_grad()
            losses = nn.functional.cross_entropy(model(t.x[rows]), t.y[rows], reduction="none")
            (losses * w[rows]).mean().backward()
            step.step()
    return model


@engines
@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_one_client_with_adam_is_central_training(
    engine: Any, batch_norm: bool, weighted: bool
) -> None:
    plan = FedSGD(iterations=40, lr=0.01, batch_size=5, weight_decay=1e-3)
    weights = random_weights((23,)) if weighted else None
    t = task(plan, weights, clients((23,)), net(batch_norm=batch_norm))
    run = engine(t)
    run.advance(40)
    ours: Any = t.module(run.state)
    theirs: Any = central(
        t,
        lambda p: torch.optim.Adam(p, 0.01, weight_decay=1e-3),
        net(batch_norm=batch_norm),
        40,
    )
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=name)
    if batch_norm:  # torch's running variance leaves out how batch means spread
        close(ours.norm.running_mean, theirs.norm.running_mean)
        assert (ours.norm.running_var > theirs.norm.running_var).all()


@engines
@pytest.mark.parametrize("norm", ["averaged", "local", "synchronous"])
def test_for_one_client_policies_of_batchnorm_are_one(engine: Any, norm: Any) -> None:
    t = task(FedSGD(iterations=ROUNDS, batch_size=5, norm=norm), None, clients((23,)))
    run = engine(t)
    run.advance(ROUNDS)
    theirs = central(t, lambda p: torch.optim.Adam(p, 1e-3), net(), ROUNDS)
    ours = dict(t.module(run.state, "c0").named_parameters())
    for name, p in theirs.named_parameters():
        close(ours[name].detach(), p.detach())


@engines
def test_one_client_of_fedavg_is_central_sgd(engine: Any) -> None:
    """Averaging one client's parameters changes nothing; its momentum lasts a round."""
    plan = FedAvg(rounds=1, local_steps=30, local_lr=0.1, local_momentum=0.9, batch_size=5)
    t = task(plan, None, clients((23,)))
    run = engine(t)
    run.advance(1)
    theirs = central(t, lambda p: torch.optim.SGD(p, 0.1, 0.9), net(), 1)
    for a, b in zip(t.module(run.state).parameters(), theirs.parameters(), strict=True):
        close(a, b)


@engines
def test_clients_with_the_same_rows_are_one_client(engine: Any) -> None:
    """FedSGD sums over clients, so K twins move as one with K times the step."""
    (one,) = clients((8,))
    twins = [ClientData(f"t{k}", one.x, one.y, one.test_x) for k in range(3)]
    plan: dict[str, Any] = {"iterations": ROUNDS, "optimizer": "sgd", "batch_size": 8}
    a = trained(engine, task(FedSGD(lr=0.1, **plan), None, twins))
    b = trained(engine, task(FedSGD(lr=0.3, **plan), None, [one]))
    close(a["params"], b["params"])
    close(a["stats"], b["stats"])
    mean = FedAvg(rounds=ROUNDS, local_steps=2, batch_size=8)
    close(
        trained(engine, task(mean, None, twins))["params"],
        trained(engine, task(mean, None, [one]))["params"],
    )


# -- integer weights -----------------------------------------------------------------------------


def repeated(client: ClientData, times: np.ndarray) -> ClientData:
    return ClientData(
        client.name, np.repeat(client.x, times, 0), np.repeat(client.y, times), client.test_x
    )


TIMES = {"c0": np.array([0, 1, 2, 3, 1, 5, 2, 2]), "c1": np.array([4, 1, 1, 0, 3, 3, 2, 2])}


@engines
def test_integer_weights_are_repeated_rows(engine: Any) -> None:
    """Full batches: (1/8) Σ w ∇ℓ against (1/16) Σ over 16 rows, so the step is twice as long."""
    who = clients((8, 8))
    many = [repeated(c, TIMES[c.name]) for c in who]
    assert {len(c.x) for c in many} == {16}
    weights = {n: t.astype(float) for n, t in TIMES.items()}
    model = net(batch_norm=False)

    def plan(lr: float, rows: int) -> FedSGD:
        return FedSGD(iterations=ROUNDS, lr=lr, optimizer="sgd", momentum=0.5, batch_size=rows)

    a = trained(engine, task(plan(0.1, 8), weights, who, model))
    b = trained(engine, task(plan(0.2, 16), None, many, model))
    close(a["params"], b["params"])


@engines
def test_with_the_self_normaliser_no_scale_is_left(engine: Any) -> None:
    who = clients((8, 8))
    many = [repeated(c, TIMES[c.name]) for c in who]
    weights = {n: t.astype(float) for n, t in TIMES.items()}
    model = net(batch_norm=False)
    a = trained(engine, task(FedAvg(rounds=5, batch_size=8), weights, who, model), 5)
    b = trained(engine, task(FedAvg(rounds=5, batch_size=16), None, many, model), 5)
    close(a["params"], b["params"])


@engines
def test_a_weight_of_zero_is_a_row_left_out(engine: Any) -> None:
    (one,) = clients((8,))
    keep = np.array([1, 0, 1, 1, 0, 1, 1, 1])
    less = repeated(one, keep)
    model = net(batch_norm=False)
    plan = FedAvg(rounds=5, batch_size=8, local_momentum=0.5)
    a = trained(engine, task(plan, {"c0": keep.astype(float)}, [one], model), 5)
    b = trained(
        engine, task(FedAvg(rounds=5, batch_size=6, local_momentum=0.5), None, [less], model), 5
    )
    close(a["params"], b["params"])


# -- order of clients ----------------------------------------------------------------------------


@engines
@plans
@pytest.mark.parametrize("participation", [None, 2, ("c2", "c0")])
def test_the_order_of_clients_is_irrelevant(engine: Any, plan: str, participation: Any) -> None:
    made = PLANS[plan](
        batch_size=4, participation=participation, client_weights={"c1": 0.5}, seed=4
    )
    a = trained(engine, task(made, random_weights()))
    b = trained(engine, task(made, random_weights(), [clients()[k] for k in (2, 0, 1)]))
    close(a["params"], b["params"])
    close(a["stats"], b["stats"])
    for name in ("ck", "error"):
        if name in a:
            close(a[name][[2, 0, 1]], b[name])


@engines
def test_a_client_that_counts_for_nothing_might_not_be_there(engine: Any) -> None:
    made = PLANS["fedsgd"](batch_size=4, client_weights={"c1": 0.0})
    a = trained(engine, task(made, random_weights()))
    plan = PLANS["fedsgd"](batch_size=4)
    b = trained(engine, task(plan, random_weights(), [clients()[k] for k in (0, 2)]))
    close(a["params"], b["params"])
    close(a["stats"], b["stats"])


# -- scale ---------------------------------------------------------------------------------------


@engines
@pytest.mark.parametrize("plan", ["fedavg", "scaffold", "qsgd"])
@pytest.mark.parametrize("factor", [1e-3, 37.0])
def test_the_scale_of_all_weights_is_irrelevant_to_the_self_normaliser(
    engine: Any, plan: str, factor: float
) -> None:
    made = PLANS[plan](batch_size=4)
    scaled = {n: factor * w for n, w in random_weights().items()}
    a = trained(engine, task(made, random_weights()))
    b = trained(engine, task(made, scaled))
    close(a["params"], b["params"])


@engines
def test_the_scale_of_all_weights_is_a_learning_rate_of_fedsgd(engine: Any) -> None:
    scaled = {n: 4 * w for n, w in random_weights().items()}
    plan: dict[str, Any] = {"iterations": ROUNDS, "optimizer": "sgd", "batch_size": 4}
    a = trained(engine, task(FedSGD(lr=0.2, **plan), random_weights()))
    b = trained(engine, task(FedSGD(lr=0.05, **plan), scaled))
    close(a["params"], b["params"])


@engines
def test_client_weights_multiply_what_row_weights_do(engine: Any) -> None:
    plan: dict[str, Any] = {"iterations": ROUNDS, "batch_size": 4}
    model = net(batch_norm=False)
    by_client = FedSGD(client_weights={"c0": 3.0, "c2": 0.25}, **plan)
    by_row = random_weights()
    by_row = {"c0": 3 * by_row["c0"], "c1": by_row["c1"], "c2": 0.25 * by_row["c2"]}
    a = trained(engine, task(by_client, random_weights(), model=model))
    b = trained(engine, task(FedSGD(**plan), by_row, model=model))
    close(a["params"], b["params"])


@engines
def test_one_local_step_of_fedavg_is_a_step_of_fedsgd(engine: Any) -> None:
    """Mean of N_k-weighted steps of F_k / N_k = step of Σ F_k / Σ N_k: the normaliser rule."""
    model, weights = net(batch_norm=False), random_weights()
    total = sum(float(w.mean()) for w in weights.values())
    avg = FedAvg(rounds=ROUNDS, local_steps=1, local_lr=0.3, batch_size=4)
    sgd = FedSGD(iterations=ROUNDS, lr=0.3 / total, optimizer="sgd", batch_size=4)
    a = trained(engine, task(avg, weights, model=model))
    b = trained(engine, task(sgd, weights, model=model))
    close(a["params"], b["params"])


@engines
def test_a_server_step_of_a_half_goes_half_way(engine: Any) -> None:
    half = FedAvg(rounds=1, batch_size=4, server=Optimizer("sgd", 0.5))
    t = task(half)
    a = trained(engine, t, 1)["params"]
    b = trained(engine, task(FedAvg(rounds=1, batch_size=4)), 1)["params"]
    close(a, (b + t.begin().tensors["params"]) / 2)


@engines
def test_proximity_holds_clients_back(engine: Any) -> None:
    start = task(FedAvg()).begin().tensors["params"]
    moved = [
        float((trained(engine, task(FedAvg(rounds=1, prox=mu)), 1)["params"] - start).norm())
        for mu in (0.0, 1.0, 5.0)
    ]
    assert moved[0] > moved[1] > moved[2] > 0


@engines
def test_scaffold_starts_as_fedavg_and_keeps_the_mean_of_its_variates(engine: Any) -> None:
    model = net(batch_norm=False)
    plain = FedAvg(rounds=1, batch_size=4, normalise="none")
    control = FedAvg(rounds=1, batch_size=4, normalise="none", scaffold=True)
    a = trained(engine, task(plain, model=model), 1)
    b = trained(engine, task(control, model=model), 1)
    close(a["params"], b["params"])
    later = trained(engine, task(control, model=model), 6)
    close(later["c"], later["ck"].mean(0))


@engines
def test_a_control_variate_is_the_mean_gradient_of_a_clients_last_round(engine: Any) -> None:
    """Option II: c_k − c + (θ − θ_k) / (steps · lr), in which the drift's correction cancels."""
    plan = FedAvg(rounds=4, local_steps=1, batch_size=4, scaffold=True)
    t = task(plan, random_weights(), model=net(batch_norm=False))
    run = engine(t)
    run.advance(3)
    before = run.state.tensors["params"]
    run.advance(1)
    for k in range(len(SIZES)):
        (batch,) = t.batches(k, 3)
        _, grad, _, _ = Client(t, k, Memory({})).differentiate(batch, before, None)
        close(run.state.tensors["ck"][k], grad)


@engines
def test_scaffold_ends_at_the_optimum_of_the_sum_and_fedavg_drifts_away(engine: Any) -> None:
    """Least squares on clients that disagree, full batches, many local steps."""
    rng = np.random.default_rng(2)
    who = [
        ClientData(f"c{k}", rng.normal(0, 1 + k, (20, 3)), rng.normal(k, 1, 20), np.zeros((2, 3)))
        for k in range(3)
    ]
    rows = np.concatenate([np.column_stack([c.x, np.ones(20)]) for c in who])
    optimum, *_ = np.linalg.lstsq(rows, np.concatenate([c.y for c in who]), rcond=None)
    gaps = []
    for scaffold in (True, False):
        plan = FedAvg(rounds=80, local_steps=5, local_lr=0.06, batch_size=20, scaffold=scaffold)
        t = Task.of(
            Federation(tuple(who)), Linear((3,), 1), plan, loss="squared", dtype=torch.float64
        )
        gaps.append(float(np.abs(trained(engine, t, 80)["params"].numpy() - optimum).max()))
    assert gaps[0] < 1e-4
    assert gaps[1] > 0.02


# -- sampling ------------------------------------------------------------------------------------


def mean_gradient(importance: Any, normalise: Any, rounds: int) -> tuple[Tensor, Tensor]:
    """Mean over rounds of a client's gradient at the start, and its standard error."""
    plan = FedAvg(
        rounds=rounds, local_steps=1, batch_size=16, importance=importance, normalise=normalise
    )
    t = task(plan, random_weights((16,)), clients((16,)), net(batch_norm=False))
    client = Client(t, 0, Memory({}))
    params = t.begin().tensors["params"]
    grads = torch.stack(
        [
            client.differentiate(batch, params, None)[1]
            for number in range(rounds)
            for batch in t.batches(0, number)
        ]
    )
    return grads.mean(0), grads.std(0) / rounds**0.5


@pytest.mark.parametrize("normalise", ["none", "self"])
def test_sampling_by_weight_expects_the_gradient_of_weighted_losses(normalise: Any) -> None:
    exact, none = mean_gradient("loss", normalise, 2)  # batches of all rows
    assert float(none.max()) < 1e-12
    sampled, error = mean_gradient("sampling", normalise, 800)
    assert float(((sampled - exact).abs() / error.clamp_min(1e-12)).max()) < 4
    assert float((sampled - exact).norm() / exact.norm()) < 0.05


@engines
def test_sampling_ends_where_loss_weights_end(engine: Any) -> None:
    model = Linear((3,), 3)  # logistic regression: one optimum
    ends = []
    for importance in ("loss", "sampling"):
        plan = FedAvg(
            rounds=150,
            local_steps=1,
            local_lr=0.2,
            batch_size=64,
            importance=importance,  # type: ignore[arg-type]
            weight_decay=0.1,
        )
        ends.append(trained(engine, task(plan, random_weights(), model=model), 150)["params"])
    erm = trained(
        engine,
        task(FedAvg(rounds=150, local_steps=1, local_lr=0.2, weight_decay=0.1), model=model),
        150,
    )
    gap = float((ends[0] - ends[1]).norm())
    assert gap < 0.1 * float(ends[0].norm())
    assert gap < 0.4 * float((ends[0] - erm["params"]).norm())


@engines
@pytest.mark.parametrize("scaffold", [False, True])
def test_fixed_participation_is_a_federation_of_those(engine: Any, scaffold: bool) -> None:
    """Clients that never take part count nowhere, in SCAFFOLD's control variate neither."""
    options: dict[str, Any] = {"local_steps": 3, "scaffold": scaffold, "batch_size": 4}
    plan = FedAvg(rounds=ROUNDS, participation=("c0", "c2"), **options)
    some = trained(engine, task(plan))
    alone = trained(
        engine, task(FedAvg(rounds=ROUNDS, **options), who=[clients()[0], clients()[2]])
    )
    close(some["params"], alone["params"])
