"""What all parties of a deployment agree on, in one file: a recipe of one run and a table of it.

::

    name = "smoke/flower"               # and the recipe's own tables: data, plan, train, method
    …

    [deploy]
    clients = ["client-1", "client-2", "client-3"]
    shape = [8, 8]                      # of a row
    classes = 10
    deadline = 120.0                    # seconds a round waits
    minimum = 2                         # fewest answers that make a round

    [deploy.ratio]                      # fields of fedshift.federation.job.RatioPhase
    kind = "multi-source"

    [deploy.robust]                     # fields of fedshift.defence.robust.Robust
    clip = "median"

    [deploy.defence]                    # fields of fedshift.defence.ratios.RatioDefence
    winsorise = 0.999

Server and sites each have a copy; a site answers only to the digest of its own.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.core.files import write_text
from fedshift.core.samples import Float64Array
from fedshift.data.federation import ClientData, Federation
from fedshift.defence.ratios import RatioDefence
from fedshift.defence.robust import Robust
from fedshift.errors import InputError
from fedshift.experiments.recipe import PLANS, Model, Recipe, read_plan
from fedshift.experiments.spelling import Place, arguments, at, fields_of, make, plain, to_toml
from fedshift.federation.job import KINDS, POOLED, SHARED, Job, RatioPhase
from fedshift.federation.weigh import ESTIMATORS
from fedshift.learn.objective import Objective

#: keys of [deploy] that are fields of `Job`
_PLAIN = ("clients", "shape", "classes", "minimum", "deadline", "tries")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A run of a recipe at a distance.

    Attributes
    ----------
    recipe : Recipe
        With one method and one seed.
    job : Job
        What it comes to.
    """

    recipe: Recipe
    job: Job

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        *,
        method: str | None = None,
        seed: int | None = None,
        clients: int | None = None,
        rung: int | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        **more: Any,
    ) -> Agreement:
        """From a recipe whose data this machine can make: a simulation of a deployment.

        Parameters
        ----------
        method, seed : optional
            The recipe's first by default.
        clients : int, optional
            The first so many of its clients.
        rung : int, optional
            Of the privacy ladder: the highest that the task may need. 3 adds a bound from bin
            counts, 4 and 5 share rows, made up or real.
        **more
            Other fields of `Job`.

        Raises
        ------
        InputError
            If the recipe cannot be run so, or needs a higher rung.
        """
        method = recipe.methods[0].name if method is None else method
        one = recipe.narrow(method, recipe.seeds[0] if seed is None else seed)
        federation = _federation(one, data_dir)
        if clients is not None and not 1 <= clients <= len(federation):
            raise InputError(
                f"recipe {one.name} has {len(federation)} clients; asked for {clients}"
            )
        chosen = tuple(federation)[:clients]
        settings = one.settings(method, one.seeds[0])
        regression = settings.loss != "cross-entropy"
        job = Job(
            clients=tuple(c.name for c in chosen),
            shape=chosen[0].x.shape[1:],
            classes=1 if regression else 1 + max(int(c.y.max()) for c in federation),
            ratio=_ratio_phase(one, rung),
            **_of_settings(one),
            **more,
        )
        _check_rung(job, rung)
        return cls(recipe=one, job=job)

    # -- rows ----------------------------------------------------------------------------------

    def rows(
        self, client: str, data_dir: str | os.PathLike[str] | None = None
    ) -> tuple[ClientData, Float64Array | None]:
        """A client's rows as the recipe deals them, and its log ratios where they are known."""
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
        """The whole file."""
        job = self.job
        deploy = {n: plain(v) for n in _PLAIN if (v := getattr(job, n)) is not None}
        deploy["ratio"] = _spelled_ratio(job.ratio)
        deploy["robust"] = _off(fields_of(job.robust), job.robust)
        deploy["defence"] = _off(fields_of(job.defence), job.defence)
        return to_toml({**self.recipe.to_table(), "deploy": deploy})

    def write(self, path: Path) -> Path:
        """Write it, whole or not at all."""
        return write_text(path, self.to_toml())

    @classmethod
    def read(cls, path: Path | str) -> Agreement:
        """From a file of `write`.

        Raises
        ------
        InputError
            If it is not there or says something that cannot be; where, and what is needed.
        """
        path = Path(path)
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot read the agreement {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path} must be TOML: {error}") from None
        place = Place(path.name)
        deploy = table.pop("deploy", None)
        if not isinstance(deploy, Mapping):
            raise place.wrong("deploy", "a table, [deploy]", deploy)
        recipe = Recipe.of(table, place)
        if len(recipe.methods) != 1 or len(recipe.seeds) != 1:
            raise InputError(f"{place}: an agreement is about one method and one seed")
        told = recipe.methods[0].ratio
        if told.kind == "federated-mlls":
            _without_calibration(told.options, place.under("method"))
        below, given = place.under("deploy"), dict(deploy)
        for name in ("ratio", "robust", "defence"):
            if not isinstance(given.get(name, {}), Mapping):
                raise below.wrong(name, "a table", given[name])
        ratio = _read_ratio(given.pop("ratio", {}), below)
        robust = _read_with_off(Robust, given.pop("robust", {}), below.under("robust"))
        defence = _read_with_off(RatioDefence, given.pop("defence", {}), below.under("defence"))
        job = Job(
            **arguments(Job, given, below, skip=_others()),
            ratio=ratio,
            robust=robust,
            defence=defence,
            **_of_settings(recipe),
        )
        return cls(recipe=recipe, job=job)

    @cached_property
    def digest(self) -> str:
        """What a site that has agreed to this answers to."""
        return self.job.digest

    def __repr__(self) -> str:
        return (
            f"Agreement({self.recipe.name}, {len(self.job.clients)} clients, "
            f"{self.job.objective}, ratios {self.job.ratio.kind}, rung {self.job.rung}, "
            f"digest {self.digest})"
        )


def _others() -> tuple[str, ...]:
    return tuple(n for n in Job.__dataclass_fields__ if n not in _PLAIN)


def _federation(recipe: Recipe, data_dir: str | os.PathLike[str] | None) -> Federation:
    return recipe.data.federation(recipe.data.load(data_dir), seed=recipe.seeds[0])


def _of_settings(recipe: Recipe) -> dict[str, Any]:
    """Fields of a `Job` that the recipe says."""
    s = recipe.settings(recipe.methods[0].name, recipe.seeds[0])
    if s.precision == "bfloat16":
        raise InputError("sites compute in float32 or float64; got precision 'bfloat16'")
    if s.flattenings and s.objective != "erm":
        raise InputError(
            "sites train once, with one exponent of the ratios; got flattenings "
            f"{list(s.flattenings)} to choose from; leave them out, or say the one that a run "
            "chose as weighting.flatten"
        )
    if s.lean and s.objective != "erm":
        raise InputError(
            f"sites weigh their rows alone, without each other's training laws; got lean {s.lean}; "
            "leave it out"
        )
    names = ("model", "plan", "loss", "objective", "weighting", "seed", "precision")
    return {n: getattr(s, n) for n in names}


def _check_rung(job: Job, rung: int | None) -> None:
    if rung is None:
        return
    if job.rung > rung:
        raise InputError(
            f"objective {job.objective!r} with ratios {job.ratio.kind!r} needs rung {job.rung} of "
            f"the privacy ladder; got rung {rung}; say {job.rung}, or take a method that needs less"
        )
    if rung == 3 and not job.ratio.bound:
        raise InputError(
            "rung 3 adds a bound from bin counts to ratios 'multi-source'; got ratios "
            f"{job.ratio.kind!r}, which need rung {job.rung}; say that, or take another method"
        )


def _ratio_phase(recipe: Recipe, rung: int | None) -> RatioPhase:
    """The way to ratios that a recipe's method names, on a rung of the ladder."""
    method, place = recipe.methods[0], Place(recipe.name, "method")
    kind, options = method.ratio.kind, method.ratio.options
    objective = Objective.of(method.objective).kind
    if objective == "erm":
        return RatioPhase(kind="local")
    if kind in SHARED and rung not in (4, 5):
        bound = kind == "multi-source" and rung == 3
        if kind == "federated-mlls":
            options = _without_calibration(options, place)
        return _read_ratio({"kind": kind, "bound": bound, **options}, place)
    if kind == "federated-auto" and rung not in (4, 5):
        raise InputError(
            f"{place}: ratio 'federated-auto' chooses between {' and '.join(map(repr, SHARED))} by "
            "comparing all clients; in a deployment the parties decide: name one of the two as the "
            "method's ratio; 'fedshift deploy look' tells a site which suits its rows"
        )
    phase = _alone(kind, objective, rung)
    if options:
        raise InputError(
            f"{place.under('ratio')}: {phase.estimator!r} is fitted by each site with its "
            f"defaults; got {', '.join(options)} for {kind!r}; leave them out"
        )
    return phase


def _without_calibration(options: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Options of label laws without the calibration, of which sites have one kind."""
    given = dict(options)
    calibration = given.pop("calibration", "bcts")
    if calibration != "bcts":
        raise InputError(
            f"{place.under('ratio')}: sites calibrate by a temperature and biases, because sums "
            f"for a matrix would say much more of a site's rows; got calibration {calibration!r}; "
            "leave it out, or say 'bcts'"
        )
    return given


def _alone(kind: str, objective: str, rung: int | None) -> RatioPhase:
    """Ratios that every site makes by itself, from its own rows or from a pool."""
    if rung in (4, 5):
        alone = kind in ESTIMATORS and kind not in (*KINDS, "federated-auto")
        name = kind if alone else "classifier"
        return RatioPhase(kind=POOLED[rung - 4], estimator=name)
    if kind == "exact":
        return RatioPhase(kind="given")
    if objective == "fitw":
        return RatioPhase(kind="local", estimator=kind)
    raise InputError(
        f"ratio {kind!r} needs other sites' rows; take 'multi-source' or 'federated-mlls', which "
        "send gradients, or say rung 5 to share rows"
    )


def _spelled_ratio(ratio: RatioPhase) -> dict[str, Any]:
    kind = next(k for k, p in PLANS.items() if type(ratio.plan) is p)
    return {
        **fields_of(ratio, skip=("plan",)),
        "plan": {"kind": kind, **fields_of(ratio.plan, skip=("seed",))},
    }


def _read_ratio(table: Mapping[str, Any], place: Place) -> RatioPhase:
    below, given = place.under("ratio"), dict(table)
    extra: dict[str, Any] = {}
    if "plan" in given:
        extra["plan"] = read_plan(given.pop("plan"), "plan", below)
    if "model" in given:
        model = Model.read(given.pop("model"), "model", below)
        model.check(below)
        extra["model"] = model if model.options else model.kind
    made: RatioPhase = make(RatioPhase, given, below, also=("plan", "model"))
    return replace(made, **extra)


def _off(table: dict[str, Any], value: Any) -> dict[str, Any]:
    """TOML has no None: what is switched off says so."""
    return {**table, **{n: "off" for n in value.__dataclass_fields__ if n not in table}}


def _read_with_off(maker: type[Any], table: Mapping[str, Any], place: Place) -> Any:
    known = maker.__dataclass_fields__
    off = {n: None for n, v in table.items() if v == "off" and n in known}
    made = make(maker, {n: v for n, v in table.items() if n not in off}, place)
    with at(place):
        return replace(made, **off)
