"""Log ratios and weights of a site's own rows, from what the federation shares with the site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import logsumexp, softmax
from sklearn.base import clone
from torch import nn

from fedshift.core.label import FLOOR, mlls
from fedshift.core.samples import Float64Array
from fedshift.core.scaling import Calibration, bcts_sums
from fedshift.core.weights import Weights
from fedshift.data.federation import ClientData, Federation
from fedshift.defence.ratios import defend_log_ratios, label_log_ratios
from fedshift.federation.client_weights import (
    compute_client_weights,
    estimate_log_ratios_for,
    make_estimator,
)
from fedshift.federation.deployment_task import DeploymentTask, Stage
from fedshift.federation.marginals import balanced, folds_of
from fedshift.federation.messages import Fact, MessageError
from fedshift.federation.task import State, Task, mean_by_client
from fedshift.learn.evaluate import predict
from fedshift.privacy.generate import GaussianMixtureSampler
from fedshift.privacy.vae import VAESampler


class MultiSourceClient:
    r"""A site's work for a classifier that tells all clients' training and test rows apart.

    There are K clients. Training rows of client k have label k, its test rows have label K + k, and
    both distributions have the same total weight. The logits s of the classifier are log densities
    up to a common term. With p_k^tr and p_k^te the training and test density of client k,

    .. math:: \log \sum_l p_l^{te}(x) / p_k^{tr}(x) = \log \sum_l e^{s_{K+l}(x)} - s_k(x).

    Attributes
    ----------
    limited : list of str
        Clients whose test distributions exceeded the limits of the task's `defence` in the last
        call of `log_ratio`, so that their ratios were reduced to these limits.
    """

    limited: list[str]

    def __init__(self, job: DeploymentTask, data: ClientData) -> None:
        self.job, self.data, self.limited = job, data, []
        self.k = job.clients.index(data.name)
        self._train, self._test = len(data.x), len(data.test_x)
        self.y = np.repeat([self.k, len(job.clients) + self.k], [self._train, self._test])
        self.x = np.concatenate([data.x, data.test_x])
        n = len(self.x)
        self.weight = np.repeat(
            [n / (2 * self._train), n / (2 * self._test)], [self._train, self._test]
        )
        self.fold = folds_of(data.name, self.y, job.ratio.folds, seed=job.seed)

    def task(self, stage: Stage, fold: int) -> Task:
        """Return the training task on all folds but one, or on all rows if there is one fold."""
        use = (self.fold != fold) | (stage.folds == 1)
        rows = replace(self.data, x=self.x[use], y=self.y[use])
        return stage.own(rows, self.weight[use], fold)

    def log_ratio(self, models: Sequence[nn.Module], client: str | None = None) -> Float64Array:
        """Return log ratios of the training rows, each from a model trained without the row.

        Parameters
        ----------
        models : sequence of Module
            One per fold.
        client : str, optional
            Client whose test distribution is the numerator. By default the numerator is the sum of
            all clients' test distributions, each within the limits of the task's `defence`.

        Returns
        -------
        array (n,)
        """
        logits = self._logits(models)[: self._train]
        if client is not None:
            return self._difference(logits, self.k, client)
        distributions = {c: self._difference(logits, self.k, c) for c in self.job.clients}
        log_ratio, report = defend_log_ratios(distributions, self.job.defence)
        self.limited = report.limited
        return log_ratio

    def scores(self, models: Sequence[nn.Module]) -> Float64Array:
        """Return log Σ_l p_l^te / p_k^tr at the site's m test rows, a column per client k, (m, K).

        p_l^te is client l's test density, p_k^tr client k's training density.
        """
        logits = self._logits(models)[self._train :]
        return np.stack(
            [self._difference(logits, k, None) for k in range(len(self.job.clients))], axis=1
        )

    def _difference(self, logits: Float64Array, k: int, client: str | None) -> Float64Array:
        count = len(self.job.clients)
        targets = range(count) if client is None else [self.job.clients.index(client)]
        top = logsumexp(logits[:, [count + c for c in targets]], axis=1)
        return np.asarray(top - logits[:, k])

    def _logits(self, models: Sequence[nn.Module]) -> Float64Array:
        out = np.empty((len(self.x), 2 * len(self.job.clients)))
        for j, model in enumerate(models):
            rows = self.fold == j
            out[rows] = _scores(model, self.x[rows])
        return out


class LabelShiftClient:
    """A site's work for a classifier of labels, its calibration, and test label distributions.

    `fedshift.federation.marginals.FederatedMLLS` computes the same in one process if its
    calibration is "bcts". Sites do not use the calibration "matrix", because its sums would reveal
    much more of their rows. In shapes, C is the number of classes.

    Attributes
    ----------
    limited : list of str
        Names, such as "distribution 2 of 5", of the test label distributions that exceeded the
        limits of the task's `defence` in the last call of `log_ratio`, so that their ratios were
        reduced to these limits.
    """

    limited: list[str]

    def __init__(self, job: DeploymentTask, data: ClientData) -> None:
        self.job, self.data, self.limited = job, data, []
        self.weight = balanced(data.y, job.classes)
        self.fold = folds_of(data.name, data.y, job.ratio.folds, seed=job.seed)
        self.distribution = np.bincount(data.y, minlength=job.classes) / len(data.y)

    def task(self, stage: Stage, fold: int) -> Task:
        """Return the training task on all folds but one."""
        use = self.fold != fold
        rows = replace(self.data, x=self.data.x[use], y=self.data.y[use])
        return stage.own(rows, self.weight[use], fold)

    def presence(self, least: int = 1) -> npt.NDArray[np.bool_]:
        """Return which classes have at least max(`least`, 1) rows to calibrate with, (C,)."""
        y = self.data.y[self.fold >= 0]
        return np.asarray(np.bincount(y, minlength=self.job.classes) >= max(1, least))

    def predict(self, models: Sequence[nn.Module]) -> None:
        """Store class probabilities of training and test rows.

        The probabilities of a training row are from the model that was trained without this row.
        For test rows, the probabilities of every model are stored.
        """
        out = np.empty((len(self.data.y), self.job.classes))
        for j, model in enumerate(models):
            rows = self.fold == j
            if rows.any():
                out[rows] = softmax(_scores(model, self.data.x[rows]), axis=1)
        self.held_out = out
        self.test = [softmax(_scores(m, self.data.test_x), axis=1) for m in models]

    def calibrate(
        self, theta: Float64Array, n_sites: Float64Array, least: int = 1
    ) -> tuple[float, Float64Array, Float64Array]:
        """Return loss, gradient and curvature (Hessian) of the calibration.

        All three are computed from the rows of the classes that this site reported (`presence`).
        A class that no site reported has no rows from which to estimate its bias. This class is
        left out of the softmax, and its bias stays as it is.

        Parameters
        ----------
        theta : array (C + 1,)
            1 / temperature, then the biases.
        n_sites : array (C,)
            How many sites reported each class.
        least : int
            As in `presence`.
        """
        known = np.flatnonzero(n_sites > 0)
        slope, curve = np.zeros(len(theta)), np.zeros((len(theta), len(theta)))
        own = (self.fold >= 0) & self.presence(least)[self.data.y]
        if not own.any() or len(known) < 2:
            return 0.0, slope, curve
        y = self.data.y[own]
        weight = (self.weight / len(self.data.y))[own]
        # all classes have the same total weight: each has 1 / C, shared by the sites that have it
        total = np.bincount(y, weight, minlength=self.job.classes)
        scaled = weight / np.where(total > 0, total, 1.0)[y] / n_sites[y] / len(known)
        if len(known) == self.job.classes:
            return bcts_sums(self.held_out[own], y, scaled, theta)
        p, at = np.maximum(self.held_out[own][:, known], FLOOR), np.concatenate([[0], 1 + known])
        p /= p.sum(axis=1, keepdims=True)
        loss, slope[at], curve[np.ix_(at, at)] = bcts_sums(
            p, np.searchsorted(known, y), scaled, theta[at]
        )
        return loss, slope, curve

    def test_distribution(self, theta: Float64Array) -> Float64Array:
        """Return the estimated label distribution of the site's unlabelled test rows, (C,)."""
        calibration = Calibration(float(1 / theta[0]), theta[1:])
        uniform = np.full(self.job.classes, 1 / self.job.classes)
        mean = np.mean([calibration(p) for p in self.test], axis=0)
        return np.asarray(mlls(mean, uniform).prior)

    def log_ratio(self, distributions: Float64Array) -> Float64Array:
        """Return log ratios of the training rows, towards the sum of test label distributions.

        Each row of `distributions` (L, C) is one of these L label distributions. Ratios beyond the
        limits of the task's `defence` are reduced to these limits.
        """
        count = len(distributions)
        named = {f"distribution {i + 1} of {count}": row for i, row in enumerate(distributions)}
        log_ratios, _ = label_log_ratios(named, self.distribution, self.data.y)
        log_ratio, report = defend_log_ratios(log_ratios, self.job.defence)
        self.limited = report.limited
        return log_ratio


def sampler_of(job: DeploymentTask) -> Any:
    """Return a model that generates rows: a mixture for tables, a small autoencoder for images."""
    return GaussianMixtureSampler() if len(job.shape) == 1 else VAESampler()


def pooled_log_ratio(
    job: DeploymentTask, data: ClientData, pool: Any, n_targets: int
) -> Float64Array:
    """Return log ratios of the training rows, from a pool of test rows.

    The pool has the same number of rows of each of `n_targets` test distributions. Generated rows
    are easy to distinguish from real ones. So if the pool is generated, the source is generated
    too, by a sampler of the same kind that is fitted to the training rows. The artefacts of
    generated source and generated pool then cancel in the ratio.
    """
    source = data.x
    if job.ratio.kind == "generated":
        fitted_sampler = sampler_of(job).fit(data.x, seed=job.seed)
        source = fitted_sampler.sample(max(len(data.x), job.ratio.quota), seed=job.seed)
    estimator = clone(make_estimator(job.ratio.estimator, seed=job.seed))
    extra = {"source_labels": data.y} if getattr(estimator, "takes_labels", False) else {}
    estimator.fit(source=source, target=pool, **extra)
    log_ratio = getattr(estimator, "source_log_ratio_", None) if source is data.x else None
    if log_ratio is None:
        log_ratio = estimator.log_ratio(data.x)
    return np.asarray(np.asarray(log_ratio, dtype=np.float64) + np.log(n_targets))


def local_log_ratio(job: DeploymentTask, data: ClientData) -> Float64Array:
    """Return log ratios of the training rows, towards the site's own test rows. Nothing is sent."""
    alone, goals = Federation((data,)), {data.name: "own"}
    return estimate_log_ratios_for(alone, job.ratio.estimator, goals, seed=job.seed)[data.name]


def compute_site_weights(
    job: DeploymentTask, data: ClientData, log_ratio: Float64Array, bound: float | None = None
) -> Weights:
    """Return the weights of a site's rows by the task's `Weighting`, at most `bound` if set.

    If test distributions come from other sites, the task's defence also clips the weights at a
    quantile and demands a smallest effective sample size. If the `Weighting` sets
    these values itself, its values are used instead.
    """
    weighting = job.weighting
    if bound is not None:
        clip: Any = weighting.clip
        weighting = replace(weighting, clip=bound if clip is None else min(bound, clip))
    if job.ratio.kind not in ("given", "local"):
        weighting = job.defence.weighting(len(data.x), weighting)
    n_targets = len(job.clients) if job.goal.goal(data.name) == "all" else 1
    return compute_client_weights(data.name, log_ratio, weighting, n_targets)


def weight_facts(job: DeploymentTask, weights: Float64Array) -> dict[str, Fact]:
    """Return what a site sends about its weights: the exact mean, and the share ESS / n.

    ESS is the effective sample size, and n the number of rows. The mean has to be exact. It divides
    the site's local loss and is also the site's weight in the mean over all sites, so any other
    number would train another model.
    """
    top = float(np.square(weights).sum())
    ess = float(weights.sum() ** 2 / top) if top > 0 else 0.0
    kind = torch.float64 if job.precision == "float64" else torch.float32
    mean = mean_by_client(torch.as_tensor(weights, dtype=kind), np.array([0, len(weights)]))[0]
    return {"mean_weight": float(mean), "ess_share": round(ess / len(weights), 3)}


def models_of(stage: Stage, arrays: Mapping[str, Any]) -> list[nn.Module]:
    """Return the trained models of all folds, from the arrays that the server sent.

    Raises
    ------
    MessageError
        If parameters or BatchNorm statistics are missing or have another shape.
    """
    out = []
    for j in range(stage.folds):
        task = stage.blank(j)
        out.append(task.module(State(0, sent_state(task, arrays, j))))
    return out


def sent_state(task: Task, arrays: Mapping[str, Any], fold: int = 0) -> dict[str, torch.Tensor]:
    """Return a state with the parameters and shared BatchNorm statistics that the server sent.

    Raises
    ------
    MessageError
        If parameters or statistics are missing or have another shape.
    """
    out = {n: t for n, t in task.begin().tensors.items() if not n.startswith("mean_")}
    local = {"stats"} if task.plan.norm == "local" else set()
    for name in {"params", "stats"} & set(out) - local:
        out[name] = read_tensor(arrays, f"{fold}/{name}", out[name])
    return out


def read_tensor(arrays: Mapping[str, Any], name: str, like: torch.Tensor) -> torch.Tensor:
    """Return an array of a message as a tensor with the shape and type of `like`.

    Raises
    ------
    MessageError
        If the array is missing or has another shape.
    """
    array = arrays.get(name)
    if array is None or array.shape != tuple(like.shape):
        got = "nothing" if array is None else f"shape {array.shape}"
        raise MessageError(f"array {name} must have shape {tuple(like.shape)}; got {got}")
    return torch.tensor(array).to(like)


def _scores(model: nn.Module, x: Any) -> Float64Array:
    return np.asarray(predict(model, x).double().numpy())
