"""A site: it keeps its rows, replies to requests, and sends only what its own policy allows.

Requests arrive as messages over any transport. The site keeps its state on its own disk
(`fedshift.federation.site_state`).
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedshift import __version__
from fedshift.core.files import to_json
from fedshift.core.samples import Float64Array
from fedshift.data.federation import ClientData, Federation
from fedshift.defence.ratios import check_label_distribution
from fedshift.errors import FedshiftError, InputError, TrainingDiverged
from fedshift.federation.client import Client, Memory
from fedshift.federation.compress import pack
from fedshift.federation.deployment_task import POOLED, SHARED, DeploymentTask, Stage
from fedshift.federation.downlink import read_downlink
from fedshift.federation.messages import Array, Fact, Message, MessageError
from fedshift.federation.private import PrivateClient
from fedshift.federation.ratios import (
    LabelShiftClient,
    MultiSourceClient,
    compute_site_weights,
    local_log_ratio,
    models_of,
    pooled_log_ratio,
    sampler_of,
    sent_state,
    weight_facts,
)
from fedshift.federation.site_state import SiteState
from fedshift.federation.task import State, Task
from fedshift.learn.evaluate import evaluate
from fedshift.privacy.audit import fit_audited
from fedshift.privacy.bins import bound_from_counts
from fedshift.privacy.counts import Released
from fedshift.privacy.policy import Privacy, Refused

_LOG = logging.getLogger(__name__)
#: arrays and facts of a reply
Payload = tuple[dict[str, Array], dict[str, Fact]]
#: what the policy must allow before a site computes weights from what others send, by ratio kind
_REQUEST = {
    "given": "train.model",
    "local": "train.model",
    "multi-source": "train.ratio",
    "federated-mlls": "train.ratio",
    "generated": "generated_samples",
    "raw": "raw_samples",
}


class Site:
    """One client of a deployment.

    Parameters
    ----------
    job : DeploymentTask
        The task that the site has agreed to. The site refuses requests for any other task.
    data : ClientData
        The site's rows.
    folder : path
        The site's own folder, for its state.
    privacy : Privacy, optional
        The site's policy; disclosure level 2 by default.
    log_ratio : array (n,), optional
        Log ratios of the training rows, for ratio kind "given".
    """

    def __init__(
        self,
        job: DeploymentTask,
        data: ClientData,
        folder: Path | str,
        *,
        privacy: Privacy | None = None,
        log_ratio: Float64Array | None = None,
    ) -> None:
        if data.name not in job.clients:
            raise InputError(f"the site must be one of {list(job.clients)}; got {data.name!r}")
        if data.x.shape[1:] != job.shape:
            raise InputError(
                f"site {data.name!r}: rows must have shape {job.shape}, as in the task; got "
                f"{data.x.shape[1:]}"
            )
        if job.loss == "cross-entropy":
            _check_labels(data, job.classes)
        self.job, self.data, self.folder = job, data, Path(folder)
        self.privacy = Privacy() if privacy is None else privacy
        self._log_ratio = log_ratio
        self._state: SiteState | None = None
        self._tasks: dict[tuple[str, int], Task] = {}
        self._weights: Float64Array | None = None
        self._labels: LabelShiftClient | None = None

    # -- requests ------------------------------------------------------------------------------

    def handle(self, message: Message) -> Message:
        """Return the reply to a request, or a refusal with a reason. A bad request never raises."""
        try:
            if self._state is None or message.header.run != self._state.run:
                self._state = SiteState(self.folder, message, self.job.digest)
                self._load_weights()
            with self.state.locked() as changed:
                if changed:
                    self._load_weights()
                self.state.nonces.add(message)
                reply = self._reply(message)
                self.state.write()  # after a refusal or a failure too
            return reply
        except FedshiftError as error:
            return message.reply(error=f"{type(error).__name__}: {error}"[:500])

    @property
    def state(self) -> SiteState:
        """State of the current run."""
        assert self._state is not None, "there was no request yet"
        return self._state

    def _load_weights(self) -> None:
        """Read the weights of the run from the state folder."""
        stored = self.state.load("weights")
        self._weights = None if stored is None else stored["weights"].numpy()
        self._tasks, self._labels = {}, None

    def _reply(self, message: Message) -> Message:
        try:
            return message.reply(*self._payload(message))
        except FedshiftError as error:
            return message.reply(error=f"{type(error).__name__}: {error}"[:500])
        except Exception as error:  # its text may contain rows, so only its type leaves
            _LOG.exception("site %s failed at %s", self.data.name, message.header)
            return message.reply(error=f"SiteFailed: {type(error).__name__}; see the site's log")

    def _payload(self, message: Message) -> Payload:
        phase = message.header.phase
        if phase == "query.describe":
            return self._describe()
        if phase == "evaluate.model":
            return self._evaluate(message)
        if phase == "query.share":
            what = message.fact("what", str)
            methods: dict[str, Callable[[Message], Payload]] = {
                "own": self._own,
                "models": self._models,
                "presence": self._presence,
                "calibrate": self._calibrate,
                "distribution": self._distribution,
                "distributions": self._distributions,
                "cells": self._cells,
                "bound": self._bound,
                "rows": self._rows,
                "pool": self._pool,
            }
            if what not in methods:
                raise MessageError(f"fact 'what' must be one of {', '.join(methods)}; got {what!r}")
            return methods[what](message)
        stage = self.job.stage("ratio" if phase == "train.ratio" else "model")
        self.privacy.check(phase, rows=len(self.data.x))
        if stage.name == "ratio":
            self.privacy.check(phase, rows=len(self.data.test_x))
        return self._train(message, stage)

    def _describe(self) -> Payload:
        return {}, {
            "client": self.data.name,
            "version": __version__,
            "task": self.job.digest,
            "disclosure_level": self.privacy.disclosure_level,
            "weighed": self._weights is not None,
            **self._weight_facts(),
            **self._epsilon(),
        }

    def _epsilon(self) -> dict[str, Fact]:
        """Return the privacy spent in all runs; nothing if noise was never requested."""
        books, policy = self.state.books, self.privacy
        if not (books.noisy or policy.noise > 0 or policy.epsilon_counts is not None):
            return {}
        epsilon = float(books.epsilon(policy.delta))
        return {
            "epsilon": epsilon if np.isfinite(epsilon) else "unbounded",
            "delta": policy.delta,
        }

    # -- weights -------------------------------------------------------------------------------

    def _set_weights(self, log_ratio: Float64Array | None, bound: float | None = None) -> Payload:
        """Compute and store weights. Their mean leaves the site, for the mean over all sites."""
        if log_ratio is None:
            self._weights = np.ones(len(self.data.x))
        else:
            self._weights = compute_site_weights(self.job, self.data, log_ratio, bound).values
            self.state.save("log-ratio", {"log_ratio": torch.as_tensor(log_ratio)})
        self.state.save("weights", {"weights": torch.as_tensor(self._weights)})
        self._tasks = {k: t for k, t in self._tasks.items() if k[0] != "model"}
        return {}, self._weight_facts()

    def _weight_facts(self) -> dict[str, Fact]:
        return {} if self._weights is None else weight_facts(self.job, self._weights)

    def _check_weights(self) -> None:
        """Check the policy: the mean weight reveals training rows if others choose the ratio."""
        request = _REQUEST[self.job.ratio.kind] if self.job.weighs else "train.model"
        self.privacy.check(request, rows=len(self.data.x))

    def _own(self, _: Message) -> Payload:
        self._check_weights()
        if not self.job.weighs or self.job.goal.goal(self.data.name) is None:
            return self._set_weights(None)
        if self.job.ratio.kind == "given":
            if self._log_ratio is None:
                raise InputError(
                    "ratio kind 'given' needs log ratios of the training rows; this site has none; "
                    "use ratio kind 'multi-source'"
                )
            return self._set_weights(np.asarray(self._log_ratio, dtype=np.float64))
        if (kind := self.job.ratio.kind) != "local":
            raise MessageError(f"request 'own' needs ratio kind 'given' or 'local'; got {kind!r}")
        self.privacy.check("train.model", rows=len(self.data.test_x))
        return self._set_weights(local_log_ratio(self.job, self.data))

    @property
    def _target(self) -> str | None:
        """Client whose test distribution is the numerator; None for the sum over all clients."""
        goal = self.job.goal.goal(self.data.name)
        return None if goal == "all" else self.data.name if goal == "own" else goal

    def _models(self, message: Message) -> Payload:
        """Receive the ratio models; compute weights, or prepare the calibration."""
        if self.job.ratio.kind not in SHARED:
            raise MessageError(f"ratio kind {self.job.ratio.kind!r} has no shared model")
        self._check_weights()
        params = _floats(message)
        models = models_of(self.job.stage("ratio"), params)
        self.state.once("set of ratio models", message)
        if self.job.ratio.kind == "federated-mlls":
            self.state.save("models", {n: torch.tensor(a) for n, a in params.items()})
            self._labels = None
            self._label_client()
            return {}, {}
        if self.job.goal.goal(self.data.name) is None:
            return self._set_weights(None)
        client = MultiSourceClient(self.job, self.data)
        log_ratio = client.log_ratio(models, self._target)
        limited: dict[str, Fact] = {"limited": client.limited}
        if not self.job.ratio.bound:
            arrays, facts = self._set_weights(log_ratio)
            return arrays, facts | limited
        self.state.save("scores", {"scores": torch.as_tensor(client.scores(models))})
        self.state.save("log-ratio", {"log_ratio": torch.as_tensor(log_ratio)})
        return {}, limited  # weights come with the bound

    def _label_client(self) -> LabelShiftClient:
        """Return the predictions of the models; computed again after a restart."""
        if self._labels is None:
            params = {n: t.numpy() for n, t in self._load("models").items()}
            self._labels = LabelShiftClient(self.job, self.data)
            self._labels.predict(models_of(self.job.stage("ratio"), params))
        return self._labels

    def _theta(self, message: Message) -> Float64Array:
        theta = message.array("theta", (self.job.classes + 1,)).astype(np.float64)
        if not 1e-6 < theta[0] < 1e6 or np.abs(theta).max() > 1e6:
            raise MessageError("theta must be 1 / temperature (1e-6 to 1e6), then biases up to 1e6")
        return np.asarray(theta)

    def _presence(self, _: Message) -> Payload:
        self.privacy.check("label_marginals", rows=len(self.data.x))
        self._check_noise()
        present = self._label_client().presence(self.privacy.min_count)
        self.state.books.spend_bare("presence")
        return {"presence": present.astype(np.uint8)}, {}

    def _calibrate(self, message: Message) -> Payload:
        self.privacy.check("train.ratio", rows=len(self.data.x))
        self._check_noise()
        theta, client = self._theta(message), self._label_client()
        n_sites = message.array("having", (self.job.classes,)).astype(np.float64)
        least = self.privacy.min_count
        if (n_sites < client.presence(least)).any():
            need = "at least 1 for each class that this site reported"
            raise MessageError(f"'having' (how many sites reported each class) must be {need}")
        self.state.books.spend_bare("calibrate")
        loss, slope, curve = client.calibrate(theta, n_sites, least)
        return {"slope": slope, "curve": curve}, {"loss": loss}

    def _distribution(self, message: Message) -> Payload:
        """Return the estimated test label distribution, from counts with small cells hidden."""
        self.privacy.check("label_marginals", rows=len(self.data.test_x))
        self._check_noise()
        if self.privacy.epsilon_counts is not None:  # one row may move an estimate by more than 1
            raise Refused(
                "this site's policy requires noise on all counts that leave it, and an estimated "
                "label distribution cannot have such noise; use ratio kind 'multi-source', whose "
                "gradients can have noise"
            )
        distribution = self._label_client().test_distribution(self._theta(message))
        counts = np.round(distribution * len(self.data.test_x)).astype(np.int64)
        table = self.state.releases.answer(
            "labels",
            "test",
            counts,
            policy=self.privacy,
            secret=self._secret,
            spent=lambda e: self.state.books.spend_counts(e, what="labels"),
        )
        # the number of rows is public, so hidden cells share the rows that remain
        distribution = table.counts.astype(np.float64)
        rest = max(0.0, len(self.data.test_x) - distribution.sum())
        if table.suppressed.any():
            distribution[table.suppressed] = rest / table.suppressed.sum()
        return {"distribution": distribution / distribution.sum()}, {}

    def _distributions(self, message: Message) -> Payload:
        """Compute weights from all test label distributions, or from the site's own."""
        self._check_weights()
        client = self._label_client()
        goal = self.job.goal.goal(self.data.name)
        if goal is None:
            return self._set_weights(None)
        if goal == "own":
            self.privacy.check("train.ratio", rows=len(self.data.test_x))
            theta = self._theta(message)
            self.state.once("set of label distributions", message)
            return self._set_weights(client.log_ratio(client.test_distribution(theta)[None]))
        distributions = message.array("distributions").astype(np.float64)
        count = self.job.classes
        good = distributions.ndim == 2 and distributions.shape[1] == count and len(distributions)
        if not good or any(check_label_distribution(row, count) for row in distributions):
            raise MessageError(f"each row of distributions must be the shares of {count} classes")
        self.state.once("set of label distributions", message)
        arrays, facts = self._set_weights(client.log_ratio(distributions))
        return arrays, facts | {"limited": client.limited}

    def _cells(self, message: Message) -> Payload:
        """Return how many test rows lie in each cell along each client's log ratio, (K, M)."""
        self.privacy.check("bin_counts", rows=len(self.data.test_x))
        edges = _edges(message)
        scores = self._load("scores")["scores"].numpy()
        tables = [
            self.state.releases.answer(
                f"cells of {self.state.run}",  # another run has other cells
                f"test along {name}",
                np.bincount(np.digitize(column, edges), minlength=len(edges) + 1),
                policy=self.privacy,
                secret=self._secret,
                spent=lambda e: self.state.books.spend_counts(e, what="cells"),
            )
            for name, column in zip(self.job.clients, scores.T, strict=True)
        ]
        hidden = np.stack([t.suppressed for t in tables]).astype(np.uint8)
        noise = np.array([1 / t.epsilon for t in tables])
        counts = np.stack([t.counts for t in tables])
        return {"counts": counts, "hidden": hidden, "noise": noise}, {}

    def _bound(self, message: Message) -> Payload:
        """Compute weights, at most a bound from all sites' counts and this site's training rows.

        The bound stays here: it is one over the share of training rows in a cell that the server
        chose.
        """
        if not self.job.ratio.bound:
            raise MessageError("this task sets no bound on weights (bound=False)")
        self.privacy.check("bin_counts", rows=len(self.data.x))
        edges, log_ratio = _edges(message), self._load("log-ratio")["log_ratio"].numpy()
        counts, hidden = message.array("counts", kind="i"), message.array("hidden", kind="i")
        if counts.ndim != 2 or counts.shape[1] != len(edges) + 1 or hidden.shape != counts.shape:
            raise MessageError(f"counts must have shape (*, {len(edges) + 1}); got {counts.shape}")
        own = np.bincount(np.digitize(log_ratio, edges), minlength=len(edges) + 1)
        noise = message.array("noise", (len(counts),))
        if (noise < 0).any():
            raise MessageError(f"noise must be ≥ 0: 1 / ε, or 0 without noise; got {noise.min()}")
        tables = {
            str(i): Released(c.astype(np.int64), h.astype(bool), 1 / z if z else math.inf)
            for i, (c, h, z) in enumerate(zip(counts, hidden, noise.tolist(), strict=True))
        }
        self.state.once("set of bin counts", message)
        return self._set_weights(log_ratio, bound_from_counts(own, tables))

    @cached_property
    def _secret(self) -> bytes:
        """A secret that only the holder of these rows can compute, the same at every start."""
        secret = hashlib.blake2b(digest_size=32)
        for rows in (self.data.x, self.data.test_x):
            secret.update(np.ascontiguousarray(rows, dtype=np.float64).tobytes())
        return secret.digest()

    def _load(self, name: str) -> dict[str, torch.Tensor]:
        tensors = self.state.load(name)
        if tensors is None:
            raise MessageError("NeedsModels: this site has no ratio models yet")
        return tensors

    def _rows(self, _: Message) -> Payload:
        """Return test rows for the pool: generated, or real if the owner allowed it twice."""
        kind, quota = self.job.ratio.kind, self.job.ratio.quota
        rng = np.random.default_rng([self.job.seed, self.job.clients.index(self.data.name)])
        if kind == "raw":
            self.privacy.check("raw_samples", rows=len(self.data.test_x))
            self.state.books.spend_bare("raw_samples")
            chosen = rng.permutation(len(self.data.test_x))[:quota]
            rows = np.ascontiguousarray(self.data.test_x[chosen], dtype=np.float32)
            return {"rows": rows}, {"raw": len(rows)}
        if kind == "generated":
            self.privacy.check("generated_samples", rows=len(self.data.test_x))
            self.state.books.spend_bare("generated_samples")
            sampler = sampler_of(self.job)
            rows, audits = fit_audited(sampler, self.data.test_x, quota, seed=self.job.seed)
            status = " ".join(a.status for a in audits)
            if any(a.leaks for a in audits):
                raise Refused(f"{status}; use disclosure level 2, which sends no rows")
            return {"rows": np.asarray(rows, dtype=np.float32)}, {"audit": status}
        raise MessageError(f"ratio kind {kind!r} shares no rows")

    def _pool(self, message: Message) -> Payload:
        if self.job.ratio.kind not in POOLED:
            raise MessageError(f"ratio kind {self.job.ratio.kind!r} uses no pool")
        self._check_weights()
        if self.job.goal.goal(self.data.name) is None:
            return self._set_weights(None)
        pool = message.array("pool")
        if pool.shape[1:] != self.job.shape or len(pool) < 2:
            raise MessageError(
                f"a pool must have ≥ 2 rows of shape {self.job.shape}; got {pool.shape}"
            )
        n_targets = message.fact("n_targets", int)
        self.state.once("pool", message)
        return self._set_weights(pooled_log_ratio(self.job, self.data, pool, n_targets))

    # -- training ------------------------------------------------------------------------------

    def _train(self, message: Message, stage: Stage) -> Payload:
        arrays: dict[str, Array] = {}
        facts: dict[str, Fact] = {}
        number = message.header.round
        memories = self.state.memory(stage, number, self.data.name)
        base: list[Tensor] | list[None] = [None] * stage.folds
        if "since" in message.facts:
            base = self.state.params(stage, message.fact("since", int))
        params = []
        for j in range(stage.folds):
            task = self._task(stage, j)
            client = self._client(stage, task, memories[j], j)
            broadcast = read_downlink(task, message, j, base[j])
            params.append(broadcast.params)
            reply = client.reply(number, broadcast)
            if not bool(torch.isfinite(reply.update).all()):
                raise TrainingDiverged(
                    f"round {number} of {stage.phase} gave NaN or infinity at this site; lower the "
                    "learning rate, clip the weights, or check the site's rows"
                )
            packed = pack(task.plan.compression, reply.update, reply.unit)
            arrays |= {f"{j}/{n}": a for n, a in packed.items()}
            for name, part in (("stats", reply.stats), ("control", reply.control)):
                if part is not None:
                    arrays[f"{j}/{name}"] = part.cpu().numpy()
            if stage.name == "ratio":  # its part in the mean of all steps
                facts[f"{j}/part"] = float(task.normaliser[0])
            if not isinstance(client, PrivateClient):
                facts[f"{j}/loss"] = float(np.mean(reply.losses))
        self.state.remember(stage, number + 1, memories, params)
        return arrays, facts

    def _client(self, stage: Stage, task: Task, memory: Memory, fold: int) -> Client:
        if stage.name == "ratio" and self.privacy.noise > 0:
            self._check_noise()
            return PrivateClient(
                task,
                0,
                memory,
                policy=self.privacy,
                books=self.state.books,
                stream=f"{self.state.run} fold-{fold}",
            )
        if stage.name == "ratio":
            self.state.books.spend_bare("train.ratio")
        return Client(task, 0, memory)

    def _check_noise(self) -> None:
        """Refuse kinds without noise: sums that calibrate a classifier of labels have none."""
        if self.privacy.noise > 0 and self.job.ratio.kind != "multi-source":
            raise Refused(
                "this site's policy requires noise on ratio gradients, and the sums for the "
                "calibration have no noise; use ratio kind 'multi-source'"
            )

    def _task(self, stage: Stage, fold: int) -> Task:
        key = (stage.name, fold)
        if key not in self._tasks:
            if stage.name == "ratio":
                multi = self.job.ratio.kind == "multi-source"
                client = (MultiSourceClient if multi else LabelShiftClient)(self.job, self.data)
                self._tasks[key] = client.task(stage, fold)
            else:
                if self._weights is None:
                    raise MessageError("NeedsWeights: this site has no weights yet")
                self._tasks[key] = stage.own(self.data, self._weights)
        return self._tasks[key]

    def _evaluate(self, message: Message) -> Payload:
        """Return scores of one model per run on labelled test rows, if the policy allows it."""
        self.privacy.check("evaluate.model", rows=len(self.data.test_x))
        if self.data.test_y is None or not self.privacy.scores:
            return {}, {"labelled": False}
        stage = self.job.stage("model")
        task = stage.blank()
        state = State(message.header.round, sent_state(task, _floats(message)))
        self.state.once("model to score", message)
        k = task.names.index(self.data.name)
        memory = self.state.memory(stage, message.header.round, self.data.name)[0]
        for name, t in memory.items():
            state.tensors[name][k] = t
        model = task.module(state, self.data.name)
        kind = np.float64 if self.job.precision == "float64" else np.float32
        rows = ClientData(
            self.data.name,
            self.data.x,
            self.data.y,
            self.data.test_x.astype(kind, copy=False),
            self.data.test_y,
        )
        score = evaluate(lambda _: model, Federation((rows,)), loss=stage.loss)[self.data.name]
        # the score of a constant prediction is the share of a class, which level 1 lets leave
        known = score.__dict__ | ({} if self.privacy.disclosure_level else {"constant": None})
        return {}, {"labelled": True, "score": to_json(known)}


def _check_labels(data: ClientData, classes: int) -> None:
    """Raise now, not when the first batch with a wrong label is drawn."""
    for part, labels in (("y", data.y), ("test_y", data.test_y)):
        if labels is None or not len(labels):
            continue
        if labels.dtype.kind not in "iub" or labels.min() < 0 or labels.max() >= classes:
            integer = labels.dtype.kind in "iub"
            got = f"{labels.min()} to {labels.max()}" if integer else "other values"
            raise InputError(
                f"site {data.name!r}: {part} must hold whole numbers 0 to {classes - 1}, for the "
                f"{classes} classes of the task; got {got} ({labels.dtype}); encode labels as "
                "the other sites do, or agree on a task with more classes"
            )


def _floats(message: Message) -> dict[str, Array]:
    """Return all arrays of a message after a check that they are finite."""
    return {name: message.array(name) for name in message.arrays}


def _edges(message: Message) -> Float64Array:
    edges = message.array("edges").astype(np.float64)
    if edges.ndim != 1 or not 1 <= len(edges) <= 200 or (np.diff(edges) <= 0).any():
        raise MessageError("bin edges must be a list of 1 to 200 numbers in increasing order")
    return np.asarray(edges)
