"""From a federation and an objective to a weight for every training row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from sklearn.base import clone

from fedshift.core.files import atomic_path
from fedshift.core.samples import Float64Array
from fedshift.core.weights import Weighting, Weights
from fedshift.data.federation import Federation
from fedshift.errors import InputError
from fedshift.federation.ledger import Ledger
from fedshift.federation.marginals import FederatedMLLS
from fedshift.learn.objective import Objective

#: estimators by the name a recipe gives them; a class is imported when it is asked for
ESTIMATORS = {
    "auto": "ratio.auto.Auto",
    "bbse": "ratio.label.BBSE",
    "classifier": "ratio.classifier.Classifier",
    "federated-mlls": "federation.marginals.FederatedMLLS",
    "kliep": "ratio.kliep.KLIEP",
    "kmm": "ratio.kmm.KMM",
    "logistic": "ratio.logistic.Logistic",
    "mlls": "ratio.label.MLLS",
    "multi-source": "ratio.multi_source.MultiSource",
    "neural": "ratio.neural.Neural",
    "rlls": "ratio.label.RLLS",
    "rulsif": "ratio.ulsif.RULSIF",
    "ulsif": "ratio.ulsif.ULSIF",
}
LABELLED = ("BBSE", "MLLS", "RLLS")

#: "exact", a name of `ESTIMATORS`, an estimator, or log ratios by client
RatioMethod = str | Any | Mapping[str, npt.ArrayLike]


def weigh(
    federation: Federation,
    ratio: RatioMethod,
    *,
    objective: str | Objective = "ftw",
    weighting: Weighting | None = None,
    seed: int = 0,
    folder: Path | None = None,
    ledger: Ledger | None = None,
) -> dict[str, Weights] | None:
    """Weights of every client's training rows; None for ERM.

    Parameters
    ----------
    ratio : str, estimator or mapping
        "exact", a name of `ESTIMATORS`, an estimator, or log ratios by client.
    objective : str
        See `fedshift.learn.objective.Objective`.
    weighting : Weighting, optional
    seed : int
        Of estimators that are named.
    folder : Path, optional
        Keeps the log ratios, for a run that goes on after it was stopped.
    ledger : Ledger, optional
        Is told what had to leave the clients.
    """
    objective = Objective.of(objective)
    goals = objective.goals(federation)
    if objective.kind == "erm":
        return None
    cache = None if folder is None else folder / "log-ratios.safetensors"
    wanted = _fingerprint(federation, ratio, str(objective), seed)
    ratios = _cached(cache, wanted)
    if ratios is None:
        ratios = log_ratios(federation, ratio, goals, seed=seed)
        if cache is not None:
            tensors = {name: torch.as_tensor(r) for name, r in ratios.items()}
            with atomic_path(cache) as temporary:
                temporary.write_bytes(to_safetensors(tensors, {"fingerprint": wanted}))
    if ledger is not None:
        _record_sharing(federation, ratio, goals, ledger)
    laws = objective.laws(federation)
    weighting = Weighting() if weighting is None else weighting
    return {
        name: weighting(r, laws=laws if goals[name] == "all" else 1) for name, r in ratios.items()
    }


def log_ratios(
    federation: Federation, method: RatioMethod, goals: Mapping[str, str | None], *, seed: int
) -> dict[str, Float64Array]:
    """Log ratios at every client's training rows, 0 for clients without a goal."""
    out = {c.name: np.zeros(len(c.x)) for c in federation}
    asked = {name: goal for name, goal in goals.items() if goal is not None}
    if isinstance(method, Mapping):
        for name in asked:
            out[name] = np.asarray(method[name], dtype=np.float64)
        return out
    if method == "exact":
        return out | {n: federation.exact_log_ratio(n, goal) for n, goal in asked.items()}
    estimator = make_estimator(method, seed=seed) if isinstance(method, str) else method
    if hasattr(estimator, "source_log_ratio"):  # one model for all clients
        known = getattr(estimator, "sources_", None)
        if known is None or sorted(known) != sorted(out):
            estimator = clone(estimator)
            if isinstance(estimator, FederatedMLLS):
                estimator.fit(federation)
            else:
                estimator.fit(source=federation.train, target=federation.test)
        for name, goal in asked.items():
            target = None if goal == "all" else name if goal == "own" else goal
            found = estimator.source_log_ratio(name, target=target)
            if len(found) != len(out[name]):
                raise InputError(
                    f"client {name!r} has {len(out[name])} training rows, but the fitted ratio was "
                    f"fitted on {len(found)}; give an unfitted one, or the same federation"
                )
            out[name] = found
        return out
    for name, goal in asked.items():
        c = federation[name]
        extra = {"source_labels": c.y} if type(estimator).__name__ in LABELLED else {}
        fitted = clone(estimator).fit(source=c.x, target=federation.targets(name, goal), **extra)
        seen = getattr(fitted, "source_log_ratio_", None)  # out of fold, where there is one
        out[name] = np.asarray(fitted.log_ratio(c.x) if seen is None else seen)
    return out


def make_estimator(name: str, *, seed: int, **options: Any) -> Any:
    """An estimator of `ESTIMATORS` by name, with options; imported when it is asked for."""
    module, _, kind = ESTIMATORS[name].rpartition(".")
    made = getattr(import_module(f"fedshift.{module}"), kind)
    given: dict[str, Any] = {"seed": seed} if "seed" in made().get_params() else {}
    if name == "multi-source":
        given["folds"] = 5  # held-out logits calibrate every ratio
    return made(**{**given, **options})


def _record_sharing(
    federation: Federation,
    method: RatioMethod,
    goals: Mapping[str, str | None],
    ledger: Ledger,
) -> None:
    """Test rows that had to leave a client for its neighbours' ratios, in the ledger."""
    quiet = ("exact", "federated-mlls", "multi-source")
    shared = (isinstance(method, str) and method in quiet) or isinstance(method, Mapping)
    if shared or hasattr(method, "source_log_ratio"):
        return
    for name, goal in goals.items():
        for other in federation:
            if other.name != name and goal in ("all", other.name):
                size = other.test_x.nbytes
                ledger.add(other.name, "query.share", up=size, rows=len(other.test_x))
                ledger.add(name, "query.share", down=size)


def _fingerprint(federation: Federation, ratio: RatioMethod, objective: str, seed: int) -> str:
    """What log ratios depend on."""
    if isinstance(ratio, Mapping):
        given = hashlib.blake2b(digest_size=16)
        for name in sorted(ratio):
            given.update(np.ascontiguousarray(ratio[name], dtype=np.float64).tobytes())
        said = given.hexdigest()
    elif isinstance(ratio, str):
        said = ratio
    else:  # repr of an estimator leaves defaults out and shortens what is long
        options = {name: repr(value) for name, value in sorted(ratio.get_params().items())}
        said = f"{type(ratio).__name__} {options}"
    data = hashlib.blake2b(digest_size=16)
    for c in federation:
        for part in (c.x, c.y, c.test_x):
            data.update(np.ascontiguousarray(part).data)
    return json.dumps([objective, said, seed, data.hexdigest()])


def _cached(path: Path | None, wanted: str) -> dict[str, Float64Array] | None:
    if path is None or not path.exists():
        return None
    with safe_open(str(path), framework="pt") as file:
        found = (file.metadata() or {}).get("fingerprint")
    if found != wanted:
        return None
    return {name: t.numpy() for name, t in load_file(str(path)).items()}
