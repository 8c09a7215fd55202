"""A SuperLink and its SuperNodes on this machine, watched and ended together."""

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

from fedshift.deploy import commands, guard
from fedshift.deploy.errors import DeployError
from fedshift.deploy.events import Events
from fedshift.deploy.keys import Keys, checked_names, make_keys
from fedshift.deploy.processes import Process, free_ports, listening
from fedshift.deploy.watch import Watched
from fedshift.errors import InputError

#: signals that end a program without a word; during a fleet they raise, so that it can tidy up
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)

#: a command, and the file that shows that it works
Beside = tuple[list[str], Path]


class Fleet:
    """SuperLink and SuperNodes on loopback, as one thing that starts and stops.

    ```
    with Fleet(folder, ["ward-1", "ward-2"], tls=True) as fleet:
        fleet.start()
        ...
    ```

    Everything is in `folder`: `keys/`, `logs/`, the SuperLink's database and one home a node. Every
    process that dies is started again: the SuperLink at once and with its database, so nodes are
    still known to it; a SuperNode as soon as it is let in. Leaving the block ends every process of
    the fleet, also after an exception, Ctrl-C or SIGTERM, and a guard does it if this
    program is killed.

    Parameters
    ----------
    folder
        Where the fleet lives; a new one for every deployment.
    clients
        Names of the nodes.
    tls
        Whether to encrypt and to let in only nodes whose keys were registered. Without, anything on
        this machine can join.
    node_config
        For each client, settings that its ClientApp reads in `context.node_config`, besides
        "client", "partition-id" and "num-partitions".
    events
        Where to write down what happens; `events.jsonl` in the folder if not given.
    logs
        Folder of one log a process; `logs` in the folder if not given.
    days
        How long certificates are valid.
    beside
        Other processes to keep running, by name: a command, and a file that is there once it works.
    """

    def __init__(
        self,
        folder: Path,
        clients: Iterable[str],
        *,
        tls: bool = True,
        node_config: Mapping[str, Mapping[str, commands.Scalar]] | None = None,
        events: Events | None = None,
        logs: Path | None = None,
        days: float = 30.0,
        beside: Mapping[str, Beside] | None = None,
    ) -> None:
        self.clients = checked_names(clients)
        if not self.clients:
            raise InputError("clients: a fleet needs at least one; got none")
        self.folder = Path(folder).resolve()
        self.tag = secrets.token_hex(16)
        self.keys: Keys | None = None
        self.tls = tls
        self.events = events or Events(self.folder / "events.jsonl")
        self.logs = Path(logs or self.folder / "logs")
        self.port = 0
        self.superlink: Watched
        self.nodes: dict[str, Watched] = {}
        self.beside = {name: self._beside(name, *what) for name, what in (beside or {}).items()}
        self._days = days
        self._node_config = node_config or {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._handlers: dict[int, Any] = {}
        self._trouble: dict[str, str] = {}

    # -- start ---------------------------------------------------------------------------------

    def __enter__(self) -> Fleet:
        self._environment = commands.environment(self.folder / "home")
        commands.check_installation()
        self._guard = subprocess.Popen(
            [sys.executable, "-I", str(guard.__file__), self.tag],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        if threading.current_thread() is threading.main_thread():
            for number in _ENDINGS:
                if signal.getsignal(number) is signal.SIG_DFL:  # one under nohup stays so
                    self._handlers[number] = signal.signal(number, _leave)
        return self

    def start(self, *, timeout: float = 180.0) -> None:
        """Start all; returns when every node has been let in or given up.

        Raises
        ------
        DeployError
            If the SuperLink or all nodes cannot be started within `timeout` seconds.
        """
        for other in self.beside.values():  # first: they have the most to load
            other.start()
        if self.tls:
            self.keys = make_keys(self.folder / "keys", self.clients, days=self._days)
            self.events.add(f"keys made, valid until {self.keys.until:%Y-%m-%d %H:%M} UTC")
        self._start_superlink(timeout)
        if self.keys is not None:
            self._register([self.keys.public(name) for name in self.clients])
        for position, name in enumerate(self.clients):
            self.nodes[name] = self._node(position, name)
            self.nodes[name].start()
        self._thread = threading.Thread(target=self._watch, name="fleet", daemon=True)
        self._thread.start()
        started = (*self.nodes.values(), *self.beside.values())
        self.wait(lambda: all(w.settled for w in started), timeout=timeout)
        if not any(node.ready for node in self.nodes.values()):
            worst = next(iter(self.nodes.values())).process
            raise DeployError(f"no node was let in:\n{commands.last_words(worst.output())}")

    def _start_superlink(self, timeout: float) -> None:
        for _ in range(3):  # another program may take the port before the SuperLink does
            (self.port,) = free_ports(1)
            self.superlink = self._superlink()
            self.superlink.start()
            with contextlib.suppress(DeployError):
                self.wait(self._superlink_settled, timeout=timeout)
            if self.superlink.ready:
                commands.write_connection(self.folder / "home", self.port, self.keys)
                return
            process = self.superlink.process
            process.end()
            if "address already in use" not in process.output():
                break
        raise DeployError(
            f"the SuperLink did not start: {process.why()}; the end of {process.log}:\n"
            f"{commands.last_words(process.output())}"
        )

    def _superlink_settled(self) -> bool:
        self.superlink.step()
        return self.superlink.ready or not self.superlink.process.running

    def _superlink(self) -> Watched:
        process = Process(
            "superlink",
            commands.superlink(self.port, database=self.folder / "superlink.db", keys=self.keys),
            environment=self._environment,
            tag=self.tag,
            log=self.logs / "superlink.log",
        )
        return Watched(process, lambda _: listening(self.port), self.events, pause=0.2)

    def _node(self, position: int, name: str) -> Watched:
        config: dict[str, commands.Scalar] = {
            "client": name,
            "partition-id": position,
            "num-partitions": len(self.clients),
            **self._node_config.get(name, {}),
        }

        def command() -> list[str]:  # a new port every time: the old one may be taken by now
            return commands.supernode(
                self.port,
                free_ports(1)[0],
                ca=None if self.keys is None else self.keys.ca,
                key=None if self.keys is None else self.keys.nodes[name],
                config=config,
            )

        process = Process(
            f"node {name}",
            command,
            environment=commands.environment(self.folder / "nodes" / name / "home"),
            tag=self.tag,
            log=self.logs / f"node-{name}.log",
        )
        return Watched(process, commands.node_is_ready, self.events)

    def _beside(self, name: str, command: list[str], sign: Path) -> Watched:
        process = Process(
            name,
            command,
            environment=commands.environment(self.folder / "home"),
            tag=self.tag,
            log=self.logs / f"{name}.log",
        )
        return Watched(process, lambda _: sign.exists(), self.events, debut=60.0)

    def _register(self, public_keys: Iterable[Path]) -> None:
        """Make keys known, two at a time: each is a process that takes a second to load."""
        waiting = list(public_keys)
        while waiting:
            batch, waiting = waiting[:2], waiting[2:]
            started = [(path, self.flwr(commands.register(path))) for path in batch]
            for path, process in started:
                try:
                    said, _ = process.communicate(timeout=120.0)
                except subprocess.TimeoutExpired:
                    said = "it did not answer within 120 s"
                if process.returncode != 0:
                    raise DeployError(
                        f"the SuperLink did not take {path.name}:\n{commands.last_words(said)}"
                    )

    def flwr(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a command that talks to this fleet's SuperLink; its output comes by a pipe."""
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
                    self._look(watched)

    def _look(self, watched: Watched) -> None:
        """One step, whatever comes of it: the same thread keeps the others running."""
        try:
            watched.step()
        except DeployError as error:  # it could not even be started
            watched.given_up = True
            self._say_once(watched, f"{watched.name} is given up: {error}")
        except Exception as error:  # a full disk, too many open files: it may pass
            self._say_once(watched, f"{watched.name} could not be looked at: {error!r}")

    def _say_once(self, watched: Watched, what: str) -> None:
        if self._trouble.get(watched.name) != what:
            self._trouble[watched.name] = what
            with contextlib.suppress(OSError):  # what is wrong may be the disk of the events
                self.events.add(what, process=watched.name)

    def wait(self, until: Callable[[], bool], *, timeout: float) -> None:
        """Wait for something to become true.

        Raises
        ------
        DeployError
            If it has not after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while not until():
            if time.monotonic() > end:
                raise DeployError(f"the fleet did not get there within {timeout:.0f} s: {self!r}")
            time.sleep(0.05)

    def survivors(self) -> list[int]:
        """Numbers of all processes of this fleet, those included that Flower started."""
        apart = {None if self._guard is None else self._guard.pid}
        return [pid for pid in guard.members(self.tag) if pid not in apart]

    # -- accidents, for tests ------------------------------------------------------------------

    def kill_superlink(self, *, hold: bool = False) -> None:
        """`kill -9` the SuperLink; with `hold` it stays down until `restart_superlink`."""
        self._kill(self.superlink, hold)

    def kill_node(self, client: int | str, *, hold: bool = False) -> None:
        """`kill -9` a SuperNode; with `hold` it stays down until `restart_node`."""
        self._kill(self.node(client), hold)

    def restart_superlink(self) -> None:
        """Start the SuperLink again, on the same port and with the same database."""
        with self._lock:
            self.superlink.start()

    def restart_node(self, client: int | str) -> None:
        """Start a SuperNode again; it is repeated until it is let in."""
        with self._lock:
            self.node(client).start()

    def node(self, client: int | str) -> Watched:
        """A node by position or name."""
        name = self.clients[client] if isinstance(client, int) else client
        return self.nodes[name]

    def _kill(self, watched: Watched, hold: bool) -> None:
        with self._lock:
            watched.process.kill()
            if hold:
                watched.step()
                watched.held = True

    # -- stop ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """End every process of the fleet; a second call does nothing."""
        if self._guard is None:
            return
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=30.0)
        with _patiently():
            guard.end(self.tag)
            for watched in self._all():
                watched.process.end(patience=1.0)
            self._guard.communicate()  # closes its pipe; it finds nothing and ends
            self._guard = None
        self.events.add("all processes ended")

    def _all(self) -> list[Watched]:
        link = [self.superlink] if hasattr(self, "superlink") else []
        return [*link, *self.nodes.values(), *self.beside.values()]

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
def _patiently() -> Iterator[None]:
    """Tidying up is not interrupted by a second Ctrl-C; it takes seconds at most."""
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
