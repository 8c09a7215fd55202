"""A small federation, its job and its sites, for tests of what runs at a distance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedshift.data.federation import ClientData, Federation
from fedshift.defence.robust import Robust
from fedshift.federation.coordinator import Coordinator
from fedshift.federation.deployment_task import DeploymentTask, RatioPhase
from fedshift.federation.messages import Fact, Header, Message
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.federation.site import Site
from fedshift.federation.transport import InProcess
from fedshift.learn.models import MLP
from fedshift.privacy.policy import Privacy

NAMES = ("ash", "birch", "cedar", "elm")
DIM, CLASSES = 4, 3
QUICK = FedSGD(iterations=4, lr=0.02, batch_size=16)


def small(shape: tuple[int, ...], classes: int) -> nn.Module:
    return MLP(shape, classes, hidden=(8,))


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return MLP(shape, classes, hidden=(8,), batch_norm=True)


def federation(rows: int = 60, tests: int = 40, seed: int = 0) -> Federation:
    """Classes are clouds; every client has its own mix of them, and another one in use."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(0, 1.5, (CLASSES, DIM))

    def drawn(n: int, distribution: Any) -> tuple[Any, Any]:
        y = rng.choice(CLASSES, n, p=distribution)
        y[:CLASSES] = np.arange(CLASSES)  # everybody has met every class
        return centre[y] + rng.normal(size=(n, DIM)), y

    clients = []
    for k, name in enumerate(NAMES):
        distribution = np.roll([0.6, 0.25, 0.15], k)
        clients.append(
            ClientData(name, *drawn(rows + 7 * k, distribution), *drawn(tests, distribution[::-1]))
        )
    return Federation(tuple(clients))


def job(**changes: Any) -> DeploymentTask:
    """ERM by a few iterations, unless told otherwise."""
    given: dict[str, Any] = {
        "clients": NAMES,
        "shape": (DIM,),
        "classes": CLASSES,
        "model": small,
        "plan": QUICK,
        "objective": "erm",
        "ratio": RatioPhase(kind="local"),
        "deadline": 5.0,
        "robust": Robust(clip=None),
    }
    return DeploymentTask(**{**given, **changes})


def multi_source(**changes: Any) -> RatioPhase:
    plan = FedAvg(rounds=3, local_steps=5, local_lr=0.1, batch_size=16)
    given: dict[str, Any] = {"kind": "multi-source", "model": small, "plan": plan}
    return RatioPhase(**{**given, **changes})


def make_sites(
    made: DeploymentTask,
    folder: Path,
    *,
    data: Federation | None = None,
    privacy: Privacy | None = None,
    log_ratio: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A site for every client; a dict, so that tests may put others in their place."""
    rows = federation() if data is None else data
    policy = Privacy(disclosure_level=made.disclosure_level) if privacy is None else privacy
    return {
        c.name: Site(
            made, c, folder / c.name, privacy=policy, log_ratio=(log_ratio or {}).get(c.name)
        )
        for c in rows
    }


def run(
    made: DeploymentTask, sites: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Any], Tensor]:
    """The record of a run and the parameters it led to."""
    result = Coordinator(made, InProcess(sites), folder).run()
    return result, params(folder)


def params(folder: Path) -> Tensor:
    (last, *_) = sorted((folder / "model").glob("*.safetensors"), reverse=True)
    return load_file(last)["0/params"]


def dropped(result: Mapping[str, Any]) -> dict[str, list[str]]:
    """Reasons by client."""
    out: dict[str, list[str]] = {}
    for event in result["events"]:
        if event["what"] == "dropped":
            out.setdefault(event["client"], []).append(event["why"])
    return out


def question(
    made: DeploymentTask,
    phase: str,
    number: int = 0,
    arrays: Mapping[str, Any] | None = None,
    run: str = "run",
    **facts: Fact,
) -> Message:
    return Message(Header(f"{run}-{made.digest}", phase, number), arrays or {}, facts)


def start(made: DeploymentTask, stage: str = "model") -> dict[str, Any]:
    """What the server sends in the first round."""
    found = made.stage(stage)
    names = {"params": "params", "stats": "stats", "c": "control"}
    out = {}
    for j in range(found.folds):
        task = found.blank(j)
        for n, new in names.items():
            t = task.begin().tensors.get(n)
            if t is not None and not (n == "stats" and task.plan.norm == "local"):
                out[f"{j}/{new}"] = t.numpy()
    return out


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


def bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)
