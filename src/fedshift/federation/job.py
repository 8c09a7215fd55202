"""A federation at a distance as a value: what server and sites agree on before they begin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from fedshift.core.params import nearest, one_of, positive, whole
from fedshift.core.weights import Weighting
from fedshift.data.federation import ClientData, Federation
from fedshift.defence.ratios import RatioDefence
from fedshift.defence.robust import Robust
from fedshift.errors import InputError
from fedshift.federation.messages import digest
from fedshift.federation.plan import FedAvg, Plan
from fedshift.federation.task import Task
from fedshift.federation.weigh import ESTIMATORS
from fedshift.learn.models import build
from fedshift.learn.objective import Objective

Model = str | nn.Module | Callable[[tuple[int, ...], int], nn.Module]
#: ways to ratios, and the rung of the privacy ladder each needs
KINDS = {
    "given": 0,
    "local": 0,
    "multi-source": 2,
    "federated-mlls": 2,
    "generated": 4,
    "raw": 5,
}
#: those that train a model together
SHARED = ("multi-source", "federated-mlls")
#: those that need rows of others
POOLED = ("generated", "raw")


_TINY = 5e-324
#: raised when a default changes, which the digest would not show
_DEFAULTS = 1


@dataclass(frozen=True, kw_only=True)
class RatioPhase:
    """How sites come by the ratios of their training rows.

    Attributes
    ----------
    kind : str
        "given": the site has them (a simulation knows). "local": each site by itself from its
        own test rows; for "fitw". "multi-source": a classifier of all laws, trained together;
        gradients leave a site. "federated-mlls": for label shift, a classifier of the labels,
        trained together, then label laws leave a site. "generated", "raw": a pool of test rows,
        made up or real, goes to every site.
    model : name, module or callable
        Of the classifier trained together.
    plan : Plan
        Of its rounds.
    folds : int
        Classifiers; each row is weighed by the one that has not seen it. 1: by one that has.
    bound : bool
        Cut weights at a bound from bin counts (rung 3).
    estimator : str
        For "local", "generated" and "raw": a name of `fedshift.federation.weigh.ESTIMATORS`.
    quota : int
        Rows a site adds to a pool.
    """

    kind: str = "multi-source"
    model: Model = "mlp"
    plan: Plan = field(default_factory=lambda: FedAvg(rounds=6, local_steps=60, local_lr=0.1))
    folds: int = 2
    bound: bool = False
    estimator: str = "classifier"
    quota: int = 500

    def __post_init__(self) -> None:
        one_of(self, "kind", tuple(KINDS))
        whole(self, "folds")
        whole(self, "quota")
        if self.plan.participation is not None or self.plan.norm == "local":
            raise InputError(
                "RatioPhase: the ratio model is trained by everybody and shared whole; leave "
                "participation out of its plan and take another norm than 'local'"
            )
        alone = tuple(n for n in ESTIMATORS if not n.startswith("federated-"))
        one_of(self, "estimator", alone)
        if self.kind == "multi-source" and self.plan.importance == "logits":
            raise InputError(
                "RatioPhase: a site has rows of two laws only, so logits of the others would be "
                "moved by a guess; take importance='loss' or 'sampling' in its plan"
            )
        if self.bound and self.kind != "multi-source":
            raise InputError("RatioPhase: bound=True needs kind='multi-source'")
        if self.kind == "federated-mlls" and self.folds < 2:
            raise InputError(
                "RatioPhase: federated-mlls calibrates on rows kept out; needs folds ≥ 2"
            )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What server and sites agree on: the task of a deployment.

    Attributes
    ----------
    clients : tuple of str
        Everybody who may take part, in an order that all know.
    shape : tuple of int
        Of a row.
    classes : int
        1 in regression.
    model, plan, loss, objective, weighting, seed
        As for `fedshift.Settings`.
    ratio : RatioPhase
    robust : Robust
        How updates are combined.
    defence : RatioDefence
        What one test law may do to a site's weights, where laws come from others.
    minimum : int, optional
        Fewest answers that make a round; half of those asked by default.
    deadline : float
        Seconds a round waits for answers.
    tries : int
        How often a round with too few answers is asked again before the run stops.
    """

    clients: tuple[str, ...]
    shape: tuple[int, ...]
    classes: int
    model: Model = "mlp"
    plan: Plan = field(default_factory=lambda: FedAvg(rounds=8, local_steps=50, local_lr=0.1))
    loss: Literal["cross-entropy", "squared"] = "cross-entropy"
    objective: str = "ftw"
    weighting: Weighting = field(default_factory=lambda: Weighting(clip=20.0))
    ratio: RatioPhase = field(default_factory=RatioPhase)
    robust: Robust = field(default_factory=Robust)
    defence: RatioDefence = field(default_factory=RatioDefence)
    minimum: int | None = None
    deadline: float = 120.0
    tries: int = 3
    seed: int = 0
    precision: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))
        object.__setattr__(self, "shape", tuple(self.shape))
        objective = Objective.of(self.objective)
        one_of(self, "precision", ("float32", "float64"))
        one_of(self, "loss", ("cross-entropy", "squared"))
        positive(self, "deadline")
        for name in ("classes", "tries"):
            whole(self, name)
        if self.minimum is not None:
            whole(self, "minimum")
        if not self.clients or len(set(self.clients)) < len(self.clients):
            raise InputError(f"clients must be names, each once; got {list(self.clients)}")
        self.plan.check_loss(self.loss)
        if self.minimum is not None and self.minimum > len(self.clients):
            raise InputError(
                f"minimum must be at most the {len(self.clients)} clients; got {self.minimum}"
            )
        if objective.client is not None and objective.client not in self.clients:
            raise InputError(
                f"objective: the client must be {nearest(objective.client, self.clients)}"
            )
        if self.ratio.kind == "local" and objective.kind not in ("erm", "fitw"):
            raise InputError(
                f"ratio kind 'local' knows a site's own test rows only, for objective 'fitw'; got "
                f"{self.objective!r}; take 'multi-source'"
            )
        if self.ratio.bound and objective.kind != "ftw":
            raise InputError(
                "ratio bound=True bounds the sum over all test laws, for objective 'ftw'; got "
                f"{self.objective!r}; take Weighting(clip=…)"
            )
        if self.ratio.kind == "federated-mlls" and self.loss != "cross-entropy":
            raise InputError("ratio kind 'federated-mlls' needs labels that are classes")
        named = self.plan.participation
        drawn = named if isinstance(named, int) else len(named or self.clients)
        if drawn < self.robust.least:
            raise InputError(
                f"robust rule {self.robust.rule!r} needs {self.robust.least} answers a round; "
                f"{drawn} sites are asked; take rule='mean'"
            )
        if self.plan.norm == "synchronous":
            raise InputError(
                "sites cannot meet at every layer; take norm='averaged', 'local' or 'group'"
            )
        if self.plan.norm == "local" and self.plan.average > 0:
            raise InputError(
                "the mean of the parameters over rounds is the server's work, and with norm="
                f"'local' a part of them never leaves the sites; got average={self.plan.average}; "
                "take average=0, or norm='averaged' or 'group'"
            )

    @property
    def goal(self) -> Objective:
        """The objective."""
        return Objective.of(self.objective)

    @property
    def weighs(self) -> bool:
        """Whether there are weights at all."""
        return self.goal.kind != "erm"

    @property
    def rung(self) -> int:
        """The rung of the privacy ladder a site must allow."""
        if not self.weighs:
            return 0
        return max(KINDS[self.ratio.kind], 3 if self.ratio.bound else 0)

    @cached_property
    def digest(self) -> str:
        """A hash of everything: sites answer for a task they know, and for no other.

        What is as it is by default does not count, so that a version of fedshift with one more
        setting agrees with one that lacks it.
        """
        return digest([_DEFAULTS, _spelled(self)])

    def stage(self, name: str) -> Stage:
        """What is trained in a phase: "ratio" or "model"."""
        if name == "model":
            return Stage(self, "model", self.model, self.classes, self.plan, 1, self.loss)
        laws = 2 * len(self.clients)
        classes = laws if self.ratio.kind == "multi-source" else self.classes
        plan = replace(self.ratio.plan, seed=self.ratio.plan.seed + self.seed)
        return Stage(self, "ratio", self.ratio.model, classes, plan, self.ratio.folds)


@dataclass(frozen=True)
class Stage:
    """Something trained in rounds: one task for every fold."""

    job: Job
    name: str
    model: Model
    classes: int
    plan: Plan
    folds: int
    loss: Literal["cross-entropy", "squared"] = "cross-entropy"

    @property
    def phase(self) -> str:
        """Of its messages."""
        return f"train.{self.name}"

    def blank(self, fold: int = 0) -> Task:
        """The server's task: everybody's name, nobody's rows."""
        one = np.zeros((1, *self.job.shape), dtype=np.float32)
        y = np.zeros(1, dtype=np.float64 if self.loss == "squared" else np.int64)
        clients = tuple(ClientData(n, one, y, one) for n in self.job.clients)
        return self._task(Federation(clients), self.plan, None, fold)

    def own(self, data: ClientData, weights: Any, fold: int = 0) -> Task:
        """A site's task: its rows and nobody else's."""
        # alone in its task a client must have some part; one this small moves nothing
        part = max((self.plan.client_weights or {}).get(data.name, 1.0), _TINY)
        plan = replace(self.plan, participation=None, client_weights={data.name: part})
        return self._task(Federation((data,)), plan, {data.name: weights}, fold)

    def _task(
        self, federation: Federation, plan: Plan, weights: Mapping[str, Any] | None, fold: int
    ) -> Task:
        seed = self.job.seed + fold
        return Task.of(
            federation,
            build(self.model, self.job.shape, self.classes, seed=seed),
            plan,
            weights=weights,
            loss=self.loss,
            dtype=torch.float64 if self.job.precision == "float64" else torch.float32,
        )

    def limit(self) -> int:
        """Most bytes an honest answer has, with room to spare."""
        task = self.blank()
        return self.folds * (2 * max(task.bytes_up(), task.bytes_down()) + 4096)


def _spelled(value: Any) -> Any:
    """Dataclasses as tables of what differs from the defaults, for a hash."""
    if hasattr(value, "__dataclass_fields__"):
        table = {f.name: _spelled(getattr(value, f.name)) for f in fields(value) if f.init}
        usual = {f.name: _spelled(_default(f)) for f in fields(value) if f.init}
        return {"": type(value).__name__, **{n: v for n, v in table.items() if v != usual[n]}}
    if isinstance(value, nn.Module):
        numbers = [float(p.detach().double().sum()) for p in value.state_dict().values()]
        return [repr(value), numbers]
    if isinstance(value, Mapping):
        return {str(k): _spelled(v) for k, v in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [_spelled(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", repr(value))


def _default(setting: Field[Any]) -> Any:
    """Of a field; MISSING, which no value equals, where it has none."""
    return setting.default if setting.default_factory is MISSING else setting.default_factory()
