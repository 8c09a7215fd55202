"""Jobs: what server and sites agree on."""

from __future__ import annotations

from dataclasses import field, fields, make_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tiny import NAMES, federation, job, multi_source, normed, small

from fedshift.core.weights import Weighting
from fedshift.defence.ratios import RatioDefence
from fedshift.defence.robust import Robust
from fedshift.errors import InputError
from fedshift.federation import deployment_task
from fedshift.federation.deployment_task import DeploymentTask, RatioPhase
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Optimizer, Sign, TopK
from fedshift.learn.models import build

CHANGES: list[dict[str, Any]] = [
    {"clients": NAMES[:3]},
    {"clients": NAMES[::-1]},
    {"shape": (5,)},
    {"classes": 4},
    {"model": normed},
    {"model": "mlp"},
    {"plan": FedSGD(iterations=5)},
    {"plan": FedSGD(iterations=4, compression=TopK(0.1))},
    {"plan": FedSGD(iterations=4, compression=QSGD(3))},
    {"plan": FedAvg(rounds=4)},
    {"objective": "fitw"},
    {"weighting": Weighting(clip=3.0)},
    {"ratio": RatioPhase(kind="given")},
    {"robust": Robust()},
    {"defence": RatioDefence(mass=None)},
    {"seed": 1},
    {"precision": "float64"},
    {"minimum": 2},
    {"deadline": 6.0},
    {"tries": 9},
]


KINDS = (
    FedSGD,
    FedAvg,
    Optimizer,
    QSGD,
    Sign,
    TopK,
    Weighting,
    Robust,
    RatioDefence,
    RatioPhase,
    DeploymentTask,
)
DEFAULTS: dict[str, dict[str, Any]] = {
    "FedSGD": {
        "batch_size": 64,
        "participation": None,
        "client_weights": None,
        "norm": "averaged",
        "importance": "loss",
        "augment": "none",
        "mixup": 0.0,
        "tail": 0.0,
        "average": 0.0,
        "compression": None,
        "broadcast": None,
        "average_by": "clients",
        "seed": None,
        "iterations": 1000,
        "lr": 0.001,
        "optimizer": "adam",
        "momentum": 0.0,
        "betas": [0.9, 0.999],
        "eps": 1e-08,
        "weight_decay": 0.0,
    },
    "FedAvg": {
        "batch_size": 64,
        "participation": None,
        "client_weights": None,
        "norm": "averaged",
        "importance": "loss",
        "augment": "none",
        "mixup": 0.0,
        "tail": 0.0,
        "average": 0.0,
        "compression": None,
        "broadcast": None,
        "average_by": "clients",
        "seed": None,
        "rounds": 100,
        "local_steps": 10,
        "local_lr": 0.05,
        "local_momentum": 0.0,
        "weight_decay": 0.0,
        "prox": 0.0,
        "scaffold": False,
        "normalise": "self",
        "server": {"": "Optimizer", "rule": "sgd", "lr": 1.0},
    },
    "Optimizer": {
        "rule": "adam",
        "lr": 0.001,
        "momentum": 0.0,
        "betas": [0.9, 0.999],
        "eps": 1e-08,
        "weight_decay": 0.0,
    },
    "QSGD": {"levels": 16},
    "Sign": {"block": 256},
    "TopK": {"share": 0.01},
    "Weighting": {
        "normalise": "none",
        "clip": None,
        "winsorise": None,
        "flatten": 1.0,
        "min_ess": None,
    },
    "Robust": {"rule": "mean", "clip": "median", "multiple": 1.0, "trim": 0.2},
    "RatioDefence": {
        "multiple": 10.0,
        "mass": 2.0,
        "winsorise": 0.999,
        "min_ess": 0.01,
        "min_rows": 10,
    },
    "RatioPhase": {
        "kind": "multi-source",
        "model": "mlp",
        "plan": {"": "FedAvg", "rounds": 6, "local_steps": 60, "local_lr": 0.1},
        "folds": 2,
        "bound": False,
        "estimator": "classifier",
        "quota": 500,
    },
    "DeploymentTask": {
        "model": "mlp",
        "plan": {"": "FedAvg", "rounds": 8, "local_steps": 50, "local_lr": 0.1},
        "loss": "cross-entropy",
        "objective": "ftw",
        "weighting": {"": "Weighting", "clip": 20.0},
        "ratio": {"": "RatioPhase"},
        "robust": {"": "Robust"},
        "defence": {"": "RatioDefence"},
        "minimum": None,
        "deadline": 120.0,
        "tries": 3,
        "seed": 0,
        "precision": "float32",
    },
}


def test_the_digest_is_of_everything() -> None:
    digests = [job(**c).digest for c in ({}, *CHANGES)]
    assert len(set(digests)) == len(digests)
    assert job().digest == digests[0]


def test_the_digest_is_that_of_earlier_versions() -> None:
    plain = DeploymentTask(clients=("a", "b"), shape=(3,), classes=2)
    assert plain.digest == "d6bd11acded019c8"


def test_a_setting_more_does_not_change_the_digest() -> None:
    settings = {f.name: getattr(job(), f.name) for f in fields(DeploymentTask)}
    more = make_dataclass(
        "DeploymentTask",
        [("later", int, field(default=3))],
        bases=(DeploymentTask,),
        frozen=True,
        kw_only=True,
    )
    assert more(**settings).digest == job().digest
    assert more(**settings, later=4).digest != job().digest


def test_defaults_are_those_the_digest_stands_for() -> None:
    """Where one changes, raise `deployment_task._DEFAULTS` and write it down here."""
    assert deployment_task._DEFAULTS == 2
    spelled, default = deployment_task._spelled, deployment_task._default
    table = {k.__name__: {f.name: spelled(default(f)) for f in fields(k) if f.init} for k in KINDS}
    for name, known in DEFAULTS.items():
        assert {n: table[name][n] for n in known} == known


def test_a_module_is_known_by_its_numbers() -> None:
    made = [build(small, (4,), 3, seed=s) for s in (0, 0, 1)]
    digests = [job(model=m).digest for m in made]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clients": ()}, "clients must be one or more"),
        ({"clients": ("a", "a")}, "different names"),
        ({"minimum": 5}, "at most the number of clients, 4"),
        ({"minimum": 0}, "minimum"),
        ({"deadline": 0}, "deadline"),
        ({"precision": "bfloat16"}, "precision"),
        ({"loss": "hinge"}, "loss"),
        ({"objective": "focus:oak"}, "the client must be"),
        ({"objective": "ftw"}, "only a site's own test rows"),
        ({"plan": FedSGD(average_by="rows")}, "average_by='rows' needs .*as client_weights"),
        ({"ratio": RatioPhase(plan=FedAvg(average_by="rows"))}, "average_by='rows' needs"),
        ({"plan": FedSGD(norm="synchronous")}, "needs an exchange of messages at every layer"),
        ({"plan": FedSGD(norm="local", average=0.9)}, "stay at the sites; got average=0.9"),
        ({"objective": "fitw", "ratio": multi_source(bound=True)}, "needs objective 'ftw'"),
        (
            {
                "objective": "ftw",
                "ratio": RatioPhase(kind="federated-mlls"),
                "loss": "squared",
                "classes": 1,
            },
            "needs classes",
        ),
        ({"loss": "squared", "classes": 1, "plan": FedSGD(tail=1.0)}, "tail=1.0 needs"),
        ({"loss": "squared", "classes": 1, "plan": FedSGD(importance="logits")}, "needs classes"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        job(**changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "guess"}, "kind"),
        ({"folds": 0}, "folds"),
        ({"plan": FedSGD(participation=2)}, "all clients take part in every round"),
        ({"plan": FedSGD(norm="local")}, "another norm"),
        ({"kind": "raw", "bound": True}, "multi-source"),
        ({"kind": "federated-mlls", "folds": 1}, "folds ≥ 2"),
        ({"kind": "raw", "estimator": "federated-auto"}, "estimator"),
        ({"kind": "local", "estimator": "clasifier"}, "did you mean 'classifier'"),
        ({"plan": FedSGD(importance="logits")}, "'loss' or 'sampling'"),
    ],
)
def test_ratio_phases_are_checked(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        RatioPhase(**changes)


def test_disclosure_levels() -> None:
    assert job().disclosure_level == 0
    assert job(ratio=multi_source()).disclosure_level == 0  # ERM weighs nothing
    for kind, disclosure_level in (("given", 0), ("multi-source", 2), ("generated", 4), ("raw", 5)):
        assert (
            job(objective="ftw", ratio=RatioPhase(kind=kind)).disclosure_level == disclosure_level
        )
    assert job(objective="ftw", ratio=multi_source(bound=True)).disclosure_level == 3


def test_stages() -> None:
    made = job(objective="ftw", ratio=multi_source(folds=3), seed=7)
    ratio, model = made.stage("ratio"), made.stage("model")
    assert (ratio.phase, ratio.classes, ratio.folds) == ("train.ratio", 8, 3)
    assert (model.phase, model.classes, model.folds) == ("train.model", 3, 1)
    assert (ratio.plan.seed, model.plan.seed) == (7, 7)  # plans without a seed of their own
    assert job(plan=FedSGD(seed=3), seed=7).stage("model").plan.seed == 3
    first, second = (ratio.blank(j).begin().tensors["params"] for j in (0, 1))
    assert not torch.equal(first, second)  # folds begin elsewhere
    blank = model.blank()
    assert blank.names == NAMES
    assert not blank.x.any()
    assert model.limit() > blank.bytes_up()


@pytest.mark.parametrize("part", [None, 2.5, 0.0])
def test_a_site_begins_where_the_server_does_and_draws_its_own_batches(part: float | None) -> None:
    weights = None if part is None else {"cedar": part}
    made = job(plan=FedSGD(iterations=3, batch_size=8, client_weights=weights, participation=2))
    data = federation()["cedar"]
    own = made.stage("model").own(data, np.ones(len(data.x)))
    assert own.names == ("cedar",)
    assert torch.equal(
        own.begin().tensors["params"], made.stage("model").blank().begin().tensors["params"]
    )
    whole = made.stage("model").blank()
    assert own.layout.size == whole.layout.size
    assert own.share[0] == pytest.approx(1.0 if part is None else part)
    assert own.x.dtype == torch.float32
