"""The real app between real processes, and what goes wrong there: dead, mute, lost and hostile.

Whatever happens, the run ends, the record names it, and no process is left. Where a site's answers
never count, the model is that of the other sites alone, bit for bit.

A site lies or is silent by a `Between`: it stands between the ClientApp that Flower starts and the
site's own worker, so everything passes the SuperNode, the SuperLink and the ServerApp as ever.

Deployments take minutes. Those that wait for Flower's own time limits run when asked for:
``FEDSHIFT_SLOW=1 pytest -m flower tests/deploy``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
import torch
from faults import kill_node, kill_superlink, survivors
from safetensors.torch import load_file

from fedshift.data.federation import Federation
from fedshift.defence.robust import Robust
from fedshift.deploy import local_run
from fedshift.deploy.agreement import Agreement
from fedshift.deploy.fleet import Fleet
from fedshift.deploy.local_deployment import deploy_local, write_site
from fedshift.deploy.local_run import Finished
from fedshift.deploy.site_file import make_site, read_site
from fedshift.experiments.recipe import Recipe
from fedshift.federation.coordinator import Coordinator
from fedshift.federation.messages import Message
from fedshift.federation.ratios import compute_site_weights
from fedshift.federation.reference import Reference
from fedshift.federation.task import Task
from fedshift.federation.transport import InProcess
from fedshift.federation.worker import _receive, _send
from fedshift.learn.models import build
from fedshift.privacy.policy import Privacy

pytestmark = pytest.mark.flower

#: seconds a round waits; an ordinary one takes ten on two quiet cores
DEADLINE = 30.0
GIGABYTE = 1_000_000_000
Ask = Callable[[bytes], bytes]
#: what is done with a question, given a way to the site's worker; None: nothing, ever
Act = Callable[[Fleet, bytes, Ask], bytes | None]


# -- what the tests share -------------------------------------------------------------------------


def agreed(clients: int, rounds: int, **more: Any) -> Agreement:
    """The smallest task that is real: known ratios, a small network, few steps."""
    recipe = Recipe.load("smoke/flower").changed(
        [
            'train.model={kind="mlp", hidden=[8]}',
            f"plan.rounds={rounds}",
            "plan.local_steps=10",
            "weighting.clip=1000.0",
        ]
    )
    return Agreement.of(
        recipe,
        method="FTW-exact",
        clients=clients,
        robust=Robust(clip=None),
        **{"deadline": DEADLINE, **more},
    )


def by_reference(agreement: Agreement, names: Iterable[str]) -> torch.Tensor:
    """Parameters of the same rounds with these clients alone, by the obvious engine."""
    job = agreement.job
    rows = {name: agreement.rows(name) for name in names}
    weights = {
        n: compute_site_weights(job, data, ratio).values for n, (data, ratio) in rows.items()
    }
    engine = Reference(
        Task.of(
            Federation(tuple(data for data, _ in rows.values())),
            build(job.model, job.shape, job.classes, seed=job.seed),
            job.plan,
            weights=weights,
        )
    )
    engine.advance(job.plan.n_rounds)
    return engine.state.tensors["params"]


def in_process(agreement: Agreement, folder: Path) -> torch.Tensor:
    """Parameters of the same run without Flower and undisturbed."""
    task, policy = (
        agreement.write(folder / "task.toml"),
        Privacy(disclosure_level=agreement.job.disclosure_level),
    )
    sites = {
        name: make_site(read_site(write_site(folder / name, name, task, policy)))
        for name in agreement.job.clients
    }
    Coordinator(agreement.job, InProcess(sites), folder / "record").run()
    return parameters(folder)


def parameters(folder: Path) -> torch.Tensor:
    (last, *_) = sorted((folder / "record" / "model").glob("*.safetensors"), reverse=True)
    return load_file(last)["0/params"]


def deploy(
    agreement: Agreement, folder: Path, acts: Mapping[str, Act] | None = None, **more: Any
) -> Finished:
    """Run it, with somebody between sites and their workers; only logs and the record are kept."""
    with contextlib.ExitStack() as stack:

        def begin(fleet: Fleet) -> None:
            for name, act in (acts or {}).items():
                stack.enter_context(Between(folder / "sites" / name / ".node.toml", fleet, act))

        try:
            return deploy_local(agreement, folder, on_start=begin, timeout=900.0, **more)
        finally:
            shutil.rmtree(folder / "fleet", ignore_errors=True)  # a gigabyte may be in there


def dropped(result: Mapping[str, Any], client: str, phase: str) -> dict[int, str]:
    """Why a client was left out, by round."""
    return {
        e["round"]: e["why"]
        for e in result["events"]
        if e["what"] == "dropped" and (e["client"], e["phase"]) == (client, phase)
    }


def told(folder: Path) -> str:
    """The story of the processes."""
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return "\n".join(json.loads(line)["what"] for line in lines)


def ended_whole(result: Mapping[str, Any], agreement: Agreement) -> None:
    """All rounds were done, once and in turn, and what left the sites is in the ledger."""
    rounds = [line["round"] for line in result["history"]]
    assert rounds == list(range(1, agreement.job.plan.n_rounds + 1))
    assert result["rounds"] == agreement.job.plan.n_rounds
    assert result["ledger"]
    assert result["events"][-1]["what"] == "end"


class Between:
    """Takes the place of a site's worker and passes on what it likes."""

    def __init__(self, site: Path, fleet: Fleet, act: Act) -> None:
        self._worker = str(read_site(site)["socket"])
        self._fleet, self._act = fleet, act
        self._over = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"{self._worker}.between")
        site.write_text(site.read_text().replace(self._worker, f"{self._worker}.between"))

    def __enter__(self) -> Between:
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def _serve(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError):  # closed, or the other end was killed
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            answer = self._act(self._fleet, _receive(connection), self._ask)
            if answer is None:
                self._over.wait()
            else:
                _send(connection, answer)

    def _ask(self, question: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as worker:
            worker.connect(self._worker)
            _send(worker, question)
            return _receive(worker)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Memory:
    """The most memory a process of each kind has had, and what it has now, in bytes."""

    def __init__(self) -> None:
        self.peak: dict[str, int] = {}
        self.now: dict[str, int] = {}
        self._begun = False
        self._over = threading.Event()

    def watch(self, fleet: Fleet) -> None:
        """Look at a fleet's processes from now on."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._watch, args=(fleet,), daemon=True).start()

    def _watch(self, fleet: Fleet) -> None:
        while not self._over.wait(0.3):
            for pid in survivors(fleet):
                with contextlib.suppress(OSError, IndexError):
                    text = Path(f"/proc/{pid}/status").read_text()
                    name = re.findall(r"Name:\t(.*)", text)[0]
                    most, now = (
                        int(re.findall(rf"Vm{n}:\s+(\d+)", text)[0]) for n in ("HWM", "RSS")
                    )
                    self.peak[name] = max(self.peak.get(name, 0), 1024 * most)
                    self.now[name] = 1024 * now

    def stop(self) -> None:
        self._over.set()


# -- one hostile site, one stranger ---------------------------------------------------------------

HONEST, LIAR, STRANGER = ("client-1", "client-2"), "client-3", "client-4"
#: what the liar does in the rounds of training, in turn
LIES = ("answer of another phase", "answer of the round before", "NaN", "shape", "megabytes")


class Liar:
    """Another lie every round; then garbage, then silence."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._last = b""

    def __call__(self, fleet: Fleet, question: bytes, ask: Ask) -> bytes | None:
        message = Message.decode(question)
        head = message.header
        if head.phase == "evaluate.model":
            return b"\x00garbage" * 1000
        honest = ask(question)
        if head.phase == "query.describe":
            return honest if not self._last else None  # the second time, at the end: silence
        if head.phase == "query.share":
            self._last = honest
            return honest
        lie, before = LIES[head.round], self._last
        self._last = honest
        if lie.startswith("answer"):
            if head.round == 0:  # and once more, the very bytes the site has answered
                self._notes.write_text(Message.decode(ask(question)).error)
            return before
        size = Message.decode(honest).arrays["0/update"].size
        vector = {
            "NaN": lambda: np.full(size, np.nan, dtype=np.float32),
            "shape": lambda: np.ones(size - 1, dtype=np.float32),
            "megabytes": lambda: large(20_000_000),
        }[lie]()
        return message.reply({"0/update": vector}, {"0/loss": 1.0}).encode()


def large(size: int) -> np.ndarray:
    """So many bytes, no part like another: Flower sends equal parts once."""
    return np.arange(size // 4, dtype=np.uint32).view(np.float32)


class Unregistered(Fleet):
    """A fleet that never tells the SuperLink of its last node's key."""

    def _register(self, public_keys: Iterable[Path]) -> None:
        super()._register(list(public_keys)[:-1])


def hostile_agreement() -> Agreement:
    return agreed(4, len(LIES), minimum=2)


def run_hostile(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_run, "Fleet", Unregistered)
        deploy(hostile_agreement(), folder, {LIAR: Liar(folder / "replay.txt")}, wait=5.0)
    (folder / "done").touch()


@pytest.fixture(scope="module")
def hostile(
    tmp_path_factory: pytest.TempPathFactory, left: Callable[[Path], dict[int, str]]
) -> Iterator[Path]:
    """Folder of one deployment that the tests below look at, whichever process they run in."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "hostile"
    with (base / "hostile.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            run_hostile(folder)
    yield folder
    assert not left(folder)


@pytest.fixture
def result(hostile: Path) -> dict[str, Any]:
    """Its record."""
    found: dict[str, Any] = json.loads((hostile / "record" / "result.json").read_text())
    return found


def test_the_run_ends_and_the_model_is_that_of_the_honest_sites(
    hostile: Path, result: dict[str, Any]
) -> None:
    ended_whole(result, hostile_agreement())
    for line in result["history"]:
        assert line["clients"] == list(HONEST)
        assert line["missing"] == [LIAR, STRANGER]
    assert torch.equal(parameters(hostile), by_reference(hostile_agreement(), HONEST))
    assert [row["client"] for row in result["evaluation"]] == list(HONEST)
    assert "all processes ended" in told(hostile)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("answer of another phase", "got 'query.share': a stale or replayed message"),
        ("answer of the round before", "must have round 1; got 0: a stale or replayed message"),
        ("NaN", "update: 610 of 610 numbers not finite"),
        ("shape", "update: shape .609,. where .610,. is needed"),
        ("megabytes", r"must have at most [\d,]+ bytes; got 20,000,\d+"),
    ],
)
def test_a_lie_is_dropped_and_named(result: dict[str, Any], lie: str, why: str) -> None:
    assert re.search(why, dropped(result, LIAR, "train.model")[LIES.index(lie)])


def test_garbage_is_dropped_and_named(result: dict[str, Any]) -> None:
    (why,) = dropped(result, LIAR, "evaluate.model").values()
    assert "the bytes are not a valid message" in why


def test_silence_is_dropped_and_named(result: dict[str, Any]) -> None:
    assert dropped(result, LIAR, "query.describe") == {0: f"no reply within {DEADLINE:g} s"}


def test_a_site_answers_no_question_twice(hostile: Path) -> None:
    refusal = (hostile / "replay.txt").read_text()
    assert "train.model of round 0, was answered before: it is a replay" in refusal


def test_a_wrong_key_is_turned_away(hostile: Path, result: dict[str, Any]) -> None:
    assert f"node {STRANGER} will not be started again" in told(hostile)
    assert dropped(result, STRANGER, "query.describe")[0] == "not connected"
    assert STRANGER not in result["sites"]
    assert STRANGER not in {e["client"] for e in result["ledger"]}


# -- the whole of it, undisturbed -----------------------------------------------------------------


@pytest.mark.slow
def test_three_nodes_over_tls_give_the_parameters_of_the_reference(folder: Path) -> None:
    agreement = agreed(3, 5, minimum=3)
    done = deploy(agreement, folder)
    ended_whole(done.result, agreement)
    assert not [e for e in done.result["events"] if e["what"] == "dropped"]
    assert "Uvicorn running on https://" in (folder / "logs" / "superlink.log").read_text()
    assert torch.equal(parameters(folder), by_reference(agreement, agreement.job.clients))


# -- accidents ------------------------------------------------------------------------------------


class Once:
    """Does something the first time a round's question has come to a site, then lets it answer."""

    def __init__(self, number: int, accident: Callable[[Fleet], None]) -> None:
        self._number, self._accident = number, accident
        self.done = 0.0

    def __call__(self, fleet: Fleet, question: bytes, ask: Ask) -> bytes | None:
        head = Message.decode(question).header
        if not self.done and (head.phase, head.round) == ("train.model", self._number):
            self.done = time.monotonic()
            self._accident(fleet)
        return ask(question)


@pytest.mark.slow  # the SuperLink lets a killed node in again after a minute
def test_a_node_killed_in_a_round_is_missed_and_comes_back(folder: Path) -> None:
    agreement = agreed(3, 10, minimum=2, deadline=20.0)
    act = Once(1, lambda fleet: kill_node(fleet, "client-1"))
    done = deploy(agreement, folder, {"client-1": act})
    assert act.done
    ended_whole(done.result, agreement)
    there = ["client-1" in line["clients"] for line in done.result["history"]]
    away = there.index(False), len(there) - there[::-1].index(False)
    assert away[0] == 1  # the round of the accident, counted from 0
    assert away[1] < len(there)
    assert not any(there[away[0] : away[1]])  # missed in one stretch, then there to the end
    for line in done.result["history"]:
        assert line["missing"] == ([] if "client-1" in line["clients"] else ["client-1"])
    why = dropped(done.result, "client-1", "train.model")
    assert sorted(why) == list(range(*away))
    known = "no reply within 20 s|Node Unavailable|its node left|not connected"
    assert all(re.search(known, reason) for reason in why.values())
    assert "node client-1 died: killed by SIGKILL" in told(folder)
    assert "node client-1 restarted after" in told(folder)
    assert done.attempts == 1


@pytest.mark.slow
def test_a_killed_superlink_costs_nothing(folder: Path) -> None:
    agreement = agreed(2, 4, minimum=2, deadline=60.0)
    act = Once(2, kill_superlink)
    done = deploy(agreement, folder / "run", {"client-1": act})
    assert act.done
    ended_whole(done.result, agreement)
    assert done.attempts == 2
    assert "superlink died: killed by SIGKILL" in told(folder / "run")
    assert "superlink restarted after" in told(folder / "run")
    (resumed,) = [e for e in done.result["events"] if e["what"] == "resume"]
    assert resumed["round"] == 2  # two rounds were done and were not done again
    assert torch.equal(parameters(folder / "run"), in_process(agreement, folder / "twin"))


@pytest.mark.slow
def test_a_node_that_never_answers_is_dropped_every_round(folder: Path) -> None:
    agreement = agreed(3, 2, minimum=2, deadline=20.0)
    done = deploy(agreement, folder, {"client-3": lambda *_: None})
    ended_whole(done.result, agreement)
    for line in done.result["history"]:
        assert line["missing"] == ["client-3"]
    late = "no reply within 20 s"
    events = [e for e in done.result["events"] if e["what"] == "dropped"]
    assert {e["client"] for e in events} == {"client-3"}
    assert [e["why"] for e in events] == [late] * len(events)
    assert [e["phase"] for e in events][:3] == ["query.describe", *["query.share"] * 2]
    assert len(events) == 6  # describe, weights, twice weights in a round, scores, describe
    others = ("client-1", "client-2")
    assert torch.equal(parameters(folder), by_reference(agreement, others))


@pytest.mark.slow
def test_a_gigabyte_is_not_read(folder: Path) -> None:
    agreement, memory = agreed(2, 3, minimum=1, deadline=240.0), Memory()

    def act(fleet: Fleet, question: bytes, ask: Ask) -> bytes | None:
        memory.watch(fleet)
        message = Message.decode(question)
        if message.header.phase != "train.model" or message.header.round == 2:
            return ask(question)
        return message.reply({"0/update": large(GIGABYTE)}, {"0/loss": 1.0}).encode()

    done = deploy(agreement, folder, {"client-2": act})
    memory.stop()
    ended_whole(done.result, agreement)
    assert [line["missing"] for line in done.result["history"]] == [["client-2"]] * 2 + [[]]
    why = dropped(done.result, "client-2", "train.model")
    assert sorted(why) == [0, 1]
    for reason in why.values():
        assert re.fullmatch(r"the reply must have at most [\d,]+ bytes; got 1,000,000,\d+", reason)
    assert all(e["up"] < 1e5 for e in done.result["ledger"])
    peak, now = memory.peak["flwr-serverapp"], memory.now["flwr-serverapp"]
    print(f"ServerApp: at most {peak / 1e9:.2f} GB, in the end {now / 1e9:.2f} GB")
    # Flower hands over whole messages and copies them on the way; none is kept
    assert peak < 6e9
    assert now < 2e9
