"""What the server makes of replies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import CLASSES, DIM, NAMES, federation, normed, small
from torch import Tensor

from fedshift.defence.robust import Robust
from fedshift.federation.aggregate import aggregate, stat_shares, sum_of
from fedshift.federation.client import Reply
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.federation.task import Task
from fedshift.learn.models import build

SGD: dict[str, Any] = {"iterations": 1, "lr": 1.0, "optimizer": "sgd"}


def task(plan: Any, model: Any = small) -> Task:
    return Task.of(federation(), build(model, (DIM,), CLASSES, seed=0), plan, dtype=torch.float64)


def replies(t: Task, count: int, stats: bool = False) -> list[Reply]:
    g = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    size = t.stats_layout.size
    return [
        Reply(drawn(t.layout.size), drawn(2, size).abs() if stats else None, None, [])
        for _ in range(count)
    ]


def moved(t: Task, who: list[int], heard: list[Reply], **more: Any) -> tuple[Tensor, Any]:
    tensors = t.begin().tensors
    before = tensors["params"].clone()
    report = aggregate(t, tensors, who, heard, **more)
    return tensors["params"] - before, report


def test_fedsgd_adds_and_makes_up_for_the_missing() -> None:
    t = task(FedSGD(**SGD, client_weights={"ash": 3.0, "elm": 0.5}))
    heard = replies(t, 2)
    step, _ = moved(t, [0, 2], heard)
    torch.testing.assert_close(step, -(3.0 * heard[0].update + heard[1].update))
    step, _ = moved(t, [0, 2], heard, cohort=[0, 1, 2, 3])
    torch.testing.assert_close(step, -(3.0 * heard[0].update + heard[1].update) * 5.5 / 4.0)
    drawn = task(FedSGD(**SGD, participation=2))
    step, _ = moved(drawn, [1], heard[:1], cohort=[1, 3])
    torch.testing.assert_close(step, -heard[0].update * (4 / 2) * 2)


def test_fedavg_takes_the_mean_with_normalisers() -> None:
    t = task(FedAvg(rounds=1, client_weights={"birch": 2.0}))
    heard = replies(t, 3)
    step, _ = moved(t, [0, 1, 3], heard, normaliser=np.array([1.0, 0.5, 9.0, 2.0]))
    expected = (heard[0].update + heard[1].update + 2 * heard[2].update) / 4
    torch.testing.assert_close(step, expected)
    missing, _ = moved(
        t, [0, 1, 3], heard, normaliser=np.array([1.0, 0.5, 9.0, 2.0]), cohort=[0, 1, 2, 3]
    )
    assert torch.equal(missing, step)  # a mean needs no making up


@pytest.mark.parametrize("plan", [FedSGD(**SGD), FedAvg(rounds=1)])
def test_a_robust_mean_of_trusted_clients_has_the_same_bits(plan: Any) -> None:
    t = task(plan, normed)
    for who in ([0, 1, 2, 3], [1, 3]):
        for normaliser in ([1.0, 2.0, 0.3, 0.7], [1.0, 0.0, 2.0, 0.5]):
            heard = replies(t, len(who), stats=True)
            more: dict[str, Any] = {"normaliser": np.array(normaliser)}
            plain, tough = t.begin().tensors, t.begin().tensors
            aggregate(t, plain, who, heard, **more)
            report = aggregate(t, tough, who, heard, robust=Robust(clip=None), **more)
            assert all(torch.equal(plain[n], tough[n]) for n in plain)
            assert report is not None
            assert not report.left_out


def test_statistics_of_who_is_left_out_do_not_count() -> None:
    t = task(FedSGD(**SGD, norm="averaged"), normed)
    heard = replies(t, 4, stats=True)
    heard[2] = replace(heard[2], update=heard[2].update * torch.nan)
    tensors, three = t.begin().tensors, t.begin().tensors
    report = aggregate(t, tensors, [0, 1, 2, 3], heard, robust=Robust())
    assert report is not None
    assert set(report.left_out) == {"cedar"}
    aggregate(t, three, [0, 1, 3], [heard[0], heard[1], heard[3]])
    assert torch.equal(tensors["stats"], three["stats"])
    assert torch.isfinite(tensors["params"]).all()


def test_control_variates_count_with_their_part_of_all() -> None:
    t = task(FedAvg(rounds=1, scaffold=True, normalise="none"))
    heard = [replace(r, control=r.update * 2) for r in replies(t, 2)]
    tensors = t.begin().tensors
    aggregate(t, tensors, [0, 3], heard)
    torch.testing.assert_close(tensors["c"], (heard[0].update + heard[1].update) * 2 / 4)


def test_far_statistics_and_long_control_variates_are_cut() -> None:
    t = task(FedAvg(rounds=1, scaffold=True, normalise="none"), normed)
    heard = [replace(r, control=r.update) for r in replies(t, 4, stats=True)]
    plain, tough = t.begin().tensors, t.begin().tensors
    aggregate(t, plain, [0, 1, 2, 3], heard)
    report = aggregate(t, tough, [0, 1, 2, 3], heard, robust=Robust(multiple=9.0))
    assert report is not None
    assert report.beside == ()
    assert all(torch.equal(plain[n], tough[n]) for n in plain)
    stats, control = heard[3].stats, heard[3].control
    assert stats is not None
    assert control is not None
    for bad in (replace(heard[3], stats=stats + 1e4), replace(heard[3], control=control * 1e4)):
        tough = t.begin().tensors
        report = aggregate(t, tough, [0, 1, 2, 3], [*heard[:3], bad], robust=Robust(multiple=9.0))
        assert report is not None
        assert report.beside == ("elm",)
        assert all(float((tough[n] - plain[n]).abs().max()) < 20 for n in plain)


def test_nobody_with_a_part_moves_nothing() -> None:
    t = task(FedAvg(rounds=1))
    step, report = moved(t, [0, 1], replies(t, 2), normaliser=np.zeros(len(NAMES)), robust=Robust())
    assert not step.any()
    assert report is None


def test_helpers() -> None:
    parts = [torch.ones(2), torch.full((2,), 3.0)]
    assert sum_of(np.array([2.0, 0.5]), parts).tolist() == [3.5, 3.5]
    assert stat_shares(np.array([1.0, 3.0])).tolist() == [0.25, 0.75]
    assert stat_shares(np.zeros(2)).tolist() == [0.5, 0.5]
