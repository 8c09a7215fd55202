"""Plans: what they hold, and what they refuse."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from fedshift.errors import InputError
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Optimizer, Plan, Sign, TopK


def test_fedsgd_is_what_the_paper_trains_with() -> None:
    plan = FedSGD()
    assert (plan.batch_size, plan.participation, plan.client_weights) == (64, None, None)
    assert (plan.norm, plan.importance, plan.augment) == ("averaged", "loss", "none")
    assert (plan.mixup, plan.average) == (0.0, 0.0)
    assert plan.rule == Optimizer("adam", 1e-3, 0.0, (0.9, 0.999), 1e-8, 0.0)
    assert (plan.n_rounds, plan.n_steps) == (1000, 1)
    assert (plan.compression, plan.seed, plan.average_by) == (None, None, "clients")


def test_fedavg_averages_by_default() -> None:
    plan = FedAvg(rounds=7, local_steps=3)
    assert plan.rule == Optimizer("sgd", 1.0)
    assert (plan.n_rounds, plan.n_steps) == (7, 3)
    assert (plan.normalise, plan.scaffold, plan.prox) == ("self", False, 0.0)


def test_the_rule_of_fedsgd_takes_all_settings() -> None:
    plan = FedSGD(
        optimizer="sgd", lr=0.1, momentum=0.9, betas=(0.5, 0.6), eps=1e-3, weight_decay=0.01
    )
    assert plan.rule == Optimizer("sgd", 0.1, 0.9, (0.5, 0.6), 1e-3, 0.01)


def test_repr_tells_what_differs_from_the_defaults() -> None:
    assert repr(FedSGD()) == "FedSGD()"
    plan = FedSGD(iterations=50, lr=0.01, participation=["b", "a"])  # type: ignore[arg-type]
    assert repr(plan) == "FedSGD(participation=('b', 'a'), iterations=50, lr=0.01)"
    assert repr(FedAvg(compression=TopK(0.1))) == "FedAvg(compression=TopK(share=0.1))"
    assert eval(repr(plan)) == plan


def test_plans_are_frozen_values() -> None:
    assert FedSGD(seed=1) == FedSGD(seed=1) != FedSGD(seed=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        FedSGD().seed = 3  # type: ignore[misc]
    assert dataclasses.replace(FedAvg(rounds=3), seed=9) == FedAvg(rounds=3, seed=9)


def test_lists_from_a_file_become_tuples() -> None:
    assert Optimizer(betas=[0.8, 0.9]).betas == (0.8, 0.9)  # type: ignore[arg-type]
    assert FedSGD(participation=["a"]).participation == ("a",)  # type: ignore[arg-type]


SHARED: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size must be a whole number of at least 1; got 0"),
    ({"batch_size": 2.5}, "batch_size must be a whole number of at least 1; got 2.5"),
    ({"seed": -1}, "seed must be a whole number of at least 0; got -1"),
    ({"norm": "averagd"}, "norm must be .* got 'averagd'; did you mean 'averaged'"),
    ({"norm": None}, "norm must be one of averaged, local, synchronous, group; got None"),
    ({"importance": "los"}, "importance must be .*; got 'los'; did you mean 'loss'"),
    ({"augment": "crop_flip"}, "augment must be .*; did you mean 'crop-flip'"),
    ({"mixup": -0.1}, "mixup must be a number ≥ 0; got -0.1"),
    ({"mixup": math.inf}, "mixup must be a number ≥ 0; got inf"),
    ({"mixup": "0.2"}, "mixup must be a number ≥ 0; got '0.2'"),
    ({"tail": -1.0}, "tail must be a number ≥ 0; got -1.0"),
    ({"mixup": True}, "mixup must be a number ≥ 0; got True"),
    ({"average": 1.0}, r"average must be a number in \[0, 1\); got 1.0"),
    ({"average": -0.5}, r"average must be a number in \[0, 1\); got -0.5"),
    ({"average": math.nan}, r"average must be a number in \[0, 1\); got nan"),
    ({"average": None}, r"average must be a number in \[0, 1\); got None"),
    ({"participation": 0}, "participation must be a whole number of at least 1; got 0"),
    ({"participation": True}, "participation must be .*; got True"),
    ({"participation": ()}, r"participation must name at least one client, .*; got \(\)"),
    ({"participation": ("a", "a")}, r"each once; got \('a', 'a'\)"),
    ({"compression": "top-k"}, r"compression must be TopK\(…\), .*; got 'top-k'"),
    ({"broadcast": QSGD()}, r"broadcast must be TopK\(…\), Sign\(…\) or None; got QSGD"),
    ({"client_weights": {"a": -1.0}}, "client_weights .* ≥ 0; got -1.0 for client 'a'"),
    ({"client_weights": {"b": math.nan}}, "client_weights .*; got nan for client 'b'"),
    ({"client_weights": {"b": "2"}}, "client_weights .*; got '2' for client 'b'"),
]


@pytest.mark.parametrize("plan", [FedSGD, FedAvg])
@pytest.mark.parametrize(("given", "message"), SHARED)
def test_both_plans_refuse(plan: type[Plan], given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"iterations": -1}, "FedSGD: iterations must be a whole number of at least 0; got -1"),
        ({"lr": 0.0}, "Optimizer: lr must be a positive number; got 0.0"),
        ({"lr": "fast"}, "lr must be a positive number; got 'fast'"),
        ({"eps": math.inf}, "eps must be a positive number; got inf"),
        ({"optimizer": "adm"}, "rule must be .*; got 'adm'; did you mean 'adam'"),
        ({"momentum": 1.0}, r"momentum must be a number in \[0, 1\); got 1.0"),
        ({"momentum": "0.9"}, r"momentum must be a number in \[0, 1\); got '0.9'"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\); got \(0.9, 1.0\)"),
        ({"betas": (0.9,)}, r"betas must be two numbers .* got \(0.9,\)"),
        ({"betas": 0.9}, "betas must be two numbers .* got 0.9"),
        ({"weight_decay": -0.1}, "weight_decay must be a number ≥ 0; got -0.1"),
        ({"weight_decay": math.nan}, "weight_decay must be a number ≥ 0; got nan"),
    ],
)
def test_fedsgd_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FedSGD(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rounds": -1}, "FedAvg: rounds must be a whole number of at least 0; got -1"),
        ({"local_steps": 0}, "local_steps must be a whole number of at least 1; got 0"),
        ({"local_lr": -1}, "local_lr must be a positive number; got -1"),
        ({"local_momentum": 1}, r"local_momentum must be a number in \[0, 1\); got 1"),
        ({"prox": -1.0}, "prox must be a number ≥ 0; got -1.0"),
        ({"weight_decay": "x"}, "weight_decay must be a number ≥ 0; got 'x'"),
        ({"normalise": "slef"}, "normalise must be .*; did you mean 'self'"),
        ({"server": "adam"}, "server must be an Optimizer; got 'adam'"),
    ],
)
def test_fedavg_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FedAvg(**given)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, math.nan, "all"])
def test_topk_needs_a_share(share: Any) -> None:
    with pytest.raises(InputError, match="TopK: share must be"):
        TopK(share)


@pytest.mark.parametrize("levels", [0, 1.5, True])
def test_qsgd_needs_levels(levels: Any) -> None:
    with pytest.raises(InputError, match="QSGD: levels must be a whole number"):
        QSGD(levels)


@pytest.mark.parametrize("block", [0, 1.5, True])
def test_signs_need_a_block(block: Any) -> None:
    with pytest.raises(InputError, match="Sign: block must be a whole number"):
        Sign(block)


def test_combinations_that_cannot_run() -> None:
    with pytest.raises(InputError, match="control variate as large as the model"):
        FedAvg(scaffold=True, broadcast=Sign())
    with pytest.raises(InputError, match="broadcast=None"):
        FedSGD(norm="synchronous", broadcast=Sign())
    with pytest.raises(
        InputError, match="clients exchange nothing between local steps; take norm="
    ):
        FedAvg(norm="synchronous")
    for scheme in (TopK(), QSGD()):
        with pytest.raises(InputError, match=r"one joint gradient.* compression=None"):
            FedSGD(norm="synchronous", compression=scheme)
    with pytest.raises(InputError, match="plain local SGD; set local_momentum=0"):
        FedAvg(scaffold=True, local_momentum=0.9)


def test_a_plan_is_of_a_kind() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Plan()  # type: ignore[abstract]
