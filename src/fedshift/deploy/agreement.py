"""The agreement of a deployment: one file that server and sites share.

The file holds a recipe with one method and one seed, and a table [deploy]. This file is called the
*task file*.

::

    name = "smoke/flower"               # and the recipe's own tables: data, plan, train, method
    …

    [deploy]
    clients = ["client-1", "client-2", "client-3"]
    shape = [8, 8]                      # shape of one row
    classes = 10                        # number of classes; 1 for regression
    deadline = 120.0                    # seconds that a round waits for replies
    minimum = 2                         # smallest number of replies with which a round is accepted

    [deploy.ratio]                      # fields of fedshift.federation.deployment_task.RatioPhase
    kind = "multi-source"

    [deploy.robust]                     # fields of fedshift.defence.robust.Robust
    clip = "median"

    [deploy.defence]                    # fields of fedshift.defence.ratios.RatioDefence
    winsorise = 0.999

The server and every site have a copy. A site accepts only requests that carry the digest of its own
copy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedshift.core.files import read_toml, write_text
from fedshift.core.samples import Float64Array
from fedshift.data.federation import ClientData, Federation
from fedshift.defence.ratios import RatioDefence
from fedshift.defence.robust import Robust
from fedshift.errors import InputError
from fedshift.experiments.recipe import PLANS, ModelSpec, Recipe, read_plan
from fedshift.experiments.toml_tables import Location, arguments, at, fields_of, make, plain
from fedshift.federation.client_weights import ESTIMATORS
from fedshift.federation.deployment_task import KINDS, POOLED, SHARED, DeploymentTask, RatioPhase
from fedshift.learn.objective import Objective

#: keys of [deploy] that are fields of `DeploymentTask`
_PLAIN = ("clients", "shape", "classes", "minimum", "deadline", "tries")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What server and sites agree on: a recipe, and the settings for its deployment (the task).

    Attributes
    ----------
    recipe : Recipe
        A recipe with one method and one seed.
    job : DeploymentTask
        The task, with settings from the recipe and from the table [deploy].
    """

    recipe: Recipe
    job: DeploymentTask

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        *,
        method: str | None = None,
        seed: int | None = None,
        clients: int | None = None,
        disclosure_level: int | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        **more: Any,
    ) -> Agreement:
        """Make the agreement for a recipe. The recipe's data must be on this machine.

        Parameters
        ----------
        recipe : Recipe
        method, seed : optional
            Method and seed of the recipe to use; by default its first method and its first seed.
        clients : int, optional
            Number of clients to use, from the recipe's first client on; by default all.
        disclosure_level : int, optional
            Upper limit for the disclosure level of the task. A recipe that needs a higher level is
            refused.
            The default limit is the lowest level with which the method can run. With level 3, sites
            send counts of test rows in bins of the log ratio, from which a bound on the weights is
            computed. With level 4, sites share generated rows; with level 5, real ones.
        data_dir : path, optional
            Folder of data sets.
        **more
            Other fields of `DeploymentTask`.

        Raises
        ------
        InputError
            If the recipe cannot be deployed, or needs a higher disclosure level.
        """
        method = recipe.methods[0].name if method is None else method
        one = recipe.narrow(method, recipe.seeds[0] if seed is None else seed)
        federation = _federation(one, data_dir)
        if clients is not None and not 1 <= clients <= len(federation):
            raise InputError(
                f"clients must be 1 to {len(federation)} for recipe {one.name}; got {clients}"
            )
        chosen = tuple(federation)[:clients]
        settings = one.settings(method, one.seeds[0])
        regression = settings.loss != "cross-entropy"
        job = DeploymentTask(
            clients=tuple(c.name for c in chosen),
            shape=chosen[0].x.shape[1:],
            classes=1 if regression else 1 + max(int(c.y.max()) for c in federation),
            ratio=_ratio_phase(one, disclosure_level),
            **_of_settings(one),
            **more,
        )
        _check_disclosure_level(job, disclosure_level)
        return cls(recipe=one, job=job)

    # -- rows ----------------------------------------------------------------------------------

    def rows(
        self, client: str, data_dir: str | os.PathLike[str] | None = None
    ) -> tuple[ClientData, Float64Array | None]:
        """Return a client's rows, and its exact log ratios if the task's ratio kind is "given"."""
        federation = _federation(self.recipe, data_dir)
        if len(self.job.clients) < len(federation):
            federation = Federation(
                tuple(c for c in federation if c.name in self.job.clients), federation.truth
            )
        data = federation[client]
        goal = self.job.goal.goal(client)
        if self.job.ratio.kind != "given" or goal is None:
            return data, None
        return data, np.asarray(federation.exact_log_ratio(client, goal))

    # -- TOML ----------------------------------------------------------------------------------

    def to_toml(self) -> str:
        """Return the text of the task file."""
        job = self.job
        deploy = {n: plain(v) for n in _PLAIN if (v := getattr(job, n)) is not None}
        deploy["ratio"] = _spelled_ratio(job.ratio)
        deploy["robust"] = _off(fields_of(job.robust), job.robust)
        deploy["defence"] = _off(fields_of(job.defence), job.defence)
        return tomli_w.dumps({**self.recipe.to_table(), "deploy": deploy})

    def write(self, path: Path) -> Path:
        """Write the task file completely or not at all."""
        return write_text(path, self.to_toml())

    @classmethod
    def read(cls, path: Path | str) -> Agreement:
        """Read a task file that `write` has written.

        Raises
        ------
        InputError
            If the file is missing, or has a wrong key or value. The error names the place and the
            value that is needed.
        """
        path = Path(path)
        table = read_toml(path, "the agreement")
        place = Location(path.name)
        deploy = table.pop("deploy", None)
        if not isinstance(deploy, Mapping):
            raise place.wrong("deploy", "a table, [deploy]", deploy)
        recipe = Recipe.of(table, place)
        if len(recipe.methods) != 1 or len(recipe.seeds) != 1:
            raise InputError(
                f"{place}: a task file must have one method and one seed; got "
                f"{len(recipe.methods)} and {len(recipe.seeds)}; remove all but one of each"
            )
        method = recipe.methods[0].ratio
        if method.kind == "federated-mlls":
            _without_calibration(method.options, place.under("method"))
        below, table = place.under("deploy"), dict(deploy)
        for name in ("ratio", "robust", "defence"):
            if not isinstance(table.get(name, {}), Mapping):
                raise below.wrong(name, "a table", table[name])
        ratio = _read_ratio(table.pop("ratio", {}), below)
        robust = _read_with_off(Robust, table.pop("robust", {}), below.under("robust"))
        defence = _read_with_off(RatioDefence, table.pop("defence", {}), below.under("defence"))
        job = DeploymentTask(
            **arguments(DeploymentTask, table, below, skip=_others()),
            ratio=ratio,
            robust=robust,
            defence=defence,
            **_of_settings(recipe),
        )
        return cls(recipe=recipe, job=job)

    def __repr__(self) -> str:
        return (
            f"Agreement({self.recipe.name}, {len(self.job.clients)} clients, "
            f"{self.job.objective}, ratios {self.job.ratio.kind}, disclosure level "
            f"{self.job.disclosure_level}, digest {self.job.digest})"
        )


def _others() -> tuple[str, ...]:
    return tuple(n for n in DeploymentTask.__dataclass_fields__ if n not in _PLAIN)


def _federation(recipe: Recipe, data_dir: str | os.PathLike[str] | None) -> Federation:
    return recipe.data.federation(recipe.data.load(data_dir), seed=recipe.seeds[0])


def _of_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a `DeploymentTask` that the recipe sets."""
    s = recipe.settings(recipe.methods[0].name, recipe.seeds[0])
    if s.precision == "bfloat16":
        raise InputError("precision must be float32 or float64 in a deployment; got 'bfloat16'")
    if s.pooling and s.objective != "erm":
        raise InputError(
            "pooling must be 0 in a deployment, because a site does not know the training "
            f"distributions of the other sites; got {s.pooling}; leave pooling out"
        )
    names = ("model", "plan", "loss", "objective", "weighting", "seed", "precision")
    return {n: getattr(s, n) for n in names}


def _check_disclosure_level(job: DeploymentTask, disclosure_level: int | None) -> None:
    if disclosure_level is None:
        return
    if job.disclosure_level > disclosure_level:
        raise InputError(
            f"objective {job.objective!r} with ratios {job.ratio.kind!r} needs disclosure level "
            f"{job.disclosure_level}; got disclosure level {disclosure_level}; set it to "
            f"{job.disclosure_level}, or use a method that needs less"
        )
    if disclosure_level == 3 and not job.ratio.bound:
        raise InputError(
            "disclosure level 3 is only for ratios 'multi-source': sites also send counts of test "
            f"rows in bins, which bound the weights; got ratios {job.ratio.kind!r}, which need "
            f"disclosure level {job.disclosure_level}; set that level, or use another method"
        )


def _ratio_phase(recipe: Recipe, disclosure_level: int | None) -> RatioPhase:
    """Return the ratio phase for a recipe's method at a disclosure level."""
    method, place = recipe.methods[0], Location(recipe.name, "method")
    kind, options = method.ratio.kind, method.ratio.options
    objective = Objective.of(method.objective).kind
    if objective == "erm":
        return RatioPhase(kind="local")
    if kind in SHARED and disclosure_level not in (4, 5):
        bound = kind == "multi-source" and disclosure_level == 3
        if kind == "federated-mlls":
            options = _without_calibration(options, place)
        return _read_ratio({"kind": kind, "bound": bound, **options}, place)
    if kind == "federated-auto" and disclosure_level not in (4, 5):
        raise InputError(
            f"{place}: ratio 'federated-auto' chooses between {' and '.join(map(repr, SHARED))} by "
            "comparing all clients, which a deployment cannot do; name one of the two as the "
            "method's ratio; with 'fedshift deploy check' a site can see which one suits its rows"
        )
    phase = _alone(kind, objective, disclosure_level)
    if options:
        raise InputError(
            f"{place.under('ratio')}: each site fits {phase.estimator!r} with its default "
            f"options; got {', '.join(options)} for {kind!r}; leave these options out"
        )
    return phase


def _without_calibration(options: Mapping[str, Any], place: Location) -> dict[str, Any]:
    """Return options of 'federated-mlls' without its calibration, which must be 'bcts'."""
    rest = dict(options)
    calibration = rest.pop("calibration", "bcts")
    if calibration != "bcts":
        raise InputError(
            f"{place.under('ratio')}: sites of a deployment calibrate by a temperature and a bias "
            "per class ('bcts'), because the sums for another calibration would reveal more of "
            f"their rows; got calibration {calibration!r}; leave calibration out"
        )
    return rest


def _alone(kind: str, objective: str, disclosure_level: int | None) -> RatioPhase:
    """Return the ratio phase in which every site estimates by itself, from its rows or a pool."""
    if disclosure_level in (4, 5):
        alone = kind in ESTIMATORS and kind not in (*KINDS, "federated-auto")
        name = kind if alone else "classifier"
        return RatioPhase(kind=POOLED[disclosure_level - 4], estimator=name)
    if kind == "exact":
        return RatioPhase(kind="given")
    if objective == "fitw":
        return RatioPhase(kind="local", estimator=kind)
    raise InputError(
        f"ratio {kind!r} needs rows of other sites; use 'multi-source' or 'federated-mlls', for "
        "which sites send gradients, or set disclosure level 5, at which sites share rows"
    )


def _spelled_ratio(ratio: RatioPhase) -> dict[str, Any]:
    kind = next(k for k, p in PLANS.items() if type(ratio.plan) is p)
    return {
        **fields_of(ratio, skip=("plan",)),
        "plan": {"kind": kind, **fields_of(ratio.plan, skip=("seed",))},
    }


def _read_ratio(table: Mapping[str, Any], place: Location) -> RatioPhase:
    below, rest = place.under("ratio"), dict(table)
    extra: dict[str, Any] = {}
    if "plan" in rest:
        extra["plan"] = read_plan(rest.pop("plan"), "plan", below)
    if "model" in rest:
        model = ModelSpec.read(rest.pop("model"), "model", below)
        model.check(below)
        extra["model"] = model if model.options else model.kind
    phase: RatioPhase = make(RatioPhase, rest, below, also=("plan", "model"))
    return replace(phase, **extra)


def _off(table: dict[str, Any], value: Any) -> dict[str, Any]:
    """Return a table in which None, which TOML lacks, is "off"."""
    return {**table, **{n: "off" for n in value.__dataclass_fields__ if n not in table}}


def _read_with_off(maker: type[Any], table: Mapping[str, Any], place: Location) -> Any:
    known = maker.__dataclass_fields__
    off = {n: None for n, v in table.items() if v == "off" and n in known}
    value = make(maker, {n: v for n, v in table.items() if n not in off}, place)
    with at(place):
        return replace(value, **off)
