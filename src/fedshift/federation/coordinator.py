"""The server of a federation at a distance: asks, checks, combines, remembers.

Whoever carries the messages (`Grid`: Flower, or a dictionary of sites in one process), the rounds
are these. A site that does not answer in time, answers nonsense, or refuses is left out of the
round, and the record says why. After every round the state is on the disk.
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
from safetensors.torch import save as to_safetensors

from fedshift.core.files import atomic_path, write_text
from fedshift.core.samples import Float64Array
from fedshift.defence.pool import PoolDefence
from fedshift.defence.ratios import defend_normalisers
from fedshift.errors import FedshiftError
from fedshift.federation.aggregate import aggregate
from fedshift.federation.checkpoint import load, save
from fedshift.federation.grid import Grid
from fedshift.federation.job import Job, Stage
from fedshift.federation.ledger import Ledger
from fedshift.federation.messages import Expected, Fact, Header, Message, MessageError
from fedshift.federation.record import Record
from fedshift.federation.reference import BY_CLIENT
from fedshift.federation.replies import Heard, read_reply, read_score, shared
from fedshift.federation.task import State, Task, follow
from fedshift.federation.telling import Telling
from fedshift.federation.weighing import Again, Ask, Weighing
from fedshift.learn.evaluate import Evaluation

T = TypeVar("T")


class TooFewAnswers(FedshiftError, RuntimeError):
    """Not enough sites answered, however often they were asked."""


class Coordinator:
    """Runs a job to its end.

    Parameters
    ----------
    job : Job
    grid : Grid
    folder : path
        Keeps checkpoints, events and the record; a coordinator that finds its own goes on.
    watch : callable, optional
        Is told every round, as a dict.
    pool : PoolDefence, optional
        How pools of rows are cleaned.
    """

    def __init__(
        self,
        job: Job,
        grid: Grid,
        folder: Path | str,
        *,
        watch: Callable[[dict[str, Any]], None] | None = None,
        pool: PoolDefence | None = None,
    ) -> None:
        self.job, self.grid, self.folder = job, grid, Path(folder)
        self.record = Record(folder, job.digest)
        self.tell = watch or (lambda _: None)
        self.pool_defence = PoolDefence() if pool is None else pool
        self.ledger, self.events, self.history = self._remembered()
        self._telling = Telling(job.stage("model"))
        self.mean_weight: dict[str, float] = {}
        self.facts: dict[str, dict[str, Fact]] = {}

    def run(self) -> dict[str, Any]:
        """All phases; the record, also written to ``result.json``.

        Raises
        ------
        FedshiftError
            If another run is at work in the folder.
        TooFewAnswers
            If too few sites answer; what is done is kept.
        """
        with self.record.locked():
            # another run may have been at work since
            self.ledger, self.events, self.history = self._remembered()
            begin = time.time()
            self.note("begin", task=self.job.digest, rung=self.job.rung)
            self._describe()
            ready = Weighing(self).run()
            state = self.train(self.job.stage("model"), again=ready)[0]
            scores = self._evaluate(state)
            self._describe()  # what privacy was spent
            return self._finish(state, scores, time.time() - begin)

    # -- phases --------------------------------------------------------------------------------

    def _describe(self) -> None:
        """Who is there, and what each knows."""
        found = self.ask("query.describe", 0, {n: ({}, {}) for n in self.job.clients}, limit=4096)
        for known in self.facts.values():  # what a site that is away has spent is not known
            known.pop("epsilon", None)
        for name, answer in found.items():
            self.weighed(name, answer)

    def understood(self, told: Mapping[str, Message], read: Callable[[Message], T]) -> dict[str, T]:
        """What can be read of answers; whose cannot be is left out."""
        out = {}
        for name, message in told.items():
            try:
                out[name] = read(message)
            except Exception as error:  # whatever it sends, it must not end the run
                head = message.header
                self.drop(name, head.phase, head.round, f"its answer cannot be used: {error}")
        return out

    def enough(self, what: str, told: Mapping[str, Any], least: int | None = None) -> None:
        """Raise where too few told what all need."""
        count = len(self.job.clients)
        least = min(self.job.minimum or math.ceil(count / 2), count) if least is None else least
        if len(told) < least:
            raise TooFewAnswers(
                f"{what}: {len(told)} of {count} sites gave an answer that can be used, {least} "
                "are needed; see events.jsonl for the reasons; what is done is kept, start the "
                "run again when the sites are back"
            )

    # -- rounds --------------------------------------------------------------------------------

    def train(self, stage: Stage, again: Again | None = None) -> list[State]:
        """Rounds of a stage, from its last checkpoint; a state for every fold."""
        tasks = [stage.blank(j) for j in range(stage.folds)]
        self._telling = Telling(stage)
        folder, mark = self.folder / stage.name, {"task": self.job.digest, "stage": stage.name}
        found = load(folder, expect=mark)
        if found is None:
            states = [_begin(task) for task in tasks]
        else:
            states = _split(found[0], stage.folds)
            done = states[0].round  # the last round told may be one that was not kept
            self.history = [
                h for h in self.history if h["phase"] != stage.phase or h["round"] <= done
            ]
            self.record.rewrite("history", self.history)
            self.note("resume", phase=stage.phase, round=done)
        for number in range(states[0].round, stage.plan.n_rounds):
            line = self._round(stage, tasks, states, number, again)
            self.history.append(line)
            self.record.append("history", line)
            save(folder, _joined(states), fingerprint=mark)
            self.tell({"rounds": stage.plan.n_rounds, **line})
        return states

    def _round(
        self,
        stage: Stage,
        tasks: list[Task],
        states: list[State],
        number: int,
        again: Again | None,
    ) -> dict[str, Any]:
        begin = time.perf_counter()
        who = [tasks[0].names[k] for k in tasks[0].participants(number)]
        replies = self._replies(stage, tasks, number, who, states, again)
        self._telling.heard(replies, number)
        names = sorted(replies, key=self.job.clients.index)  # sums must not depend on arrival
        at = [self.job.clients.index(n) for n in names]
        asked = [self.job.clients.index(n) for n in who]
        clipped: set[str] = set()
        cut: set[str] = set()
        for j, (task, state) in enumerate(zip(tasks, states, strict=True)):
            report = aggregate(
                task,
                state.tensors,
                at,
                [replies[n].replies[j] for n in names],
                normaliser=self._normaliser(stage, replies, j),
                asked=asked,
                robust=self.job.robust.among(len(self.job.clients)),
            )
            follow(state.tensors, task.plan.average)
            state.round = number + 1
            if report is not None:
                clipped |= set(report.clipped)
                cut |= set(report.beside)
                for name, why in report.left_out.items():
                    self.drop(name, stage.phase, number, why)
        self._telling.moved(states)
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

    def _normaliser(self, stage: Stage, heard: Mapping[str, Heard], fold: int) -> Float64Array:
        """N_k of everybody: what the sites said their mean weight is, if that can be true."""
        out = np.ones(len(self.job.clients))
        plan: Any = stage.plan
        if getattr(plan, "normalise", "none") == "self":
            told = self.mean_weight
            if stage.name == "ratio":
                told = {n: h.parts[fold] for n, h in heard.items()}
            every = stage.name == "model" and self.job.goal.kind == "ftw"
            laws = len(out) if every else 1
            believed = defend_normalisers(list(told.values()), self.job.defence, laws=laws)
            out[[self.job.clients.index(name) for name in told]] = believed
        return out

    def _replies(
        self,
        stage: Stage,
        tasks: list[Task],
        number: int,
        who: list[str],
        states: list[State],
        again: Again | None,
    ) -> dict[str, Heard]:
        """Answers that can be used; asked again if they are too few."""
        least = min(self.job.minimum or math.ceil(len(who) / 2), len(who))
        least = min(max(least, self.job.robust.least), len(who))
        out: dict[str, Heard] = {}
        for attempt in range(self.job.tries):
            missing = [n for n in who if n not in out]
            if again is not None:  # without weights it cannot train, and to ask would cost time
                again([n for n in missing if n not in self.mean_weight])
                missing = [n for n in missing if n in self.mean_weight]
            asked = self._telling.questions(missing, number, states)
            answers = self.ask(stage.phase, number, asked, limit=stage.limit())
            out |= self.understood(answers, lambda m: read_reply(m, stage, tasks))
            if len(out) >= least:
                return out
            self.note("too few", phase=stage.phase, round=number, why=f"try {attempt + 1}")
            if attempt + 1 < self.job.tries:  # a node that was killed is away for a minute
                self.grid.wait_for([n for n in who if n not in out], self.job.deadline)
        raise TooFewAnswers(
            f"{stage.phase}, round {number}: {len(out)} of {len(who)} sites gave an answer that "
            f"can be used, {least} are needed, after {self.job.tries} tries; see events.jsonl for "
            "the reasons; the checkpoint is kept, start the run again when the sites are back"
        )

    def _evaluate(self, state: State) -> Evaluation | None:
        sent = {f"0/{n}": a for n, a in shared(state.tensors).items()}
        asked: dict[str, Ask] = {n: (sent, {}) for n in self.job.clients}
        told = self.ask("evaluate.model", state.round, asked, limit=4096)
        labelled = {n: m for n, m in told.items() if m.facts.get("labelled") is True}
        scores = self.understood(labelled, lambda m: read_score(m, self.job))
        rows = [replace(scores[n], client=n) for n in self.job.clients if n in scores]
        return Evaluation(tuple(rows)) if rows else None

    # -- messages ------------------------------------------------------------------------------

    def ask(
        self, phase: str, number: int, asked: Mapping[str, Ask], *, limit: int
    ) -> dict[str, Message]:
        """Answers by client, those that passed the checks; the others are noted."""
        questions = {
            name: Message(Header(self.record.run, phase, number), arrays, facts)
            for name, (arrays, facts) in asked.items()
        }
        expected, out = Expected(questions), {}
        late = set(questions)
        answers = self.grid.exchange(questions, deadline=self.job.deadline, limit=limit)
        for name, answer in answers:
            if name not in questions:
                self.drop(name, phase, number, "was not asked")
                continue
            try:
                if isinstance(answer, str):
                    raise MessageError(answer)
                self.ledger.add(name, phase, up=answer.size, down=questions[name].size)
                out[name] = expected.take(name, answer, limit=limit)
                late.discard(name)
            except MessageError as error:
                late.discard(name)
                self.drop(name, phase, number, str(error))
                if "NeedsWeights" in str(error):  # it lost them; they are sent again
                    self.mean_weight.pop(name, None)
                if "NeedsParameters" in str(error):
                    self._telling.lost(name)
        for name in sorted(late - set(out)):
            self.drop(name, phase, number, f"no answer within {self.job.deadline:g} s")
        self.record.keep_ledger(self.ledger)  # before anything is made of the answers
        return out

    def weighed(self, name: str, answer: Message) -> None:
        """Remember what a site says of its weights, and their mean if it can be one."""
        self.facts.setdefault(name, {}).update(answer.facts)
        mean = answer.facts.get("mean_weight")
        if isinstance(mean, float) and math.isfinite(mean) and mean >= 0:
            self.mean_weight[name] = mean

    # -- the record ----------------------------------------------------------------------------

    def _remembered(self) -> tuple[Ledger, list[dict[str, Any]], list[dict[str, Any]]]:
        """What the folder knows of the run: ledger, events, history."""
        return self.record.ledger(), self.record.past("events"), self.record.past("history")

    def drop(self, client: str, phase: str, number: int, why: str) -> None:
        """Write down that an answer is not used, and why."""
        self.note("dropped", client=client, phase=phase, round=number, why=why[:500])

    def shortened(self, client: str, phase: str, number: int, why: str) -> None:
        """Write down that an answer counts less than it says, and why."""
        self.note("shortened", client=client, phase=phase, round=number, why=why)

    def note(self, what: str, **more: Any) -> None:
        """Write down what happened, at once."""
        event = {"time": round(time.time(), 3), "what": what, **more}
        self.events.append(event)
        self.record.append("events", event)
        self.tell({"event": event})

    def _finish(self, state: State, scores: Evaluation | None, seconds: float) -> dict[str, Any]:
        final = {n: torch.as_tensor(a).contiguous() for n, a in shared(state.tensors).items()}
        with atomic_path(self.folder / "model.safetensors") as temporary:
            temporary.write_bytes(to_safetensors(final))
        self.note("end", seconds=round(seconds, 1))
        result = {
            "run": self.record.run,
            "objective": self.job.objective,
            "ratio": self.job.ratio.kind if self.job.weighs else None,
            "rung": self.job.rung,
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
    """A state without what stays with the sites."""
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
