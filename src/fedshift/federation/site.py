"""All that a site answers: its rows stay here, and what leaves is what its own policy allows.

A site is asked by messages, whoever carries them. What it must remember lies on its own disk
(`fedshift.federation.shelf`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift import __version__
from fedshift.core.samples import Float64Array
from fedshift.data.federation import ClientData, Federation
from fedshift.defence.ratios import check_law
from fedshift.errors import FedshiftError, InputError, TrainingDiverged
from fedshift.federation.client import Client, Memory
from fedshift.federation.compress import pack
from fedshift.federation.job import POOLED, SHARED, Job, Stage
from fedshift.federation.messages import Array, Fact, Message, MessageError
from fedshift.federation.private import PrivateClient
from fedshift.federation.ratios import (
    Labels,
    Laws,
    local_log_ratio,
    models_of,
    pooled_log_ratio,
    sampler_of,
    sent_state,
    site_weights,
    weight_facts,
)
from fedshift.federation.shelf import Shelf
from fedshift.federation.task import State, Task
from fedshift.federation.telling import read_told
from fedshift.learn.evaluate import evaluate
from fedshift.privacy.audit import fit_audited
from fedshift.privacy.bins import bound_from_counts
from fedshift.privacy.counts import Released
from fedshift.privacy.policy import Privacy, Refused

_LOG = logging.getLogger(__name__)
Answer = tuple[dict[str, Array], dict[str, Fact]]
#: what a site must allow before others' word makes its weights, by kind of ratio
_WEIGHS = {
    "given": "train.model",
    "local": "train.model",
    "multi-source": "train.ratio",
    "federated-mlls": "train.ratio",
    "generated": "generated_samples",
    "raw": "raw_samples",
}


class Site:
    """One client of a job, at its own place.

    Parameters
    ----------
    job : Job
        As the site knows it; questions about another one are refused.
    data : ClientData
        Its rows.
    folder : path
        Its own, for what it must remember.
    privacy : Privacy, optional
        Its policy; rung 2 by default.
    log_ratio : array (n,), optional
        Where ratios are known ("given").
    """

    def __init__(
        self,
        job: Job,
        data: ClientData,
        folder: Path | str,
        *,
        privacy: Privacy | None = None,
        log_ratio: Float64Array | None = None,
    ) -> None:
        if data.name not in job.clients:
            raise InputError(f"the job has clients {list(job.clients)}; this site is {data.name!r}")
        if data.x.shape[1:] != job.shape:
            raise InputError(
                f"site {data.name!r}: rows must have shape {job.shape}, as the job says; got "
                f"{data.x.shape[1:]}"
            )
        if job.loss == "cross-entropy":
            _check_labels(data, job.classes)
        self.job, self.data, self.folder = job, data, Path(folder)
        self.privacy = Privacy() if privacy is None else privacy
        self._given = log_ratio
        self._shelf: Shelf | None = None
        self._tasks: dict[tuple[str, int], Task] = {}
        self._weights: Float64Array | None = None
        self._labels: Labels | None = None

    # -- questions -----------------------------------------------------------------------------

    def handle(self, message: Message) -> Message:
        """Answer a question, or say why not; never raises for what came from outside."""
        try:
            if self._shelf is None or message.header.run != self._shelf.run:
                self._shelf = Shelf(self.folder, message, self.job.digest)
                self._recall()
            with self.shelf.held() as changed:
                if changed:
                    self._recall()
                self.shelf.seen.take(message)
                reply = self._tried(message)
                self.shelf.write()  # what was refused or went wrong is remembered too
            return reply
        except FedshiftError as error:
            return message.answer(error=f"{type(error).__name__}: {error}"[:500])

    @property
    def shelf(self) -> Shelf:
        """What it keeps of the run it is in."""
        assert self._shelf is not None, "no question was asked yet"
        return self._shelf

    def _recall(self) -> None:
        """Find what this site remembers of the run."""
        kept = self.shelf.kept("weights")
        self._weights = None if kept is None else kept["weights"].numpy()
        self._tasks, self._labels = {}, None

    def _tried(self, message: Message) -> Message:
        try:
            return message.answer(*self._answer(message))
        except FedshiftError as error:
            return message.answer(error=f"{type(error).__name__}: {error}"[:500])
        except Exception as error:  # what it says may show rows, so only its kind leaves
            _LOG.exception("site %s could not answer %s", self.data.name, message.header)
            return message.answer(error=f"SiteFailed: {type(error).__name__}; see the site's log")

    def _answer(self, message: Message) -> Answer:
        phase = message.header.phase
        if phase == "query.describe":
            return self._describe()
        if phase == "evaluate.model":
            return self._evaluate(message)
        if phase == "query.share":
            what = message.fact("what", str)
            doing: dict[str, Callable[[Message], Answer]] = {
                "own": self._own,
                "models": self._models,
                "presence": self._presence,
                "calibrate": self._calibrate,
                "law": self._law,
                "laws": self._laws,
                "cells": self._cells,
                "bound": self._bound,
                "rows": self._rows,
                "pool": self._pool,
            }
            if what not in doing:
                raise MessageError(f"a site knows no {what!r} to share")
            return doing[what](message)
        stage = self.job.stage("ratio" if phase == "train.ratio" else "model")
        self.privacy.check(phase, rows=len(self.data.x))
        if stage.name == "ratio":
            self.privacy.check(phase, rows=len(self.data.test_x))
        return self._train(message, stage)

    def _describe(self) -> Answer:
        return {}, {
            "client": self.data.name,
            "version": __version__,
            "task": self.job.digest,
            "rung": self.privacy.rung,
            "weighed": self._weights is not None,
            **self._weight_facts(),
            **self._epsilon(),
        }

    def _epsilon(self) -> dict[str, Fact]:
        """What was spent in all runs; nothing where noise was never asked for."""
        books, policy = self.shelf.books, self.privacy
        if not (books.noisy or policy.noise > 0 or policy.epsilon_counts is not None):
            return {}
        epsilon = float(books.epsilon(policy.delta))
        told = epsilon if np.isfinite(epsilon) else "unbounded"
        return {"epsilon": told, "delta": policy.delta}

    # -- weights -------------------------------------------------------------------------------

    def _weigh(self, log_ratio: Float64Array | None, bound: float | None = None) -> Answer:
        """Make and keep weights; their mean leaves the site, as the mean of all needs it."""
        if log_ratio is None:
            self._weights = np.ones(len(self.data.x))
        else:
            self._weights = site_weights(self.job, self.data, log_ratio, bound).values
            self.shelf.keep("log-ratio", {"log_ratio": torch.as_tensor(log_ratio)})
        self.shelf.keep("weights", {"weights": torch.as_tensor(self._weights)})
        self._tasks = {k: t for k, t in self._tasks.items() if k[0] != "model"}
        return {}, self._weight_facts()

    def _weight_facts(self) -> dict[str, Fact]:
        return {} if self._weights is None else weight_facts(self.job, self._weights)

    def _check_weighing(self) -> None:
        """The mean of weights tells about training rows, by the law that others made up."""
        asked = _WEIGHS[self.job.ratio.kind] if self.job.weighs else "train.model"
        self.privacy.check(asked, rows=len(self.data.x))

    def _own(self, _: Message) -> Answer:
        self._check_weighing()
        if not self.job.weighs or self.job.goal.goal(self.data.name) is None:
            return self._weigh(None)
        if self.job.ratio.kind == "given":
            if self._given is None:
                raise InputError(
                    "the job says that ratios are given; this site has none; take ratio kind "
                    "'multi-source'"
                )
            return self._weigh(np.asarray(self._given, dtype=np.float64))
        if self.job.ratio.kind != "local":
            raise MessageError(f"ratio kind {self.job.ratio.kind!r} is no one site's own work")
        self.privacy.check("train.model", rows=len(self.data.test_x))
        return self._weigh(local_log_ratio(self.job, self.data))

    @property
    def _target(self) -> str | None:
        """Whose test law is in the numerator; None for the sum over all."""
        goal = self.job.goal.goal(self.data.name)
        return None if goal == "all" else self.data.name if goal == "own" else goal

    def _models(self, message: Message) -> Answer:
        """Take the ratio models: weights at once, or what a calibration needs."""
        if self.job.ratio.kind not in SHARED:
            raise MessageError(f"ratio kind {self.job.ratio.kind!r} has no shared model")
        self._check_weighing()
        told = _floats(message)
        models = models_of(self.job.stage("ratio"), told)
        self.shelf.once("set of ratio models", message)
        if self.job.ratio.kind == "federated-mlls":
            self.shelf.keep("models", {n: torch.tensor(a) for n, a in told.items()})
            self._labels = None
            self._reader()
            return {}, {}
        if self.job.goal.goal(self.data.name) is None:
            return self._weigh(None)
        laws = Laws(self.job, self.data)
        log_ratio = laws.log_ratio(models, self._target)
        limited: dict[str, Fact] = {"limited": laws.limited}
        if not self.job.ratio.bound:
            arrays, facts = self._weigh(log_ratio)
            return arrays, facts | limited
        self.shelf.keep("scores", {"scores": torch.as_tensor(laws.scores(models))})
        self.shelf.keep("log-ratio", {"log_ratio": torch.as_tensor(log_ratio)})
        return {}, limited  # weights come with the bound

    def _reader(self) -> Labels:
        """What the models say of the site's rows; read again after a restart."""
        if self._labels is None:
            told = {n: t.numpy() for n, t in self._need("models").items()}
            self._labels = Labels(self.job, self.data)
            self._labels.read(models_of(self.job.stage("ratio"), told))
        return self._labels

    def _theta(self, message: Message) -> Float64Array:
        theta = message.array("theta", (self.job.classes + 1,)).astype(np.float64)
        if not 1e-6 < theta[0] < 1e6 or np.abs(theta).max() > 1e6:
            raise MessageError("theta must be one over a temperature, and biases")
        return np.asarray(theta)

    def _presence(self, _: Message) -> Answer:
        self.privacy.check("label_marginals", rows=len(self.data.x))
        self._check_noise()
        present = self._reader().presence(self.privacy.min_count)
        self.shelf.books.spend_bare("presence")
        return {"presence": present.astype(np.uint8)}, {}

    def _calibrate(self, message: Message) -> Answer:
        self.privacy.check("train.ratio", rows=len(self.data.x))
        self._check_noise()
        theta, reader = self._theta(message), self._reader()
        having = message.array("having", (self.job.classes,)).astype(np.float64)
        least = self.privacy.min_count
        if (having < reader.presence(least)).any():
            raise MessageError("having must count this site too, for the classes it told")
        self.shelf.books.spend_bare("calibrate")
        loss, slope, curve = reader.calibrate(theta, having, least)
        return {"slope": slope, "curve": curve}, {"loss": loss}

    def _law(self, message: Message) -> Answer:
        """The estimated test label law, as counts: small cells are hidden, noise if asked for."""
        self.privacy.check("label_marginals", rows=len(self.data.test_x))
        self._check_noise()
        if self.privacy.epsilon_counts is not None:  # one row may move an estimate by more than 1
            raise Refused(
                "this site gives counts with noise only, and an estimated label law is no count; "
                "take ratio kind 'multi-source', whose gradients can have noise"
            )
        law = self._reader().test_law(self._theta(message))
        counts = np.round(law * len(self.data.test_x)).astype(np.int64)
        told = self.shelf.releases.answer(
            "labels",
            "test",
            counts,
            policy=self.privacy,
            secret=self._secret,
            spent=lambda e: self.shelf.books.spend_counts(e, what="labels"),
        )
        # how many rows there are is no secret, so what is hidden shares what is left
        law = told.counts.astype(np.float64)
        rest = max(0.0, len(self.data.test_x) - law.sum())
        if told.suppressed.any():
            law[told.suppressed] = rest / told.suppressed.sum()
        return {"law": law / law.sum()}, {}

    def _laws(self, message: Message) -> Answer:
        """Weights from all test label laws, or from the site's own law, which stays here."""
        self._check_weighing()
        reader = self._reader()
        goal = self.job.goal.goal(self.data.name)
        if goal is None:
            return self._weigh(None)
        if goal == "own":
            self.privacy.check("train.ratio", rows=len(self.data.test_x))
            theta = self._theta(message)
            self.shelf.once("set of label laws", message)
            return self._weigh(reader.log_ratio(reader.test_law(theta)[None]))
        laws = message.array("laws").astype(np.float64)
        good = laws.ndim == 2 and laws.shape[1] == self.job.classes and len(laws) > 0
        if not good or any(check_law(law, self.job.classes) for law in laws):
            raise MessageError(f"laws must be shares of {self.job.classes} classes, a row each")
        self.shelf.once("set of label laws", message)
        arrays, facts = self._weigh(reader.log_ratio(laws))
        return arrays, facts | {"limited": reader.limited}

    def _cells(self, message: Message) -> Answer:
        """How many of the site's test rows lie in cells along each client's log ratio, (K, M)."""
        self.privacy.check("bin_counts", rows=len(self.data.test_x))
        edges = _edges(message)
        scores = self._need("scores")["scores"].numpy()
        told = [
            self.shelf.releases.answer(
                f"cells of {self.shelf.run}",  # another run has other cells
                f"test along {name}",
                np.bincount(np.digitize(column, edges), minlength=len(edges) + 1),
                policy=self.privacy,
                secret=self._secret,
                spent=lambda e: self.shelf.books.spend_counts(e, what="cells"),
            )
            for name, column in zip(self.job.clients, scores.T, strict=True)
        ]
        hidden = np.stack([t.suppressed for t in told]).astype(np.uint8)
        noise = np.array([1 / t.epsilon for t in told])
        return {"counts": np.stack([t.counts for t in told]), "hidden": hidden, "noise": noise}, {}

    def _bound(self, message: Message) -> Answer:
        """Weights cut at the bound that all sites' counts and the own training rows give.

        The bound stays here: it is one over the share of training rows in a cell that the server
        picked.
        """
        if not self.job.ratio.bound:
            raise MessageError("weights have no bound in this task")
        self.privacy.check("bin_counts", rows=len(self.data.x))
        edges, log_ratio = _edges(message), self._need("log-ratio")["log_ratio"].numpy()
        counts, hidden = message.array("counts", kind="i"), message.array("hidden", kind="i")
        if counts.ndim != 2 or counts.shape[1] != len(edges) + 1 or hidden.shape != counts.shape:
            raise MessageError(f"counts must have {len(edges) + 1} cells; got {counts.shape}")
        own = np.bincount(np.digitize(log_ratio, edges), minlength=len(edges) + 1)
        noise = message.array("noise", (len(counts),))
        if (noise < 0).any():
            raise MessageError(f"noise must be 1 / ε of every table, 0 for none; got {noise.min()}")
        told = {
            str(i): Released(c.astype(np.int64), h.astype(bool), 1 / z if z else math.inf)
            for i, (c, h, z) in enumerate(zip(counts, hidden, noise.tolist(), strict=True))
        }
        self.shelf.once("set of bin counts", message)
        return self._weigh(log_ratio, bound_from_counts(own, told).bound)

    @cached_property
    def _secret(self) -> bytes:
        """What only the holder of these rows knows, the same whenever they are loaded."""
        found = hashlib.blake2b(digest_size=32)
        for rows in (self.data.x, self.data.test_x):
            found.update(np.ascontiguousarray(rows, dtype=np.float64).tobytes())
        return found.digest()

    def _need(self, name: str) -> dict[str, torch.Tensor]:
        kept = self.shelf.kept(name)
        if kept is None:
            raise MessageError("NeedsModels: this site has no ratio models yet")
        return kept

    def _rows(self, _: Message) -> Answer:
        """Test rows for the pool: made up (rung 4) or, if the site's owner said so twice, real."""
        kind, quota = self.job.ratio.kind, self.job.ratio.quota
        rng = np.random.default_rng([self.job.seed, self.job.clients.index(self.data.name)])
        if kind == "raw":
            self.privacy.check("raw_samples", rows=len(self.data.test_x))
            self.shelf.books.spend_bare("raw_samples")
            chosen = rng.permutation(len(self.data.test_x))[:quota]
            rows = np.ascontiguousarray(self.data.test_x[chosen], dtype=np.float32)
            return {"rows": rows}, {"raw": len(rows)}
        if kind == "generated":
            self.privacy.check("generated_samples", rows=len(self.data.test_x))
            self.shelf.books.spend_bare("generated_samples")
            sampler = sampler_of(self.job)
            rows, audits = fit_audited(sampler, self.data.test_x, quota, seed=self.job.seed)
            said = " ".join(a.status for a in audits)
            if any(a.leaks for a in audits):
                raise Refused(f"{said}; take rung 2, which sends no rows")
            return {"rows": np.asarray(rows, dtype=np.float32)}, {"audit": said}
        raise MessageError(f"ratio kind {kind!r} shares no rows")

    def _pool(self, message: Message) -> Answer:
        if self.job.ratio.kind not in POOLED:
            raise MessageError(f"ratio kind {self.job.ratio.kind!r} takes no pool")
        self._check_weighing()
        if self.job.goal.goal(self.data.name) is None:
            return self._weigh(None)
        pool = message.array("pool")
        if pool.shape[1:] != self.job.shape or len(pool) < 2:
            raise MessageError(f"a pool must have rows of shape {self.job.shape}; got {pool.shape}")
        laws = message.fact("laws", int)
        self.shelf.once("pool", message)
        return self._weigh(pooled_log_ratio(self.job, self.data, pool, laws))

    # -- training ------------------------------------------------------------------------------

    def _train(self, message: Message, stage: Stage) -> Answer:
        arrays: dict[str, Array] = {}
        facts: dict[str, Fact] = {}
        number = message.header.round
        memories = self.shelf.memory(stage, number, self.data.name)
        held: list[Tensor] | list[None] = [None] * stage.folds
        if "since" in message.facts:
            held = self.shelf.shown(stage, message.fact("since", int))
        shown = []
        for j in range(stage.folds):
            task = self._task(stage, j)
            client = self._client(stage, task, memories[j], j)
            told = read_told(task, message, j, held[j])
            shown.append(told.params)
            reply = client.reply(number, told)
            if not bool(torch.isfinite(reply.update).all()):
                raise TrainingDiverged(
                    f"round {number} of {stage.phase} led to NaN or infinity at this site; lower "
                    "the learning rate, clip the weights, or look at its rows"
                )
            packed = pack(task.plan.compression, reply.update, reply.unit)
            arrays |= {f"{j}/{n}": a for n, a in packed.items()}
            for name, part in (("stats", reply.stats), ("control", reply.control)):
                if part is not None:
                    arrays[f"{j}/{name}"] = part.cpu().numpy()
            if stage.name == "ratio":  # what its step counts in the mean
                facts[f"{j}/part"] = float(task.normaliser[0])
            if not isinstance(client, PrivateClient):
                facts[f"{j}/loss"] = float(np.mean(reply.losses))
        self.shelf.remember(stage, number + 1, memories, shown)
        return arrays, facts

    def _client(self, stage: Stage, task: Task, memory: Memory, fold: int) -> Client:
        if stage.name == "ratio" and self.privacy.noise > 0:
            self._check_noise()
            return PrivateClient(
                task,
                0,
                memory,
                policy=self.privacy,
                books=self.shelf.books,
                stream=f"{self.shelf.run} fold-{fold}",
            )
        if stage.name == "ratio":
            self.shelf.books.spend_bare("train.ratio")
        return Client(task, 0, memory)

    def _check_noise(self) -> None:
        """A classifier of labels is calibrated by sums that have no noise."""
        if self.privacy.noise > 0 and self.job.ratio.kind != "multi-source":
            raise Refused(
                "this site's ratio gradients leave with noise only, and a calibration has none; "
                "take ratio kind 'multi-source'"
            )

    def _task(self, stage: Stage, fold: int) -> Task:
        key = (stage.name, fold)
        if key not in self._tasks:
            if stage.name == "ratio":
                part = Laws if self.job.ratio.kind == "multi-source" else Labels
                self._tasks[key] = part(self.job, self.data).task(stage, fold)
            else:
                if self._weights is None:
                    raise MessageError("NeedsWeights: this site has no weights yet")
                self._tasks[key] = stage.own(self.data, self._weights)
        return self._tasks[key]

    def _evaluate(self, message: Message) -> Answer:
        """Scores of one model a run on the site's test rows, if it has labels and tells them."""
        self.privacy.check("evaluate.model", rows=len(self.data.test_x))
        if self.data.test_y is None or not self.privacy.scores:
            return {}, {"labelled": False}
        stage = self.job.stage("model")
        task = stage.blank()
        state = State(message.header.round, sent_state(task, _floats(message)))
        self.shelf.once("model to score", message)
        k = task.names.index(self.data.name)
        memory = self.shelf.memory(stage, message.header.round, self.data.name)[0]
        for name, t in memory.tensors.items():
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
        return {}, {"labelled": True, "score": json.dumps(_finite(score.__dict__))}


def _check_labels(data: ClientData, classes: int) -> None:
    """Now, and not when the first batch with the odd label is drawn."""
    for part, labels in (("y", data.y), ("test_y", data.test_y)):
        if labels is None or not len(labels):
            continue
        if labels.dtype.kind not in "iub" or labels.min() < 0 or labels.max() >= classes:
            got = f"{labels.min()} to {labels.max()}" if labels.dtype.kind in "iub" else "others"
            raise InputError(
                f"site {data.name!r}: {part} must hold the labels 0 to {classes - 1} of the job's "
                f"{classes} classes, as whole numbers; got {got} ({labels.dtype}); encode them as "
                "all sites do, or agree on a task with more classes"
            )


def _floats(message: Message) -> dict[str, Array]:
    """All arrays of a message, checked to be finite."""
    return {name: message.array(name) for name in message.arrays}


def _edges(message: Message) -> Float64Array:
    edges = message.array("edges").astype(np.float64)
    if edges.ndim != 1 or not 1 <= len(edges) <= 200 or (np.diff(edges) <= 0).any():
        raise MessageError("edges must be 1 to 200 rising numbers")
    return np.asarray(edges)


def _finite(table: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for name, value in table.items():
        v = value.item() if isinstance(value, np.generic) else value
        plain[name] = None if isinstance(v, float) and not np.isfinite(v) else v
    return plain
