"""Flower's processes on this machine, started and ended together.

A SuperLink is Flower's server process; a SuperNode, or node, is the process at a site. A fleet is
one SuperLink with its SuperNodes.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from fedshift.deploy import flwr_cli, guard
from fedshift.deploy.errors import DeployError
from fedshift.deploy.event_log import EventLog
from fedshift.deploy.keys import Keys, check_names, make_keys
from fedshift.deploy.processes import Command, Process, free_ports, listening
from fedshift.deploy.watch import Watched
from fedshift.errors import InputError

#: signals that end a program at once; during a fleet they raise, so that it can clean up
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)

#: a command, and a file that exists once the process is ready
Helper = tuple[list[str], Path]


class Fleet:
    """A SuperLink and SuperNodes on this machine that start and stop together.

    ```
    with Fleet(folder, ["ward-1", "ward-2"], tls=True) as fleet:
        fleet.start()
        ...
    ```

    The `folder` holds `keys/`, `logs/`, the SuperLink's database and a home folder for each node.
    A process that dies is started again. The SuperLink restarts at once with its database, so it
    still knows the nodes. A SuperNode is restarted until the SuperLink accepts it. Leaving the
    `with` block ends every process of the fleet, also after an exception, Ctrl-C or SIGTERM. If
    this program is killed, a guard process ends the fleet's processes.

    Parameters
    ----------
    folder
        Folder of the fleet. Use a new folder for every deployment.
    clients
        Names of the nodes.
    tls
        Whether to encrypt and to accept only nodes with registered keys. Without TLS, any
        process on this machine can join.
    node_config
        For each client, settings that its ClientApp finds in `context.node_config`, besides
        "client", "partition-id" and "num-partitions".
    events
        Log of events; by default `events.jsonl` in the folder.
    logs
        Folder with a log per process; by default `logs` in the folder.
    helpers
        Other processes to keep running: a mapping from a name to a command and a file. A process
        counts as ready once its file exists.
    """

    def __init__(
        self,
        folder: Path,
        clients: Iterable[str],
        *,
        tls: bool = True,
        node_config: Mapping[str, Mapping[str, flwr_cli.Scalar]] | None = None,
        events: EventLog | None = None,
        logs: Path | None = None,
        helpers: Mapping[str, Helper] | None = None,
    ) -> None:
        self.clients = check_names(clients)
        if not self.clients:
            raise InputError("clients must name at least one client; got none; add a name")
        self.folder = Path(folder).resolve()
        self.tag = secrets.token_hex(16)
        self.keys: Keys | None = None
        self.tls = tls
        self.events = events or EventLog(self.folder / "events.jsonl")
        self.logs = Path(logs or self.folder / "logs")
        self.port = 0
        self.superlink: Watched
        self.nodes: dict[str, Watched] = {}
        self.helpers = {name: self._helper(name, *h) for name, h in (helpers or {}).items()}
        self._node_config = node_config or {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._handlers: dict[int, Any] = {}
        self._trouble: dict[str, str] = {}

    # -- start ---------------------------------------------------------------------------------

    def __enter__(self) -> Fleet:
        self._environment = flwr_cli.environment(self.folder / "home")
        flwr_cli.check_installation()
        self._guard = subprocess.Popen(
            [sys.executable, "-I", str(guard.__file__), self.tag],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        if threading.current_thread() is threading.main_thread():
            for number in _ENDINGS:
                if signal.getsignal(number) is signal.SIG_DFL:  # under nohup it stays ignored
                    self._handlers[number] = signal.signal(number, _leave)
        return self

    def start(self, *, timeout: float = 180.0) -> None:
        """Start all processes; return once every node is accepted or will not be started again.

        Raises
        ------
        DeployError
            If the SuperLink, or every node, fails to start within `timeout` seconds.
        """
        for helper in self.helpers.values():  # first: they load the most
            helper.start()
        if self.tls:
            self.keys = make_keys(self.folder / "keys", self.clients)
            self.events.add(f"keys made, valid until {self.keys.until:%Y-%m-%d %H:%M} UTC")
        self._start_superlink(timeout)
        if self.keys is not None:
            self._register([self.keys.public(name) for name in self.clients])
        for position, name in enumerate(self.clients):
            self.nodes[name] = self._node(position, name)
            self.nodes[name].start()
        self._thread = threading.Thread(target=self._watch, name="fleet", daemon=True)
        self._thread.start()
        started = (*self.nodes.values(), *self.helpers.values())
        self.wait(lambda: all(w.settled for w in started), timeout=timeout)
        if not any(node.ready for node in self.nodes.values()):
            worst = next(iter(self.nodes.values())).process
            log = flwr_cli.last_lines(worst.output())
            raise DeployError(f"the SuperLink accepted no node; the end of {worst.log}:\n{log}")

    def _start_superlink(self, timeout: float) -> None:
        for _ in range(3):  # another program may take the port before the SuperLink does
            (self.port,) = free_ports(1)
            self.superlink = self._superlink()
            self.superlink.start()
            with contextlib.suppress(DeployError):
                self.wait(self._superlink_settled, timeout=timeout)
            if self.superlink.ready:
                flwr_cli.write_connection(self.folder / "home", self.port, self.keys)
                return
            process = self.superlink.process
            process.end()
            if "address already in use" not in process.output():
                break
        raise DeployError(
            f"the SuperLink did not start: {process.why()}; the end of {process.log}:\n"
            f"{flwr_cli.last_lines(process.output())}"
        )

    def _superlink_settled(self) -> bool:
        self.superlink.step()
        return self.superlink.ready or not self.superlink.process.running

    def _superlink(self) -> Watched:
        database = self.folder / "superlink.db"
        command = flwr_cli.superlink(self.port, database=database, keys=self.keys)
        process = self._process("superlink", command)
        return Watched(process, lambda _: listening(self.port), self.events, pause=0.2)

    def _node(self, position: int, name: str) -> Watched:
        config: dict[str, flwr_cli.Scalar] = {
            "client": name,
            "partition-id": position,
            "num-partitions": len(self.clients),
            **self._node_config.get(name, {}),
        }

        def command() -> list[str]:  # a new port every time: the old one may be in use by now
            return flwr_cli.supernode(
                self.port,
                free_ports(1)[0],
                ca=None if self.keys is None else self.keys.ca,
                key=None if self.keys is None else self.keys.nodes[name],
                config=config,
            )

        process = self._process(f"node {name}", command, f"nodes/{name}/home", f"node-{name}.log")
        return Watched(process, lambda p: flwr_cli.NODE_READY in p.output(), self.events)

    def _helper(self, name: str, command: list[str], ready: Path) -> Watched:
        process = self._process(name, command)
        return Watched(process, lambda _: ready.exists(), self.events, debut=60.0)

    def _process(self, name: str, command: Command, home: str = "home", log: str = "") -> Process:
        environment = flwr_cli.environment(self.folder / home)
        path = self.logs / (log or f"{name}.log")
        return Process(name, command, environment=environment, tag=self.tag, log=path)

    def _register(self, public_keys: Iterable[Path]) -> None:
        """Register keys, two at a time: each is a process that takes a second to load."""
        waiting = list(public_keys)
        while waiting:
            batch, waiting = waiting[:2], waiting[2:]
            started = [(path, self.flwr(flwr_cli.register(path))) for path in batch]
            for path, process in started:
                try:
                    log, _ = process.communicate(timeout=120.0)
                except subprocess.TimeoutExpired:
                    log = "it did not end within 120 s"
                if process.returncode != 0:
                    raise DeployError(
                        f"the SuperLink did not register the node key {path.name}; the output of "
                        f"'flwr supernode register':\n{flwr_cli.last_lines(log)}"
                    )

    def flwr(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a command that connects to this fleet's SuperLink; its output goes to a pipe."""
        return subprocess.Popen(
            command,
            env={**self._environment, guard.TAG: self.tag, guard.PART: "flwr"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    # -- while it runs -------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stopping.wait(0.2):
            with self._lock:
                for watched in self._all():
                    self._step(watched)

    def _step(self, watched: Watched) -> None:
        """Check a process, and never raise: the same thread keeps the others running."""
        try:
            watched.step()
        except DeployError as error:  # it could not even be started
            watched.given_up = True
            self._log_once(watched, f"{watched.name} will not be started again: {error}")
        except Exception as error:  # a full disk, too many open files: it may pass
            self._log_once(watched, f"{watched.name} could not be checked: {error!r}")

    def _log_once(self, watched: Watched, what: str) -> None:
        if self._trouble.get(watched.name) != what:
            self._trouble[watched.name] = what
            with contextlib.suppress(OSError):  # the disk of the events may be the problem
                self.events.add(what, process=watched.name)

    def wait(self, until: Callable[[], bool], *, timeout: float) -> None:
        """Wait until a condition is true.

        Raises
        ------
        DeployError
            If the condition is not true after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while not until():
            if time.monotonic() > end:
                state = f"{self!r}; see the logs in {self.logs}"
                raise DeployError(f"Flower's processes were not ready in {timeout:.0f} s: {state}")
            time.sleep(0.05)

    # -- stop ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """End every process of the fleet; a second call does nothing."""
        if self._guard is None:
            return
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=30.0)
        with _uninterrupted():
            guard.end(self.tag)
            for watched in self._all():
                watched.process.end(patience=1.0)
            self._guard.communicate()  # closes its pipe; it finds no process and ends
            self._guard = None
        self.events.add("all processes ended")

    def _all(self) -> list[Watched]:
        link = [self.superlink] if hasattr(self, "superlink") else []
        return [*link, *self.nodes.values(), *self.helpers.values()]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers.clear()

    def __repr__(self) -> str:
        state = {w.name: "ready" if w.ready else w.process.why() for w in self._all()}
        return f"Fleet({', '.join(f'{name}: {now}' for name, now in state.items())})"


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore a second Ctrl-C while processes are ended, which takes seconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, *_ENDINGS)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
