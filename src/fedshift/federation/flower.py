"""Flower as the carrier of messages. The only module that imports flwr.

`client_app` and `server_app` make a Flower app of one task description. Flower brings messages
from a ServerApp to SuperNodes and back, over TLS and from authenticated nodes; what is asked, what
is answered and what is believed is decided in `coordinator`, `site` and `messages`.

Only names of ``flwr.app``, ``flwr.clientapp`` and ``flwr.serverapp`` are used. Nothing here imports
torch: Flower starts a process for every message, and this one should start quickly.
"""

from __future__ import annotations

import ast
import math
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedshift.errors import FedshiftError
from fedshift.federation.messages import DTYPES, PHASES, Header, Message, MessageError, plain

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.app import Message as Envelope
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise ImportError(
        "fedshift.federation.flower needs Flower; install it with: pip install 'fedshift[flower]'"
    ) from error

#: seconds between two looks for answers
POLL = 0.25
#: what a header record holds
_HEADER = {"run": str, "phase": str, "round": int, "nonce": str, "error": str}
#: seconds before a node that has not said its name is asked again
AGAIN = 30.0
#: seconds a node that is gone from Flower's list is still waited for
GRACE = 5.0
#: seconds Flower keeps a message beyond the deadline of its round
SLACK = 60.0


class Handler(Protocol):
    """Whatever answers: a `fedshift.federation.site.Site`, or the way to one."""

    def handle(self, message: Message) -> Message:
        """Answer a question."""


class Described(Protocol):
    """A task description: what a Flower app is made of."""

    def client(self, node: Mapping[str, Any]) -> str:
        """The name of the client at a node, from its node config."""

    def site(self, node: Mapping[str, Any]) -> Handler:
        """What answers at a node; later than ``node["patience"]`` seconds nobody listens."""

    def job(self, run: Mapping[str, Any]) -> Any:
        """The `fedshift.federation.job.Job`, from the run config."""

    def folder(self, run: Mapping[str, Any]) -> Path:
        """Where the server keeps its record."""


# -- records --------------------------------------------------------------------------------------


def to_records(message: Message) -> RecordDict:
    """A message as typed records."""
    h = message.header
    head: dict[str, Any] = {"run": h.run, "phase": h.phase, "round": h.round, "nonce": h.nonce}
    facts: dict[str, Any] = dict(message.facts)
    arrays = {n: Array(plain(a)) for n, a in message.arrays.items()}
    return RecordDict(
        {
            "header": ConfigRecord({**head, "error": message.error}),
            "facts": ConfigRecord(facts),
            "arrays": ArrayRecord(arrays),
        }
    )


def from_records(records: RecordDict, *, limit: int | None = None) -> Message:
    """The message of `to_records`, checked.

    Parameters
    ----------
    limit : int, optional
        Most bytes its arrays may have, looked at before any is read.

    Raises
    ------
    MessageError
        If the records are anything else.
    """
    try:
        head, facts, arrays = (records[n] for n in ("header", "facts", "arrays"))
    except KeyError as error:
        raise MessageError(f"the message has no record {error}") from None
    if not (
        isinstance(head, ConfigRecord)
        and isinstance(facts, ConfigRecord)
        and isinstance(arrays, ArrayRecord)
    ):
        raise MessageError("the message has records of other types")
    size = sum(len(a.data) for a in arrays.values())
    if limit is not None and size > limit:
        raise MessageError(f"the answer has {size:,} bytes; at most {limit:,} were due")
    table: dict[str, Any] = dict(head)
    if {n: type(v) for n, v in table.items()} != _HEADER:
        raise MessageError(f"the header must hold {', '.join(_HEADER)}; got {sorted(table)}")
    refusal = table.pop("error")
    told: dict[str, Any] = dict(facts)
    return Message(Header(**table), {n: _read(n, a) for n, a in arrays.items()}, told, refusal)


def _read(name: str, array: Array) -> Any:
    """An array in numpy's own format; not by `numpy.load`, which takes more than arrays."""
    if array.stype != "numpy.ndarray" or array.dtype not in DTYPES:
        raise MessageError(f"array {name} has type {array.dtype!r}, spelled {array.stype!r}")
    data, shape, kind = array.data, tuple(array.shape), np.dtype(array.dtype)
    start = 10 + int.from_bytes(data[8:10], "little")
    try:
        said = ast.literal_eval(data[10:start].decode("ascii"))
        if data[:8] != b"\x93NUMPY\x01\x00" or min(shape, default=0) < 0:
            raise ValueError("another format")
        if said != {"descr": kind.str, "fortran_order": False, "shape": shape}:
            raise ValueError(f"it holds something else than {array.dtype} of shape {shape}")
        if len(data) != start + math.prod(shape) * kind.itemsize:
            raise ValueError("it has another length")
        return np.frombuffer(data, kind, math.prod(shape), start).reshape(shape)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise MessageError(f"array {name} does not read: {error}") from None


# -- a node ---------------------------------------------------------------------------------------


def client_app(task: Described) -> ClientApp:
    """The ClientApp of a task: hands each question to what answers at this node."""
    app = ClientApp()

    def answer(envelope: Envelope, context: Context) -> Envelope:
        records = envelope.content
        if "who" in records:  # who lives here? Flower itself knows nodes by number only
            name = task.client(context.node_config)
            return Envelope(
                content=RecordDict({"who": ConfigRecord({"client": name})}), reply_to=envelope
            )
        message = from_records(records)
        node = {**context.node_config, "patience": max(1.0, envelope.metadata.ttl - SLACK)}
        try:
            reply = task.site(node).handle(message)
        except FedshiftError as error:
            reply = message.answer(error=f"{type(error).__name__}: {error}")
        return Envelope(content=to_records(reply), reply_to=envelope)

    for phase in PHASES:
        kind, _, action = phase.partition(".")
        getattr(app, kind)(action)(answer)
    return app


# -- the server -----------------------------------------------------------------------------------


def server_app(task: Described) -> ServerApp:
    """The ServerApp of a task: runs it to its end and leaves the record in its folder."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedshift.federation.coordinator import Coordinator  # torch is needed from here on

        run = context.run_config
        job = task.job(run)
        carrier = FlowerGrid(grid, job.clients, wait=float(run.get("wait", 120.0)))
        Coordinator(job, carrier, task.folder(run), watch=_say).run()

    return app


def _say(line: dict[str, Any]) -> None:
    """A line of the ServerApp's log."""
    if "event" in line:
        event = {k: v for k, v in line["event"].items() if k not in ("time", "what")}
        print(f"{line['event']['what']}: {event}", flush=True)
    elif "rounds" in line:
        loss = "" if line["loss"] is None else f" loss {line['loss']:.4f}"
        print(
            f"{line['phase']} {line['round']}/{line['rounds']}{loss} "
            f"{len(line['clients'])} answers in {line['seconds']:.1f} s",
            flush=True,
        )


class FlowerGrid:
    """Carries messages over Flower's grid, to nodes known by the names of their clients.

    Parameters
    ----------
    grid : flwr Grid
    clients : names that may take part
    wait : float
        Seconds to wait, once, for all of them to connect.
    """

    def __init__(self, grid: Grid, clients: Iterable[str], *, wait: float = 120.0) -> None:
        self._grid, self._clients, self._wait = grid, tuple(clients), wait
        self._names: dict[int, str] = {}
        self._asked: dict[int, float] = {}  # when nodes were last asked who they are
        self._unnamed: set[str] = set()  # questions still open
        self._waited = False

    def exchange(
        self, questions: Mapping[str, Message], *, deadline: float, limit: int | None = None
    ) -> Iterable[tuple[str, Message | str]]:
        """Send, then give back answers as they come, until the deadline.

        An answer of more than `limit` bytes is not read. Flower itself has it by then: it hands
        over whole messages only.
        """
        nodes = self._nodes(questions, deadline)
        open_: dict[str, str] = {}
        pairs = []
        for name, question in questions.items():
            if len(nodes.get(name, [])) == 1:
                pairs.append((name, self._envelope(nodes[name][0], question, deadline)))
            else:
                many = len(nodes.get(name, [])) > 1
                yield name, "two nodes say they are this client" if many else "not connected"
        ids = list(self._grid.push_messages([e for _, e in pairs]))
        for (name, envelope), number in zip(pairs, ids, strict=True):
            if number:
                open_[number] = name
            else:
                yield name, f"not sent to node {envelope.metadata.dst_node_id}"
        at = {name: nodes[name][0] for name in open_.values()}
        yield from self._answers(open_, at, time.monotonic() + deadline, limit)

    def wait_for(self, clients: Iterable[str], seconds: float) -> None:
        """Wait until all of these are connected, or the time is over."""
        wanted, end = set(clients), time.monotonic() + seconds
        while not wanted <= set(self._found(seconds)) and time.monotonic() < end:
            time.sleep(1.0)

    def _answers(
        self, open_: dict[str, str], at: Mapping[str, int], end: float, limit: int | None
    ) -> Iterable[tuple[str, Message | str]]:
        """Every answer is fetched by a thread of its own: a slow one keeps no other waiting."""
        arrived: queue.SimpleQueue[tuple[str, Envelope | Exception]] = queue.SimpleQueue()
        for number in open_:
            threading.Thread(
                target=self._fetch,
                args=(number, end, max(POLL, 0.02 * len(open_)), arrived),
                daemon=True,
            ).start()
        gone: dict[str, float] = {}
        look = time.monotonic() + GRACE
        while open_ and (left := end - time.monotonic()) > 0:
            try:
                number, envelope = arrived.get(timeout=min(left, GRACE))
            except queue.Empty:
                pass
            else:
                if isinstance(envelope, Exception):
                    self._grid.get_node_ids()  # raises if it is the SuperLink that is gone
                name = open_.pop(number, None)
                if name is not None:
                    yield name, _opened(envelope, limit)
                del envelope  # it may be large, and the next one long in coming
            now = time.monotonic()
            if open_ and now > look:  # who left will not answer
                online, look = set(self._grid.get_node_ids()), now + GRACE
                for number, name in list(open_.items()):
                    if at[name] in online:
                        gone.pop(name, None)
                    elif now - gone.setdefault(name, now) > GRACE:
                        del open_[number]
                        yield name, "its node went away in the middle of the round"

    def _fetch(
        self,
        number: str,
        end: float,
        pause: float,
        arrived: queue.SimpleQueue[tuple[str, Envelope | Exception]],
    ) -> None:
        """Look for the answer to one message until it is there or late."""
        while time.monotonic() < end:
            try:
                for envelope in self._grid.pull_messages([number]):
                    arrived.put((number, envelope))
                    return
            except Exception as error:  # such as an answer that Flower cannot put together
                arrived.put((number, error))
                return
            time.sleep(pause)

    def _envelope(self, node: int, question: Message, deadline: float) -> Envelope:
        return Envelope(
            content=to_records(question),
            dst_node_id=node,
            message_type=question.header.phase,
            ttl=deadline + SLACK,
        )

    def _nodes(self, wanted: Iterable[str], deadline: float) -> dict[str, list[int]]:
        """Nodes by client; the first time all clients are waited for."""
        end = time.monotonic() + (0.0 if self._waited else self._wait)
        self._waited = True
        while True:
            found = self._found(deadline)
            if all(n in found for n in wanted) or time.monotonic() >= end:
                return found
            time.sleep(POLL)

    def _found(self, deadline: float) -> dict[str, list[int]]:
        """Nodes that are online, by client."""
        online = list(self._grid.get_node_ids())
        self._ask_names([n for n in online if n not in self._names], deadline)
        found: dict[str, list[int]] = {}
        for node in online:
            name = self._names.get(node, "")
            if name in self._clients:
                found.setdefault(name, []).append(node)
        return found

    def _ask_names(self, nodes: list[int], deadline: float) -> None:
        """Ask nodes who they are; a new one is waited for, once, one that is silent is not."""
        now = time.monotonic()
        new = any(n not in self._asked for n in nodes)
        due = [n for n in nodes if now - self._asked.get(n, -math.inf) > AGAIN]
        self._asked |= dict.fromkeys(due, now)
        who = [
            Envelope(
                content=RecordDict({"who": ConfigRecord({})}),
                dst_node_id=node,
                message_type="query.describe",
            )
            for node in due
        ]
        # not send_and_receive, which looks every three seconds
        self._unnamed |= set(filter(None, self._grid.push_messages(who))) if who else set()
        end = now + (min(deadline, 60.0) if new else 0.0)
        while self._unnamed:
            for envelope in self._grid.pull_messages(list(self._unnamed)):
                self._unnamed.discard(envelope.metadata.reply_to_message_id)
                said = None if envelope.has_error() else envelope.content.get("who")
                name = said.get("client") if isinstance(said, ConfigRecord) else None
                if isinstance(name, str):
                    self._names[envelope.metadata.src_node_id] = name
            if time.monotonic() >= end:
                return
            time.sleep(POLL)


def _opened(envelope: Envelope | Exception, limit: int | None) -> Message | str:
    """The answer in an envelope, or why there is none."""
    if isinstance(envelope, Exception):
        return f"its answer does not arrive: {type(envelope).__name__}: {envelope}"
    if envelope.has_error():
        return f"its node failed: {envelope.error.reason or envelope.error.code}"
    try:
        return from_records(envelope.content, limit=limit)
    except MessageError as error:
        return str(error)
