"""Ratios under label shift, with nothing but gradients and label marginals leaving a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fedshift.core.label import Calibration, bcts, mlls
from fedshift.core.samples import Float64Array
from fedshift.data.federation import Federation
from fedshift.errors import InputError
from fedshift.federation import draw
from fedshift.federation.fused import Fused
from fedshift.federation.plan import FedSGD, Plan
from fedshift.federation.task import Task
from fedshift.learn.evaluate import predict
from fedshift.learn.models import build


class FederatedMLLS(BaseEstimator):
    r"""r_k = Σ_l q_l(y) / p_k(y) at a training row of label y, with estimated test label laws q_l.

    Under label shift p(x | y) is the same everywhere, so all that is missing are the clients' test
    label laws. Four steps:

    1. All clients train one classifier together for the uniform label law: rows of class y of
       client k weigh 1 / (C p_k(y)), known from its own labels. Gradients leave the clients.
    2. It is calibrated (bias-corrected temperature scaling) on rows kept out of step 1, weighted
       the same way: one temperature and a bias for every class.
    3. Every client finds its test label law of highest likelihood (`fedshift.core.label.mlls`)
       from the calibrated probabilities of its unlabelled test rows.
    4. It sends that law, C numbers, and looks its ratios up by label.

    Fails where p(x | y) differs between clients or between training and use (then the classifier
    of one is no classifier of the other), and for test classes that no client has.

    Parameters
    ----------
    model : str, module or callable
        See `fedshift.learn.models.build`.
    plan : Plan, optional
        Of step 1.
    held_out : float
        Share of training rows that step 2 uses.
    device : str, optional
    seed : int

    Attributes
    ----------
    marginals_ : dict of client to ndarray (C,)
        Estimated test label laws.
    calibration_ : Calibration
    """

    def __init__(
        self,
        *,
        model: str | nn.Module | Callable[[tuple[int, ...], int], nn.Module] = "mlp",
        plan: Plan | None = None,
        held_out: float = 0.2,
        device: str | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.plan = plan
        self.held_out = held_out
        self.device = device
        self.seed = seed

    def fit(self, federation: Federation) -> Self:
        """Train, calibrate, and estimate every client's test label law."""
        if not 0 < self.held_out < 1:
            raise InputError(f"held_out must be a share in (0, 1); got {self.held_out!r}")
        count = 1 + max(int(c.y.max()) for c in federation)
        laws = {c.name: np.bincount(c.y, minlength=count) / len(c.y) for c in federation}
        absent = np.flatnonzero(np.sum(list(laws.values()), axis=0) == 0)
        if len(absent):
            raise InputError(
                f"every class 0 … {count - 1} must occur at some client; got no row of class "
                f"{absent[0]}; renumber the classes"
            )
        kept, held = self._split(federation)
        task = Task.of(
            _part(federation, kept),
            build(self.model, federation[0].x.shape[1:], count, seed=self.seed),
            FedSGD(seed=self.seed) if self.plan is None else self.plan,
            weights={c.name: self._balance(c.y[kept[c.name]], laws[c.name]) for c in federation},
            device=self.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        )
        engine = Fused(task)
        for _ in range(0, task.plan.n_rounds, 500):
            engine.advance(min(500, task.plan.n_rounds - engine.state.round))
        state = engine.state
        models = {c.name: task.module(state, c.name).to(task.x.device) for c in federation}
        self.calibration_ = self._calibrate(federation, held, laws, models)
        self.marginals_: dict[str, Float64Array] = {}
        uniform = np.full(count, 1 / count)
        for c in federation:
            p = self.calibration_(_probabilities(models[c.name], c.test_x))
            self.marginals_[c.name] = mlls(p, uniform).prior
        self.sources_ = [c.name for c in federation]
        self._laws, self._labels = laws, {c.name: c.y for c in federation}
        return self

    def source_log_ratio(self, source: str, *, target: Any = None) -> Float64Array:
        """Log ratio at a client's training rows; `target` names test laws, None means all."""
        check_is_fitted(self, "marginals_")
        names = list(self.marginals_) if target is None else np.atleast_1d(target).tolist()
        top = np.sum([self.marginals_[n] for n in names], axis=0)
        with np.errstate(divide="ignore"):
            table = np.log(top) - np.log(self._laws[source])
        return np.asarray(table[self._labels[source]])

    def _split(self, federation: Federation) -> tuple[dict[str, Any], dict[str, Any]]:
        """Rows that train and rows that calibrate, class by class so that rare ones are in both."""
        kept, held = {}, {}
        for c in federation:
            order = draw.permutation(draw.key(self.seed, "calibration", c.name), 0, len(c.y))
            out = []
            for label in np.unique(c.y):
                own = order[c.y[order] == label]
                out.append(own[: max(int(len(own) > 1), int(self.held_out * len(own)))])
            held[c.name] = np.sort(np.concatenate(out))
            kept[c.name] = np.setdiff1d(np.arange(len(c.y)), held[c.name])
        return kept, held

    @staticmethod
    def _balance(y: Any, law: Float64Array) -> Float64Array:
        return np.asarray(1.0 / (len(law) * law[y]))

    def _calibrate(
        self,
        federation: Federation,
        held: dict[str, Any],
        laws: dict[str, Float64Array],
        models: dict[str, nn.Module],
    ) -> Calibration:
        found, labels, weights = [], [], []
        for c in federation:
            rows = held[c.name]
            found.append(_probabilities(models[c.name], c.x[rows]))
            labels.append(c.y[rows])
            weights.append(self._balance(c.y[rows], laws[c.name]))
        weight = np.concatenate(weights)
        return bcts(np.concatenate(found), np.concatenate(labels), weight=weight / weight.sum())


def _part(federation: Federation, rows: dict[str, Any]) -> Federation:
    return Federation(
        tuple(replace(c, x=c.x[rows[c.name]], y=c.y[rows[c.name]]) for c in federation)
    )


def _probabilities(model: nn.Module, x: Any) -> Float64Array:
    scores = predict(model, torch.as_tensor(x, dtype=torch.float32)).double().cpu().numpy()
    return np.asarray(softmax(scores, axis=1))
