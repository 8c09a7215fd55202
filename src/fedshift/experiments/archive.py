"""Finished runs in one small file, one line per run, which `fedshift compare` can read.

A line holds the recipe, the environment, the result with the ledger summed over clients, and the
history of one run. Models and checkpoints are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedshift.core.files import read_json, write_text
from fedshift.core.old_files import modern_result
from fedshift.errors import InputError
from fedshift.experiments.recipe import Recipe
from fedshift.experiments.records import read_history

SUFFIX = ".jsonl"
#: keys of every result
NEEDED = (
    "fingerprint",
    "recipe",
    "method",
    "seed",
    "figure",
    "mean",
    "clients",
    "seconds",
    "ledger",
)
#: significant digits of a figure
DIGITS = 6


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes
    ----------
    place : str
        The folder of the run, or a file and a line in it.
    result : mapping
        The content of result.json; keys of older versions are renamed to the current ones.
    recipe_text : str
        The recipe of the run as TOML; empty if the file is missing or damaged.
    environment : mapping
        Versions and machine; empty if the file is missing.
    history : tuple of mapping
        One entry for each check, a point in training at which scores are recorded
        (`Settings.check_every`).
    """

    place: str
    result: Mapping[str, Any]
    recipe_text: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", modern_result(self.result))

    @classmethod
    def of_folder(cls, folder: Path, result: Mapping[str, Any]) -> Run:
        """Read a run from its folder."""
        try:
            text = (folder / "recipe.toml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            text = ""
        machine = read_json(folder / "environment.json") or {}
        return cls(str(folder), result, text, machine, tuple(read_history(folder)))

    @property
    def method(self) -> str:
        """Name of the method of the run."""
        return str(self.result["method"])

    @property
    def key(self) -> tuple[str, str, int]:
        """Recipe, method and seed."""
        return self.result["recipe"], self.method, self.result["seed"]

    @property
    def values(self) -> dict[str, float]:
        """The score of each client: accuracy or MSE, as `result` says under "figure"."""
        return {c["client"]: c[self.result["figure"]] for c in self.result["clients"]}

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe of the run; None if the recipe is missing or cannot be read."""
        try:
            return Recipe.recorded(self.recipe_text, file=f"recipe of {self.place}")
        except InputError:
            return None

    @cached_property
    def curve(self) -> dict[int, float]:
        """Mean test accuracy by iteration; empty if it was not recorded."""
        lines = self.history
        return {x["round"]: x["test_accuracy"] for x in lines if x.get("test_accuracy") is not None}

    @cached_property
    def best_values(self) -> dict[str, float] | None:
        """`values` at the check with the highest mean accuracy.

        None if the scores of single clients were not recorded.
        """
        at = max(self.curve, key=self.curve.__getitem__, default=None)
        line: Mapping[str, Any] = next((x for x in self.history if x["round"] == at), {})
        scores = line.get("test_clients")
        return None if scores is None else dict(zip(self.values, scores, strict=True))

    def to_record(self) -> dict[str, Any]:
        """The run as one line of an archive."""
        result = {**self.result, "ledger": _summed(self.result["ledger"])}
        return {
            "recipe": self.recipe_text,
            "environment": dict(self.environment),
            "result": _rounded(result),
            "history": _rounded(list(self.history)),
        }


def write(path: Path, runs: Iterable[Run]) -> Path:
    """Write runs to a file, sorted by recipe, method and seed."""
    lines = (
        json.dumps(r.to_record(), ensure_ascii=False) for r in sorted(runs, key=lambda r: r.key)
    )
    return write_text(path, "".join(line + "\n" for line in lines))


def read(path: str | os.PathLike[str]) -> list[Run]:
    """Read the runs of a file that `write` wrote.

    Raises
    ------
    InputError
        If a line is not a run; the message names the line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read runs from {path}: {error}") from None
    # splitlines would also split at characters that JSON does not escape
    lines = text.removesuffix("\n").split("\n") if text else []
    return [_read_line(line, path, number) for number, line in enumerate(lines, 1)]


def is_archive(path: Path) -> bool:
    """Return whether the first line of a file is a run, as in files that `write` wrote."""
    try:
        with path.open(encoding="utf-8") as file:
            return not _missing(json.loads(file.readline()))
    except (OSError, ValueError):
        return False


def _read_line(line: str, path: Path, number: int) -> Run:
    try:
        entry = json.loads(line)
        wrong = ", ".join(_missing(entry))
    except ValueError as error:
        wrong = f"JSON ({error})"
    if wrong:
        raise InputError(
            f"{path}, line {number}, must be a run that 'fedshift pack' wrote; it lacks {wrong}; "
            "pack the runs again"
        )
    history = tuple(entry["history"])
    place = f"{path}:{number}"
    return Run(place, entry["result"], entry["recipe"], entry["environment"], history)


def _missing(entry: Any) -> list[str]:
    """Names of the parts that a line lacks."""
    kinds = {"recipe": str, "environment": dict, "result": dict, "history": list}
    parts = entry if isinstance(entry, dict) else {}
    lacks = [name for name, kind in kinds.items() if not isinstance(parts.get(name), kind)]
    return lacks or [f"result.{name}" for name in NEEDED if name not in parts["result"]]


def _summed(ledger: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Totals over all clients, by phase."""
    out: dict[str, dict[str, Any]] = {}
    for entry in ledger:
        total = out.setdefault(entry["phase"], {"client": "all", "phase": entry["phase"]})
        for name, value in entry.items():
            if name not in ("client", "phase"):
                total[name] = total.get(name, 0) + value
    return list(out.values())


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
