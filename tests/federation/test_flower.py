"""Records of Flower: what is read, what is refused; and a grid whose nodes fail."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.app import Error as FlowerError
from flwr.app import Message as Envelope
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.federation import flower
from fedshift.federation.flower import FlowerTransport, client_app, from_records, to_records
from fedshift.federation.messages import DTYPES, LONGEST, PHASES, Header, Message, MessageError
from fedshift.privacy.policy import Refused

try:  # who a process is, which newer Flower writes into every message
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    TaskIdentity = None

HEAD = Header("run-abc", "query.share", 3)


@pytest.fixture(autouse=True)
def _a_process_of_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "POLL", 0.01)
    monkeypatch.setattr(flower, "GRACE", 0.05)
    for name in ("_task_id", "_run_id", "_node_id"):
        if TaskIdentity is not None:
            monkeypatch.setattr(TaskIdentity, name, 1)


# -- records -------------------------------------------------------------------------------------


def test_messages_come_back() -> None:
    rng = np.random.default_rng(0)
    arrays = {d: rng.integers(0, 2, (2, 3)).astype(d) for d in DTYPES}
    arrays |= {
        "scalar": np.array(2.5),
        "none": np.zeros((0, 4)),
        "columns": np.asfortranarray(rng.normal(size=(3, 2))),
        "foreign": np.array([1.5], dtype=">f4"),
    }
    facts: dict[str, Any] = {"i": 3, "f": 0.5, "t": "ä", "b": True, "l": [1.5], "s": ["a"]}
    sent = Message(HEAD, arrays, facts, "why")
    got = from_records(to_records(sent), limit=sum(len(a.data) for a in _arrays(sent)))
    assert (got.header, dict(got.facts), got.error) == (HEAD, facts, "why")
    for name, a in arrays.items():
        assert got.arrays[name].shape == a.shape
        np.testing.assert_array_equal(got.arrays[name], a)
    with pytest.raises(MessageError, match="at most 100 bytes; got"):
        from_records(to_records(sent), limit=100)


def _arrays(message: Message) -> list[Array]:
    record = to_records(message)["arrays"]
    assert isinstance(record, ArrayRecord)
    return list(record.values())


def records(**changes: Any) -> RecordDict:
    out = dict(to_records(Message(HEAD, {"a": np.ones(3)}, {"n": 1})))
    out |= changes
    return RecordDict({n: r for n, r in out.items() if r is not None})


def head(**changes: Any) -> ConfigRecord:
    whole = {**HEAD.__dict__, "error": "", **changes}
    return ConfigRecord({n: v for n, v in whole.items() if v is not None})


def npy(a: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, a, **options)
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.ones(2))
    return file.getvalue()


def promised(shape: str) -> bytes:
    """A header that says more than there is."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def array(
    data: bytes, dtype: str = "float64", stype: str = "numpy.ndarray", shape: Any = (3,)
) -> ArrayRecord:
    return ArrayRecord({"a": Array(dtype, shape, stype, data)})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"header": None}, "no record"),
    ({"facts": None}, "no record"),
    ({"arrays": None}, "no record"),
    ({"header": MetricRecord({"a": 1})}, "must have two ConfigRecords and an ArrayRecord"),
    ({"facts": ArrayRecord({})}, "must have two ConfigRecords and an ArrayRecord"),
    ({"arrays": ConfigRecord({})}, "must have two ConfigRecords and an ArrayRecord"),
    ({"header": head(run=None)}, "header must hold"),
    ({"header": head(more=1)}, "header must hold"),
    ({"header": head(round=1.0)}, "header must hold"),
    ({"header": head(round=True)}, "header must hold"),
    ({"header": head(run=b"run")}, "header must hold"),
    ({"header": head(round=-1)}, "round"),
    ({"header": head(phase="x")}, "phase"),
    ({"header": head(nonce="x")}, "nonce"),
    ({"header": head(error="x" * (LONGEST + 1))}, "at most"),
    ({"facts": ConfigRecord({"a": b"bytes"})}, "fact 'a'"),
    ({"facts": ConfigRecord({"a": [b"bytes"]})}, "fact 'a'"),
    ({"arrays": array(npy(np.ones(3)), stype="torch")}, "serialized as 'torch'"),
    ({"arrays": array(npy(np.ones(3)), dtype="object")}, "type 'object'"),
    ({"arrays": array(npy(np.array([{}]), allow_pickle=True))}, "cannot be read"),
    ({"arrays": array(npy(np.ones(3)), dtype="float32")}, "does not hold float32"),
    ({"arrays": array(npy(np.ones(3, dtype=">f8")))}, "cannot be read"),
    ({"arrays": array(npy(np.asfortranarray(np.ones((2, 2)))))}, "cannot be read"),
    ({"arrays": array(npy(np.ones(3)) + b"x")}, "do not match its shape"),
    ({"arrays": array(npy(np.ones(3))[:-1])}, "cannot be read"),
    ({"arrays": array(zipped())}, "cannot be read"),
    ({"arrays": array(b"")}, "cannot be read"),
    ({"arrays": array(npy(np.ones(4)))}, "does not hold"),
    ({"arrays": array(promised("(10**9,)"))}, "cannot be read"),
    ({"arrays": array(promised("(-1,)"), shape=(-1,))}, "cannot be read"),
    ({"arrays": array(promised("(1000000000,)"), shape=(10**9,))}, "do not match its shape"),
    ({"arrays": array(promised(f"({10**30},)"), shape=(10**30,))}, "do not match its shape"),
    ({"arrays": array(promised("(" * 90))}, "cannot be read"),
]


@pytest.mark.parametrize(("changes", "why"), WRONG)
def test_other_records_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(MessageError, match=why):
        from_records(records(**changes))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_changed_arrays_are_read_or_refused(data: Any) -> None:
    whole = bytearray(npy(np.arange(3.0)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = from_records(records(arrays=array(bytes(whole))))
    except MessageError:
        return
    assert got.arrays["a"].dtype == np.float64


# -- a node --------------------------------------------------------------------------------------


class Answers:
    """A task whose sites answer, refuse, or fail."""

    def client(self, node: Mapping[str, Any]) -> str:
        return str(node["client"])

    def site(self, node: Mapping[str, Any]) -> Any:
        if node["client"] == "lost":
            raise Refused("no rows here")
        return self

    def handle(self, message: Message) -> Message:
        if message.facts.get("fail"):
            raise RuntimeError("broken")
        return message.reply(message.arrays, {"n": 1})

    def job(self, run: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def folder(self, run: Mapping[str, Any]) -> Path:
        raise NotImplementedError


def called(client: str, message: Message | RecordDict, kind: str | None = None) -> Envelope:
    content = message if isinstance(message, RecordDict) else to_records(message)
    kind = kind or (HEAD.phase if isinstance(message, RecordDict) else message.header.phase)
    envelope = Envelope(content=content, dst_node_id=5, message_type=kind)
    context = Context(1, 5, {"client": client}, RecordDict(), {})
    out: Envelope = client_app(Answers())(envelope, context)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("phase", PHASES)
def test_a_node_answers_in_every_phase(phase: str) -> None:
    sent = Message(Header("run-x", phase, 0), {"a": np.ones(2)})
    got = from_records(called("ash", sent).content)
    assert got.header == sent.header
    assert got.facts == {"n": 1}


def test_a_node_says_who_it_is_and_why_not() -> None:
    who = called("ash", RecordDict({"who": ConfigRecord({})}), "query.describe")
    assert dict(who.content["who"]) == {"client": "ash"}
    refused = from_records(called("lost", Message(HEAD)).content)
    assert refused.error == "Refused: no rows here"
    assert refused.header == HEAD
    with pytest.raises(MessageError):
        called("ash", RecordDict({}))


# -- the grid ------------------------------------------------------------------------------------


class Nodes:
    """Flower's grid with nodes that do as they are told."""

    def __init__(self, **nodes: str) -> None:
        self.nodes = {100 + i: (n.rstrip("0"), how) for i, (n, how) in enumerate(nodes.items())}
        self.waiting: dict[str, Envelope] = {}
        self.names: dict[str, Envelope] = {}
        self.looks = 0

    def get_node_ids(self) -> Iterable[int]:
        self.looks += 1
        gone = {"leaves"} if self.waiting or self.looks > 1 else set()
        late = {"late"} if self.looks < 3 else set()
        return [i for i, (_, how) in self.nodes.items() if how not in gone | late]

    def push_messages(self, messages: Iterable[Envelope]) -> Iterable[str | None]:
        for message in messages:
            meta = message.metadata
            name, how = self.nodes[meta.dst_node_id]
            asked = "who" in message.content
            if how == "unsent" and not asked:
                yield None
                continue
            number = f"{meta.dst_node_id}-{len(self.waiting)}-{id(message)}"
            meta.__dict__["_message_id"] = number
            if asked:
                self.names[number] = self._who(message, name, how)
            else:
                self.waiting[number] = self._reply(message, name, how)
            yield number

    def _reply(self, message: Envelope, name: str, how: str) -> Envelope:
        if how == "fails":
            return Envelope(FlowerError(code=4, reason="it broke"), reply_to=message)
        if how == "garbage":
            return Envelope(RecordDict({"x": ConfigRecord({})}), reply_to=message)
        context = Context(1, 5, {"client": name}, RecordDict(), {})
        out: Envelope = client_app(Answers())(message, context)
        return out

    def pull_messages(self, numbers: Iterable[str]) -> Iterable[Envelope]:
        for number in list(numbers):
            how = self.nodes[int(number.partition("-")[0])][1]
            if number in self.names:
                yield self.names.pop(number)
            elif how not in ("silent", "leaves") and number in self.waiting:
                yield self.waiting.pop(number)

    def _who(self, message: Envelope, name: str, how: str) -> Envelope:
        said: Any = {"client": 7} if how == "odd" else {"client": name}
        if how == "nameless":
            return Envelope(FlowerError(code=4, reason="no"), reply_to=message)
        content = {} if how == "mute" else {"who": ConfigRecord(said)}
        return Envelope(RecordDict(content), reply_to=message)


def exchanged(nodes: Nodes, names: Iterable[str], deadline: float = 0.3) -> dict[str, Any]:
    grid = FlowerTransport(nodes, names, wait=0.1)  # type: ignore[arg-type]
    questions = {n: Message(Header("run-x", "query.share", 0)) for n in names}
    return dict(grid.exchange(questions, deadline=deadline))


def test_what_becomes_of_every_kind_of_node() -> None:
    nodes = Nodes(
        **{"ash": "well", "birch": "fails", "cedar": "garbage", "elm": "silent", "fir": "leaves"},
        **{"gum": "unsent", "hazel": "nameless", "iris": "odd", "kauri": "mute", "late": "late"},
        **{"stranger": "well", "twin": "well", "twin0": "well"},
    )
    names = ("ash", "birch", "cedar", "elm", "fir", "gum", "hazel", "iris", "kauri", "late", "twin")
    found = exchanged(nodes, (*names, "oak"), 0.5)
    assert isinstance(found.pop("ash"), Message)
    assert isinstance(found.pop("late"), Message)
    assert found.pop("birch") == "its node failed: it broke"
    assert "no record" in found.pop("cedar")
    assert found.pop("gum").startswith("Flower's SuperLink did not accept the request")
    assert found.pop("twin").startswith("two nodes have the name of this client")
    for name in ("hazel", "iris", "kauri", "oak"):
        assert found.pop(name) == "not connected", name
    assert found.pop("fir", "not connected") in (
        "its node left in the middle of the round",
        "not connected",
    )
    assert found == {}  # elm said nothing: the server's deadline names it


def test_a_node_that_went_away_is_not_waited_for() -> None:
    class Leaving(Nodes):
        def get_node_ids(self) -> Iterable[int]:
            return [] if self.waiting else list(self.nodes)

    found = exchanged(Leaving(ash="silent"), ("ash",), 30.0)
    assert found == {"ash": "its node left in the middle of the round"}


def test_a_node_without_a_name_is_waited_for_once() -> None:
    class Quiet(Nodes):
        def pull_messages(self, numbers: Iterable[str]) -> Iterable[Envelope]:
            return super().pull_messages(n for n in numbers if not n.startswith("101"))

    grid = FlowerTransport(Quiet(ash="well", birch="well"), ("ash",), wait=0.0)  # type: ignore[arg-type]
    spent = []
    for _ in range(2):
        begin = time.monotonic()
        question = {"ash": Message(Header("run-x", "query.share", 0))}
        assert isinstance(dict(grid.exchange(question, deadline=1.0))["ash"], Message)
        spent.append(time.monotonic() - begin)
    assert spent[0] >= 1.0
    assert spent[1] < 0.8
