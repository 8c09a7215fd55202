"""Jobs: what server and sites agree on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import NAMES, federation, job, multi_source, normed, small

from fedshift.core.weights import Weighting
from fedshift.defence.ratios import RatioDefence
from fedshift.defence.robust import Robust
from fedshift.errors import InputError
from fedshift.federation.job import RatioPhase
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, TopK
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


def test_the_digest_is_of_everything() -> None:
    digests = [job(**c).digest for c in ({}, *CHANGES)]
    assert len(set(digests)) == len(digests)
    assert job().digest == digests[0]


def test_a_module_is_known_by_its_numbers() -> None:
    made = [build(small, (4,), 3, seed=s) for s in (0, 0, 1)]
    digests = [job(model=m).digest for m in made]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clients": ()}, "clients must be names"),
        ({"clients": ("a", "a")}, "each once"),
        ({"minimum": 5}, "at most the 4 clients"),
        ({"minimum": 0}, "minimum"),
        ({"deadline": 0}, "deadline"),
        ({"precision": "bfloat16"}, "precision"),
        ({"loss": "hinge"}, "loss"),
        ({"objective": "focus:oak"}, "the client must be"),
        ({"objective": "ftw"}, "a site's own test rows only"),
        ({"plan": FedSGD(norm="synchronous")}, "cannot meet at every layer"),
        ({"robust": Robust(rule="krum")}, "needs 5 answers a round; 4 sites"),
        (
            {"robust": Robust(rule="krum", byzantine=0), "plan": FedSGD(participation=2)},
            "needs 3 answers a round; 2 sites",
        ),
        ({"objective": "fitw", "ratio": multi_source(bound=True)}, "for objective 'ftw'"),
        (
            {
                "objective": "ftw",
                "ratio": RatioPhase(kind="federated-mlls"),
                "loss": "squared",
                "classes": 1,
            },
            "labels that are classes",
        ),
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
        ({"plan": FedSGD(participation=2)}, "trained by everybody"),
        ({"plan": FedSGD(norm="local")}, "another norm"),
        ({"kind": "raw", "bound": True}, "multi-source"),
        ({"kind": "federated-mlls", "folds": 1}, "folds ≥ 2"),
    ],
)
def test_ratio_phases_are_checked(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        RatioPhase(**changes)


def test_rungs() -> None:
    assert job().rung == 0
    assert job(ratio=multi_source()).rung == 0  # ERM weighs nothing
    for kind, rung in (("given", 0), ("multi-source", 2), ("generated", 4), ("raw", 5)):
        assert job(objective="ftw", ratio=RatioPhase(kind=kind)).rung == rung
    assert job(objective="ftw", ratio=multi_source(bound=True)).rung == 3


def test_stages() -> None:
    made = job(objective="ftw", ratio=multi_source(folds=3), seed=7)
    ratio, model = made.stage("ratio"), made.stage("model")
    assert (ratio.phase, ratio.classes, ratio.folds) == ("train.ratio", 8, 3)
    assert (model.phase, model.classes, model.folds) == ("train.model", 3, 1)
    assert ratio.plan.seed == 7
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
