"""Answers that are slow, never come, cannot be put together or are too large, without processes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import Context, RecordDict

from fedshift.data.federation import ClientData
from fedshift.deploy.site_file import WorkerOrSite
from fedshift.federation.coordinator import Coordinator
from fedshift.federation.deployment_task import DeploymentTask, RatioPhase
from fedshift.federation.flower import FlowerTransport, client_app, from_records, to_records
from fedshift.federation.messages import Header, Message
from fedshift.federation.plan import FedAvg
from fedshift.federation.site import Site
from fedshift.federation.transport import InProcess
from fedshift.federation.worker import RemoteSite, WorkerLate
from fedshift.privacy.policy import Privacy

try:  # who a process is, which newer Flower writes into every message
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    TaskIdentity = None

QUESTION = Message(Header("run-task", "train.model", 0))


class Post:
    """As much of Flower's grid as carries answers; a node answers as its name says."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def get_node_ids(self) -> list[int]:
        return list(range(len(self.names)))

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        return [self.names[m.node] for m in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Any]:
        (name,) = message_ids
        if name == "slow":
            time.sleep(20)
        if name == "broken":
            raise KeyError("a part is missing")
        if name == "gone":
            raise ConnectionError("no SuperLink")
        arrays = {"a": np.ones(1000 if name == "large" else 10, dtype=np.float32)}
        answer = to_records(QUESTION.reply(arrays))
        yield SimpleNamespace(has_error=lambda: False, content=answer)


class Known(FlowerTransport):
    """Knows its nodes, and has envelopes that need no process of Flower's."""

    def __init__(self, post: Any) -> None:
        super().__init__(post, post.names, wait=0.0)
        self._names = dict(enumerate(post.names))

    def _envelope(self, node: int, question: Message, deadline: float) -> Any:
        return SimpleNamespace(node=node)


def asked(grid: Any, *names: str, deadline: float = 3.0) -> dict[str, Message | str]:
    questions = dict.fromkeys(names, QUESTION)
    return dict(Known(grid).exchange(questions, deadline=deadline, limit=1000))


def test_a_slow_answer_keeps_no_other_waiting() -> None:
    names = ("slow", "well")
    begin = time.monotonic()
    asked = dict.fromkeys(names, QUESTION)
    answers = iter(Known(Post(*names)).exchange(asked, deadline=3.0, limit=1000))
    name, answer = next(answers)
    assert time.monotonic() - begin < 2
    assert name == "well"
    assert isinstance(answer, Message)
    assert list(answers) == []
    assert 2.5 < time.monotonic() - begin < 6


def test_what_flower_cannot_put_together_is_that_site_s_alone() -> None:
    found = asked(Post("broken", "well", "large"), "broken", "well", "large")
    assert str(found["broken"]).startswith("its reply cannot be fetched: KeyError")
    assert isinstance(found["well"], Message)
    assert "at most 1,000 bytes; got" in str(found["large"])


def test_a_superlink_that_is_gone_ends_the_round() -> None:
    class Dead(Post):
        gone = False

        def get_node_ids(self) -> list[int]:
            if self.gone:  # once answers were looked for
                raise ConnectionError("no SuperLink")
            return super().get_node_ids()

        def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Any]:
            self.gone = True
            raise ConnectionError("no SuperLink")

    with pytest.raises(ConnectionError):
        asked(Dead("gone", "well"), "gone", "well")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """A socket at which somebody listens and nobody answers."""
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        yield tmp_path / "s"


def test_a_silent_worker_is_late_and_nobody_takes_its_place(silent: Path) -> None:
    with pytest.raises(WorkerLate, match=r"has not replied within 0.2 s"):
        RemoteSite(silent, timeout=0.2).handle(QUESTION)
    with pytest.raises(WorkerLate):  # it may be at work: two at once would tear its memory
        WorkerOrSite({"socket": str(silent)}, patience=0.2).handle(QUESTION)


def test_the_patience_of_a_node_is_the_deadline_of_the_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):
        if TaskIdentity is not None:
            monkeypatch.setattr(TaskIdentity, name, 1)
    seen: list[Mapping[str, Any]] = []

    class Task:
        def site(self, node: Mapping[str, Any]) -> Any:
            seen.append(node)
            raise WorkerLate("it is late")

    post: Any = SimpleNamespace()
    task: Any = Task()
    envelope = FlowerTransport(post, [])._envelope(7, QUESTION, 12.5)
    envelope.metadata.__dict__["_message_id"] = "1"
    reply = client_app(task)(envelope, Context(1, 7, {"client": "a"}, RecordDict(), {}))
    assert seen == [{"client": "a", "patience": 12.5}]
    assert from_records(reply.content).error == "WorkerLate: it is late"


def test_who_has_no_weights_is_not_asked_to_train(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    job = DeploymentTask(
        clients=("a", "b"),
        shape=(3,),
        classes=2,
        model="mlp",
        plan=FedAvg(rounds=2, local_steps=1),
        objective="erm",
        ratio=RatioPhase(kind="local"),
        minimum=1,
    )
    rows = ClientData("a", rng.normal(size=(20, 3)), np.arange(20) % 2, rng.normal(size=(20, 3)))
    phases: list[str] = []

    class Mute:
        def handle(self, message: Message) -> Message:
            phases.append(message.header.phase)
            raise TimeoutError("silent")

    sites = {"a": Site(job, rows, tmp_path / "a", privacy=Privacy(disclosure_level=0)), "b": Mute()}
    result = Coordinator(job, InProcess(sites), tmp_path / "record").run()
    assert [line["missing"] for line in result["history"]] == [["b"], ["b"]]
    share, rest = ["query.share"] * 3, ["evaluate.model", "query.describe"]
    assert phases == ["query.describe", *share, *rest]
