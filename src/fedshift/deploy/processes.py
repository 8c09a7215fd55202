"""One process of a deployment, with its own log."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedshift.deploy import guard
from fedshift.deploy.errors import DeployError

#: below the range of ports for outgoing connections, so that none of those can take a port
#: between our check and the start of the process that will listen there
PORTS = range(20_000, 32_000)
Command = Sequence[str] | Callable[[], Sequence[str]]


class Process:
    """A command with a log file, in a session of its own.

    Because of its own session, a Ctrl-C at the terminal does not reach the process. The Ctrl-C
    reaches the program that started it, which can then end it in order.

    Parameters
    ----------
    name
        Name of the process in events.
    command
        Program and arguments, or a function that returns them anew for every start.
    environment
        All environment variables of the process.
    tag
        Tag of the fleet (see `guard`) to which the process belongs. Processes that it starts
        inherit the tag.
    log
        File for the output. Every start adds to its end.
    """

    def __init__(
        self,
        name: str,
        command: Command,
        *,
        environment: Mapping[str, str],
        tag: str,
        log: Path,
    ) -> None:
        self.name = name
        self.log = Path(log)
        self._command = command
        self._environment = {**environment, guard.TAG: tag, guard.PART: name}
        self._tag = tag
        self._popen: subprocess.Popen[bytes] | None = None
        self._offset = 0

    def start(self) -> None:
        """Start the process, which must not be running.

        Processes left by an earlier start are killed first. Otherwise a ServerApp that outlived
        its SuperLink (Flower's server process) would write into the folder of the next ServerApp.

        Raises
        ------
        DeployError
            If the program cannot be started.
        """
        if self.running:
            raise DeployError(f"{self.name} is already running; end it before you start it")
        guard.end(self._tag, part=self.name, patience=0.0)
        command = self._command() if callable(self._command) else self._command
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._offset = out.tell()
            try:
                self._popen = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise DeployError(f"cannot start {self.name} ({command[0]}): {error}") from error

    @property
    def running(self) -> bool:
        """Whether the process runs. If it has ended, this also reaps it: no zombie remains."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def pid(self) -> int | None:
        """Id of the running process."""
        return self._popen.pid if self._popen is not None and self.running else None

    def output(self) -> str:
        """Return the output of the process since its last start."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(self._offset)
            return file.read().decode(errors="replace")
        return ""

    def why(self) -> str:
        """Return in words how the process ended."""
        code = None if self._popen is None else self._popen.poll()
        if code is None:
            return "it is running" if self.running else "it was never started"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self) -> None:
        """Kill this process alone with SIGKILL, to imitate a crash."""
        self._send(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait()

    def end(self, *, patience: float = 6.0) -> None:
        """Send SIGTERM. After `patience` seconds kill the process and its process group."""
        self._send(signal.SIGTERM)
        if self._popen is None:
            return
        try:
            self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()

    def _send(self, number: signal.Signals) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)

    def __repr__(self) -> str:
        return f"Process({self.name}, {f'pid {self.pid}' if self.running else self.why()})"


def free_ports(number: int, *, host: str = "127.0.0.1") -> list[int]:
    """Return different ports of this machine on which no process listens."""
    out: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(out) == number:
            break
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                out.append(port)
    if len(out) < number:
        raise DeployError(f"{host} must have {number} free ports; got {len(out)}; try again later")
    return out


def listening(port: int, *, host: str = "127.0.0.1") -> bool:
    """Return whether a process accepts connections at a port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0
