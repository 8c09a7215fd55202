"""The server of a deployment: it sends requests, checks and combines replies, and logs events.

The rounds are the same over any `Transport`: Flower, or a dictionary of sites in one process. A
site that replies late, sends an invalid reply, or refuses is left out of the round, and
``events.jsonl`` gives the reason. After every round the state is written to the disk.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fedshift.core.files import write_text
from fedshift.core.samples import Float64Array
from fedshift.defence.ratios import defend_normalisers
from fedshift.errors import FedshiftError
from fedshift.federation.aggregate import aggregate
from fedshift.federation.checkpoint import load, save
from fedshift.federation.deployment_task import DeploymentTask, Stage
from fedshift.federation.downlink import Downlink
from fedshift.federation.ledger import Ledger
from fedshift.federation.messages import ExpectedReplies, Fact, Header, Message, MessageError
from fedshift.federation.ratio_protocol import CatchUp, Payload, RatioProtocol
from fedshift.federation.record import ServerRecord
from fedshift.federation.reference import BY_CLIENT
from fedshift.federation.replies import SiteReplies, read_reply, read_score, shared
from fedshift.federation.task import State, Task, follow
from fedshift.federation.transport import Transport
from fedshift.learn.evaluate import Evaluation
from fedshift.outcome.predictor import Predictor

T = TypeVar("T")


class TooFewReplies(FedshiftError, RuntimeError):
    """Too few sites sent a valid reply, even after repeated requests."""


class Coordinator:
    """Runs a deployment task from start to end.

    Parameters
    ----------
    job : DeploymentTask
    transport : Transport
    folder : path
        Folder for checkpoints, events and results. If it holds a stopped run of the task, the
        coordinator continues this run.
    watch : callable, optional
        Called with a dict after every round and for every event.
    """

    def __init__(
        self,
        job: DeploymentTask,
        transport: Transport,
        folder: Path | str,
        *,
        watch: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.job, self.transport, self.folder = job, transport, Path(folder)
        self.record = ServerRecord(folder, job.digest)
        self.watch = watch or (lambda _: None)
        self.ledger, self.events, self.history = self._stored()
        self._downlink = Downlink(job.stage("model"))
        self.mean_weight: dict[str, float] = {}
        self.facts: dict[str, dict[str, Fact]] = {}

    def run(self) -> dict[str, Any]:
        """Run all phases; return the results, which are also written to ``result.json``.

        Raises
        ------
        FedshiftError
            If another run is active in the folder.
        TooFewReplies
            If too few sites reply. The finished rounds stay on the disk, and a new start of the run
            continues after them.
        """
        with self.record.locked():
            # another run may have written since
            self.ledger, self.events, self.history = self._stored()
            begin = time.time()
            self.note("begin", task=self.job.digest, disclosure_level=self.job.disclosure_level)
            self._describe()
            catch_up = RatioProtocol(self).run()
            state = self.train(self.job.stage("model"), catch_up)[0]
            scores = self._evaluate(state)
            self._describe()  # for the privacy spent
            return self._finish(state, scores, time.time() - begin)

    # -- phases --------------------------------------------------------------------------------

    def _describe(self) -> None:
        """Store the facts that each site reports."""
        replies = self.query(
            "query.describe", 0, {n: ({}, {}) for n in self.job.clients}, limit=4096
        )
        for facts in self.facts.values():  # what an absent site has spent is not known
            facts.pop("epsilon", None)
        for name, reply in replies.items():
            self.store_facts(name, reply)

    def parse(self, replies: Mapping[str, Message], read: Callable[[Message], T]) -> dict[str, T]:
        """Apply `read` to each reply and return the results; drop replies at which `read` fails."""
        out = {}
        for name, message in replies.items():
            try:
                out[name] = read(message)
            except Exception as error:  # no reply may end the run
                head = message.header
                self.drop(name, head.phase, head.round, f"its reply cannot be used: {error}")
        return out

    def require(self, what: str, replies: Mapping[str, Any], least: int | None = None) -> None:
        """Raise if fewer than `least` sites sent a valid reply in a step that all sites depend on.

        By default `least` is the task's `minimum`.
        """
        count = len(self.job.clients)
        least = min(self.job.minimum or math.ceil(count / 2), count) if least is None else least
        if len(replies) < least:
            raise TooFewReplies(
                f"{what}: {least} valid replies are needed; got {len(replies)} of {count}; see "
                f"{self.record.folder / 'events.jsonl'} for the reasons, and start the run "
                "again when the sites are back; the run continues where it stopped"
            )

    # -- rounds --------------------------------------------------------------------------------

    def train(self, stage: Stage, catch_up: CatchUp | None = None) -> list[State]:
        """Train a stage from its last checkpoint; return a state for every fold."""
        tasks = [stage.blank(j) for j in range(stage.folds)]
        self._downlink = Downlink(stage)
        folder, mark = self.folder / stage.name, {"task": self.job.digest, "stage": stage.name}
        checkpoint = load(folder, expect=mark)
        if checkpoint is None:
            states = [_begin(task) for task in tasks]
        else:
            states = _split(checkpoint[0], stage.folds)
            done = states[0].round  # the history may have one round more than the checkpoint
            self.history = [
                h for h in self.history if h["phase"] != stage.phase or h["round"] <= done
            ]
            self.record.rewrite("history", self.history)
            self.note("resume", phase=stage.phase, round=done)
        for number in range(states[0].round, stage.plan.n_rounds):
            line = self._round(stage, tasks, states, number, catch_up)
            self.history.append(line)
            self.record.append("history", line)
            save(folder, _joined(states), fingerprint=mark)
            self.watch({"rounds": stage.plan.n_rounds, **line})
        return states

    def _round(
        self,
        stage: Stage,
        tasks: list[Task],
        states: list[State],
        number: int,
        catch_up: CatchUp | None,
    ) -> dict[str, Any]:
        begin = time.perf_counter()
        who = [tasks[0].names[k] for k in tasks[0].participants(number)]
        replies = self._replies(stage, tasks, number, who, states, catch_up)
        self._downlink.acknowledge(replies, number)
        names = sorted(replies, key=self.job.clients.index)  # sums must not depend on arrival
        at = [self.job.clients.index(n) for n in names]
        sampled = [self.job.clients.index(n) for n in who]
        clipped: set[str] = set()
        cut: set[str] = set()
        for j, (task, state) in enumerate(zip(tasks, states, strict=True)):
            report = aggregate(
                task,
                state.tensors,
                at,
                [replies[n].replies[j] for n in names],
                normaliser=self._normaliser(stage, replies, j),
                cohort=sampled,
                robust=self.job.robust.among(len(self.job.clients)),
            )
            follow(state.tensors, task.plan.average)
            state.round = number + 1
            if report is not None:
                clipped |= set(report.clipped)
                cut |= set(report.beside)
                for name, why in report.left_out.items():
                    self.drop(name, stage.phase, number, why)
        self._downlink.update(states)
        losses = [x for n in names for x in replies[n].losses]
        line = {
            "phase": stage.phase,
            "round": number + 1,
            "loss": float(np.mean(losses)) if losses else None,
            "clients": names,
            "missing": [n for n in who if n not in names],
            "shortened": sorted(clipped),
            "cut": sorted(cut),
            "seconds": round(time.perf_counter() - begin, 3),
        }
        return line

    def _normaliser(
        self, stage: Stage, replies: Mapping[str, SiteReplies], fold: int
    ) -> Float64Array:
        """Return N_k of every client: the mean weight that it reports, within limits."""
        out = np.ones(len(self.job.clients))
        plan: Any = stage.plan
        if getattr(plan, "normalise", "none") == "self":
            means = self.mean_weight
            if stage.name == "ratio":
                means = {n: r.parts[fold] for n, r in replies.items()}
            every = stage.name == "model" and self.job.goal.kind == "ftw"
            n_targets = len(out) if every else 1
            out[[self.job.clients.index(name) for name in means]] = defend_normalisers(
                list(means.values()), self.job.defence, n_targets=n_targets
            )
        return out

    def _replies(
        self,
        stage: Stage,
        tasks: list[Task],
        number: int,
        who: list[str],
        states: list[State],
        catch_up: CatchUp | None,
    ) -> dict[str, SiteReplies]:
        """Return valid replies; repeat the requests while there are too few."""
        least = min(self.job.minimum or math.ceil(len(who) / 2), len(who))
        out: dict[str, SiteReplies] = {}
        for attempt in range(self.job.tries):
            missing = [n for n in who if n not in out]
            if catch_up is not None:  # a site without weights cannot train
                catch_up([n for n in missing if n not in self.mean_weight])
                missing = [n for n in missing if n in self.mean_weight]
            payloads = self._downlink.payloads(missing, number, states)
            replies = self.query(stage.phase, number, payloads, limit=stage.limit())
            out |= self.parse(replies, lambda m: read_reply(m, stage, tasks))
            if len(out) >= least:
                return out
            self.note("too few", phase=stage.phase, round=number, why=f"try {attempt + 1}")
            if attempt + 1 < self.job.tries:  # a node that was killed is away for a minute
                self.transport.wait_for([n for n in who if n not in out], self.job.deadline)
        raise TooFewReplies(
            f"{stage.phase}, round {number}: {least} valid replies are needed; got {len(out)} of "
            f"{len(who)} after {self.job.tries} tries; see "
            f"{self.record.folder / 'events.jsonl'} for the reasons, and start "
            "the run again when the sites are back; the run continues from its checkpoint"
        )

    def _evaluate(self, state: State) -> Evaluation | None:
        sent = {f"0/{n}": a for n, a in shared(state.tensors).items()}
        payloads: dict[str, Payload] = {n: (sent, {}) for n in self.job.clients}
        replies = self.query("evaluate.model", state.round, payloads, limit=4096)
        labelled = {n: m for n, m in replies.items() if m.facts.get("labelled") is True}
        scores = self.parse(labelled, lambda m: read_score(m, self.job))
        rows = [replace(scores[n], client=n) for n in self.job.clients if n in scores]
        return Evaluation(tuple(rows)) if rows else None

    # -- messages ------------------------------------------------------------------------------

    def query(
        self, phase: str, number: int, payloads: Mapping[str, Payload], *, limit: int
    ) -> dict[str, Message]:
        """Send requests; return valid replies by client, and log why others were dropped."""
        requests = {
            name: Message(Header(self.record.run, phase, number), arrays, facts)
            for name, (arrays, facts) in payloads.items()
        }
        expected, out = ExpectedReplies(requests), {}
        late = set(requests)
        replies = self.transport.exchange(requests, deadline=self.job.deadline, limit=limit)
        for name, reply in replies:
            if name not in requests:
                self.drop(name, phase, number, "got no request")
                continue
            try:
                if isinstance(reply, str):
                    raise MessageError(reply)
                self.ledger.add(name, phase, up=reply.size, down=requests[name].size)
                out[name] = expected.accept(name, reply, limit=limit)
                late.discard(name)
            except MessageError as error:
                late.discard(name)
                self.drop(name, phase, number, str(error))
                if "NeedsWeights" in str(error):  # it lost them; the server sends them again
                    self.mean_weight.pop(name, None)
                if "NeedsParameters" in str(error):
                    self._downlink.forget(name)
        for name in sorted(late - set(out)):
            self.drop(name, phase, number, f"no reply within {self.job.deadline:g} s")
        self.record.save_ledger(self.ledger)  # before any reply is used
        return out

    def store_facts(self, name: str, reply: Message) -> None:
        """Store the facts that a site reports, and its mean weight if it is finite and ≥ 0."""
        self.facts.setdefault(name, {}).update(reply.facts)
        mean = reply.facts.get("mean_weight")
        if isinstance(mean, float) and math.isfinite(mean) and mean >= 0:
            self.mean_weight[name] = mean

    # -- the record ----------------------------------------------------------------------------

    def _stored(self) -> tuple[Ledger, list[dict[str, Any]], list[dict[str, Any]]]:
        """Return ledger, events and history of the run from the folder."""
        return self.record.ledger(), self.record.past("events"), self.record.past("history")

    def drop(self, client: str, phase: str, number: int, why: str) -> None:
        """Log that a reply is not used, and why."""
        self.note("dropped", client=client, phase=phase, round=number, why=why[:500])

    def note_shortened(self, client: str, phase: str, number: int, why: str) -> None:
        """Log that a vector in a reply was scaled down to a smaller norm, and why."""
        self.note("shortened", client=client, phase=phase, round=number, why=why)

    def note(self, what: str, **more: Any) -> None:
        """Write an event to ``events.jsonl`` at once."""
        event = {"time": round(time.time(), 3), "what": what, **more}
        self.events.append(event)
        self.record.append("events", event)
        self.watch({"event": event})

    def _finish(self, state: State, scores: Evaluation | None, seconds: float) -> dict[str, Any]:
        Predictor(
            model=self.job.stage("model").blank().module(state),
            shape=self.job.shape,
            classes=tuple(range(self.job.classes)) if self.job.loss == "cross-entropy" else (),
            sites=self.job.clients,
            kept_at_sites=self.job.plan.norm == "local",
        ).write(self.folder)
        self.note("end", seconds=round(seconds, 1))
        result = {
            "run": self.record.run,
            "objective": self.job.objective,
            "ratio": self.job.ratio.kind if self.job.weighs else None,
            "disclosure_level": self.job.disclosure_level,
            "rounds": state.round,
            "seconds": seconds,
            "sites": self.facts,
            "ledger": self.ledger.to_records(),
            "history": self.history,
            "events": self.events,
            "evaluation": None if scores is None else scores.to_records(),
            "mean": None if scores is None else scores.mean,
        }
        write_text(self.folder / "result.json", json.dumps(result, indent=1))
        return result


def _begin(task: Task) -> State:
    """Return a first state without the parts that stay with the sites."""
    state = task.begin()
    local = {*BY_CLIENT, *(["stats", "mean_stats"] if task.plan.norm == "local" else [])}
    gone = local | {f"mean_{n}" for n in local}
    return State(0, {n: t for n, t in state.tensors.items() if n not in gone})


def _joined(states: list[State]) -> State:
    tensors = {f"{j}/{n}": t for j, s in enumerate(states) for n, t in s.tensors.items()}
    return State(states[0].round, tensors)


def _split(state: State, folds: int) -> list[State]:
    parts: list[dict[str, torch.Tensor]] = [{} for _ in range(folds)]
    for name, t in state.tensors.items():
        j, _, own = name.partition("/")
        parts[int(j)][own] = t
    return [State(state.round, p) for p in parts]
