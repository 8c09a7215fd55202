"""Estimate log ratios at all training rows, and compute importance weights from them."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import logsumexp
from sklearn.base import clone

from fedshift import errors
from fedshift.core.digest import NoFile, digest
from fedshift.core.params import nearest
from fedshift.core.samples import Float64Array
from fedshift.core.threads import threads_for
from fedshift.core.weights import Weighting, Weights, log_share
from fedshift.data.federation import Federation
from fedshift.errors import CheckpointError, FedshiftWarning, InputError, LowCoverage
from fedshift.federation.checkpoint import load, save
from fedshift.federation.ledger import Ledger
from fedshift.federation.marginals import FederatedMLLS, federation_digest, params_of
from fedshift.federation.ratio_selection import FederatedAuto
from fedshift.federation.task import State
from fedshift.learn.objective import Objective

#: estimators by the name a recipe gives them; a class is imported when it is needed
ESTIMATORS = {
    "auto": "ratio.auto.Auto",
    "bbse": "ratio.label.BBSE",
    "classifier": "ratio.classifier.Classifier",
    "federated-auto": "federation.ratio_selection.FederatedAuto",
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
#: raise it when numbers of an estimator change, so that no run reuses older ones
VERSION = 3
#: folder of a run's log ratios, in the run's folder
FOLDER = "log-ratios"

#: "exact", a name of `ESTIMATORS`, an estimator, or log ratios by client
RatioMethod = str | Any | Mapping[str, npt.ArrayLike]


@dataclass(frozen=True, eq=False)
class Ratios:
    """Log ratios of a federation, and the cost of estimating them.

    Attributes
    ----------
    values : dict of client to ndarray (n,)
        Log ratio at each of the client's n training rows.
    ledger : Ledger
        Bytes and rows that left the clients.
    seconds : float
        Duration of the estimation. If the log ratios come from an earlier run, it is the duration
        in the earlier run.
    reason : str
        Why an estimator such as "federated-auto" chose its method; empty for estimators that do not
        choose.
    warnings : tuple of (category, message)
        Warnings that were given during the estimation.
    """

    values: dict[str, Float64Array]
    ledger: Ledger
    seconds: float
    reason: str = ""
    warnings: tuple[tuple[str, str], ...] = ()


def estimate_log_ratios(
    federation: Federation,
    ratio: RatioMethod,
    *,
    objective: str | Objective = "ftw",
    pooling: float = 0.0,
    seed: int = 0,
    device: str | None = None,
    folder: Path | None = None,
    shared: dict[str, Ratios] | None = None,
) -> Ratios | None:
    """Estimate log ratios at every client's training rows; return None for ERM (no weights).

    Parameters
    ----------
    ratio : str, estimator or mapping
        "exact", a name of `ESTIMATORS`, an estimator, log ratios by client, or `Ratios`, which are
        returned as they are.
    objective : str
        See `fedshift.learn.objective.Objective`.
    pooling : float
        Partial pooling of the clients' training rows, from 0 (no pooling) to 1; see
        `fedshift.core.weights.log_share`.
    seed : int
        Seed of an estimator given by name.
    device : str, optional
        Device of an estimator given by name, if it uses torch.
    folder : Path, optional
        Folder in which the log ratios are stored, so that a stopped run can continue.
    shared : dict, optional
        Log ratios of earlier runs in the same process. The key is made from data, estimator with
        its code, objective, pooling and seed. If the dict has log ratios for the key, they are
        returned, and their warnings are given again. New log ratios are added to the dict.

    Only estimated log ratios are stored and shared. Exact ratios are not, because they depend on
    how the federation was built, and its rows do not show this. Estimates are also not stored or
    shared if the code of the estimator stands in no file (`fedshift.core.digest.digest`).
    """
    objective = Objective.of(objective)
    goals = objective.goals(federation)
    objective.check_pooling(pooling)
    if objective.kind == "erm":
        return None
    if isinstance(ratio, Ratios):
        return ratio
    known = isinstance(ratio, Mapping) or (isinstance(ratio, str) and ratio in METHODS)
    if not known and (isinstance(ratio, str | type) or not hasattr(ratio, "get_params")):
        raise InputError(
            f"ratio must be {nearest(ratio, METHODS)}; or pass an estimator of fedshift.ratio, or "
            "a dict of log ratios by client"
        )
    described = f"{objective} pooling {pooling}" if pooling else str(objective)
    kept = folder is not None or shared is not None
    key = _fingerprint(federation, ratio, described, seed) if kept else None
    if key is None:
        return _estimate_with_cost(federation, ratio, goals, pooling, seed, device)
    old = None if folder is None else _read_ratios(Path(folder) / FOLDER, key)
    ratios = old or (shared or {}).get(key)
    if ratios is None:
        ratios = _estimate_with_cost(federation, ratio, goals, pooling, seed, device)
    else:
        for name, message in ratios.warnings:
            warnings.warn(message, getattr(errors, name, FedshiftWarning), stacklevel=2)
    if folder is not None and old is None:
        _write_ratios(Path(folder) / FOLDER, key, ratios)
    if shared is not None:
        shared[key] = ratios
    return ratios


def _estimate_with_cost(
    federation: Federation,
    ratio: RatioMethod,
    goals: Mapping[str, str | None],
    pooling: float,
    seed: int,
    device: str | None,
) -> Ratios:
    """Estimate log ratios, and record bytes, seconds, reason and warnings."""
    ledger, reasons, begin = Ledger(), list[str](), time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = estimate_log_ratios_for(
            federation,
            ratio,
            goals,
            pooling=pooling,
            seed=seed,
            device=device,
            ledger=ledger,
            reasons=reasons,
        )
    spent, messages = time.perf_counter() - begin, []
    for w in caught:  # warn again, under the filters of the caller
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
        if issubclass(w.category, FedshiftWarning):
            messages.append((w.category.__name__, str(w.message)))
    return Ratios(values, ledger, spent, "; ".join(reasons), tuple(messages))


def compute_weights(
    federation: Federation,
    ratios: Ratios,
    objective: str | Objective,
    weighting: Weighting | None = None,
    *,
    pooling: float = 0.0,
) -> dict[str, Weights]:
    """Compute the importance weights of every client's rows from their log ratios.

    `pooling` must have the value with which the log ratios were estimated.
    """
    objective = Objective.of(objective)
    goals, n_targets = objective.goals(federation), objective.n_targets(federation)
    weighting = Weighting() if weighting is None else weighting
    covered = None
    if pooling and weighting.normalise != "none":
        raise InputError(
            f"with pooling={pooling}, the clients' mean weights differ on purpose; got normalise="
            f"{weighting.normalise!r}, which changes them; set normalise='none' or pooling=0"
        )
    if pooling:  # the rows of all clients cover the target together
        means = [logsumexp(r) - np.log(len(r)) for r in ratios.values.values()]
        covered = min(
            1.0, float(np.exp(min(0.0, logsumexp(means) - np.log(len(means) * n_targets))))
        )
    return {
        name: compute_client_weights(
            name,
            r,
            weighting,
            (n_targets if goals[name] == "all" else 1) * (len(federation) if pooling else 1),
            covered,
        )
        for name, r in ratios.values.items()
    }


def compute_client_weights(
    name: str,
    log_ratio: Float64Array,
    weighting: Weighting,
    n_targets: int,
    coverage: float | None = None,
) -> Weights:
    """Compute a client's weights from its log ratios.

    `n_targets` and `coverage` are passed to `weighting`. If the density ratio is 0 at all training
    rows, all weights are 0, and a `LowCoverage` warning is given.
    """
    if (log_ratio == -np.inf).all():
        warnings.warn(
            f"client {name!r}: no training row can occur under its target distribution (all ratios "
            "are 0), so its rows get weight 0; leave it out, or check its rows and labels",
            LowCoverage,
            stacklevel=3,
        )
        return Weights(np.zeros(len(log_ratio)), 0.0, 0.0)
    try:
        return weighting(log_ratio, n_targets=n_targets, coverage=coverage)
    except InputError as error:
        raise InputError(f"client {name!r}: {error}") from error


def estimate_log_ratios_for(
    federation: Federation,
    method: RatioMethod,
    goals: Mapping[str, str | None],
    *,
    pooling: float = 0.0,
    seed: int = 0,
    device: str | None = None,
    ledger: Ledger | None = None,
    reasons: list[str] | None = None,
) -> dict[str, Float64Array]:
    """Estimate log ratios of every client's target to its training distribution.

    Clients without a target get log ratio 0 at every row.

    Parameters
    ----------
    goals : mapping of client to "all", "own", a client or None
        Target of every client's ratios: all test distributions together ("all"), the client's own
        test distribution ("own"), or the test distribution of a named client. With None, every row
        of the client gets weight 1.
    pooling : float
        If above 0, the log shares of partial pooling (`fedshift.core.weights.log_share`) are added
        to the log ratios.
    seed, device
        Seed and device of an estimator given by name.
    ledger : Ledger, optional
        Ledger to which the bytes and rows that leave the clients are added.
    reasons : list of str, optional
        "federated-auto" appends the reason for its choice to this list.
    """
    ledger = Ledger() if ledger is None else ledger
    out = {c.name: np.zeros(len(c.x)) for c in federation}
    targets = {name: goal for name, goal in goals.items() if goal is not None}
    if pooling and (isinstance(method, Mapping) or not _knows_densities(method)):
        raise InputError(
            "pooling needs every client's training distribution, which this ratio does not give; "
            "take 'exact', 'federated-auto', 'federated-mlls' or 'multi-source', or set pooling=0"
        )
    if isinstance(method, Mapping):
        return out | _check_ratios(federation, method, targets)
    if isinstance(method, str) and method == "exact":
        out |= {n: federation.exact_log_ratio(n, goal) for n, goal in targets.items()}
        if not pooling:
            return out
        return _add_shares(out, federation.exact_log_densities, list(out), pooling)
    estimator = method
    if isinstance(method, str):
        estimator = make_estimator(method, seed=seed, device=device)
    if hasattr(estimator, "source_log_ratio"):  # one model for all clients
        estimator = _fit(estimator, federation, ledger)
        if reasons is not None and isinstance(estimator, FederatedAuto):
            reasons.append(estimator.reason_)
        with threads_for(sum(c.x.size + c.test_x.size for c in federation)):
            for name, goal in targets.items():
                target = None if goal == "all" else name if goal == "own" else goal
                out[name] = estimator.source_log_ratio(name, target=target)
        if not pooling:
            return out
        if hasattr(estimator, "marginals_") and not getattr(estimator, "pooling", 0.0):
            size = 8 * len(estimator.marginals_[federation[0].name])
            for c in federation:  # if explanations were compared, the server knows distributions
                up = 0 if getattr(estimator, "explanations_", None) else size
                ledger.add(c.name, "query.describe", up=up, down=size * len(federation))
        return _add_shares(out, estimator.source_log_densities, estimator.sources_, pooling)
    _record_sharing(federation, targets, ledger)
    for name, goal in targets.items():
        c = federation[name]
        extra = {"source_labels": c.y} if getattr(estimator, "takes_labels", False) else {}
        fitted = clone(estimator).fit(source=c.x, target=federation.targets(name, goal), **extra)
        held_out = getattr(fitted, "source_log_ratio_", None)  # out of fold, where there is one
        out[name] = np.asarray(fitted.log_ratio(c.x) if held_out is None else held_out)
    return out


def _knows_densities(method: Any) -> bool:
    """Whether a method gives log densities of training distributions, up to a term of the row."""
    if isinstance(method, str):
        return method == "exact" or hasattr(
            type(make_estimator(method, seed=0)), "source_log_densities"
        )
    return hasattr(method, "source_log_densities")


def _add_shares(
    log_ratio: Mapping[str, Float64Array],
    distributions: Callable[[str], Float64Array],
    order: Sequence[str],
    pooling: float,
) -> dict[str, Float64Array]:
    """Log ratios plus each client's log share; `order` names the columns of `distributions`."""
    return {
        name: r + log_share(distributions(name), list(order).index(name), pooling)
        for name, r in log_ratio.items()
    }


def _check_ratios(
    federation: Federation, ratios: Mapping[str, npt.ArrayLike], targets: Mapping[str, str]
) -> dict[str, Float64Array]:
    """The user's log ratios, after checks of names and shapes."""
    for name in ratios:
        _ = federation[name]  # raises for an unknown client
    out = {}
    for name in targets:
        if name not in ratios:
            raise InputError(f"ratio must hold log ratios of every client; got none for {name!r}")
        r = np.asarray(ratios[name], dtype=np.float64)
        n = len(federation[name].x)
        if r.shape != (n,):
            raise InputError(
                f"ratio: client {name!r} needs {n} log ratios, one per training row; got "
                f"shape {r.shape}"
            )
        out[name] = r
    return out


def _fit(estimator: Any, federation: Federation, ledger: Ledger) -> Any:
    """The estimator if it was fitted on this very federation, else a fitted copy."""
    if isinstance(estimator, FederatedAuto | FederatedMLLS):
        fit_of = getattr(estimator, "digest_", None), getattr(estimator, "params_", None)
        if fit_of != (federation_digest(federation), params_of(estimator)):
            estimator = clone(estimator).fit(federation)
        ledger.merge(estimator.ledger_)
        return estimator
    distributions = {"source": federation.train, "target": federation.test}
    if not (hasattr(estimator, "fitted_on") and estimator.fitted_on(**distributions)):
        estimator = clone(estimator).fit(**distributions)
    ledger.record_steps(  # as if trained in a federation
        federation.train,
        steps=getattr(estimator, "n_steps_", 0),
        parameters=getattr(estimator, "n_parameters_", 0),
    )
    return estimator


def make_estimator(name: str, *, seed: int, device: str | None = None, **options: Any) -> Any:
    """Make an estimator of `ESTIMATORS` from its name and options."""
    module, _, kind = ESTIMATORS[name].rpartition(".")
    make = getattr(import_module(f"fedshift.{module}"), kind)
    takes = make().get_params()
    fixed = {n: v for n, v in (("seed", seed), ("device", device)) if n in takes}
    if name == "multi-source":
        fixed["folds"] = 5  # held-out logits calibrate every ratio
    return make(**{**fixed, **options})


def _record_sharing(federation: Federation, goals: Mapping[str, str], ledger: Ledger) -> None:
    """Book the test rows that leave a client for other clients' ratios."""
    for other in federation:
        readers = [
            n for n, goal in goals.items() if n != other.name and goal in ("all", other.name)
        ]
        if readers:
            size = other.test_x.nbytes
            ledger.add(other.name, "query.share", up=size, rows=len(other.test_x))
            for name in readers:
                ledger.add(name, "query.share", down=size)


def _fingerprint(federation: Federation, ratio: Any, objective: str, seed: int) -> str | None:
    """A key of all that estimated log ratios depend on; None if they depend on more than that."""
    if isinstance(ratio, Mapping) or (isinstance(ratio, str) and ratio == "exact"):
        return None
    estimator = make_estimator(ratio, seed=seed) if isinstance(ratio, str) else ratio
    try:  # parameters too: a default may change
        code = digest(str(ratio) if estimator is not ratio else "", estimator)
    except NoFile:
        return None
    return json.dumps([VERSION, objective, code, seed, federation_digest(federation)])


def _read_ratios(folder: Path, key: str) -> Ratios | None:
    """Stored log ratios and their cost, if the key matches; else None."""
    try:
        saved = load(folder, expect={"ratios": key})
    except CheckpointError:  # damaged, or of other settings: estimate again
        return None
    if saved is None:
        return None
    state, notes = saved
    values = {name: t.numpy() for name, t in state.tensors.items()}
    messages = tuple((name, message) for name, message in notes["warnings"])
    ledger = Ledger.from_records(notes["ledger"])
    return Ratios(values, ledger, notes["seconds"], notes["reason"], messages)


def _write_ratios(folder: Path, key: str, ratios: Ratios) -> None:
    tensors = {name: torch.as_tensor(r) for name, r in ratios.values.items()}
    notes = {
        "ledger": ratios.ledger.to_records(),
        "seconds": ratios.seconds,
        "reason": ratios.reason,
        "warnings": ratios.warnings,
    }
    save(folder, State(0, tensors), notes, fingerprint={"ratios": key})
