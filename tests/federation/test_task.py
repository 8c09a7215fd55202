"""Tasks: who takes part, what is drawn and sent, and models of a state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError
from fedshift.federation.fused import Fused
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Sign, TopK
from fedshift.federation.reference import Reference
from fedshift.federation.task import LIMIT, Batch, State, Task, follow, split_weights
from fedshift.learn.losses import Polynomial, cross_entropy, squared
from fedshift.learn.models import MLP, Linear

SIZES = (7, 4, 9)


def federation(shape: tuple[int, ...] = (3,), *, real: bool = False) -> Federation:
    rng = np.random.default_rng(0)
    return Federation(
        tuple(
            ClientData(
                f"c{k}",
                rng.normal(k, 1, (n, *shape)),
                rng.normal(size=n) if real else rng.integers(0, 2, n),
                rng.normal(size=(4, *shape)),
            )
            for k, n in enumerate(SIZES)
        )
    )


def ramp() -> dict[str, np.ndarray]:
    return {f"c{k}": np.linspace(0, 2 + k, n) for k, n in enumerate(SIZES)}


def net() -> nn.Module:
    """17 shared numbers and 8 of BatchNorm under "local"; 4 means and 4 variances."""
    torch.manual_seed(0)
    return MLP((3,), 2, (4,), batch_norm=True)


def task(plan: Any = None, **more: Any) -> Task:
    return Task.of(federation(), net(), plan or FedSGD(), **more)


@pytest.fixture(autouse=True)
def _own_generator() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def test_rows_lie_client_after_client() -> None:
    t = task(weights=ramp())
    fed = federation()
    assert t.names == ("c0", "c1", "c2")
    assert t.start.tolist() == [0, 7, 11, 20]
    assert t.x.dtype == t.weight.dtype == torch.float32
    assert t.y.dtype == torch.int64
    for k, c in enumerate(fed):
        own = slice(int(t.start[k]), int(t.start[k + 1]))
        np.testing.assert_allclose(t.x[own], c.x, rtol=1e-6)
        np.testing.assert_array_equal(t.y[own], c.y)
        np.testing.assert_allclose(t.weight[own], ramp()[c.name], rtol=1e-6)
    np.testing.assert_allclose(t.mean_weight, [1, 1.5, 2], rtol=1e-6)


def test_arrays_that_must_not_be_written_to_are_copied() -> None:
    fed = federation()
    for c in fed:
        c.x.flags.writeable = c.y.flags.writeable = False
    t = Task.of(fed, net(), FedSGD(), dtype=torch.float64)
    t.x.zero_()
    assert fed[0].x.any()


def test_real_labels_take_the_type_of_the_rows() -> None:
    t = Task.of(federation(real=True), Linear((3,), 1), FedSGD(), loss="squared")
    assert t.y.dtype == torch.float32
    assert t.loss is squared


def test_losses_of_every_row() -> None:
    scores = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    y = torch.tensor([0, 1])
    expected = -torch.log_softmax(scores, 1)[[0, 1], y]
    torch.testing.assert_close(cross_entropy(scores, y), expected)
    column = torch.tensor([[1.0], [4.0]])
    assert squared(column, torch.tensor([0.0, 2.0])).tolist() == [0.5, 2.0]

    def own(scores: Tensor, y: Tensor) -> Tensor:
        return F.multi_margin_loss(scores, y, reduction="none")

    assert task(loss=own).loss is own
    with pytest.raises(InputError, match=r"loss must be .*got 'sqared'; did you mean 'squared'\?"):
        task(loss="sqared")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.ones(3), r"client 'c1': weights must be 4 finite numbers ≥ 0; got shape \(3,\);"),
        (np.ones((4, 1)), r"got shape \(4, 1\)"),
        (np.array([1, 1, np.nan, 1]), r"got shape \(4,\) with NaN or inf; compute them with"),
        (np.array([1, 1, np.inf, 1]), "with NaN or inf"),
        (np.array([1, 1, -0.1, 1]), r"got shape \(4,\) with negative numbers"),
    ],
)
def test_weights_that_are_refused(wrong: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        task(weights=ramp() | {"c1": wrong})


def test_weights_must_name_every_client() -> None:
    some = {n: w for n, w in ramp().items() if n != "c1"}
    with pytest.raises(InputError, match="weights must name every client; got none for 'c1'"):
        task(weights=some)


def test_clients_a_plan_names_must_exist() -> None:
    with pytest.raises(InputError, match=r"c0, c1, c2; got 'c11'; did you mean 'c1'\?"):
        task(FedSGD(client_weights={"c0": 1.0, "c11": 2.0}))
    with pytest.raises(InputError, match="one of c0, c1, c2; got 'ward'"):
        task(FedSGD(participation=("c1", "ward")))
    with pytest.raises(InputError, match="at most the number of clients, 3; got 4"):
        task(FedSGD(participation=4))


def test_participants() -> None:
    everybody = task()
    assert everybody.participants(5).tolist() == [0, 1, 2]
    assert (everybody.n_participants, everybody.scale) == (3, 1.0)
    fixed = task(FedSGD(participation=("c2", "c0")))
    assert fixed.participants(5).tolist() == [0, 2]
    assert (fixed.n_participants, fixed.scale) == (2, 1.0)
    drawn = task(FedSGD(participation=2))
    rounds = [tuple(drawn.participants(i).tolist()) for i in range(30)]
    assert set(rounds) == {(0, 1), (0, 2), (1, 2)}
    assert (drawn.n_participants, drawn.scale) == (2, 1.5)
    again = task(FedSGD(participation=2, seed=1))
    assert rounds != [tuple(again.participants(i).tolist()) for i in range(30)]


@pytest.mark.parametrize("who", [None, 2, ("c2", "c0")])
@pytest.mark.parametrize("first", [0, 17])
def test_rounds_drawn_together_are_rounds_drawn_alone(who: Any, first: int) -> None:
    plan = FedAvg(participation=who, mixup=0.4, augment="crop-flip", local_steps=3, batch_size=5)
    t = Task.of(federation((1, 16, 16)), Linear((1, 16, 16), 2), plan)
    clients = t.participants_of(first, 6)
    assert clients.shape == (6, t.n_participants)
    crops, keep = t.round_crops(clients, first), t.round_shares(clients, first)
    assert crops.shape == (6, t.n_participants, 3, 5, 3)
    assert keep.shape == (6, t.n_participants, 3)
    for i in range(6):
        np.testing.assert_array_equal(clients[i], t.participants(first + i))
        for j, k in enumerate(clients[i]):
            np.testing.assert_array_equal(crops[i, j], t.batch_crops(k, first + i))
            alone = t.round_shares(np.array([[k]]), first + i)
            np.testing.assert_array_equal(keep[i, j], alone[0, 0])
    assert len(np.unique(keep)) == keep.size  # every client, round and step draws its own
    other = Task.of(federation((1, 16, 16)), Linear((1, 16, 16), 2), replace(plan, seed=1))
    assert not np.isin(other.round_shares(clients, first), keep).any()


def test_coefficients_by_hand() -> None:
    w = np.concatenate(list(ramp().values()))
    means = np.repeat([1, 1.5, 2], SIZES)

    def given(plan: Any) -> np.ndarray:
        return task(plan, weights=ramp(), dtype=torch.float64).coefficient.numpy()

    np.testing.assert_allclose(given(FedSGD()), w)
    np.testing.assert_allclose(given(FedAvg(normalise="none")), w)
    np.testing.assert_allclose(given(FedAvg()), w / means)
    np.testing.assert_allclose(given(FedSGD(importance="sampling")), means)
    np.testing.assert_allclose(given(FedAvg(importance="sampling")), np.ones(20))


@pytest.mark.parametrize("importance", ["loss", "sampling"])
def test_a_client_whose_weights_are_all_zero_counts_for_nothing(importance: Any) -> None:
    zero = ramp() | {"c1": np.zeros(4)}
    t = task(FedAvg(importance=importance, rounds=2), weights=zero)
    assert not t.coefficient[7:11].any()
    np.testing.assert_allclose(t.normaliser, [1, 0, 2], rtol=1e-6)
    run = Reference(t)
    run.advance(2)
    assert run.state.tensors["params"].isfinite().all()


def test_shares_of_the_objective() -> None:
    t = task(FedSGD(client_weights={"c2": 0.5, "c0": 0.0}))
    assert t.share.tolist() == [0.0, 1.0, 0.5]


def test_batches_are_rows_of_their_client() -> None:
    t = task(FedAvg(local_steps=3, batch_size=5), weights=ramp())
    seen: list[int] = []
    for number in range(4):
        rows = t.batch_rows(1, number)
        assert rows.shape == (3, 5)
        assert ((rows >= 7) & (rows < 11)).all()
        for batch, own in zip(t.batches(1, number), rows, strict=True):
            assert torch.equal(batch.x, t.x[own])
            assert torch.equal(batch.y, t.y[own])
            assert torch.equal(batch.coefficient, t.coefficient[own])
        seen += rows.ravel().tolist()
    assert np.bincount(seen)[7:].tolist() == [15] * 4  # 60 places, 15 epochs


def test_crops_go_with_rows() -> None:
    plan = FedSGD(augment="crop-flip", batch_size=6)
    t = Task.of(federation((1, 16, 16)), Linear((1, 16, 16), 2), plan)
    crops = t.batch_crops(2, 3)
    assert crops.shape == (1, 6, 3)
    assert np.abs(crops[..., :2]).max() <= 2
    assert (crops != t.batch_crops(2, 4)).any()
    assert (crops != t.batch_crops(1, 3)).any()
    (batch,) = t.batches(2, 3)
    rows = torch.as_tensor(t.batch_rows(2, 3)[0])
    assert torch.equal(batch.x, t.take(rows, torch.as_tensor(crops[0])))
    assert not torch.equal(batch.x, t.x[rows])


# -- mixup ---------------------------------------------------------------------------------------


def test_a_loss_of_two_labels_by_hand() -> None:
    scores, y, other = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]), torch.tensor([3.0, 2.0])
    c = torch.tensor([1.0, 10.0])
    plain = Batch(scores, y, c)
    assert plain.row_losses(squared, scores).tolist() == [0.5, 20.0]
    both = Batch(scores, y, c, other, torch.tensor([2.0, 5.0]))
    assert both.row_losses(squared, scores).tolist() == [0.5 + 2 * 2.0, 20.0 + 5 * 0.0]


@pytest.mark.parametrize("importance", ["loss", "sampling"])
def test_batches_are_blended_end_to_end(importance: Any) -> None:
    plan = FedAvg(local_steps=3, batch_size=5, importance=importance)
    mixed = task(replace(plan, mixup=0.5), weights=ramp(), dtype=torch.float64)
    whole = task(plan, weights=ramp(), dtype=torch.float64)
    keep = mixed.round_shares(np.array([[1]]), 4)[0, 0]
    for a, b, k in zip(whole.batches(1, 4), mixed.batches(1, 4), keep, strict=True):
        assert a.other_y is None
        assert b.other_y is not None
        assert b.other_coefficient is not None
        assert torch.equal(b.y, a.y)
        assert torch.equal(b.other_y, a.y.flip(0))
        for i in range(5):
            j = 4 - i
            torch.testing.assert_close(b.x[i], k * a.x[i] + (1 - k) * a.x[j])
            torch.testing.assert_close(b.coefficient[i], k * a.coefficient[i])
            torch.testing.assert_close(b.other_coefficient[i], (1 - k) * a.coefficient[j])
        total = b.coefficient.sum() + b.other_coefficient.sum()
        torch.testing.assert_close(total, a.coefficient.sum())  # the objective keeps its size


def alike() -> Federation:
    """Each client has one row, again and again."""
    rng = np.random.default_rng(0)
    return Federation(
        tuple(
            ClientData(
                f"c{k}", np.tile(rng.normal(size=3), (n, 1)), np.full(n, k % 2), np.ones((1, 3))
            )
            for k, n in enumerate(SIZES)
        )
    )


@pytest.mark.parametrize("engine", [Reference, Fused])
@pytest.mark.parametrize(
    "plan", [FedSGD(lr=0.1, batch_size=5), FedAvg(local_steps=3, batch_size=5)]
)
def test_equal_rows_blended_are_the_same_rows(engine: Any, plan: Any) -> None:
    weights = {f"c{k}": np.full(n, 1.0 + k) for k, n in enumerate(SIZES)}
    ends = []
    for mixup in (0.0, 0.3):
        model = Linear((3,), 2).double()
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        t = Task.of(
            alike(), model, replace(plan, mixup=mixup), weights=weights, dtype=torch.float64
        )
        run = engine(t)
        log = run.advance(5)
        ends.append((run.state.tensors["params"], log.losses))
    assert ends[0][0].abs().max() > 0.01
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ends[0][1], ends[1][1], rtol=1e-10)


def test_mixup_changes_what_is_learnt() -> None:
    ends = []
    for mixup in (0.0, 1e-9, 1.0):
        run = Reference(task(FedSGD(mixup=mixup, batch_size=4), dtype=torch.float64))
        run.advance(5)
        ends.append(run.state.tensors["params"])
    torch.testing.assert_close(ends[0], ends[1])  # nearly all of a row is its own
    assert (ends[0] - ends[2]).abs().max() > 1e-4


# -- weights on logits ---------------------------------------------------------------------------


def test_weights_are_split_by_class_by_hand() -> None:
    weight, y = np.array([1.0, 3.0, 8.0, 8.0]), np.array([0, 0, 2, 2])
    log, rest = split_weights(weight, y, 4)
    np.testing.assert_allclose(np.exp(log), [2, 8, 8, 8])  # no row of 1 and 3: as the heaviest
    np.testing.assert_allclose(rest, [0.5, 1.5, 1, 1])
    np.testing.assert_array_equal(split_weights(np.zeros(2), np.array([0, 1]), 2)[1], [0, 0])


def test_a_class_of_weight_zero_counts_nothing_and_moves_logits_within_limits() -> None:
    log, rest = split_weights(np.array([0.0, 1.0, 1.0]), np.array([0, 1, 1]), 2)
    np.testing.assert_allclose(log - np.log(2 / 3), [-LIMIT, np.log(1.5)])
    np.testing.assert_allclose(rest, [0, 1.5, 1.5])


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e6)), min_size=1, max_size=20).filter(
        lambda rows: sum(w for _, w in rows) > 0
    )
)
def test_both_parts_together_are_the_weights(rows: list[tuple[int, float]]) -> None:
    y, weight = np.array([c for c, _ in rows]), np.array([w for _, w in rows])
    log, rest = split_weights(weight, y, 4)
    assert rest.mean() == pytest.approx(1)
    product = np.exp(log[y]) * rest
    np.testing.assert_allclose(product / product.sum(), weight / weight.sum(), atol=1e-12)


def test_equal_weights_leave_logits_alone() -> None:
    plans = [FedSGD(batch_size=4, importance=kind) for kind in ("loss", "logits")]
    ends = []
    for plan in plans:
        run = Reference(task(plan, dtype=torch.float64))
        run.advance(5)
        ends.append(run.state.tensors["params"])
    torch.testing.assert_close(ends[0], ends[1])
    t = task(plans[1])
    assert t.offset is not None
    assert t.offset.shape == (3, 2)
    assert not t.offset.any()


def test_under_label_shift_scores_learn_the_target_whatever_clients_have() -> None:
    """p(x | y) on three values, three label distributions: every client's minimiser is q(y | x)."""
    given = np.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]])  # p(x | y)
    q = np.array([0.8, 0.2])
    clients, weights = [], {}
    for k, share in enumerate((0.1, 0.5, 0.9)):
        distribution = np.array([share, 1 - share])
        counts = np.rint(1000 * distribution[:, None] * given).astype(int)  # whole numbers, exactly
        y, x = (np.repeat(part.ravel(), counts.ravel()) for part in np.indices(counts.shape))
        clients.append(ClientData(f"c{k}", np.eye(3)[x], y, np.eye(3)))
        weights[f"c{k}"] = 3 * (q / distribution)[y]
    plan = FedSGD(importance="logits")
    model = Linear((3,), 2)
    t = Task.of(Federation(tuple(clients)), model, plan, weights=weights, dtype=torch.float64)
    assert t.offset is not None
    scores = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scores], max_iter=200, tolerance_grad=1e-12)
    owner = torch.as_tensor(np.repeat(np.arange(3), np.diff(t.start)))

    def risk() -> Tensor:
        optimizer.zero_grad()
        moved = scores[t.x.argmax(1)] + t.offset[owner]  # type: ignore[index]
        loss = (t.coefficient * cross_entropy(moved, t.y)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(risk)
    joint = given * q[:, None]
    expected = torch.as_tensor((joint / joint.sum(0)).T.copy())
    torch.testing.assert_close(torch.softmax(scores.detach(), 1), expected, rtol=1e-5, atol=1e-6)
    assert t.coefficient.tolist() == pytest.approx([3.0] * len(t.x))  # the clients' parts


def test_remedies_for_classes_need_classes() -> None:
    fed, model = federation(real=True), Linear((3,), 1)
    for loss in ("squared", squared):
        with pytest.raises(InputError, match=r"importance='logits' needs classes;"):
            Task.of(fed, model, FedSGD(importance="logits"), loss=loss)
        with pytest.raises(InputError, match=r"tail=1.0 needs loss='cross-entropy'"):
            Task.of(fed, model, FedSGD(tail=1.0), loss=loss)
    assert task(FedSGD(tail=2.0)).loss == Polynomial(2.0)


# -- the mean of the server's parameters ---------------------------------------------------------


def test_the_mean_of_the_start_in_closed_form() -> None:
    """While t / (t + 9) is below the decay, θ_s has weight 9 (s+1)…(s+8) / ((t+1)…(t+9))."""
    rng = np.random.default_rng(0)
    theta = torch.as_tensor(rng.normal(size=(21, 3)))
    tensors = {"params": theta[0].clone(), "mean_params": theta[0].clone()}
    tensors["mean_t"] = torch.zeros((), dtype=torch.float64)
    for t in range(1, 21):
        tensors["params"].copy_(theta[t])
        follow(tensors, 0.9)  # 20 / 29 < 0.9
        weight = [9 * math.prod(range(s + 1, s + 9)) for s in range(1, t + 1)]
        parts = np.array([math.factorial(9), *weight]) / math.prod(range(t + 1, t + 10))
        assert parts.sum() == pytest.approx(1)
        expected = (torch.as_tensor(parts)[:, None] * theta[: t + 1]).sum(0)
        torch.testing.assert_close(tensors["mean_params"], expected)
    assert tensors["mean_t"] == 20


def test_then_it_decays_as_asked() -> None:
    tensors = {"params": torch.ones(2), "mean_params": torch.zeros(2), "mean_t": torch.tensor(90.0)}
    follow(tensors, 0.75)
    follow(tensors, 0.75)
    torch.testing.assert_close(tensors["mean_params"], torch.full((2,), 1 - 0.75**2))
    plain = {"params": torch.ones(2)}
    follow(plain, 0.0)
    assert list(plain) == ["params"]


AVERAGED: list[Any] = [
    FedSGD(lr=0.05, batch_size=4, average=0.6),
    FedSGD(lr=0.05, batch_size=4, average=0.6, norm="local", participation=2),
    FedAvg(local_steps=2, batch_size=4, average=0.6, mixup=0.5, norm="group", scaffold=True),
]


@pytest.mark.parametrize("engine", [Reference, Fused])
@pytest.mark.parametrize("plan", AVERAGED)
def test_the_mean_against_a_slow_loop(engine: Any, plan: Any) -> None:
    names = [n for n in ("params", "stats", "local") if n in task(plan).begin().tensors]
    plain = engine(task(replace(plan, average=0.0), dtype=torch.float64))
    seen = [plain.state]
    for _ in range(25):
        plain.advance(1)
        seen.append(plain.state)
    run = engine(task(plan, dtype=torch.float64))
    run.advance(25)
    end = run.state.tensors
    for name in names:
        mean = seen[0].tensors[name]
        for t in range(1, 26):
            decay = min(0.6, t / (t + 9))
            mean = decay * mean + (1 - decay) * seen[t].tensors[name]
        torch.testing.assert_close(end[f"mean_{name}"], mean, rtol=1e-10, atol=1e-12)
    for name, x in seen[-1].tensors.items():  # training does not know of it
        torch.testing.assert_close(end[name], x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("plan", AVERAGED)
def test_the_model_of_a_state_is_the_mean(plan: Any) -> None:
    t = task(plan, dtype=torch.float64)
    run = Reference(t)
    run.advance(6)
    state = run.state
    means = {n: v for n, v in state.tensors.items() if n.startswith("mean_")}
    assert not torch.equal(means["mean_params"], state.tensors["params"])
    bare = {n: means.get(f"mean_{n}", v) for n, v in state.tensors.items() if n not in means}
    twin = Task.of(federation(), net(), replace(plan, average=0.0), dtype=torch.float64)
    for client in (None, "c1"):
        expected = twin.module(State(6, bare), client)
        assert torch.equal(t.module(state, client)(t.x), expected(t.x))


PARAMS, SCALES = 3 * 4 + 4 + 4 * 2 + 2, 2 * 4  # two linear layers; BatchNorm's weight and bias


@pytest.mark.parametrize(
    ("plan", "down", "up"),
    [
        (FedSGD(), PARAMS + SCALES + 8, PARAMS + SCALES + 8),  # statistics: 4 means, 4 variances
        (FedSGD(norm="group"), PARAMS + SCALES, PARAMS + SCALES),
        (FedSGD(norm="local"), PARAMS, PARAMS),
        (FedAvg(norm="group", scaffold=True), 2 * (PARAMS + SCALES), 2 * (PARAMS + SCALES)),
        (FedAvg(norm="local", scaffold=True), 2 * PARAMS, 2 * PARAMS),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_by_hand(plan: Any, down: int, up: int, dtype: torch.dtype) -> None:
    t = task(plan, dtype=dtype)
    assert (t.bytes_down(), t.bytes_up()) == (down * dtype.itemsize, up * dtype.itemsize)


def test_bytes_of_compressed_updates() -> None:
    size = PARAMS + SCALES  # 34
    t = task(FedSGD(norm="group", compression=TopK(0.1)))
    assert (t.bytes_down(), t.bytes_up()) == (4 * size, 4 * 8)  # 4 pairs of 8 bytes
    t = task(FedSGD(compression=QSGD(3)))
    assert t.bytes_up() == 4 + 13 + 8 * 4  # length; 34 · 3 bits; statistics as they are
    t = task(FedAvg(norm="group", scaffold=True, compression=TopK(0.1)))
    assert t.bytes_up() == 4 * 8 + 4 * size  # control variates are not compressed
    t = task(FedSGD(broadcast=Sign(10)))
    assert (t.bytes_down(), t.bytes_up()) == (4 * (size + 8), 4 * (size + 8))
    assert t.bytes_down(repeat=True) == 5 + 4 * 4 + 8 * 4  # 34 bits, four blocks; statistics whole


def test_what_a_state_holds() -> None:
    def held(plan: Any) -> dict[str, tuple[int, ...]]:
        return {n: tuple(v.shape) for n, v in task(plan).begin().tensors.items()}

    both = PARAMS + SCALES
    adam = {"m": (both,), "v": (both,), "t": ()}
    assert held(FedSGD()) == {"params": (both,), "stats": (2, 4), **adam}
    assert held(FedSGD(norm="group", optimizer="sgd")) == {"params": (both,)}
    assert held(FedSGD(norm="local")) == {
        "params": (PARAMS,),
        "m": (PARAMS,),
        "v": (PARAMS,),
        "t": (),
        "stats": (3, 2, 4),
        "local": (3, SCALES),
        "local_m": (3, SCALES),
        "local_v": (3, SCALES),
        "local_t": (3,),
    }
    assert held(FedAvg(scaffold=True, norm="group")) == {
        "params": (both,),
        "c": (both,),
        "ck": (3, both),
    }
    averaged = held(FedSGD(optimizer="sgd", norm="local", average=0.9))
    assert averaged == {
        "params": (PARAMS,),
        "stats": (3, 2, 4),
        "local": (3, SCALES),
        "mean_params": (PARAMS,),
        "mean_stats": (3, 2, 4),
        "mean_local": (3, SCALES),
        "mean_t": (),
    }
    assert held(FedSGD(optimizer="sgd", norm="group", mixup=1.0)) == {"params": (both,)}
    topk = held(FedAvg(compression=TopK(), norm="group"))
    assert topk == {"params": (both,), "error": (3, both)}
    shown = held(FedAvg(compression=QSGD(), broadcast=Sign(), norm="group"))
    assert shown == {"params": (both,), "shown": (both,)}


def test_a_state_copies_itself() -> None:
    state = State(3, {"params": torch.ones(2)})
    other = state.copy()
    other.tensors["params"][0] = 5
    assert state.tensors["params"].tolist() == [1, 1]
    assert other.round == 3


def test_the_module_at_the_beginning_is_the_model() -> None:
    model = net().double()
    t = Task.of(federation(), model, FedSGD(), dtype=torch.float64)
    out = t.module(t.begin())
    assert not out.training
    assert {n: type(m) for n, m in out.named_modules()} == {
        n: type(m) for n, m in model.named_modules()
    }
    assert torch.equal(out(t.x), model.eval()(t.x))
    assert torch.equal(t.module(t.begin(), plain=False)(t.x), out(t.x))


def test_modules_of_local_scales_and_their_average() -> None:
    t = task(FedSGD(norm="local", iterations=5, batch_size=4, lr=0.1), dtype=torch.float64)
    run = Reference(t)
    run.advance(5)
    state = run.state
    modules: list[Any] = [t.module(state, name) for name in t.names]
    for k, m in enumerate(modules):
        norm = m.layers[2]
        own = state.tensors["local"][k]
        assert torch.equal(torch.cat([norm.weight, norm.bias]), own)
        stats = state.tensors["stats"][k]
        assert torch.equal(torch.stack([norm.running_mean, norm.running_var]), stats)
        h = (m.layers[1](t.x) - stats[0]) / torch.sqrt(stats[1] + norm.eps)
        expected = m.layers[4](torch.relu(h * own[:4] + own[4:]))
        torch.testing.assert_close(m(t.x), expected)
    assert not torch.equal(modules[0](t.x), modules[1](t.x))

    mean: Any = t.module(state)
    norm = mean.layers[2]
    means, variances = state.tensors["stats"][:, 0], state.tensors["stats"][:, 1]
    torch.testing.assert_close(norm.weight, state.tensors["local"][:, :4].mean(0))
    torch.testing.assert_close(norm.running_mean, means.mean(0))
    # the distribution of total variance
    torch.testing.assert_close(norm.running_var, variances.mean(0) + means.var(0, correction=0))


def test_a_module_of_nobody() -> None:
    t = task(FedSGD(norm="local"))
    with pytest.raises(InputError, match=r"client must be one of c0, c1, c2; got 'c9'"):
        t.module(t.begin(), "c9")


def test_the_models_own_parameters_never_change() -> None:
    model = net()
    before = {n: p.clone() for n, p in model.state_dict().items()}
    t = Task.of(federation(), model, FedSGD(iterations=3, batch_size=4))
    Reference(t).advance(3)
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())
    assert all(p.grad is None for p in t.model.parameters())
