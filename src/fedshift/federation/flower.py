"""Flower as a transport. No other module imports flwr.

A SuperLink is Flower's server process; a SuperNode, or node, is the process at a site. A Flower app
has two parts: the ServerApp runs beside the SuperLink, the ClientApp at each SuperNode.
`client_app` and `server_app` make both parts from an `AppDescription`. Flower moves messages
between ServerApp and SuperNodes, over TLS and only from authenticated nodes. The modules
`coordinator`, `site` and `messages` decide what the messages contain and which are accepted.

Of Flower, this module uses only names of ``flwr.app``, ``flwr.clientapp`` and ``flwr.serverapp``.
Flower starts a process for every message. This process should start quickly, so this module does
not import torch.
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

from fedshift.errors import FedshiftError, install_hint
from fedshift.federation.messages import DTYPES, PHASES, Header, Message, MessageError, plain
from fedshift.federation.transport import Handler

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.app import Message as Envelope
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise ImportError(
        f"fedshift.federation.flower needs Flower; {install_hint('flower')}"
    ) from error

#: seconds between two checks for replies
POLL = 0.25
#: fields of a header record, and their types
_HEADER = {"run": str, "phase": str, "round": int, "nonce": str, "error": str}
#: seconds before the next request to a node that has not sent its name
RETRY = 30.0
#: seconds to wait for a node that is gone from Flower's list
GRACE = 5.0
#: seconds Flower keeps a message beyond the deadline of its round
SLACK = 60.0


class AppDescription(Protocol):
    """The four functions from which a Flower app is made."""

    def client(self, node: Mapping[str, Any]) -> str:
        """Return the name of the client at a node, from its node config."""

    def site(self, node: Mapping[str, Any]) -> Handler:
        """Return the site at a node. It must reply within ``node["patience"]`` seconds."""

    def job(self, run: Mapping[str, Any]) -> Any:
        """Return the agreed task from the run config, as a `DeploymentTask`."""

    def folder(self, run: Mapping[str, Any]) -> Path:
        """Return the folder for the server's checkpoints, events and results (run config)."""


# -- records --------------------------------------------------------------------------------------


def to_records(message: Message) -> RecordDict:
    """Return a message as Flower's typed records."""
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
    """Return the message that `to_records` turned into these records, after checks.

    Parameters
    ----------
    records : RecordDict
    limit : int, optional
        Largest number of bytes that the arrays may have, checked before any array is read.

    Raises
    ------
    MessageError
        If the records are not a valid message.
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
        raise MessageError("the message must have two ConfigRecords and an ArrayRecord")
    size = sum(len(a.data) for a in arrays.values())
    if limit is not None and size > limit:
        raise MessageError(f"the reply must have at most {limit:,} bytes; got {size:,}")
    table: dict[str, Any] = dict(head)
    if {n: type(v) for n, v in table.items()} != _HEADER:
        raise MessageError(f"the header must hold {', '.join(_HEADER)}; got {sorted(table)}")
    refusal = table.pop("error")
    values: dict[str, Any] = dict(facts)
    return Message(Header(**table), {n: _read(n, a) for n, a in arrays.items()}, values, refusal)


def _read(name: str, array: Array) -> Any:
    """Read an array in numpy's own format; `numpy.load` would accept more than arrays."""
    if array.stype != "numpy.ndarray" or array.dtype not in DTYPES:
        got = f"got type {array.dtype!r}, serialized as {array.stype!r}"
        raise MessageError(f"array {name} must be a numpy.ndarray with a type in {DTYPES}; {got}")
    data, shape, kind = array.data, tuple(array.shape), np.dtype(array.dtype)
    start = 10 + int.from_bytes(data[8:10], "little")
    try:
        header = ast.literal_eval(data[10:start].decode("ascii"))
        if data[:8] != b"\x93NUMPY\x01\x00" or min(shape, default=0) < 0:
            raise ValueError("its bytes are not in NumPy's format 1.0")
        if header != {"descr": kind.str, "fortran_order": False, "shape": shape}:
            raise ValueError(f"it does not hold {array.dtype} of shape {shape}")
        if len(data) != start + math.prod(shape) * kind.itemsize:
            raise ValueError(f"its {len(data):,} bytes do not match its shape {shape}")
        return np.frombuffer(data, kind, math.prod(shape), start).reshape(shape)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise MessageError(f"array {name} cannot be read: {error}") from None


# -- a node ---------------------------------------------------------------------------------------


def client_app(description: AppDescription) -> ClientApp:
    """Return a ClientApp that passes each request to the site at its node."""
    app = ClientApp()

    def reply(envelope: Envelope, context: Context) -> Envelope:
        records = envelope.content
        if "who" in records:  # a request for the client's name: Flower knows nodes by number only
            name = description.client(context.node_config)
            return Envelope(
                content=RecordDict({"who": ConfigRecord({"client": name})}), reply_to=envelope
            )
        message = from_records(records)
        node = {**context.node_config, "patience": max(1.0, envelope.metadata.ttl - SLACK)}
        try:
            out = description.site(node).handle(message)
        except FedshiftError as error:
            out = message.reply(error=f"{type(error).__name__}: {error}")
        return Envelope(content=to_records(out), reply_to=envelope)

    for phase in PHASES:
        kind, _, action = phase.partition(".")
        getattr(app, kind)(action)(reply)
    return app


# -- the server -----------------------------------------------------------------------------------


def server_app(description: AppDescription) -> ServerApp:
    """Return a ServerApp that runs the task and writes its results to the server's folder."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedshift.federation.coordinator import Coordinator  # torch is needed from here on

        run = context.run_config
        job = description.job(run)
        transport = FlowerTransport(grid, job.clients, wait=float(run.get("wait", 120.0)))
        Coordinator(job, transport, description.folder(run), watch=_log).run()

    return app


def _log(line: dict[str, Any]) -> None:
    """Print a line of the ServerApp's log."""
    if "event" in line:
        event = {k: v for k, v in line["event"].items() if k not in ("time", "what")}
        print(f"{line['event']['what']}: {event}", flush=True)
    elif "rounds" in line:
        loss = "" if line["loss"] is None else f" loss {line['loss']:.4f}"
        print(
            f"{line['phase']} {line['round']}/{line['rounds']}{loss} "
            f"{len(line['clients'])} replies in {line['seconds']:.1f} s",
            flush=True,
        )


class FlowerTransport:
    """Flower as a transport. Nodes are identified by the names of their clients.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        Flower's connection from a ServerApp to the nodes.
    clients : iterable of str
        Clients that may take part.
    wait : float
        Seconds to wait for all clients to connect, before the first request only.
    """

    def __init__(self, grid: Grid, clients: Iterable[str], *, wait: float = 120.0) -> None:
        self._grid, self._clients, self._wait = grid, tuple(clients), wait
        self._names: dict[int, str] = {}
        self._times: dict[int, float] = {}  # of the last request for each node's name
        self._unnamed: set[str] = set()  # open requests for names
        self._waited = False

    def exchange(
        self, requests: Mapping[str, Message], *, deadline: float, limit: int | None = None
    ) -> Iterable[tuple[str, Message | str]]:
        """Send requests, and yield replies as they arrive until the deadline.

        A reply of more than `limit` bytes is not read. It has been received in full nevertheless,
        because Flower delivers only whole messages.
        """
        nodes = self._nodes(requests, deadline)
        open_: dict[str, str] = {}
        pairs = []
        for name, request in requests.items():
            if len(nodes.get(name, [])) == 1:
                pairs.append((name, self._envelope(nodes[name][0], request, deadline)))
            else:
                two = "two nodes have the name of this client; stop one, or correct its site file"
                yield name, two if nodes.get(name) else "not connected"
        ids = list(self._grid.push_messages([e for _, e in pairs]))
        for (name, envelope), number in zip(pairs, ids, strict=True):
            if number:
                open_[number] = name
            else:
                why = "Flower's SuperLink did not accept the request (see its log) for node"
                yield name, f"{why} {envelope.metadata.dst_node_id}"
        at = {name: nodes[name][0] for name in open_.values()}
        yield from self._replies(open_, at, time.monotonic() + deadline, limit)

    def wait_for(self, clients: Iterable[str], seconds: float) -> None:
        """Wait until all of these clients are connected, or `seconds` have passed."""
        names, end = set(clients), time.monotonic() + seconds
        while not names <= set(self._online(seconds)) and time.monotonic() < end:
            time.sleep(1.0)

    def _replies(
        self, open_: dict[str, str], at: Mapping[str, int], end: float, limit: int | None
    ) -> Iterable[tuple[str, Message | str]]:
        """Fetch each reply in its own thread, so that a slow one does not delay the others."""
        arrived: queue.SimpleQueue[tuple[str, Envelope | Exception]] = queue.SimpleQueue()
        for number in open_:
            threading.Thread(
                target=self._fetch,
                args=(number, end, max(POLL, 0.02 * len(open_)), arrived),
                daemon=True,
            ).start()
        gone: dict[str, float] = {}
        check = time.monotonic() + GRACE
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
            if open_ and now > check:  # a node that left will not reply
                online, check = set(self._grid.get_node_ids()), now + GRACE
                for number, name in list(open_.items()):
                    if at[name] in online:
                        gone.pop(name, None)
                    elif now - gone.setdefault(name, now) > GRACE:
                        del open_[number]
                        yield name, "its node left in the middle of the round"

    def _fetch(
        self,
        number: str,
        end: float,
        pause: float,
        arrived: queue.SimpleQueue[tuple[str, Envelope | Exception]],
    ) -> None:
        """Poll for the reply to one message until it is there or late."""
        while time.monotonic() < end:
            try:
                for envelope in self._grid.pull_messages([number]):
                    arrived.put((number, envelope))
                    return
            except Exception as error:  # such as a reply that Flower cannot assemble
                arrived.put((number, error))
                return
            time.sleep(pause)

    def _envelope(self, node: int, request: Message, deadline: float) -> Envelope:
        return Envelope(
            content=to_records(request),
            dst_node_id=node,
            message_type=request.header.phase,
            ttl=deadline + SLACK,
        )

    def _nodes(self, names: Iterable[str], deadline: float) -> dict[str, list[int]]:
        """Return nodes by client; the first call waits for these clients."""
        end = time.monotonic() + (0.0 if self._waited else self._wait)
        self._waited = True
        while True:
            nodes = self._online(deadline)
            if all(n in nodes for n in names) or time.monotonic() >= end:
                return nodes
            time.sleep(POLL)

    def _online(self, deadline: float) -> dict[str, list[int]]:
        """Return the nodes that are online, by client."""
        online = list(self._grid.get_node_ids())
        self._request_names([n for n in online if n not in self._names], deadline)
        nodes: dict[str, list[int]] = {}
        for node in online:
            name = self._names.get(node, "")
            if name in self._clients:
                nodes.setdefault(name, []).append(node)
        return nodes

    def _request_names(self, nodes: list[int], deadline: float) -> None:
        """Request the names of nodes; wait, once, for the reply of a new node."""
        now = time.monotonic()
        new = any(n not in self._times for n in nodes)
        due = [n for n in nodes if now - self._times.get(n, -math.inf) > RETRY]
        self._times |= dict.fromkeys(due, now)
        sent = [
            Envelope(
                content=RecordDict({"who": ConfigRecord({})}),
                dst_node_id=node,
                message_type="query.describe",
            )
            for node in due
        ]
        # not send_and_receive, which polls every three seconds
        self._unnamed |= set(filter(None, self._grid.push_messages(sent))) if sent else set()
        end = now + (min(deadline, 60.0) if new else 0.0)
        while self._unnamed:
            for envelope in self._grid.pull_messages(list(self._unnamed)):
                self._unnamed.discard(envelope.metadata.reply_to_message_id)
                who = None if envelope.has_error() else envelope.content.get("who")
                name = who.get("client") if isinstance(who, ConfigRecord) else None
                if isinstance(name, str):
                    self._names[envelope.metadata.src_node_id] = name
            if time.monotonic() >= end:
                return
            time.sleep(POLL)


def _opened(envelope: Envelope | Exception, limit: int | None) -> Message | str:
    """Return the reply in an envelope, or the reason why there is none."""
    if isinstance(envelope, Exception):
        return f"its reply cannot be fetched: {type(envelope).__name__}: {envelope}"
    if envelope.has_error():
        return f"its node failed: {envelope.error.reason or envelope.error.code}"
    try:
        return from_records(envelope.content, limit=limit)
    except MessageError as error:
        return str(error)
