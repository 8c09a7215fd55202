"""What a run leaves behind, and how it is read again.

A run is one method and one seed. Its folder, ``runs/<recipe>/<method>/seed-<n>/``, holds

====================  ==========================================================================
recipe.toml           everything that was asked for, defaults too: a recipe that runs again
environment.json      versions, commit, device
history.jsonl         a line for every check, while it runs; then those of the result alone
result.json           per-client figures, ledger, weights; there once the run is finished
model.safetensors     the trained model, as `load_state_dict` takes it
checkpoints/          log ratios, and where an unfinished run stands
tensorboard/          event files, if the package is there
====================  ==========================================================================

Every file is whole or not there, so a run can be killed at any moment and go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from fedshift import __version__
from fedshift.core.files import atomic_path, write_text
from fedshift.core.weights import Weights
from fedshift.errors import InputError, OutputError
from fedshift.experiments.recipe import Recipe
from fedshift.workflow import Outcome

#: packages whose versions a record keeps
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "safetensors")
#: parts of a recipe that do not change what is computed
_WORDS = ("name", "title", "description", "train.device")
#: what `atomic_path` calls a run's files while they are written
_TORN = re.compile(r"\.[\w-]+\.(toml|jsonl?|safetensors)\.[a-z0-9_]{8}")


@dataclass
class Record:
    """The folder of one run.

    Parameters
    ----------
    out : Path
        Folder of all runs.
    recipe : Recipe
        Narrowed to one method and seed (`Recipe.narrow`).
    """

    out: Path
    recipe: Recipe

    def __post_init__(self) -> None:
        self._boards: dict[float | None, Any] = {}
        self._before = 0.0

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.recipe.methods[0].name

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.recipe.seeds[0]

    @property
    def folder(self) -> Path:
        """Of this run."""
        return self.out / self.recipe.name / self.method / f"seed-{self.seed}"

    @property
    def checkpoints(self) -> Path:
        """Folder for `fedshift.workflow.run`."""
        return self.folder / "checkpoints"

    def result(self) -> dict[str, Any] | None:
        """What the run found, or None if it is not finished or was another one."""
        found = read_json(self.folder / "result.json")
        return None if found is None or self.clash() else found

    def clash(self) -> list[str]:
        """How the run in the folder, if there is one, differs from this one."""
        path = self.folder / "recipe.toml"
        if not path.exists():
            return []
        try:
            there = Recipe.load(path)
        except InputError as error:
            return [f"its recipe cannot be read ({error})"]
        a, b = _asked(there), _asked(self.recipe)
        return [
            f"{key} is {b.get(key, 'not given')!r}, there {a.get(key, 'not given')!r}"
            for key in sorted(a.keys() | b.keys())
            if a.get(key) != b.get(key)
        ]

    def check(self) -> None:
        """Raise `InputError` if a run with other settings is in the folder; says what differs."""
        different = self.clash()
        if different:
            raise InputError(
                f"{self.folder} holds a run with other settings: {'; '.join(different)}; give "
                "another folder with --out, or replace it with --fresh"
            )

    def begin(self, *, fresh: bool = False) -> None:
        """Make the folder ready: for a new run, or to go on with the one that is in it.

        Parameters
        ----------
        fresh : bool
            Remove whatever is there.
        """
        if not fresh:
            self.check()
        elif self.folder.exists():
            try:
                shutil.rmtree(self.folder)
            except OSError as error:
                raise OutputError(
                    f"cannot clear {self.folder}: {error.strerror or error}; remove it by hand"
                ) from error
        self._before = 0.0
        for torn in self.folder.rglob(".*"):  # what a kill left of files it was writing
            if _TORN.fullmatch(torn.name) and torn.is_file():
                torn.unlink(missing_ok=True)
        self.recipe.write(self.folder / "recipe.toml")
        write_json(self.folder / "environment.json", environment(self.recipe.train.device))

    def watch(self, event: Mapping[str, Any]) -> None:
        """Keep the history, as `fedshift.workflow.run` tells it."""
        flatten = event.get("flatten")  # one of several that are tried
        if event["phase"] == "train":  # lines after the checkpoint will come again
            there = read_history(self.folder)
            own = [x for x in there if x.get("flatten") == flatten]
            own = [x for x in own if x["round"] <= event["round"]]
            self._before += sum(x["seconds"] for x in own)
            write_history(self.folder, [*(x for x in there if x.get("flatten") != flatten), *own])
            folder = self.folder / "tensorboard" / ("" if flatten is None else f"flatten-{flatten}")
            self._boards[flatten] = _tensorboard(folder, event["round"])
        elif event["phase"] == "check":
            line = {k: v for k, v in event.items() if k not in ("phase", "rounds")}
            path = self.folder / "history.jsonl"
            try:
                with path.open("a", encoding="utf-8") as file:
                    file.write(_json(line) + "\n")
            except OSError as error:
                raise OutputError(
                    f"cannot write {path}: {error.strerror or error}; free some room or choose "
                    "another folder; the last checkpoint is kept"
                ) from error
            board = self._boards.get(flatten)
            if board is not None:
                for name, value in line.items():
                    if name not in ("round", "flatten") and isinstance(value, int | float):
                        board.add_scalar(name, value, line["round"])

    def finish(
        self,
        outcome: Outcome,
        *,
        notes: Sequence[str] = (),
        calibration: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """Write the model, the history and, last, the result; checkpoints are then removed.

        Parameters
        ----------
        notes : sequence of str
            Warnings that came up, and why ratios were chosen.
        calibration : sequence of mapping
            Estimated beside exact ratios (`fedshift.core.weights.calibration`).
        """
        _save_model(outcome, self.folder / "model.safetensors")
        write_history(self.folder, outcome.history)
        scores, m = outcome.evaluation, self.recipe.methods[0]
        result = {
            "fingerprint": fingerprint(self.recipe),
            "recipe": self.recipe.name,
            "method": m.name,
            "objective": m.objective,
            "ratio": None if m.objective == "erm" else m.ratio.spelled,
            "estimator": {} if m.objective == "erm" else m.ratio.parameters(self.seed),
            "seed": self.seed,
            "stopped": outcome.stopped,
            "rounds": outcome.state.round,
            "seconds": self._before + outcome.seconds,
            "train_seconds": sum(line["seconds"] for line in outcome.tried or outcome.history),
            "tried": outcome.tried,
            "figure": None if scores is None else scores.figure,
            "mean": None if scores is None else scores.mean,
            "interval": None if scores is None else list(scores.interval),
            "clients": [] if scores is None else scores.to_records(),
            "weights": {n: _weights(w) for n, w in (outcome.weights or {}).items()},
            "calibration": list(calibration),
            "ledger": outcome.ledger.to_records(),
            "notes": list(notes),
        }
        kept = outcome.history[-1].get("flatten") if outcome.history else None
        for flatten, board in self._boards.items():
            if board is not None:
                if scores is not None and flatten == kept:
                    board.add_scalar(f"test_{scores.figure}", scores.mean, outcome.state.round)
                board.close()
        write_json(self.folder / "result.json", result)
        for old in self.checkpoints.rglob("checkpoint-*.safetensors"):
            old.unlink(missing_ok=True)
        for left in self.checkpoints.glob("flatten-*"):
            with contextlib.suppress(OSError):  # somebody's own files stay
                left.rmdir()
        return result


# -- what makes a run this run -----------------------------------------------------------------


def fingerprint(recipe: Recipe) -> str:
    """Of everything in a recipe that changes what is computed."""
    text = json.dumps(_asked(recipe), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _asked(recipe: Recipe) -> dict[str, Any]:
    """What a narrow recipe asks for, by dotted key; ERM has no use for ratios."""
    found = _flat(recipe.to_table())
    if found["method.objective"] == "erm":
        return {k: v for k, v in found.items() if not k.startswith("method.ratio")}
    return found


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Values by dotted key, without words."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        path = before + key
        if isinstance(value, Mapping):
            out |= _flat(value, f"{path}.")
        elif key == "method":
            out |= _flat(value[0], f"{path}.")
        elif path not in _WORDS:
            out[path] = value
    return out


def environment(device: str | None = None) -> dict[str, Any]:
    """Versions, commit and machine; no path and no name of a host."""
    gpu = torch.cuda.is_available() and (device or "cuda").startswith("cuda")
    return {
        "fedshift": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device or "cuda") if gpu else "cpu",
    }


def version(package: str) -> str | None:
    """Of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of this code, "+" after it if files differ; None if it is not a checkout."""
    here = Path(__file__).parents[1]

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # not a copy inside another checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            names = (line.partition(":")[2].strip() for line in file if "model name" in line)
            return next(names, "") or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


# -- files -------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """NaN and infinity, which JSON has not, as null."""
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
    """Write JSON, a key a line, whole or not at all."""
    lines = ",\n".join(f" {json.dumps(k)}: {_json(v)}" for k, v in value.items())
    return write_text(path, "{\n" + lines + "\n}\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None if there is none or it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_history(folder: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    """Write all lines of a history anew."""
    text = "".join(_json(line) + "\n" for line in lines)
    return write_text(folder / "history.jsonl", text)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Lines of a run's history; one that a kill cut short is left out."""
    try:
        text = (folder / "history.jsonl").read_text(encoding="utf-8")
    except OSError:
        return []
    out = []
    for line in text.splitlines():
        try:
            out.append(json.loads(line))
        except ValueError:
            break
    return out


def _save_model(outcome: Outcome, path: Path) -> None:
    """The state dict; where BatchNorm is local, each client's own layers as "client/name" too."""
    shared = outcome.model().state_dict()
    tensors = dict(shared)
    if outcome.task.plan.norm == "local":
        for client in outcome.task.names:
            own = outcome.model(client).state_dict()
            tensors |= {f"{client}/{n}": t for n, t in own.items() if not t.equal(shared[n])}
    whole: dict[str, Tensor] = {n: t.contiguous().clone() for n, t in tensors.items()}
    with atomic_path(path) as temporary:
        temporary.write_bytes(to_safetensors(whole))


def _weights(w: Weights) -> dict[str, Any]:
    return {
        "n": w.n,
        "mean": w.mean,
        "max": w.max,
        "ess": w.ess,
        "coverage": w.coverage,
        "changes": w.changes,
    }


def _tensorboard(folder: Path, round: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=round + 1)


# -- all runs ----------------------------------------------------------------------------------


def collect(folder: Path) -> list[dict[str, Any]]:
    """A dict for every client of every finished run below a folder, sorted by run.

    Besides the run (recipe, method, objective, ratio, seed) and the client's test figures each
    has the summary of the client's weights (weight_mean, weight_max, coverage), the bytes it sent
    and read (up, down), and the run's rounds and seconds.
    """
    rows = []
    for path in sorted(Path(folder).rglob("result.json")):
        result = read_json(path)
        if result is None or "fingerprint" not in result:
            continue
        run = {k: result[k] for k in ("recipe", "method", "objective", "ratio", "seed")}
        run["ratio"] = run["ratio"] if isinstance(run["ratio"], str | None) else _json(run["ratio"])
        cost: dict[str, dict[str, int]] = {}
        for entry in result["ledger"]:
            sum_ = cost.setdefault(entry["client"], {"up": 0, "down": 0, "rows_sent": 0})
            for ours, theirs in (("up", "up"), ("down", "down"), ("rows_sent", "rows")):
                sum_[ours] += entry[theirs]
        ends = {k: result[k] for k in ("rounds", "stopped", "seconds")}
        for client in result["clients"]:
            w = result["weights"].get(client["client"], {})
            told = {"weight_mean": w.get("mean"), "weight_max": w.get("max")}
            told["coverage"] = w.get("coverage")
            rows.append({**run, **client, **told, **cost.get(client["client"], {}), **ends})
    return rows


def summarise(folder: Path) -> list[Path]:
    """Write `collect`'s rows to summary.jsonl and, if pyarrow is there, summary.parquet."""
    rows = collect(folder)
    keys = list(dict.fromkeys(k for row in rows for k in row))
    rows = [{k: row.get(k) for k in keys} for row in rows]
    out = [
        write_text(Path(folder) / "summary.jsonl", "".join(_json(row) + "\n" for row in rows)),
    ]
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return out
    if rows:
        with atomic_path(Path(folder) / "summary.parquet") as temporary:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), temporary)
        out.append(Path(folder) / "summary.parquet")
    return out


def check_writable(folder: Path) -> None:
    """Raise `OutputError` unless a file can be made in a folder (made if it is not there)."""
    with atomic_path(Path(folder) / f".write-test-{os.getpid()}") as temporary:
        temporary.write_bytes(b"x" * 4096)
    (Path(folder) / f".write-test-{os.getpid()}").unlink(missing_ok=True)
