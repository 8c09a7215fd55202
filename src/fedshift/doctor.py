"""Checks of the installation, with advice for each that fails (``fedshift doctor``)."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape

from fedshift import __version__
from fedshift.core.device import has_bfloat16
from fedshift.data import sources
from fedshift.data.shift import GaussianShift
from fedshift.errors import DataNotFoundError, FedshiftError, install_hint
from fedshift.experiments.records import PACKAGES, check_writable, commit, version
from fedshift.federation.plan import FedSGD
from fedshift.ratio.logistic import Logistic
from fedshift.settings import Settings
from fedshift.workflow import run

#: extras, their modules and their purpose
EXTRAS = {
    "report": (("matplotlib",), "plots"),
    "tables": (("pandas", "pyarrow"), "data frames and Parquet files"),
    "flower": (("flwr",), "runs over Flower"),
}


class Check(NamedTuple):
    """One line: the name of a check, whether it passed, and details.

    `good` is None if an optional part is missing.
    """

    name: str
    good: bool | None
    text: str


def examine(out: Path, data_dir: str | os.PathLike[str] | None = None) -> Iterator[Check]:
    """Run all checks, one after the other.

    Parameters
    ----------
    out : Path
        Folder for runs.
    data_dir : path, optional
        Folder in which data sets are searched first.
    """
    yield Check("fedshift", True, f"{__version__}, commit {commit() or 'unknown (not a checkout)'}")
    python = sys.version_info >= (3, 11)
    yield Check("python", python, platform.python_version() + ("" if python else "; needs ≥ 3.11"))
    yield Check("packages", True, ", ".join(f"{p} {version(p)}" for p in PACKAGES))
    text = f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"
    if has_bfloat16():
        text += "; supports bfloat16: precision='bfloat16' trains networks faster"
    yield Check("processor", True, text)
    gpu = torch.cuda.is_available()
    text = torch.cuda.get_device_name() if gpu else "none that torch can use; runs use the CPU"
    yield Check("GPU", True if gpu else None, text)
    for extra, (modules, purpose) in EXTRAS.items():
        missing = [m for m in modules if find_spec(m) is None]
        text = f"not installed ({purpose}); {install_hint(extra)}"
        yield Check(f"extra {extra}", None if missing else True, text if missing else purpose)
    for name in sources.NAMES:
        yield _data(name, data_dir)
    yield _attempt("output folder", lambda: _write(out))
    yield _attempt("ratio self-test", _ratio)
    yield _attempt("training self-test", _engines)


def run_doctor(out: Path, *, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Print every check; return True unless an essential check fails."""
    console = Console()
    passed = True
    for check in examine(out, data_dir):
        mark = {True: "[green]ok[/]  ", None: "[dim]--[/]  ", False: "[red]FAIL[/]"}[check.good]
        console.print(f"{mark} {check.name}: {escape(check.text)}", highlight=False, soft_wrap=True)
        passed &= check.good is not False
    console.print("all is well" if passed else "an essential check fails; see FAIL above")
    return passed


def _attempt(name: str, test: Callable[[], str]) -> Check:
    begin = time.perf_counter()
    try:
        text = test()
    except (FedshiftError, AssertionError) as error:
        return Check(name, False, str(error))
    return Check(name, True, f"{text} ({time.perf_counter() - begin:.1f} s)")


def _data(name: str, data_dir: str | os.PathLike[str] | None) -> Check:
    if name == "digits":
        return Check("data digits", True, "part of scikit-learn")
    files = sources._find(sources._SOURCES[name], sources._roots(data_dir))
    if files is not None:
        return Check(f"data {name}", True, f"in {next(iter(files.values())).parent}")
    try:
        sources.load(name, data_dir, download=False)
    except DataNotFoundError as error:
        if os.environ.get("FEDSHIFT_OFFLINE"):
            return Check(f"data {name}", None, str(error))
        text = str(error).replace(" and downloads are switched off", "")
        return Check(f"data {name}", None, f"downloaded when needed; if the download fails: {text}")
    raise AssertionError(f"{name} was loaded although none of its files was found; report this bug")


def _write(out: Path) -> str:
    there = out.exists()
    check_writable(out)
    if not there:
        out.rmdir()
    return f"{out} can be written to"


def _ratio() -> str:
    rng = np.random.default_rng(0)
    fitted = Logistic().fit(source=rng.normal(size=(2000, 1)), target=rng.normal(1, 1, (2000, 1)))
    x = np.linspace(-1.0, 2.0, 31)
    slope = float(np.polyfit(x, fitted.log_ratio(x[:, None]), 1)[0])
    text = f"estimated log ratio of N(1, 1) to N(0, 1) has slope {slope:.2f}; the true slope is 1"
    if abs(slope - 1) > 0.2:
        raise AssertionError(text)
    return text


def _engines() -> str:
    federation = GaussianShift.mean_shift(d=3, clients=3, train_rows=60, test_rows=20).draw(seed=0)
    plan = FedSGD(iterations=5, batch_size=16)
    ends = [
        run(
            federation,
            Settings(
                ratio="exact", model="mlp", plan=plan, engine=e, precision="float64", device="cpu"
            ),
        ).state.tensors["params"]
        for e in ("fused", "reference")
    ]
    gap = float((ends[0] - ends[1]).abs().max())
    text = f"fused and reference engines differ by {gap:.0e} after 5 rounds"
    if not gap < 1e-9:
        raise AssertionError(text)
    return text
