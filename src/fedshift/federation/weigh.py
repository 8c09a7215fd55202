"""From a federation and an objective to a weight for every training row."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from scipy.special import logsumexp
from sklearn.base import clone
from torch import nn

from fedshift import errors
from fedshift.core.digest import digest
from fedshift.core.files import atomic_path
from fedshift.core.params import nearest
from fedshift.core.samples import Float64Array
from fedshift.core.weights import Weighting, Weights, log_share
from fedshift.data.federation import Federation
from fedshift.errors import FedshiftWarning, InputError, LowCoverage
from fedshift.federation.choice import FederatedAuto
from fedshift.federation.ledger import Ledger
from fedshift.federation.marginals import FederatedMLLS, asked, federation_digest
from fedshift.learn.objective import Objective

#: estimators by the name a recipe gives them; a class is imported when it is asked for
ESTIMATORS = {
    "auto": "ratio.auto.Auto",
    "bbse": "ratio.label.BBSE",
    "classifier": "ratio.classifier.Classifier",
    "federated-auto": "federation.choice.FederatedAuto",
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
METHODS = ("exact", *ESTIMATORS)
#: of the estimators: raise it when their numbers change, so that no run takes older ones
VERSION = 3
#: file of a run's log ratios
KEPT = "log-ratios.safetensors"
LABELLED = ("BBSE", "MLLS", "RLLS")

#: "exact", a name of `ESTIMATORS`, an estimator, or log ratios by client
RatioMethod = str | Any | Mapping[str, npt.ArrayLike]


@dataclass(frozen=True, eq=False)
class Ratios:
    """Log ratios of a federation, and what it took to get them.

    Attributes
    ----------
    values : dict of client to ndarray (n,)
    ledger : Ledger
        What had to leave the clients.
    seconds : float
        Of the estimation, whenever that was.
    reason : str
        Why an estimator that chooses chose as it did; empty for others.
    warnings : tuple of (category, message)
        That came up.
    """

    values: dict[str, Float64Array]
    ledger: Ledger
    seconds: float
    reason: str = ""
    warnings: tuple[tuple[str, str], ...] = ()


def estimate(
    federation: Federation,
    ratio: RatioMethod,
    *,
    objective: str | Objective = "ftw",
    lean: float = 0.0,
    seed: int = 0,
    device: str | None = None,
    folder: Path | None = None,
    borrow: Iterable[Path] = (),
) -> Ratios | None:
    """Log ratios at every client's training rows; None for ERM.

    Parameters
    ----------
    ratio, objective, lean, seed, device
        See `weigh`.
    folder : Path, optional
        Keeps the log ratios, for a run that goes on after it was stopped.
    borrow : paths
        Folders of other runs. Log ratios of the same data, estimator, objective and seed are taken
        from there instead of being estimated again; warnings of the estimation come again.

    Only estimates are kept: exact ratios hang on the builder of the federation, which rows do not
    tell, and those of an estimator with a function in it on what that function does.
    """
    objective = Objective.of(objective)
    goals = objective.goals(federation)
    objective.check_lean(lean)
    if objective.kind == "erm":
        return None
    known = isinstance(ratio, Mapping) or (isinstance(ratio, str) and ratio in METHODS)
    if not known and (isinstance(ratio, str | type) or not hasattr(ratio, "get_params")):
        raise InputError(
            f"ratio must be {nearest(ratio, METHODS)}; or an estimator of fedshift.ratio, or log "
            "ratios by client"
        )
    keeps = _is_told(ratio)
    own = Path(folder) / KEPT if folder is not None and keeps else None
    places = [*([] if own is None else [own]), *(Path(b) / KEPT for b in borrow if keeps)]
    asked = f"{objective} lean {lean}" if lean else str(objective)
    wanted = _fingerprint(federation, ratio, asked, seed) if places else ""
    there = ((place, _kept(place, wanted)) for place in places)
    place, found = next((pair for pair in there if pair[1] is not None), (None, None))
    if found is None:
        found = _estimated(federation, ratio, goals, lean, seed, device)
    else:
        for name, message in found.warnings:
            warnings.warn(message, getattr(errors, name, FedshiftWarning), stacklevel=2)
    if own is not None and place != own:
        _keep(own, wanted, found)
    return found


def _estimated(
    federation: Federation,
    ratio: RatioMethod,
    goals: Mapping[str, str | None],
    lean: float,
    seed: int,
    device: str | None,
) -> Ratios:
    """Log ratios as they are estimated now."""
    ledger, reasons, begin = Ledger(), list[str](), time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = log_ratios(
            federation,
            ratio,
            goals,
            lean=lean,
            seed=seed,
            device=device,
            ledger=ledger,
            reasons=reasons,
        )
    spent, told = time.perf_counter() - begin, []
    for w in caught:  # as the caller wants them
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
        if issubclass(w.category, FedshiftWarning):
            told.append((w.category.__name__, str(w.message)))
    return Ratios(values, ledger, spent, "; ".join(reasons), tuple(told))


def weigh(
    federation: Federation,
    ratio: RatioMethod,
    *,
    objective: str | Objective = "ftw",
    lean: float = 0.0,
    weighting: Weighting | None = None,
    seed: int = 0,
    device: str | None = None,
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
    lean : float
        How far clients lean on each other's training rows (`fedshift.core.weights.log_share`).
    weighting : Weighting, optional
    seed : int
        Of estimators that are named.
    device : str, optional
        Where estimators that are named compute, if they use torch.
    folder : Path, optional
        Keeps the log ratios, for a run that goes on after it was stopped.
    ledger : Ledger, optional
        Is told what had to leave the clients.
    """
    found = estimate(
        federation, ratio, objective=objective, lean=lean, seed=seed, device=device, folder=folder
    )
    if found is None:
        return None
    if ledger is not None:
        ledger.merge(found.ledger)
    return weighted(federation, found, objective, weighting, lean=lean)


def weighted(
    federation: Federation,
    ratios: Ratios,
    objective: str | Objective,
    weighting: Weighting | None = None,
    *,
    lean: float = 0.0,
) -> dict[str, Weights]:
    """Weights from log ratios, of clients that lean on each other or not."""
    objective = Objective.of(objective)
    goals, laws = objective.goals(federation), objective.laws(federation)
    weighting = Weighting() if weighting is None else weighting
    covered = None
    if lean and weighting.normalise != "none":
        raise InputError(
            "lean gives clients unequal parts of the target, which normalise='mean one' would undo;"
            " take normalise='none' or lean 0"
        )
    if lean:  # rows of all clients stand for the target together
        means = [logsumexp(r) - np.log(len(r)) for r in ratios.values.values()]
        covered = min(1.0, float(np.exp(min(0.0, logsumexp(means) - np.log(len(means) * laws)))))
    return {
        name: weights_of(name, r, weighting, laws if goals[name] == "all" else 1, covered)
        for name, r in ratios.values.items()
    }


def weights_of(
    name: str,
    log_ratio: Float64Array,
    weighting: Weighting,
    laws: int,
    coverage: float | None = None,
) -> Weights:
    """A client's weights; all 0, with a warning, where its rows cannot stand for the target."""
    if (log_ratio == -np.inf).all():
        warnings.warn(
            f"no training row of client {name!r} lies where its target law has mass; its rows "
            "count 0; leave it out, or look at its labels",
            LowCoverage,
            stacklevel=3,
        )
        return Weights(np.zeros(len(log_ratio)), 0.0, 0.0)
    try:
        return weighting(log_ratio, laws=laws, coverage=coverage)
    except InputError as error:
        raise InputError(f"client {name!r}: {error}") from error


def log_ratios(
    federation: Federation,
    method: RatioMethod,
    goals: Mapping[str, str | None],
    *,
    lean: float = 0.0,
    seed: int = 0,
    device: str | None = None,
    ledger: Ledger | None = None,
    reasons: list[str] | None = None,
) -> dict[str, Float64Array]:
    """Log ratios at every client's training rows, 0 for clients without a goal.

    Parameters
    ----------
    lean : float
        Of clients on each other: adds `fedshift.core.weights.log_share`.
    seed, device
        Of estimators that are named.
    ledger : Ledger, optional
        Is told what had to leave the clients.
    reasons : list of str, optional
        Is told why an estimator of all clients chose as it did.
    """
    ledger = Ledger() if ledger is None else ledger
    out = {c.name: np.zeros(len(c.x)) for c in federation}
    asked = {name: goal for name, goal in goals.items() if goal is not None}
    if lean and (isinstance(method, Mapping) or not _knows_laws(method)):
        raise InputError(
            "lean compares clients' training laws with each other, which these ratios do not tell; "
            "take 'exact', 'federated-auto', 'federated-mlls' or 'multi-source', or lean 0"
        )
    if isinstance(method, Mapping):
        return out | _given(federation, method, asked)
    if isinstance(method, str) and method == "exact":
        out |= {n: federation.exact_log_ratio(n, goal) for n, goal in asked.items()}
        return _leaned(out, federation.exact_log_laws, list(out), lean)
    estimator = method
    if isinstance(method, str):
        estimator = make_estimator(method, seed=seed, device=device)
    if hasattr(estimator, "source_log_ratio"):  # one model for all clients
        estimator = _fitted(estimator, federation, ledger)
        if reasons is not None and isinstance(estimator, FederatedAuto):
            reasons.append(estimator.reason_)
        for name, goal in asked.items():
            target = None if goal == "all" else name if goal == "own" else goal
            out[name] = estimator.source_log_ratio(name, target=target)
        if lean and hasattr(estimator, "marginals_") and not getattr(estimator, "lean", 0.0):
            told = bool(getattr(estimator, "explanations_", None))  # to compare explanations
            _record_laws(federation, len(estimator.marginals_[federation[0].name]), ledger, told)
        return _leaned(out, estimator.source_log_laws, estimator.sources_, lean) if lean else out
    _record_sharing(federation, asked, ledger)
    for name, goal in asked.items():
        c = federation[name]
        extra = {"source_labels": c.y} if type(estimator).__name__ in LABELLED else {}
        fitted = clone(estimator).fit(source=c.x, target=federation.targets(name, goal), **extra)
        seen = getattr(fitted, "source_log_ratio_", None)  # out of fold, where there is one
        out[name] = np.asarray(fitted.log_ratio(c.x) if seen is None else seen)
    return out


def _knows_laws(method: Any) -> bool:
    """Whether it tells log densities of training laws, up to a term of the row."""
    if isinstance(method, str):
        return method == "exact" or hasattr(type(make_estimator(method, seed=0)), "source_log_laws")
    return hasattr(method, "source_log_laws")


def _leaned(
    log_ratio: Mapping[str, Float64Array],
    laws: Callable[[str], Float64Array],
    order: Sequence[str],
    lean: float,
) -> dict[str, Float64Array]:
    """Log ratios with every client's share; `order` names the columns of `laws`."""
    if not lean:
        return dict(log_ratio)
    return {
        name: r + log_share(laws(name), list(order).index(name), lean)
        for name, r in log_ratio.items()
    }


def _record_laws(federation: Federation, classes: int, ledger: Ledger, told: bool) -> None:
    """Every client's training label law leaves it, if it was not told yet, and reaches all."""
    up, down = 0 if told else 8 * classes, 8 * classes * len(federation)
    for c in federation:
        ledger.add(c.name, "query.describe", up=up, down=down)


def _given(
    federation: Federation, ratios: Mapping[str, npt.ArrayLike], asked: Mapping[str, str]
) -> dict[str, Float64Array]:
    """Log ratios as the user has them, checked."""
    for name in ratios:
        _ = federation[name]  # an unknown one is named
    out = {}
    for name in asked:
        if name not in ratios:
            raise InputError(f"ratio must hold log ratios of every client; none for {name!r}")
        r = np.asarray(ratios[name], dtype=np.float64)
        n = len(federation[name].x)
        if r.shape != (n,):
            raise InputError(
                f"ratio: client {name!r} needs {n} log ratios, one a training row; got shape "
                f"{r.shape}"
            )
        out[name] = r
    return out


def _fitted(estimator: Any, federation: Federation, ledger: Ledger) -> Any:
    """The estimator if it was fitted on this federation as it is now, else a fitted copy."""
    if isinstance(estimator, FederatedAuto | FederatedMLLS):
        there = getattr(estimator, "digest_", None), getattr(estimator, "asked_", None)
        if there != (federation_digest(federation), asked(estimator)):
            estimator = clone(estimator).fit(federation)
        ledger.merge(estimator.ledger_)
        return estimator
    laws = {"source": federation.train, "target": federation.test}
    if not (hasattr(estimator, "fitted_on") and estimator.fitted_on(**laws)):
        estimator = clone(estimator).fit(**laws)
    ledger.record_steps(  # as if trained in a federation
        federation.train,
        steps=getattr(estimator, "n_steps_", 0),
        parameters=getattr(estimator, "n_parameters_", 0),
    )
    return estimator


def make_estimator(name: str, *, seed: int, device: str | None = None, **options: Any) -> Any:
    """An estimator of `ESTIMATORS` by name, with options; imported when it is asked for."""
    module, _, kind = ESTIMATORS[name].rpartition(".")
    made = getattr(import_module(f"fedshift.{module}"), kind)
    takes = made().get_params()
    given = {n: v for n, v in (("seed", seed), ("device", device)) if n in takes}
    if name == "multi-source":
        given["folds"] = 5  # held-out logits calibrate every ratio
    return made(**{**given, **options})


def _record_sharing(federation: Federation, goals: Mapping[str, str], ledger: Ledger) -> None:
    """Test rows that have to leave a client for its neighbours' ratios, in the ledger."""
    for other in federation:
        readers = [
            n for n, goal in goals.items() if n != other.name and goal in ("all", other.name)
        ]
        if readers:
            size = other.test_x.nbytes
            ledger.add(other.name, "query.share", up=size, rows=len(other.test_x))
            for name in readers:
                ledger.add(name, "query.share", down=size)


def _is_told(ratio: RatioMethod) -> bool:
    """Whether ratios are estimates, and their name or parameters tell all they depend on."""
    if isinstance(ratio, str | Mapping):
        return isinstance(ratio, str) and ratio != "exact"
    given = ratio.get_params().values()
    code = FunctionType | MethodType | BuiltinFunctionType | type
    return not any(isinstance(v, code) for v in given)


def _fingerprint(federation: Federation, ratio: Any, objective: str, seed: int) -> str:
    """What estimated log ratios depend on."""
    named = isinstance(ratio, str)
    made = make_estimator(ratio, seed=seed) if named else ratio  # a default may change
    # repr of an estimator leaves defaults out and shortens what is long
    options = {name: repr(value) for name, value in sorted(_options(made).items())}
    said = f"{ratio if named else type(ratio).__name__} {options}"
    return json.dumps([VERSION, objective, said, seed, federation_digest(federation)])


def _options(estimator: Any) -> dict[str, Any]:
    """Parameters of an estimator, networks with the numbers in them."""
    found: dict[str, Any] = estimator.get_params() if hasattr(estimator, "get_params") else {}
    for name, value in found.items():
        if isinstance(value, nn.Module):
            found[name] = f"{value!r} {digest('', value.state_dict().values())}"
    return found


def _kept(path: Path, wanted: str) -> Ratios | None:
    """Log ratios of an earlier run and what they cost, if they are the ones wanted."""
    try:
        with safe_open(str(path), framework="pt") as file:
            notes = file.metadata() or {}
        if notes.get("fingerprint") != wanted:
            return None
        tensors = load_file(str(path))
    except (SafetensorError, OSError):  # damaged, not there or just removed: estimate
        return None
    ledger = Ledger.from_records(json.loads(notes["ledger"]))
    values = {name: t.numpy() for name, t in tensors.items()}
    told = tuple((name, message) for name, message in json.loads(notes["warnings"]))
    return Ratios(values, ledger, float(notes["seconds"]), notes["reason"], told)


def _keep(path: Path, fingerprint: str, ratios: Ratios) -> None:
    tensors = {name: torch.as_tensor(r) for name, r in ratios.values.items()}
    notes = {
        "fingerprint": fingerprint,
        "ledger": json.dumps(ratios.ledger.to_records()),
        "seconds": repr(ratios.seconds),
        "reason": ratios.reason,
        "warnings": json.dumps(ratios.warnings),
    }
    with atomic_path(path) as temporary:
        temporary.write_bytes(to_safetensors(tensors, notes))
