"""The server of a federation at a distance: asks, checks, combines, remembers.

Whoever carries the messages (`Grid`: Flower, or a dictionary of sites in one process), the rounds
are these. A site that does not answer in time, answers nonsense, or refuses is left out of the
round, and the record says why. After every round the state is on the disk.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors

from fedshift.core.files import atomic_path, write_text
from fedshift.core.label import newton
from fedshift.core.samples import Float64Array
from fedshift.defence.pool import PoolDefence, clean_pool
from fedshift.defence.ratios import check_law, defend_normalisers
from fedshift.defence.robust import check_update
from fedshift.errors import FedshiftError
from fedshift.federation.aggregate import aggregate
from fedshift.federation.checkpoint import load, save
from fedshift.federation.client import Reply
from fedshift.federation.compress import unpack
from fedshift.federation.job import POOLED, SHARED, Job, Stage
from fedshift.federation.ledger import Ledger
from fedshift.federation.messages import Array, Expected, Fact, Header, Message, MessageError
from fedshift.federation.reference import BY_CLIENT
from fedshift.federation.task import State, Task, follow
from fedshift.learn.evaluate import ClientScore, Evaluation

#: longest update taken from anybody, before robust rules look at it
HUGE = 1e8
#: Newton steps of a calibration by all, at most
CALIBRATIONS = 12
#: cuts of log ratios for a bound from counts
EDGES = np.linspace(-6.0, 8.0, 29)
Ask = tuple[Mapping[str, Array], Mapping[str, Fact]]


class TooFewAnswers(FedshiftError, RuntimeError):
    """Not enough sites answered, however often they were asked."""


class Grid(Protocol):
    """Whoever carries messages."""

    def exchange(
        self, questions: Mapping[str, Message], *, deadline: float, limit: int
    ) -> Iterable[Answered]:
        """Send each client its question; give answers back as they come, until the deadline.

        Answers of more than `limit` bytes need not be read: the reason takes their place.
        """

    def wait_for(self, clients: Iterable[str], seconds: float) -> None:
        """Wait until all of these can be reached, or the time is over."""


T = TypeVar("T")
#: a client and its answer, or why there is none
Answered = tuple[str, Message | str]


class InProcess:
    """Sites in this process, asked one after the other; messages go through bytes.

    Parameters
    ----------
    sites : mapping of client to anything with ``handle(message)``
    """

    def __init__(self, sites: Mapping[str, Any]) -> None:
        self.sites = sites

    def wait_for(self, clients: Iterable[str], seconds: float) -> None:
        """Who is not here will not come."""

    def exchange(
        self, questions: Mapping[str, Message], *, deadline: float, limit: int
    ) -> Iterable[Answered]:
        """Ask sites by turns."""
        for name, question in questions.items():
            if name not in self.sites:
                yield name, "not connected"
                continue
            try:
                answer = self.sites[name].handle(Message.decode(question.encode()))
                yield name, Message.decode(answer.encode())
            except Exception as error:  # a site that fails is a site that does not answer
                yield name, f"{type(error).__name__}: {error}"


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
        self._tell = watch or (lambda _: None)
        self._defence = PoolDefence() if pool is None else pool
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_name = self._named()
        self.ledger, self.events, self.history = (
            Ledger(),
            self._past("events"),
            self._past("history"),
        )
        self.mean_weight: dict[str, float] = {}
        self.facts: dict[str, dict[str, Fact]] = {}

    def run(self) -> dict[str, Any]:
        """All phases; the record, also written to ``result.json``."""
        begin = time.time()
        self._note("begin", task=self.job.digest, rung=self.job.rung)
        self._load_ledger()
        self._describe()
        ready = self._weigh()
        state = self._train(self.job.stage("model"), again=ready)[0]
        scores = self._evaluate(state)
        self._describe()  # what privacy was spent
        return self._finish(state, scores, time.time() - begin)

    # -- phases --------------------------------------------------------------------------------

    def _describe(self) -> None:
        """Who is there, and what each knows."""
        found = self._ask("query.describe", 0, {n: ({}, {}) for n in self.job.clients}, limit=4096)
        for name, answer in found.items():
            self.facts.setdefault(name, {}).update(answer.facts)
            self._weighed(name, answer)

    def _weigh(self) -> Callable[[list[str]], None]:
        """The ratio phase; what it returns brings sites that come later up to date."""
        kind = self.job.ratio.kind if self.job.weighs else "local"
        if kind in SHARED:
            states = self._train(self.job.stage("ratio"))
            sent = {
                f"{j}/{n}": a for j, s in enumerate(states) for n, a in shared(s.tensors).items()
            }
            again = self._by_laws(sent) if kind == "multi-source" else self._by_labels(sent)
        elif kind in POOLED:
            again = self._by_pool()
        else:
            again = self._share_with("own", lambda _: ({}, {}))
        again([n for n in self.job.clients if n not in self.mean_weight])
        return again

    def _share_with(self, what: str, ask: Callable[[str], Ask]) -> Callable[[list[str]], None]:
        """A way to send sites what makes their weights."""

        def again(names: list[str]) -> None:
            if not names:
                return
            questions = {}
            for name in names:
                arrays, facts = ask(name)
                questions[name] = (arrays, {"what": what, **facts})
            for name, answer in self._ask("query.share", 0, questions, limit=4096).items():
                self._weighed(name, answer)

        return again

    def _by_laws(self, sent: Mapping[str, Array]) -> Callable[[list[str]], None]:
        plain = self._share_with("models", lambda _: (sent, {}))
        if not self.job.ratio.bound:
            return plain

        def again(names: list[str]) -> None:
            plain(names)
            self._share_bounds(names)

        return again

    def _share_bounds(self, names: list[str]) -> None:
        """Bin counts from everybody, and each one's own column back to it."""
        path, everyone = self.folder / "cells.json", list(self.job.clients)
        if not path.exists():
            asked: dict[str, Ask] = {n: ({"edges": EDGES}, {"what": "cells"}) for n in everyone}
            told = self._ask("query.share", 0, asked, limit=1_000_000)
            tables = self._understood(told, lambda m: _cells(m, len(everyone)))
            write_text(path, json.dumps(tables))
        tables = json.loads(path.read_text(encoding="utf-8"))

        def ask(name: str) -> Ask:
            k = everyone.index(name)
            counts, hidden = (
                np.array([t[i][k] for t in tables.values()], dtype=np.int64) for i in (0, 1)
            )
            return {"edges": EDGES, "counts": counts, "hidden": hidden.astype(np.uint8)}, {}

        self._share_with("bound", ask)(names)

    def _by_labels(self, sent: Mapping[str, Array]) -> Callable[[list[str]], None]:
        """Calibrate together, gather label laws, hand their sum on."""
        path = self.folder / "laws.json"

        def models(names: Iterable[str]) -> list[str]:
            asked: dict[str, Ask] = {n: (sent, {"what": "models"}) for n in names}
            return list(self._ask("query.share", 0, asked, limit=4096))

        if not path.exists():
            have = models(self.job.clients)
            theta = self._calibrate(have)
            write_text(path, json.dumps(self._gather_laws(have, theta)))
        kept = json.loads(path.read_text(encoding="utf-8"))
        theta, laws = np.array(kept["theta"]), kept["laws"]
        goal = self.job.goal

        def ask(name: str) -> Ask:
            wanted = goal.goal(name)
            arrays = {"theta": theta}
            if wanted not in (None, "own"):
                whose = list(laws) if wanted == "all" else [str(wanted)]
                # in an order that says nothing of whose is whose
                arrays["laws"] = np.array(sorted(laws[n] for n in whose if n in laws))
            return arrays, {}

        plain = self._share_with("laws", ask)

        def again(names: list[str]) -> None:
            plain(models(names) if names else [])

        return again

    def _calibrate(self, names: list[str]) -> Float64Array:
        asked: dict[str, Ask] = {n: ({}, {"what": "presence"}) for n in names}
        count = self.job.classes
        told = self._ask("query.share", 0, asked, limit=4096)
        present = self._understood(told, lambda m: m.array("presence", (count,), "i") > 0)
        having = sum(present.values(), np.zeros(count))
        theta = np.concatenate([[1.0], np.zeros(count)])
        for number in range(CALIBRATIONS):
            told = self._ask(
                "query.share",
                number,
                {n: ({"theta": theta, "having": having}, {"what": "calibrate"}) for n in present},
                limit=16 * (count + 2) ** 2,
            )
            sums = self._understood(told, lambda m: _sums(m, count + 1))
            self._enough("the calibration", sums)
            slope, curve = (sum(sums[n][i] for n in sorted(sums)) for i in (0, 1))
            new = newton(theta, np.asarray(slope), np.asarray(curve))
            moved, theta = float(np.abs(new - theta).max()), new
            self._tell({"phase": "calibrate", "round": number, "moved": moved})
            if moved < 1e-6:
                break
        return theta

    def _gather_laws(self, names: list[str], theta: Float64Array) -> dict[str, Any]:
        """Test label laws of those whose neighbours need them."""
        wanted = self.job.goal
        needed = [n for n in names if wanted.kind == "ftw" or n == wanted.client]
        asked: dict[str, Ask] = {n: ({"theta": theta}, {"what": "law"}) for n in needed}
        if not asked:
            return {"theta": theta.tolist(), "laws": {}}
        told = self._ask("query.share", 0, asked, limit=4096)
        laws = self._understood(told, lambda m: _law(m, self.job.classes))
        self._enough("the test label laws", laws, 1 if wanted.client else None)
        return {"theta": theta.tolist(), "laws": laws}

    def _by_pool(self) -> Callable[[list[str]], None]:
        """Rows from everybody, cleaned, as many of each, shuffled, to everybody."""
        path = self.folder / "pool.safetensors"
        if not path.exists():
            quota = self.job.ratio.quota
            asked: dict[str, Ask] = {n: ({}, {"what": "rows"}) for n in self.job.clients}
            limit = quota * 8 * math.prod(self.job.shape) + 4096
            told = self._ask("query.share", 0, asked, limit=limit)
            rows = self._understood(told, lambda m: _pool(m, self.job))
            self._enough("the pool", rows)
            for name, message in told.items():
                if name in rows and self.job.ratio.kind == "raw":
                    self.ledger.add(name, "query.share", rows=len(rows[name]))
                if "audit" in message.facts:
                    self._note("audit", client=name, why=str(message.facts["audit"]))
            cleaned, report = clean_pool(rows, self._defence)
            for name, why in report.left_out.items():
                self._drop(name, "query.share", 0, why)
            rng = np.random.default_rng(self.job.seed)
            pool = rng.permutation(np.concatenate(list(cleaned.values()))).astype(np.float32)
            count = torch.tensor(len(cleaned))
            with atomic_path(path) as temporary:
                parts = {"pool": torch.as_tensor(pool), "laws": count}
                temporary.write_bytes(to_safetensors(parts))
        kept = load_file(str(path))
        pool, laws = kept["pool"].numpy(), int(kept["laws"])
        return self._share_with("pool", lambda _: ({"pool": pool}, {"laws": laws}))

    def _understood(
        self, told: Mapping[str, Message], read: Callable[[Message], T]
    ) -> dict[str, T]:
        """What can be read of answers; whose cannot be is left out."""
        out = {}
        for name, message in told.items():
            try:
                out[name] = read(message)
            except (ValueError, TypeError, KeyError) as error:
                head = message.header
                self._drop(name, head.phase, head.round, f"its answer cannot be used: {error}")
        return out

    def _enough(self, what: str, told: Mapping[str, Any], least: int | None = None) -> None:
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

    def _train(self, stage: Stage, again: Callable[[list[str]], None] | None = None) -> list[State]:
        """Rounds of a stage, from its last checkpoint; a state for every fold."""
        tasks = [stage.blank(j) for j in range(stage.folds)]
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
            self._note("resume", phase=stage.phase, round=done)
        for number in range(states[0].round, stage.plan.n_rounds):
            line = self._round(stage, tasks, states, number, again)
            self.history.append(line)
            self._append("history", line)
            save(folder, _joined(states), {"ledger": self.ledger.to_records()}, fingerprint=mark)
            self._tell({"rounds": stage.plan.n_rounds, **line})
        return states

    def _round(
        self,
        stage: Stage,
        tasks: list[Task],
        states: list[State],
        number: int,
        again: Callable[[list[str]], None] | None,
    ) -> dict[str, Any]:
        begin = time.perf_counter()
        who = [tasks[0].names[k] for k in tasks[0].participants(number)]
        sent = {f"{j}/{n}": a for j, s in enumerate(states) for n, a in told(s.tensors).items()}
        replies = self._replies(stage, tasks, number, who, sent, again)
        names = sorted(replies, key=self.job.clients.index)  # sums must not depend on arrival
        at = [self.job.clients.index(n) for n in names]
        asked = [self.job.clients.index(n) for n in who]
        clipped: set[str] = set()
        for j, (task, state) in enumerate(zip(tasks, states, strict=True)):
            report = aggregate(
                task,
                state.tensors,
                at,
                [replies[n].replies[j] for n in names],
                normaliser=self._normaliser(stage, replies, j),
                asked=asked,
                robust=self.job.robust,
            )
            follow(state.tensors, task.plan.average)
            state.round = number + 1
            if report is not None:
                clipped |= set(report.clipped)
                for name, why in report.left_out.items():
                    self._drop(name, stage.phase, number, why)
        losses = [x for n in names for x in replies[n].losses]
        line = {
            "phase": stage.phase,
            "round": number + 1,
            "loss": float(np.mean(losses)) if losses else None,
            "clients": names,
            "missing": [n for n in who if n not in names],
            "shortened": sorted(clipped),
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
            for name, mean in told.items():
                out[self.job.clients.index(name)] = mean
        every = stage.name == "model" and self.job.goal.kind == "ftw"
        return defend_normalisers(out, self.job.defence, laws=len(out) if every else 1)

    def _replies(
        self,
        stage: Stage,
        tasks: list[Task],
        number: int,
        who: list[str],
        sent: Mapping[str, Array],
        again: Callable[[list[str]], None] | None,
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
            answers = self._ask(
                stage.phase, number, {n: (sent, {}) for n in missing}, limit=stage.limit()
            )
            out |= self._understood(answers, lambda m: _read(m, stage, tasks))
            if len(out) >= least:
                return out
            self._note("too few", phase=stage.phase, round=number, why=f"try {attempt + 1}")
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
        told = self._ask("evaluate.model", state.round, asked, limit=4096)
        labelled = {n: m for n, m in told.items() if m.facts.get("labelled") is True}
        scores = self._understood(labelled, lambda m: _score(m, self.job))
        rows = [replace(scores[n], client=n) for n in self.job.clients if n in scores]
        return Evaluation(tuple(rows)) if rows else None

    # -- messages ------------------------------------------------------------------------------

    def _ask(
        self, phase: str, number: int, asked: Mapping[str, Ask], *, limit: int
    ) -> dict[str, Message]:
        """Answers by client, those that passed the checks; the others are noted."""
        questions = {
            name: Message(Header(self.run_name, phase, number), arrays, facts)
            for name, (arrays, facts) in asked.items()
        }
        expected, out = Expected(questions), {}
        late = set(questions)
        answers = self.grid.exchange(questions, deadline=self.job.deadline, limit=limit)
        for name, answer in answers:
            if name not in questions:
                self._drop(name, phase, number, "was not asked")
                continue
            try:
                if isinstance(answer, str):
                    raise MessageError(answer)
                self.ledger.add(name, phase, up=answer.size, down=questions[name].size)
                out[name] = expected.take(name, answer, limit=limit)
                late.discard(name)
            except MessageError as error:
                late.discard(name)
                self._drop(name, phase, number, str(error))
                if "NeedsWeights" in str(error):  # it lost them; they are sent again
                    self.mean_weight.pop(name, None)
        for name in sorted(late - set(out)):
            self._drop(name, phase, number, f"no answer within {self.job.deadline:g} s")
        return out

    def _weighed(self, name: str, answer: Message) -> None:
        """Remember a site's mean weight, if it says one that can be."""
        mean = answer.facts.get("mean_weight")
        if isinstance(mean, float) and math.isfinite(mean) and mean >= 0:
            self.mean_weight[name] = mean
            self.facts.setdefault(name, {}).update(answer.facts)

    # -- the record ----------------------------------------------------------------------------

    def _named(self) -> str:
        """The name of the run, the same after a restart."""
        path = self.folder / "run.json"
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["task"] != self.job.digest:
                raise FedshiftError(
                    f"{self.folder} holds a run of task {kept['task']}; this is task "
                    f"{self.job.digest}; give another folder, or remove it to begin anew"
                )
            return str(kept["run"])
        name = f"{secrets.token_hex(4)}-{self.job.digest}"
        write_text(path, json.dumps({"run": name, "task": self.job.digest}))
        return name

    def _drop(self, client: str, phase: str, number: int, why: str) -> None:
        self._note("dropped", client=client, phase=phase, round=number, why=why[:500])

    def _note(self, what: str, **more: Any) -> None:
        event = {"time": round(time.time(), 3), "what": what, **more}
        self.events.append(event)
        self._append("events", event)
        self._tell({"event": event})

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        with (self.folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _past(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.jsonl"
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8")
        if not text.endswith("\n"):  # killed in the middle of a line: it is not kept
            text = text[: text.rfind("\n") + 1]
            write_text(path, text)
        return [json.loads(line) for line in text.splitlines()]

    def _load_ledger(self) -> None:
        for name in ("model", "ratio"):  # the later one has all of the earlier
            found = load(self.folder / name, expect=None)
            if found is not None:
                self.ledger = Ledger.from_records(found[1]["ledger"])
                return

    def _finish(self, state: State, scores: Evaluation | None, seconds: float) -> dict[str, Any]:
        final = {n: torch.as_tensor(a).contiguous() for n, a in shared(state.tensors).items()}
        with atomic_path(self.folder / "model.safetensors") as temporary:
            temporary.write_bytes(to_safetensors(final))
        self._note("end", seconds=round(seconds, 1))
        result = {
            "run": self.run_name,
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


def told(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """What a round's question carries: parameters, shared statistics, the control variate."""
    names = {"params": "params", "stats": "stats", "c": "control"}
    return {new: tensors[n].cpu().numpy() for n, new in names.items() if n in tensors}


def shared(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """The model of a state: its mean over rounds where the plan keeps one."""
    return {
        n: tensors.get(f"mean_{n}", tensors[n]).cpu().numpy()
        for n in ("params", "stats")
        if n in tensors
    }


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


class Heard(NamedTuple):
    """What a site said in a round, fold by fold; no losses where they are kept back."""

    replies: list[Reply]
    losses: list[float]
    parts: list[float]


def _read(message: Message, stage: Stage, tasks: list[Task]) -> Heard:
    """A site's replies for all folds.

    Raises
    ------
    MessageError, ValueError
        If anything is missing, of another shape, not finite or huge.
    """
    out = Heard([], [], [])
    for j, task in enumerate(tasks):
        size, dtype = task.layout.size, task.x.dtype
        own = {
            n.removeprefix(f"{j}/"): a for n, a in message.arrays.items() if n.startswith(f"{j}/")
        }
        vector = unpack(task.plan.compression, own, size)
        why = check_update(vector, size, HUGE)
        if why is not None:
            raise MessageError(f"update: {why}")
        if f"{j}/loss" in message.facts:
            out.losses.append(_finite(message, f"{j}/loss"))
        out.parts.append(_finite(message, f"{j}/part", 0.0, 2.0) if stage.name == "ratio" else 1.0)
        stats, control = _stats(message, j, task), _control(message, j, task)
        out.replies.append(Reply(vector.to(dtype), stats, control, []))
    return out


def _finite(message: Message, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    value: float = message.fact(name, float)
    if not (math.isfinite(value) and low <= value <= high):
        raise MessageError(f"{name} is {value}")
    return value


def _cells(message: Message, clients: int) -> list[Any]:
    """Counts of cells along every client's log ratio, and which are hidden."""
    shape = (clients, len(EDGES) + 1)
    counts, hidden = (message.array(n, shape, "i") for n in ("counts", "hidden"))
    shown = np.where(hidden > 0, 0, counts)
    if (shown < 0).any() or (shown != counts).any() or not shown.any(axis=1).all():
        raise MessageError("counts must be ≥ 0, some in every row, and 0 where they are hidden")
    return [counts.tolist(), hidden.tolist()]


def _sums(message: Message, size: int) -> tuple[Float64Array, Float64Array]:
    """Slope and curvature of a calibration; of a convex loss, or Newton's steps lead astray."""
    slope = message.array("slope", (size,)).astype(np.float64)
    curve = message.array("curve", (size, size)).astype(np.float64)
    if max(np.abs(slope).max(), np.abs(curve).max()) > HUGE:
        raise MessageError("slope or curvature are huge")
    least = np.linalg.eigvalsh((curve + curve.T) / 2).min()
    if least < -1e-6 * (1 + np.abs(curve).max()):
        raise MessageError(f"a curvature cannot be negative; got {least:.3g}")
    return slope, (curve + curve.T) / 2


def _law(message: Message, classes: int) -> list[float]:
    law = message.array("law", (classes,)).astype(np.float64)
    why = check_law(law, classes)
    if why is not None:
        raise MessageError(f"its label law has {why}")
    out: list[float] = (law / law.sum()).tolist()
    return out


def _pool(message: Message, job: Job) -> Array:
    rows = message.array("rows")
    if rows.shape[1:] != job.shape or not 1 <= len(rows) <= job.ratio.quota:
        raise MessageError(
            f"a pool has 1 to {job.ratio.quota} rows of shape {job.shape}; got {rows.shape}"
        )
    return rows


def _score(message: Message, job: Job) -> ClientScore:
    """A site's figures."""
    found = ClientScore(**json.loads(message.fact("score", str)))
    high = 1.0 if job.loss == "cross-entropy" else math.inf
    if (found.mse is None) != (high == 1.0) or not 0 <= float(found.value) <= high:
        raise MessageError(f"a score cannot be {found!r:.200}")
    return found


def _stats(message: Message, j: int, task: Task) -> torch.Tensor | None:
    if not task.stats_layout.size or task.plan.norm == "local":
        return None
    stats = message.array(f"{j}/stats", (2, task.stats_layout.size))
    if (stats[1] < 0).any() or np.abs(stats).max() > HUGE:
        raise MessageError("statistics have a negative variance or are huge")
    return torch.tensor(stats).to(task.x.dtype)


def _control(message: Message, j: int, task: Task) -> torch.Tensor | None:
    if not getattr(task.plan, "scaffold", False):
        return None
    control = torch.tensor(message.array(f"{j}/control", (task.layout.size,)))
    why = check_update(control, task.layout.size, HUGE)
    if why is not None:
        raise MessageError(f"control variate: {why}")
    return control.to(task.x.dtype)
