"""The task of a deployment: everything that server and sites agree on before a run."""

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
from fedshift.federation.client_weights import ESTIMATORS
from fedshift.federation.messages import digest
from fedshift.federation.plan import FedAvg, Plan
from fedshift.federation.task import Task
from fedshift.learn.models import build
from fedshift.learn.objective import Objective

Model = str | nn.Module | Callable[[tuple[int, ...], int], nn.Module]
#: kinds of ratio estimation, and the disclosure level that each needs
KINDS = {
    "given": 0,
    "local": 0,
    "multi-source": 2,
    "federated-mlls": 2,
    "generated": 4,
    "raw": 5,
}
#: kinds for which the clients train a model together
SHARED = ("multi-source", "federated-mlls")
#: kinds that need rows of other sites
POOLED = ("generated", "raw")


_TINY = 5e-324
#: raised by one when a default changes, which the digest would not show
_DEFAULTS = 2


@dataclass(frozen=True, kw_only=True)
class RatioPhase:
    """How sites estimate the density ratios of their training rows.

    Attributes
    ----------
    kind : str
        The ratio kind, which is the way of estimating the density ratios:

        - "given": the site knows the ratios, as in an experiment with a known shift.
        - "local": each site estimates its ratios from its own test rows; for objective "fitw".
        - "multi-source": all clients train a classifier that tells from which client's training or
          test distribution a row comes. Gradients leave a site.
        - "federated-mlls": for label shift. All clients train a classifier of the labels. Gradients
          and test label distributions leave a site.
        - "generated", "raw": every site receives a pool of test rows of all sites, generated or
          real.
    model : name, module or callable
        Model of the classifier that the clients train together.
    plan : Plan
        Plan by which the clients train the classifier.
    folds : int
        Number of classifiers. Each row gets its weight from the classifier that was trained without
        this row. With 1, a single classifier is trained on all rows and computes all weights.
    bound : bool
        Whether to cut weights at a bound, which is estimated from counts of each site's test rows
        in bins of the log ratio (disclosure level 3).
    estimator : str
        Estimator for the kinds "local", "generated" and "raw": a name in
        `fedshift.federation.client_weights.ESTIMATORS`.
    quota : int
        Number of rows that a site adds to a pool.
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
                "RatioPhase: all clients take part in every round and share all parameters; got "
                f"participation={self.plan.participation}, norm={self.plan.norm!r} in its plan; "
                "leave participation out and use another norm than 'local'"
            )
        alone = tuple(n for n in ESTIMATORS if not n.startswith("federated-"))
        one_of(self, "estimator", alone)
        if self.kind == "multi-source" and self.plan.importance == "logits":
            raise InputError(
                "RatioPhase: importance='logits' needs rows of every client, and a site has only "
                "its own training and test rows; use importance='loss' or 'sampling' in its plan"
            )
        if self.bound and self.kind != "multi-source":
            raise InputError(f"RatioPhase: bound=True needs kind 'multi-source'; got {self.kind!r}")
        if self.kind == "federated-mlls" and self.folds < 2:
            raise InputError(
                "RatioPhase: kind 'federated-mlls' calibrates on held-out rows and needs folds ≥ "
                f"2; got {self.folds}"
            )


@dataclass(frozen=True, kw_only=True)
class DeploymentTask:
    """The task of a deployment: everything that server and sites agree on.

    In code this object is called `job`, because `task` is the name of a
    `fedshift.federation.task.Task`: one model to train.

    Attributes
    ----------
    clients : tuple of str
        Names of all clients that may take part, in an order that all sites use.
    shape : tuple of int
        Shape of a row.
    classes : int
        Number of classes; 1 for regression.
    model, plan, loss, objective, weighting, seed
        As in `fedshift.Settings`.
    ratio : RatioPhase
        How sites estimate density ratios.
    robust : Robust
        How the server combines updates.
    defence : RatioDefence
        Limits of the influence that any single test distribution has on a site's weights. They
        apply to ratio kinds in which the weights depend on test distributions of other sites.
    minimum : int, optional
        Smallest number of valid replies with which a round is accepted; by default half of the
        requests.
    deadline : float
        Seconds that a round waits for replies.
    tries : int
        How many times a round is tried before the run stops because of too few replies.
    precision : {"float32", "float64"}
        Type of all numbers in training.
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
            raise InputError(
                f"clients must be one or more different names; got {list(self.clients)}"
            )
        self.plan.check_loss(self.loss)
        if self.minimum is not None and self.minimum > len(self.clients):
            raise InputError(
                f"minimum must be at most the number of clients, {len(self.clients)}; got "
                f"{self.minimum}"
            )
        if objective.client is not None and objective.client not in self.clients:
            raise InputError(
                f"objective: the client must be {nearest(objective.client, self.clients)}"
            )
        if self.ratio.kind == "local" and objective.kind not in ("erm", "fitw"):
            raise InputError(
                "ratio kind 'local' uses only a site's own test rows and needs objective 'fitw'; "
                f"got {self.objective!r}; use ratio kind 'multi-source'"
            )
        if self.ratio.bound and objective.kind != "ftw":
            raise InputError(
                "ratio bound=True needs objective 'ftw' (target: all test distributions); got "
                f"objective {self.objective!r}; limit weights with Weighting(clip=…) instead"
            )
        if self.ratio.kind == "federated-mlls" and self.loss != "cross-entropy":
            raise InputError(
                f"ratio kind 'federated-mlls' needs classes; got {self.loss!r}; use 'multi-source'"
            )
        if "rows" in (self.plan.average_by, self.ratio.plan.average_by):
            raise InputError(
                "average_by='rows' needs every client's number of training rows, which the server "
                "of a deployment does not know; use average_by='clients', or give these numbers "
                "as client_weights"
            )
        if self.plan.norm == "synchronous":
            raise InputError(
                "norm='synchronous' needs an exchange of messages at every layer, which a "
                "deployment does not have; use norm='averaged', 'local' or 'group'"
            )
        if self.plan.norm == "local" and self.plan.average > 0:
            raise InputError(
                "average must be 0 with norm='local', because the server cannot average parameters "
                f"that stay at the sites; got average={self.plan.average}; use average=0, or "
                "norm='averaged' or 'group'"
            )

    @property
    def goal(self) -> Objective:
        """The objective, parsed."""
        return Objective.of(self.objective)

    @property
    def weighs(self) -> bool:
        """Whether rows get importance weights."""
        return self.goal.kind != "erm"

    @property
    def disclosure_level(self) -> int:
        """The disclosure level that the policy of a site must allow for this task."""
        if not self.weighs:
            return 0
        return max(KINDS[self.ratio.kind], 3 if self.ratio.bound else 0)

    @cached_property
    def digest(self) -> str:
        """A hash of the whole task. A site accepts only requests with the digest of its own task.

        Settings at their defaults are left out of the hash. A newer version of fedshift may have
        an additional setting. As long as this setting has its default, the newer version computes
        the same digest as an older version.
        """
        return digest([_DEFAULTS, {**_spelled(self), "": "Job"}])  # the class was called so

    def stage(self, name: str) -> Stage:
        """Return the stage of a phase: "ratio" (the ratio model) or "model" (the shared model)."""
        if name == "model":
            plan = self.plan.with_seed(self.seed)
            return Stage(self, "model", self.model, self.classes, plan, 1, self.loss)
        distributions = 2 * len(self.clients)
        classes = distributions if self.ratio.kind == "multi-source" else self.classes
        plan = replace(self.ratio.plan, seed=(self.ratio.plan.seed or 0) + self.seed)
        return Stage(self, "ratio", self.ratio.model, classes, plan, self.ratio.folds)


@dataclass(frozen=True)
class Stage:
    """A model that is trained in rounds, with one training task per fold."""

    job: DeploymentTask
    name: str
    model: Model
    classes: int
    plan: Plan
    folds: int
    loss: Literal["cross-entropy", "squared"] = "cross-entropy"

    @property
    def phase(self) -> str:
        """Phase of the stage's messages, a key of `fedshift.federation.messages.PHASES`."""
        return f"train.{self.name}"

    def blank(self, fold: int = 0) -> Task:
        """Return the server's training task: it has all clients' names, but not their rows."""
        one = np.zeros((1, *self.job.shape), dtype=np.float32)
        y = np.zeros(1, dtype=np.float64 if self.loss == "squared" else np.int64)
        clients = tuple(ClientData(n, one, y, one) for n in self.job.clients)
        return self._task(Federation(clients), self.plan, None, fold)

    def own(self, data: ClientData, weights: Any, fold: int = 0) -> Task:
        """Return a site's training task, with its own rows only."""
        # the only client of a task must have a positive part; one this small changes nothing
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
        """Return the largest size of a reply that is accepted, in bytes.

        It is more than twice the size of a valid reply.
        """
        task = self.blank()
        return self.folds * (2 * max(task.bytes_up(), task.bytes_down()) + 4096)


def _spelled(value: Any) -> Any:
    """Return dataclasses as tables of what differs from the defaults, for a hash."""
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
    """Return the default of a field; MISSING, which equals no value, if it has none."""
    return setting.default if setting.default_factory is MISSING else setting.default_factory()
