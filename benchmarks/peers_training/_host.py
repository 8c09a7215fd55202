"""The benchmark's side of the peers: an environment each, and a process that answers jobs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from _environments import PeerFault

HERE = Path(__file__).resolve().parent
#: no peer may phone home
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Worker:
    """A process that runs blocks of a peer's iterations, one at a time, on one thread.

    Parameters
    ----------
    peer : str
        Module of this package.
    python : Path
        Interpreter that has the peer installed.
    limit : float
        Seconds the start and a block may take.
    """

    def __init__(self, peer: str, python: Path, limit: float = 300.0) -> None:
        self.peer, self.limit = peer, limit
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed on exit
        self._process = subprocess.Popen(
            [str(python), "-m", "peers_training._worker", peer],
            cwd=HERE.parent,
            env={**os.environ, **QUIET, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.version: str = self._read()["version"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], self.limit)[0]
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self.close()
            raise PeerFault(f"{self.peer}: {self._last or f'no answer in {self.limit:g} s'}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFault(f"{self.peer}: {answer['error']}")
        return answer

    def block(self, iterations: int) -> float:
        """Seconds for one iteration of a block."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"iterations": iterations}) + "\n")
        self._process.stdin.flush()
        seconds: float = self._read()["seconds"]
        return seconds

    def close(self) -> None:
        """End the process; it ends what it started once its input ends."""
        self._last = ""
        if self._errors.closed:
            return
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        self._last = lines[-1][:300] if lines else ""
        self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
