"""One contract over Flower: its messages lead to the very parameters of the reference."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.serverapp import Grid

from fedshift.core.weights import Weighting
from fedshift.data.federation import ClientData, Federation
from fedshift.defence.robust import Robust
from fedshift.federation import flower
from fedshift.federation.checkpoint import load
from fedshift.federation.client_weights import compute_client_weights
from fedshift.federation.deployment_task import DeploymentTask, RatioPhase
from fedshift.federation.flower import client_app, server_app
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Optimizer, Sign, TopK
from fedshift.federation.reference import Reference
from fedshift.federation.site import Site
from fedshift.federation.task import State, Task
from fedshift.learn.models import MLP, build
from fedshift.privacy.policy import Privacy

try:  # who a process is, which newer Flower writes into every message
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    TaskIdentity = None

ROUNDS = 5
SIZES = {"ash": 37, "birch": 20, "cedar": 51, "elm": 9}  # one smaller than a batch
CLASSES = 3


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small model with a BatchNorm layer."""
    return MLP(shape, classes, hidden=(8,), batch_norm=True)


def federation() -> Federation:
    rng = np.random.default_rng(0)
    return Federation(
        tuple(
            ClientData(
                name,
                rng.normal(k / 3, 1 + k / 4, (n, 5)),
                rng.integers(0, CLASSES, n),
                rng.normal(size=(6, 5)),
                rng.integers(0, CLASSES, 6),
            )
            for k, (name, n) in enumerate(SIZES.items())
        )
    )


def given(objective: str) -> dict[str, Any]:
    """Log ratios, of other size at every client."""
    rng = np.random.default_rng(1)
    level = np.log(len(SIZES)) if objective == "ftw" else 0.0
    drawn = {n: rng.normal(level - k / 9, 0.6, SIZES[n]) for k, n in enumerate(SIZES)}
    return {} if objective == "erm" else drawn


class Described:
    """A job and its sites, as an app is made of them."""

    def __init__(self, job: DeploymentTask, sites: Mapping[str, Site], folder: Path) -> None:
        self._job, self._sites, self._folder = job, sites, folder

    def client(self, node: Mapping[str, Any]) -> str:
        return str(node["client"])

    def site(self, node: Mapping[str, Any]) -> Site:
        return self._sites[str(node["client"])]

    def job(self, run: Mapping[str, Any]) -> DeploymentTask:
        return self._job

    def folder(self, run: Mapping[str, Any]) -> Path:
        return self._folder


class Wire(Grid):
    """Flower's grid in this process: calls the ClientApp, hands answers on out of order."""

    def __init__(self, task: Described, clients: Iterable[str], seed: int = 0) -> None:
        self._app, self._random = client_app(task), random.Random(seed)
        self._nodes = {1000 + 7 * i: name for i, name in enumerate(clients)}
        self._waiting: dict[str, Message] = {}
        self.types: set[str] = set()

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **more: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        ids = list(self._nodes)
        self._random.shuffle(ids)
        return ids

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            meta: Metadata = message.metadata
            number = f"{self._random.getrandbits(64):016x}"
            meta.__dict__["_message_id"] = number
            self.types.add(meta.message_type)
            config = {"client": self._nodes[meta.dst_node_id]}
            context = Context(1, meta.dst_node_id, config, RecordDict(), {})
            self._waiting[number] = self._app(message, context)
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [i for i in message_ids if i in self._waiting]
        self._random.shuffle(ready)
        some = ready[: max(1, len(ready) // 2)]  # the rest is slower
        return [self._waiting.pop(i) for i in some]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        ids = list(self.push_messages(messages))
        return [self._waiting.pop(i) for i in reversed(ids)]


PLANS: dict[str, Any] = {
    "fedsgd": lambda **k: FedSGD(iterations=ROUNDS, lr=3e-3, **k),
    "fedsgd-momentum": lambda **k: FedSGD(
        iterations=ROUNDS, lr=0.02, optimizer="sgd", momentum=0.9, average=0.9, **k
    ),
    "fedsgd-topk": lambda **k: FedSGD(iterations=ROUNDS, compression=TopK(0.1), **k),
    "fedsgd-qsgd": lambda **k: FedSGD(iterations=ROUNDS, compression=QSGD(8), **k),
    "fedsgd-sign": lambda **k: FedSGD(
        iterations=ROUNDS, optimizer="sgd", compression=Sign(16), broadcast=Sign(8), **k
    ),
    "fedsgd-shown": lambda **k: FedSGD(
        iterations=ROUNDS, optimizer="sgd", lr=0.02, momentum=0.5, broadcast=TopK(0.2), **k
    ),
    "fedsgd-sampling": lambda **k: FedSGD(iterations=ROUNDS, importance="sampling", **k),
    "fedsgd-logits": lambda **k: FedSGD(iterations=ROUNDS, importance="logits", tail=2.0, **k),
    "fedavg": lambda **k: FedAvg(rounds=ROUNDS, local_steps=3, local_momentum=0.5, **k),
    "fedavg-adam": lambda **k: FedAvg(
        rounds=ROUNDS, local_steps=2, normalise="none", server=Optimizer("adam", 1e-2), **k
    ),
    "fedavg-topk": lambda **k: FedAvg(rounds=ROUNDS, local_steps=2, compression=TopK(0.2), **k),
    "fedavg-shown": lambda **k: FedAvg(
        rounds=ROUNDS, local_steps=2, broadcast=Sign(8), average=0.9, **k
    ),
    "fedavg-qsgd": lambda **k: FedAvg(rounds=ROUNDS, local_steps=2, compression=QSGD(16), **k),
    "scaffold": lambda **k: FedAvg(rounds=ROUNDS, local_steps=3, scaffold=True, **k),
}
PARTICIPATION: dict[str, Any] = {"all": None, "drawn": 2, "fixed": ("cedar", "ash")}


def job_of(plan: Any, objective: str, precision: Any) -> DeploymentTask:
    return DeploymentTask(
        clients=tuple(SIZES),
        shape=(5,),
        classes=CLASSES,
        model=normed,
        plan=plan,
        objective=objective,
        weighting=Weighting(clip=20.0),
        ratio=RatioPhase(kind="given"),
        robust=Robust(clip=None),
        seed=4,
        precision=precision,
    )


@pytest.fixture(autouse=True)
def _a_server_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "POLL", 0.0)
    for name in ("_task_id", "_run_id", "_node_id"):
        if TaskIdentity is not None:
            monkeypatch.setattr(TaskIdentity, name, 1)


def by_flower(job: DeploymentTask, folder: Path) -> tuple[State, Wire]:
    """The state after all rounds, carried by Flower's messages."""
    ratios = given(job.objective)
    sites = {
        c.name: Site(
            job,
            c,
            folder / "sites" / c.name,
            privacy=Privacy(disclosure_level=0, min_rows=1),
            log_ratio=ratios.get(c.name),
        )
        for c in federation()
    }
    task = Described(job, sites, folder / "record")
    wire = Wire(task, reversed(job.clients))
    server_app(task)(wire, Context(1, 0, {}, RecordDict(), {}))
    found = load(folder / "record" / "model", expect=None)
    assert found is not None
    return State(found[0].round, _own_names(found[0].tensors)), wire


def _own_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {n.removeprefix("0/"): t for n, t in tensors.items()}


def by_reference(job: DeploymentTask) -> State:
    weights = {
        n: compute_client_weights(
            n, r, job.weighting, len(SIZES) if job.objective == "ftw" else 1
        ).values
        for n, r in given(job.objective).items()
    }
    dtype = torch.float64 if job.precision == "float64" else torch.float32
    model = build(job.model, job.shape, job.classes, seed=job.seed)
    task = Task.of(federation(), model, job.plan, weights=weights or None, dtype=dtype)
    engine = Reference(task)
    engine.advance(ROUNDS)
    return engine.state


CASES = [
    *((p, "averaged", "all", o, d) for p in PLANS for o, d in (("ftw", "float32"),)),
    # a job refuses to average what stays with the sites
    *((p, "local", "drawn", "ftw", "float64") for p in PLANS if not PLANS[p]().average),
    *((p, "averaged", "drawn", "erm", "float64") for p in ("fedsgd", "fedavg", "scaffold")),
    *((p, "averaged", "fixed", "fitw", "float64") for p in ("fedsgd", "scaffold", "fedavg-topk")),
    ("fedavg", "group", "all", "focus:elm", "float32"),
    ("fedsgd", "local", "all", "erm", "float32"),
]


@pytest.mark.parametrize(("plan", "norm", "who", "objective", "precision"), CASES)
def test_flower_equals_reference_bit_for_bit(
    plan: str, norm: str, who: str, objective: str, precision: str, tmp_path: Path
) -> None:
    made = PLANS[plan](batch_size=8, norm=norm, participation=PARTICIPATION[who], seed=3)
    compare(job_of(made, objective, precision), tmp_path)


@pytest.mark.parametrize("plan", ["fedsgd", "fedavg", "scaffold"])
@pytest.mark.parametrize("norm", ["averaged", "local"])
def test_clients_with_other_parts_or_none(plan: str, norm: str, tmp_path: Path) -> None:
    parts = {"ash": 2.0, "birch": 0.0}
    made = PLANS[plan](batch_size=8, norm=norm, seed=3, client_weights=parts)
    compare(job_of(made, "ftw", "float64"), tmp_path)


def compare(job: DeploymentTask, folder: Path) -> None:
    found, wire = by_flower(job, folder)
    expected = by_reference(job)
    assert found.round == expected.round == ROUNDS
    assert {"query.describe", "query.share", "train.model", "evaluate.model"} == wire.types
    for name, t in found.tensors.items():
        assert t.dtype == expected.tensors[name].dtype
        assert torch.equal(t, expected.tensors[name]), name
    missing = set(expected.tensors) - set(found.tensors)
    assert "params" in found.tensors
    assert missing <= {"local", "local_m", "local_v", "local_t", "ck", "error"} | (
        {"stats"} if job.plan.norm == "local" else set()
    )
    _same_memory(job, folder, expected, missing)
    events = (folder / "record" / "events.jsonl").read_text()
    assert '"dropped"' not in events


def _same_memory(job: DeploymentTask, folder: Path, expected: State, kept: set[str]) -> None:
    """What stays with the sites is theirs of the reference too."""
    for k, name in enumerate(job.clients):
        files = sorted((folder / "sites" / name).glob("*/memory-model-*.safetensors"))
        stored = load_file(files[-1]) if files else {}
        shown = stored.pop("0/shown", None)
        assert (shown is not None) == bool(files and job.plan.broadcast)
        assert {n.removeprefix("0/") for n in stored} == (kept if files else set())
        for entry, t in stored.items():
            assert torch.equal(t, expected.tensors[entry.removeprefix("0/")][k]), (name, entry)
