"""The folder of a run: its files, and how they are read again.

A run is one method and one seed. Its folder is ``runs/<recipe>/<method>/seed-<n>/``:

====================  ==========================================================================
recipe.toml           the recipe of this run alone, with all defaults; it can be run again
environment.json      versions, commit, device
history.jsonl         a line for every check; rewritten from the result when the run is finished
result.json           figures of each client, ledger, weights; written when the run is finished
model.safetensors     the trained model, with model.json; `fedshift.load` reads both
checkpoints/          log ratios and training state, until the run is finished
lock                  the process that works in the folder; empty otherwise
====================  ==========================================================================

No file except the last line of history.jsonl is ever incomplete, so a run can be killed at any
moment and continued.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
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

from fedshift import __version__
from fedshift.core.files import atomic_path, read_json, to_json, write_json, write_text
from fedshift.core.weights import Weights
from fedshift.errors import InputError, OutputError
from fedshift.experiments.recipe import Recipe
from fedshift.outcome import Outcome

#: packages whose versions are recorded
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "safetensors")
#: keys of a recipe that do not change the result
_WORDS = ("name", "title", "description", "train.device")
#: temporary names that `atomic_path` gives to files while they are written
_TEMPORARY = re.compile(r"\.[\w-]+\.(toml|jsonl?|safetensors)\.[a-z0-9_]{8}")


@dataclass
class RunFolder:
    """The folder of one run.

    Parameters
    ----------
    out : Path
        Folder of all runs.
    recipe : Recipe
        A recipe of one method and seed (`Recipe.narrow`).
    """

    out: Path
    recipe: Recipe

    def __post_init__(self) -> None:
        self._before = 0.0

    @property
    def method(self) -> str:
        """Name of the method of the run."""
        return self.recipe.methods[0].name

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.recipe.seeds[0]

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.out / self.recipe.name / self.method / f"seed-{self.seed}"

    @property
    def checkpoints(self) -> Path:
        """Folder for `fedshift.workflow.run`."""
        return self.path / "checkpoints"

    def result(self) -> dict[str, Any] | None:
        """The result of the run; None if it is not finished or the recipe differs."""
        result = read_json(self.path / "result.json")
        return None if result is None or self.clash() else result

    def clash(self) -> list[str]:
        """Settings in which a run in the folder differs from this recipe; empty if none."""
        path = self.path / "recipe.toml"
        if not path.exists():
            return []
        try:
            there = Recipe.recorded(path.read_text(encoding="utf-8"), file=path.name)
        except (InputError, OSError, UnicodeDecodeError) as error:
            return [f"its recipe cannot be read ({error})"]
        a, b = _relevant(there), _relevant(self.recipe)
        return [
            f"{key} is {b.get(key, 'not set')!r} here and {a.get(key, 'not set')!r} in the folder"
            for key in sorted(a.keys() | b.keys())
            if a.get(key) != b.get(key)
        ]

    def check(self) -> None:
        """Raise `InputError`, with the differences, if the folder has a run with other settings."""
        different = self.clash()
        if different:
            raise InputError(
                f"{self.path} has a run with other settings: {'; '.join(different)}; choose "
                "another folder with --output, or replace the run with --fresh"
            )

    def begin(self, *, fresh: bool = False, commit: str | None = None) -> None:
        """Prepare the folder, which this process has locked, to begin or continue its run.

        Parameters
        ----------
        fresh : bool
            Remove a run that is already in the folder.
        commit : str, optional
            See `with_commit`.
        """
        if not fresh:
            self.check()
        elif self.path.exists():
            try:
                for path in set(self.path.iterdir()) - {self.path / "lock"}:  # held while it runs
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            except OSError as error:
                raise OutputError(
                    f"cannot clear {self.path}: {error.strerror or error}; remove it by hand"
                ) from error
        self._before = 0.0
        for path in self.path.rglob(".*"):  # incomplete files of a killed run
            if _TEMPORARY.fullmatch(path.name) and path.is_file():
                path.unlink(missing_ok=True)
        self.recipe.write(self.path / "recipe.toml")
        here = with_commit(environment(self.recipe.train.device), commit)
        write_json(self.path / "environment.json", here)

    def watch(self, event: Mapping[str, Any]) -> None:
        """Write an event of `fedshift.workflow.run` to the history."""
        if event["phase"] == "train":  # lines after the checkpoint will be written again
            lines = [x for x in read_history(self.path) if x["round"] <= event["round"]]
            self._before = sum(x["seconds"] for x in lines)
            write_history(self.path, lines)
        elif event["phase"] == "check":
            line = {k: v for k, v in event.items() if k not in ("phase", "rounds")}
            path = self.path / "history.jsonl"
            try:
                with path.open("a", encoding="utf-8") as file:
                    file.write(to_json(line) + "\n")
            except OSError as error:
                raise OutputError(
                    f"cannot write {path}: {error.strerror or error}; free disk space or choose "
                    "another folder; the last checkpoint remains"
                ) from error

    def finish(self, outcome: Outcome, *, notes: Sequence[str] = ()) -> dict[str, Any]:
        """Write the model, the history and the result, then remove the checkpoints.

        Parameters
        ----------
        notes : sequence of str
            Warnings, and the reason for the choice of ratios.
        """
        outcome.predictor.write(self.path)
        write_history(self.path, outcome.history)
        scores, m = outcome.evaluation, self.recipe.methods[0]
        result = {
            "fingerprint": fingerprint(self.recipe),
            "recipe": self.recipe.name,
            "method": m.name,
            "objective": m.objective,
            "ratio": None if m.objective == "erm" else m.ratio.toml,
            "estimator": {} if m.objective == "erm" else m.ratio.parameters(self.seed),
            "seed": self.seed,
            "stopped": outcome.stopped,
            "rounds": outcome.state.round,
            "seconds": self._before + outcome.seconds,
            "ratio_seconds": outcome.ratio_seconds,
            "train_seconds": sum(line["seconds"] for line in outcome.history),
            "figure": None if scores is None else scores.figure,
            "mean": None if scores is None else scores.mean,
            "interval": None if scores is None else list(scores.interval),
            "clients": [] if scores is None else scores.to_records(),
            "weights": {n: _weights(w) for n, w in (outcome.weights or {}).items()},
            "ledger": outcome.ledger.to_records(),
            "notes": list(notes),
        }
        write_json(self.path / "result.json", result)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        return result


# -- settings that change the result ----------------------------------------------------------


def fingerprint(recipe: Recipe) -> str:
    """Hash of all settings of a recipe that change the result."""
    text = json.dumps(_relevant(recipe), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _relevant(recipe: Recipe) -> dict[str, Any]:
    """Settings of a narrow recipe that change the result, by dotted key; ERM uses no ratios."""
    table = recipe.to_table()
    settings = dotted({**table, "method": table["method"][0]}) | dict(recipe.removed)
    skip = ("method.ratio",) if settings["method.objective"] == "erm" else ()
    return {k: v for k, v in settings.items() if k not in _WORDS and not k.startswith(skip)}


def dotted(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten a nested table; keys are joined by dots."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        out |= dotted(value, f"{before}{key}.") if inner else {f"{before}{key}": value}
    return out


def environment(device: str | None = None) -> dict[str, Any]:
    """Versions, commit and machine, without paths and host names."""
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


def with_commit(environment: Mapping[str, Any], commit: str | None) -> dict[str, Any]:
    """Return an environment that names a commit, marked as stated, if it names none.

    Raises
    ------
    InputError
        If the commit is not a commit's hexadecimal name, or the environment names another commit.
    """
    known = environment.get("commit")
    if commit is None or (known or "").startswith(commit):
        return dict(environment)
    if known or not re.fullmatch("[0-9a-f]{7,40}", commit):
        raise InputError(
            f"commit must be {'that of the run, ' + known if known else '7 to 40 hex digits'}; "
            f"got {commit!r}; state the commit of the code that ran"
        )
    return {**environment, "commit": f"{commit} (as stated)"}


def version(package: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of this code, with "+" if files differ from it; None outside a checkout."""
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


def write_history(folder: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    """Write a whole history."""
    text = "".join(to_json(line) + "\n" for line in lines)
    return write_text(folder / "history.jsonl", text)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Read the history of a run, without an incomplete last line."""
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


def _weights(w: Weights) -> dict[str, Any]:
    return {name: getattr(w, name) for name in ("n", "mean", "max", "ess", "coverage", "changes")}


def check_writable(folder: Path) -> None:
    """Raise `OutputError` unless a file can be written to a folder, which is created if needed."""
    with atomic_path(Path(folder) / f".write-test-{os.getpid()}") as temporary:
        temporary.write_bytes(b"x" * 4096)
    (Path(folder) / f".write-test-{os.getpid()}").unlink(missing_ok=True)
