"""Finished runs in one small file, a line each, that `fedshift compare` reads like their folders.

What is kept of a run: its recipe, its environment, its result with the ledger summed up over
clients, and of its history the rounds with their figures. Models and checkpoints are not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedshift.core.files import write_text
from fedshift.errors import InputError
from fedshift.experiments.recipe import Recipe
from fedshift.experiments.records import read_history, read_json

SUFFIX = ".jsonl"
#: what every result has
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
#: digits kept of a figure
DIGITS = 6


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes
    ----------
    place : str
        Its folder, or the file and line it is kept in.
    result : mapping
        What its result.json holds.
    spelled : str
        Its recipe, as TOML; empty if the file is gone or damaged.
    environment : mapping
        Versions and machine; empty if the file is gone.
    history : tuple of mapping
        A line for every check.
    """

    place: str
    result: Mapping[str, Any]
    spelled: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of_folder(cls, folder: Path, result: Mapping[str, Any]) -> Run:
        """As its folder has it."""
        try:
            text = (folder / "recipe.toml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            text = ""
        told = read_json(folder / "environment.json") or {}
        return cls(str(folder), result, text, told, tuple(read_history(folder)))

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.result["method"])

    @property
    def key(self) -> tuple[str, str, int]:
        """Recipe, method and seed."""
        return self.result["recipe"], self.method, self.result["seed"]

    @property
    def values(self) -> dict[str, float]:
        """The main figure by client."""
        return {c["client"]: c[self.result["figure"]] for c in self.result["clients"]}

    @cached_property
    def recipe(self) -> Recipe | None:
        """What was asked for; None if it is gone or cannot be read."""
        try:
            return Recipe.parse(self.spelled, file=f"recipe of {self.place}")
        except InputError:
            return None

    @cached_property
    def curve(self) -> dict[int, float]:
        """Mean test accuracy by iteration, where it was recorded."""
        lines = self.history
        return {x["round"]: x["test_accuracy"] for x in lines if x.get("test_accuracy") is not None}

    @cached_property
    def best_values(self) -> dict[str, float] | None:
        """As `values`, of the check with the highest mean; None where clients were not recorded."""
        at = max(self.curve, key=self.curve.__getitem__, default=None)
        line: Mapping[str, Any] = next((x for x in self.history if x["round"] == at), {})
        found = line.get("test_clients")
        return None if found is None else dict(zip(self.values, found, strict=True))

    def to_record(self) -> dict[str, Any]:
        """One line of an archive."""
        result = {**self.result, "ledger": _summed(self.result["ledger"])}
        return {
            "recipe": self.spelled,
            "environment": dict(self.environment),
            "result": _rounded(result),
            "history": _rounded(list(self.history)),
        }


def write(path: Path, runs: Iterable[Run]) -> Path:
    """Keep runs in a file, sorted by recipe, method and seed."""
    lines = (
        json.dumps(r.to_record(), ensure_ascii=False) for r in sorted(runs, key=lambda r: r.key)
    )
    return write_text(path, "".join(line + "\n" for line in lines))


def read(path: str | os.PathLike[str]) -> list[Run]:
    """The runs of a file that `write` wrote.

    Raises
    ------
    InputError
        If a line is not one of a run; names it.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read runs from {path}: {error}") from None
    # not splitlines, which also splits at characters that JSON leaves as they are in a text
    lines = text.removesuffix("\n").split("\n") if text else []
    return [_read_line(line, path, number) for number, line in enumerate(lines, 1)]


def _read_line(line: str, path: Path, number: int) -> Run:
    try:
        told = json.loads(line)
        wrong = ", ".join(_missing(told))
    except ValueError as error:
        wrong = f"JSON ({error})"
    if wrong:
        raise InputError(
            f"{path}, line {number}, must be a run that 'fedshift pack' wrote; got no {wrong}; "
            "pack the runs again"
        )
    history = tuple(told["history"])
    return Run(f"{path}:{number}", told["result"], told["recipe"], told["environment"], history)


def _missing(told: Any) -> list[str]:
    """What a line lacks."""
    kinds = {"recipe": str, "environment": dict, "result": dict, "history": list}
    parts = told if isinstance(told, dict) else {}
    lacks = [name for name, kind in kinds.items() if not isinstance(parts.get(name), kind)]
    return lacks or [f"result.{name}" for name in NEEDED if name not in parts["result"]]


def _summed(ledger: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Entries of all clients together, by phase."""
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
