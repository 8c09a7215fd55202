"""Rounds of one commit's fedshift beside those of another, each in a process of its own.

The process is this file, run with the other commit's ``src`` first on the path. It uses public
names only (``fedshift.run``, ``Settings``, ``Federation.of``, plans and a model), as it has to run
with code that is older or newer than itself. It answers JSON lines: ``{"workload": "A"}`` with
seconds of an iteration, by the clock and of the processor, on one thread.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch are imported

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: clients, rows of each, shape of a row, kind and settings of the plan, iterations of a block
WORKLOADS: dict[str, tuple[int, int, tuple[int, ...], str, dict[str, Any], int]] = {
    "A": (5, 2000, (1, 28, 28), "FedSGD", {"batch_size": 64}, 20),
    "B": (5, 2000, (1, 28, 28), "FedAvg", {"batch_size": 64, "local_lr": 0.01}, 2),
    "C": (100, 2000, (1, 28, 28), "FedSGD", {"batch_size": 64, "participation": 5}, 20),
    "D": (5, 64, (3, 32, 32), "FedSGD", {"batch_size": 16}, 2),
}


def serve() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever is printed is no answer

    import numpy as np
    import torch

    import fedshift as fs

    torch.set_num_threads(1)
    federations: dict[str, fs.Federation] = {}

    def federation(name: str) -> fs.Federation:
        clients, rows, shape = WORKLOADS[name][:3]
        if name not in federations:
            rng = np.random.default_rng(0)
            x = rng.random((clients * rows, *shape), dtype=np.float32)
            y = rng.integers(0, 10, clients * rows)
            parts = [slice(k * rows, (k + 1) * rows) for k in range(clients)]
            sites = {f"c{k}": (x[p], y[p], x[:1]) for k, p in enumerate(parts)}
            federations[name] = fs.Federation.of(sites)
        return federations[name]

    def block(name: str) -> dict[str, float]:
        kind, options, iterations = WORKLOADS[name][3:]
        length = {"FedSGD": "iterations", "FedAvg": "rounds"}[kind]
        if kind == "FedAvg":
            options = {**options, "local_steps": 10}
        plan = getattr(fs, kind)(**{length: 2 * iterations}, **options)
        model = fs.models.ResNet18(width=32) if name == "D" else "lenet"
        times: list[tuple[int, float, float]] = []

        def watch(event: dict[str, Any]) -> None:
            times.append((event.get("round", 0), time.perf_counter(), time.process_time()))

        settings = fs.Settings(
            objective="erm", model=model, plan=plan, check_every=iterations, device="cpu"
        )
        fs.run(federation(name), settings, watch=watch)
        # the first half of the rounds warms up
        (_, wall, cpu), (_, wall_end, cpu_end) = [
            next(t for t in times if t[0] == n) for n in (iterations, 2 * iterations)
        ]
        return {"clock": (wall_end - wall) / iterations, "processor": (cpu_end - cpu) / iterations}

    print(json.dumps({"source": fs.__file__}), file=answers)
    for line in sys.stdin:
        print(json.dumps(block(json.loads(line)["workload"])), file=answers)


class Side:
    """The process of one commit's code.

    Parameters
    ----------
    root : Path
        A checkout of it.
    """

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        source = Path(self._answer()["source"])
        if not source.resolve().is_relative_to(root.resolve()):
            self.close()
            raise RuntimeError(f"fedshift must come from {root}; got {source}; is there a src?")

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError("a process ended without an answer; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def block(self, workload: str) -> dict[str, float]:
        """Seconds of an iteration: "clock" and "processor"."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"workload": workload}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process: it ends with its input."""
        with self._process:
            pass


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A worktree of a commit, as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        root, git = Path(folder) / "tree", ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(root), commit], check=True)
        try:
            yield root
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)


def measure(commit: str, blocks: int) -> dict[str, dict[str, list[float]]]:
    """Speed now over speed at a commit, by workload and "clock" or "processor", block by block.

    Both commits take turns; which one begins changes with every block.
    """
    out: dict[str, dict[str, list[float]]] = {}
    with checkout(commit) as root, Side(root) as before, Side(ROOT) as now:
        sides = (before, now)
        for workload in WORKLOADS:
            for side in sides:
                side.block(workload)  # warms up
            out[workload] = {"clock": [], "processor": []}
            for i in range(blocks):
                times = {side: side.block(workload) for side in sides[:: 1 if i % 2 else -1]}
                for kind, ratios in out[workload].items():
                    ratios.append(times[before][kind] / times[now][kind])
    return out


if __name__ == "__main__":
    serve()
