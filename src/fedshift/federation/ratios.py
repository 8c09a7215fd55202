"""What a site does to weigh its own rows, given what the federation shares with it."""

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
from fedshift.federation.job import Job, Stage
from fedshift.federation.marginals import balanced, folds_of
from fedshift.federation.messages import Fact, MessageError
from fedshift.federation.task import State, Task, mean_by_client
from fedshift.federation.weigh import LABELLED, log_ratios, make_estimator, weights_of
from fedshift.learn.evaluate import predict
from fedshift.privacy.generate import GaussianMixtureSampler
from fedshift.privacy.vae import VAESampler

IntArray = npt.NDArray[np.int64]


class Laws:
    r"""A site's part in a classifier of all laws: rows of its two laws, and what they weigh.

    Client k's training rows have label k, its test rows K + k, and both laws count alike.
    The logits s of the classifier are log densities up to a common term, so

    .. math:: \log \sum_l p_l(x) / p_k(x) = \log \sum_l e^{s_{K+l}(x)} - s_k(x).

    Attributes
    ----------
    limited : list of str
        Whose laws the last `log_ratio` kept within limits.
    """

    limited: list[str]

    def __init__(self, job: Job, data: ClientData) -> None:
        self.job, self.data, self.limited = job, data, []
        self.k = job.clients.index(data.name)
        self._train, self._test = len(data.x), len(data.test_x)
        self.y = np.repeat([self.k, len(job.clients) + self.k], [self._train, self._test])
        self.x = np.concatenate([data.x, data.test_x])
        n = len(self.x)
        self.weight = np.repeat(
            [n / (2 * self._train), n / (2 * self._test)], [self._train, self._test]
        )
        self.fold = _folds(data.name, self.y, job)

    def task(self, stage: Stage, fold: int) -> Task:
        """Training without one fold."""
        kept = _kept(self.fold, fold, stage.folds)
        rows = replace(self.data, x=self.x[kept], y=self.y[kept])
        return stage.own(rows, self.weight[kept], fold)

    def log_ratio(self, models: Sequence[nn.Module], client: str | None = None) -> Float64Array:
        """At the site's training rows, each by a model that has not seen it.

        Parameters
        ----------
        client : str, optional
            Whose test law is in the numerator; by default the sum over all, each law within the
            limits of the job's defence.
        """
        logits = self._logits(models)[: self._train]
        if client is not None:
            return self._difference(logits, self.k, client)
        laws = {c: self._difference(logits, self.k, c) for c in self.job.clients}
        found, report = defend_log_ratios(laws, self.job.defence)
        self.limited = report.limited
        return found

    def scores(self, models: Sequence[nn.Module]) -> Float64Array:
        """Log ratio Σ_l p_l / p_k of the site's test rows, one column for every k, (m, K)."""
        logits = self._logits(models)[self._train :]
        return np.stack(
            [self._difference(logits, k, None) for k in range(len(self.job.clients))], axis=1
        )

    def _difference(self, logits: Float64Array, k: int, client: str | None) -> Float64Array:
        count = len(self.job.clients)
        wanted = range(count) if client is None else [self.job.clients.index(client)]
        top = logsumexp(logits[:, [count + c for c in wanted]], axis=1)
        return np.asarray(top - logits[:, k])

    def _logits(self, models: Sequence[nn.Module]) -> Float64Array:
        out = np.empty((len(self.x), 2 * len(self.job.clients)))
        for j, model in enumerate(models):
            rows = _held(self.fold, j, len(models))
            out[rows] = _scores(model, self.x[rows], self.job)
        return out


class Labels:
    """A site's part in a classifier of the labels, its calibration, and its own test label law.

    See `fedshift.federation.marginals.FederatedMLLS`, which is this in one process if it calibrates
    by "bcts": sums for a matrix would say much more of a site's rows.

    Attributes
    ----------
    limited : list of str
        Laws that the last `log_ratio` kept within limits, by their place among those given.
    """

    limited: list[str]

    def __init__(self, job: Job, data: ClientData) -> None:
        self.job, self.data, self.limited = job, data, []
        self.weight = balanced(data.y, job.classes)
        self.fold = folds_of(data.name, data.y, job.ratio.folds, seed=job.seed)
        self.law = np.bincount(data.y, minlength=job.classes) / len(data.y)

    def task(self, stage: Stage, fold: int) -> Task:
        """Training without one fold."""
        kept = self.fold != fold
        rows = replace(self.data, x=self.data.x[kept], y=self.data.y[kept])
        return stage.own(rows, self.weight[kept], fold)

    def presence(self, least: int = 1) -> npt.NDArray[np.bool_]:
        """Classes of which the site has rows to calibrate with, `least` of them and one."""
        seen = self.data.y[self.fold >= 0]
        return np.asarray(np.bincount(seen, minlength=self.job.classes) >= max(1, least))

    def read(self, models: Sequence[nn.Module]) -> None:
        """Keep what the models say about rows they have not seen, and about test rows."""
        out = np.empty((len(self.data.y), self.job.classes))
        for j, model in enumerate(models):
            rows = self.fold == j
            if rows.any():
                out[rows] = softmax(_scores(model, self.data.x[rows], self.job), axis=1)
        self.seen = out
        self.used = [softmax(_scores(m, self.data.test_x, self.job), axis=1) for m in models]

    def calibrate(
        self, theta: Float64Array, having: Float64Array, least: int = 1
    ) -> tuple[float, Float64Array, Float64Array]:
        """Loss, slope and curvature of the calibration, by rows of classes that were told.

        `having`: sites that told each class; `least`: as in `presence`. A class that nobody told
        has no rows to find its bias from: it is left out of the softmax, and its bias stays.
        """
        told = np.flatnonzero(having > 0)
        slope, curve = np.zeros(len(theta)), np.zeros((len(theta), len(theta)))
        own = (self.fold >= 0) & self.presence(least)[self.data.y]
        if not own.any() or len(told) < 2:
            return 0.0, slope, curve
        y = self.data.y[own]
        weight = (self.weight / len(self.data.y))[own]
        # all classes start alike, over all sites: each has 1 / C of every site that has it
        total = np.bincount(y, weight, minlength=self.job.classes)
        scaled = weight / np.where(total > 0, total, 1.0)[y] / having[y] / len(told)
        if len(told) == self.job.classes:
            return bcts_sums(self.seen[own], y, scaled, theta)
        p, at = np.maximum(self.seen[own][:, told], FLOOR), np.concatenate([[0], 1 + told])
        p /= p.sum(axis=1, keepdims=True)
        loss, slope[at], curve[np.ix_(at, at)] = bcts_sums(
            p, np.searchsorted(told, y), scaled, theta[at]
        )
        return loss, slope, curve

    def test_law(self, theta: Float64Array) -> Float64Array:
        """Of the site's unlabelled test rows, (C,)."""
        calibration = Calibration(float(1 / theta[0]), theta[1:])
        uniform = np.full(self.job.classes, 1 / self.job.classes)
        mean = np.mean([calibration(p) for p in self.used], axis=0)
        return np.asarray(mlls(mean, uniform).prior)

    def log_ratio(self, laws: Float64Array) -> Float64Array:
        """At the training rows, the test label laws (L, C) being summed, each within limits."""
        named = {f"law {i + 1} of {len(laws)}": law for i, law in enumerate(laws)}
        told, _ = label_log_ratios(named, self.law, self.data.y)
        found, report = defend_log_ratios(told, self.job.defence)
        self.limited = report.limited
        return found


def sampler_of(job: Job) -> Any:
    """A model to make up rows with: a mixture for tables, a small autoencoder for images."""
    return GaussianMixtureSampler() if len(job.shape) == 1 else VAESampler()


def pooled_log_ratio(job: Job, data: ClientData, pool: Any, laws: int) -> Float64Array:
    """At the training rows, from one pool with as many rows of each of `laws` test laws.

    Made-up rows are easily told from real ones. Where the pool is made up, the source is so too,
    by a sampler of the same kind fitted to the training rows, and what sets both apart cancels.
    """
    source = data.x
    if job.ratio.kind == "generated":
        fitted_sampler = sampler_of(job).fit(data.x, seed=job.seed)
        source = fitted_sampler.sample(max(len(data.x), job.ratio.quota), seed=job.seed)
    made = make_estimator(job.ratio.estimator, seed=job.seed)
    extra = {"source_labels": data.y} if type(made).__name__ in LABELLED else {}
    fitted = clone(made).fit(source=source, target=pool, **extra)
    seen = None if source is not data.x else getattr(fitted, "source_log_ratio_", None)
    found = fitted.log_ratio(data.x) if seen is None else seen
    return np.asarray(np.asarray(found, dtype=np.float64) + np.log(laws))


def local_log_ratio(job: Job, data: ClientData) -> Float64Array:
    """At the training rows, towards the site's own test rows; nothing is shared."""
    estimator = make_estimator(job.ratio.estimator, seed=job.seed)
    found = log_ratios(Federation((data,)), estimator, {data.name: "own"}, seed=job.seed)
    return found[data.name]


def site_weights(
    job: Job, data: ClientData, log_ratio: Float64Array, bound: float | None = None
) -> Weights:
    """Weights of a site's rows as the job's `Weighting` makes them, cut at a bound if there is.

    Where test laws come from others, the job's defence adds a quantile and a floor on the
    effective sample size to what the weighting leaves open.
    """
    n, weighting = len(data.x), job.weighting
    if bound is not None:
        clip: Any = weighting.clip
        weighting = replace(weighting, clip=bound if clip is None else min(bound, clip))
    if job.ratio.kind not in ("given", "local"):
        floor = job.defence.floor(n)
        weighting = replace(
            weighting,
            winsorise=weighting.winsorise or job.defence.winsorise,
            min_ess=weighting.min_ess or (floor / n if floor else None),
        )
    laws = len(job.clients) if job.goal.goal(data.name) == "all" else 1
    return weights_of(data.name, log_ratio, weighting, laws)


def weight_facts(job: Job, weights: Float64Array) -> dict[str, Fact]:
    """What leaves a site about its weights: their mean, exactly, and how many rows they equal.

    The mean divides the site's local loss, and what divides it is its part in the mean of all; any
    other number would train another model.
    """
    top = float(np.square(weights).sum())
    ess = float(weights.sum() ** 2 / top) if top > 0 else 0.0
    kind = torch.float64 if job.precision == "float64" else torch.float32
    mean = mean_by_client(torch.as_tensor(weights, dtype=kind), np.array([0, len(weights)]))[0]
    return {"mean_weight": float(mean), "ess_share": round(ess / len(weights), 3)}


def models_of(stage: Stage, arrays: Mapping[str, Any]) -> list[nn.Module]:
    """The trained models of all folds, from what the server sent.

    Raises
    ------
    MessageError
        If parameters or statistics are missing or of another shape.
    """
    out = []
    for j in range(stage.folds):
        task = stage.blank(j)
        out.append(task.module(State(0, sent_state(task, arrays, j))))
    return out


def sent_state(task: Task, arrays: Mapping[str, Any], fold: int = 0) -> dict[str, torch.Tensor]:
    """A state with the parameters and shared statistics that the server sent.

    Raises
    ------
    MessageError
        If they are missing or of another shape.
    """
    out = {n: t for n, t in task.begin().tensors.items() if not n.startswith("mean_")}
    local = {"stats"} if task.plan.norm == "local" else set()
    for name in {"params", "stats"} & set(out) - local:
        out[name] = read_tensor(arrays, f"{fold}/{name}", out[name])
    return out


def read_tensor(arrays: Mapping[str, Any], name: str, like: torch.Tensor) -> torch.Tensor:
    """An array of a message as a tensor of the shape and type of another.

    Raises
    ------
    MessageError
        If it is missing or of another shape.
    """
    found = arrays.get(name)
    if found is None or found.shape != tuple(like.shape):
        got = "nothing" if found is None else f"shape {found.shape}"
        raise MessageError(f"array {name} must have shape {tuple(like.shape)}; got {got}")
    return torch.tensor(found).to(like)


def _folds(name: str, y: IntArray, job: Job) -> IntArray:
    if job.ratio.folds == 1:
        return np.zeros(len(y), dtype=np.int64)
    return folds_of(name, y, job.ratio.folds, seed=job.seed)


def _kept(fold: IntArray, out: int, folds: int) -> npt.NDArray[np.bool_]:
    return np.ones(len(fold), dtype=bool) if folds == 1 else fold != out


def _held(fold: IntArray, out: int, folds: int) -> npt.NDArray[np.bool_]:
    return np.asarray(fold == out) if folds > 1 else np.ones(len(fold), dtype=bool)


def _scores(model: nn.Module, x: Any, job: Job) -> Float64Array:
    dtype = torch.float64 if job.precision == "float64" else torch.float32
    return np.asarray(predict(model, torch.as_tensor(x, dtype=dtype)).double().cpu().numpy())
