"""Choose the ridge penalty by weighted cross-validation, then train with it on all rows."""

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

#: models for tables, each with the ridge penalties to try, from strong to weak
MODELS: dict[str, tuple[Callable[[tuple[int, ...], int], nn.Module], tuple[float, ...]]] = {
    "linear": (Linear, (1.0, 0.1, 0.01, 0.001)),
    "mlp": (partial(MLP, hidden=(32,)), (0.03, 0.01, 0.003)),
}

#: rows from which a linear model also tries a weaker ridge
MANY, WEAK = 1000, 1e-4

Folds = Mapping[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class CrossFittedModel:
    """A model trained on all rows, with held-out scores from cross-validation.

    C is the number of classes, and n_k the number of training rows of client k.

    Attributes
    ----------
    module : Module
        Model trained on all rows with the penalty `ridge`.
    model : str
        Name of the model in `MODELS`.
    ridge : float
        Ridge penalty with the lowest weighted cross-validated loss.
    risk : float
        Weighted cross-validated loss with the penalty `ridge`.
    parts : tuple of Module
        One model for each fold, trained without the rows of this fold, with the penalty `ridge`.
    held_out : mapping of client to ndarray (n_k, C)
        Scores of every training row from the model in `parts` that was trained without the row.
    losses : mapping of client to ndarray (n_k,)
        Loss of every training row, computed from its held-out scores.
    """

    module: nn.Module
    model: str
    ridge: float
    risk: float
    parts: tuple[nn.Module, ...]
    held_out: Mapping[str, Float64Array]
    losses: Mapping[str, Float64Array]

    def __repr__(self) -> str:
        return f"CrossFittedModel({self.model}, ridge {self.ridge:g}, risk {self.risk:.4g})"


def make_folds(labels: Mapping[str, npt.NDArray[Any]], *, count: int, seed: int) -> Folds:
    """Assign every row to one of `count` folds.

    The rows of each class, of all clients together, are spread evenly over the folds. So it is
    enough if each client has one row of a class: whichever fold is held out, the other folds still
    have rows of this class. For this, clients send their class counts. In regression, all rows
    count as one class.
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
    rounds: int = 300,
    seed: int = 0,
    ledger: Ledger | None = None,
    phase: str = "train.model",
) -> CrossFittedModel:
    """Choose the ridge penalty by weighted cross-validation, then train with it on all rows.

    Parameters
    ----------
    federation : Federation
        Its feature columns should have similar scales, because the penalty is the same for all.
    weights : mapping of client to (n_k,), optional
        Importance weights of the n_k training rows of every client; all 1 by default.
    fold : mapping of client to (n_k,)
        Fold of every row, numbered from 0; see `make_folds`. A client whose rows are all in one
        fold takes no part in training the model that leaves this fold out.
    model : {"linear", "mlp"}
    classes : int
        Number of classes; 1 in regression.
    ridges : sequence of float, optional
        Penalties to try, from strong to weak. By default the penalties of the model in `MODELS`; a
        linear model with 1,000 rows or more also tries 1e-4.
    rounds : int
        Largest number of rounds for each penalty.
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
        descents = descend(task, ridges=upto, rounds=rounds)
        book(ledger, task, descents, phase=phase)
        return _Path(task, descents)

    count = 1 + max(int(f.max()) for f in fold.values())
    parts = [train({n: f != j for n, f in fold.items()}, path) for j in range(count)]
    scores = [_held_out(federation, fold, parts, i, classes) for i in range(len(path))]
    losses = [_losses(federation, s, loss) for s in scores]
    risks = [_risk(values, weights) for values in losses]
    for c in federation:  # sums of losses and of weights, from which the risks follow
        ledger.add(c.name, phase, up=8 * (len(path) + 1))
    best = int(np.argmin(risks))
    first = 0 if model == "linear" else best  # a linear path starts from the ridge before
    everything = {n: np.ones(len(f), dtype=bool) for n, f in fold.items()}
    whole = train(everything, path[first : best + 1])
    return CrossFittedModel(
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
    part = None if weights is None else {n: weights[n][rows] for n, rows in keep.items()}
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
    """Return the scores of n rows for C classes, (n, C)."""
    return np.asarray(predict(module, x, batch_size=65_536).numpy())


def _losses(
    federation: Federation, scores: Mapping[str, Float64Array], loss: str
) -> dict[str, Float64Array]:
    return {c.name: per_row(scores[c.name], c.y, loss, f"client {c.name!r}")[0] for c in federation}


def _risk(losses: Mapping[str, Float64Array], weights: Mapping[str, Float64Array] | None) -> float:
    """Weighted mean held-out loss; a client's weight is its coverage."""
    w = {n: np.ones(len(v)) for n, v in losses.items()} if weights is None else weights
    top = sum(float((w[n] * v).mean()) for n, v in losses.items())
    return top / sum(float(w[n].mean()) for n in losses)
