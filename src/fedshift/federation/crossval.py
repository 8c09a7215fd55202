"""A model and its ridge chosen by weighted cross-validation, then trained on all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedshift.core.samples import Float64Array
from fedshift.data.federation import Federation
from fedshift.federation import draw
from fedshift.federation.descent import Descent, book, descend
from fedshift.federation.ledger import Ledger
from fedshift.federation.plan import FedSGD
from fedshift.federation.task import Task
from fedshift.learn.evaluate import per_row, predict
from fedshift.learn.models import MLP, Linear, build

#: models for tables and the ridges each is tried with, from strong to weak
MODELS: dict[str, tuple[Callable[[tuple[int, ...], int], nn.Module], tuple[float, ...]]] = {
    "linear": (Linear, (1.0, 0.1, 0.01, 0.001)),
    "mlp": (partial(MLP, hidden=(32,)), (0.03, 0.01, 0.003)),
}

#: rows from which on a linear model is tried with a weaker ridge too
MANY, WEAK = 1000, 1e-4

Folds = Mapping[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Fit:
    """A model trained on all rows, and what it says of rows it has not seen.

    Attributes
    ----------
    module : Module
        Of the rows as they were given.
    model : str
    ridge : float
        Of lowest weighted cross-validated loss.
    risk : float
        That loss.
    parts : tuple of Module
        Trained without each fold, with the same ridge.
    held_out : mapping of client to ndarray (n_k, C)
        Scores of every training row by the part that has not seen it.
    losses : mapping of client to ndarray (n_k,)
        Of these scores.
    """

    module: nn.Module
    model: str
    ridge: float
    risk: float
    parts: tuple[nn.Module, ...]
    held_out: Mapping[str, Float64Array]
    losses: Mapping[str, Float64Array]

    def __repr__(self) -> str:
        return f"Fit({self.model}, ridge {self.ridge:g}, held-out loss {self.risk:.4g})"


def make_folds(labels: Mapping[str, npt.NDArray[Any]], *, count: int, seed: int) -> Folds:
    """A fold for every row, such that each class is spread evenly over them across all clients.

    A class of which every client has one row is then missing from no fold's training part. Class
    counts leave the clients for it; numbers (regression) count as one class.
    """
    begin: dict[Any, int] = {}
    out = {}
    for name in sorted(labels):
        y = labels[name] if labels[name].dtype.kind in "biu" else np.zeros(len(labels[name]))
        order = draw.permutation(draw.key(seed, "folds", name), 0, len(y))
        out[name] = np.empty(len(y), dtype=np.int64)
        for c in np.unique(y).tolist():
            own = order[y[order] == c]
            first = begin.setdefault(c, len(begin))
            out[name][own] = (first + np.arange(len(own))) % count
            begin[c] = first + len(own)
    return out


def cross_fit(
    federation: Federation,
    weights: Mapping[str, Float64Array] | None,
    fold: Folds,
    *,
    model: str = "linear",
    loss: str = "cross-entropy",
    classes: int,
    ridges: Sequence[float] | None = None,
    seed: int = 0,
    ledger: Ledger | None = None,
    phase: str = "train.model",
) -> Fit:
    """Choose the ridge by weighted cross-validation and train on all rows with it.

    Parameters
    ----------
    federation : Federation
        With scaled columns.
    weights : mapping of client to (n_k,), optional
        All 1 if left out.
    fold : mapping of client to (n_k,)
        Numbers from 0; see `make_folds`. A client all of whose rows are in one sits out there.
    model : {"linear", "mlp"}
    classes : int
        1 in regression.
    """
    make, path = MODELS[model]
    if model == "linear" and sum(len(f) for f in fold.values()) >= MANY:
        path = (*path, WEAK)
    path = path if ridges is None else tuple(ridges)
    ledger = Ledger() if ledger is None else ledger

    def train(keep: Mapping[str, npt.NDArray[np.bool_]], upto: Sequence[float]) -> _Path:
        part = _restricted(federation, weights, keep)
        net = build(make, federation[0].x.shape[1:], classes, seed=seed)
        task = Task.of(part[0], net, FedSGD(), weights=part[1], loss=loss, dtype=torch.float64)
        descents = descend(task, ridges=upto)
        book(ledger, task, descents, phase=phase)
        return _Path(task, descents)

    count = 1 + max(int(f.max()) for f in fold.values())
    parts = [train({n: f != j for n, f in fold.items()}, path) for j in range(count)]
    scores = [_held_out(federation, fold, parts, i, classes) for i in range(len(path))]
    losses = [_losses(federation, s, loss) for s in scores]
    risks = [_risk(found, weights) for found in losses]
    for c in federation:  # sums of losses and of weights, of which these are made
        ledger.add(c.name, phase, up=8 * (len(path) + 1))
    best = int(np.argmin(risks))
    first = 0 if model == "linear" else best  # a linear path starts warm
    everything = {n: np.ones(len(f), dtype=bool) for n, f in fold.items()}
    whole = train(everything, path[first : best + 1])
    return Fit(
        whole.module(-1),
        model,
        path[best],
        risks[best],
        tuple(p.module(best) for p in parts),
        scores[best],
        losses[best],
    )


@dataclass(frozen=True)
class _Path:
    task: Task
    descents: list[Descent]

    def module(self, at: int) -> nn.Module:
        return self.task.module(self.descents[at].state)


def _restricted(
    federation: Federation,
    weights: Mapping[str, Float64Array] | None,
    keep: Mapping[str, npt.NDArray[np.bool_]],
) -> tuple[Federation, dict[str, Float64Array] | None]:
    clients = (
        replace(c, x=c.x[keep[c.name]], y=c.y[keep[c.name]])
        for c in federation
        if keep[c.name].any()
    )
    part = None if weights is None else {n: w[keep[n]] for n, w in weights.items()}
    return Federation(tuple(clients)), part


def _held_out(
    federation: Federation, fold: Folds, parts: Sequence[_Path], at: int, classes: int
) -> dict[str, Float64Array]:
    out = {c.name: np.empty((len(c.x), classes)) for c in federation}
    for j, part in enumerate(parts):
        module = part.module(at)
        for c in federation:
            own = fold[c.name] == j
            if own.any():
                out[c.name][own] = scores_of(module, c.x[own])
    return out


def scores_of(module: nn.Module, x: npt.ArrayLike) -> Float64Array:
    """Scores (n, C) of rows."""
    rows = torch.tensor(np.asarray(x), dtype=torch.float64)
    return np.asarray(predict(module, rows, batch_size=65_536).numpy())


def _losses(
    federation: Federation, scores: Mapping[str, Float64Array], loss: str
) -> dict[str, Float64Array]:
    return {c.name: per_row(scores[c.name], c.y, loss, f"client {c.name!r}")[0] for c in federation}


def _risk(losses: Mapping[str, Float64Array], weights: Mapping[str, Float64Array] | None) -> float:
    """Weighted mean held-out loss; every client counts by its coverage."""
    w = {n: np.ones(len(v)) for n, v in losses.items()} if weights is None else weights
    top = sum(float((w[n] * v).mean()) for n, v in losses.items())
    return top / sum(float(w[n].mean()) for n in losses)
