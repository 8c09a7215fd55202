"""Shared parts of the benchmark scripts: arguments, bars, records.

Every script measures something, compares it with bars, prints one line per bar and exits with
status 1 if a bar is missed::

    parser = arguments("What is measured.")
    args = parser.parse_args()
    ...
    sys.exit(report([Bar("error", 0.2, 0.25)], record, args.json))
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

PACKAGES = ("fedshift", "numpy", "scipy", "scikit-learn", "torch")


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a subset in about a minute")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the record here")
    return parser


@dataclass(frozen=True)
class Bar:
    """A figure and the bound that it must meet.

    Attributes
    ----------
    name : str
        Name of the figure.
    figure : float
        The measurement; ``nan`` meets no bound.
    bound : float
        The bound.
    kind : {"<=", ">="}
        Which side of the bound is good.
    note : str
        Printed after the figure, and part of the record.
    """

    name: str
    figure: float
    bound: float
    kind: Literal["<=", ">="] = "<="
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the figure meets the bound."""
        return self.figure <= self.bound if self.kind == "<=" else self.figure >= self.bound

    def __str__(self) -> str:
        word = "PASS" if self.passed else "MISS"
        line = f"{word}  {self.name}: {self.figure:.4g} (bar {self.kind} {self.bound:g})"
        return f"{line}  {self.note}" if self.note else line


def environment(packages: Iterable[str] = PACKAGES) -> dict[str, Any]:
    """Return the environment of the figures: versions, cores and the date."""
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": versions,
    }


def _finite(value: Any) -> Any:
    """Replace what JSON cannot hold (nan, inf) by None."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(path: Path, content: Any) -> None:
    """Write JSON under a temporary name, then rename, so that no reader sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(content), indent=1, sort_keys=False, allow_nan=False) + "\n"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def report(bars: Iterable[Bar], record: Mapping[str, Any], json_path: Path | None) -> int:
    """Print one line per bar, write the record, and return the exit status.

    Parameters
    ----------
    bars : iterable of Bar
        The bars to print.
    record : mapping
        The measurements. The written record adds the bars and the environment.
    json_path : Path or None
        Path of the record; None writes none.

    Returns
    -------
    int
        0 when every bar is met, 1 when one is missed.
    """
    bars = list(bars)
    for bar in bars:
        print(bar)
    if json_path is not None:
        results = [{**asdict(bar), "passed": bar.passed} for bar in bars]
        write_json(json_path, {"environment": environment(), "bars": results, **record})
    return 0 if all(bar.passed for bar in bars) else 1
