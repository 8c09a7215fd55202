"""Does this installation work, and if not, what would make it? (``fedshift doctor``)"""

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
from fedshift.errors import DataNotFoundError, FedshiftError
from fedshift.experiments.records import PACKAGES, check_writable, commit, version
from fedshift.federation.plan import FedSGD
from fedshift.ratio.logistic import Logistic
from fedshift.settings import Settings
from fedshift.workflow import run

#: extras, the modules they bring and what these are for
EXTRAS = {
    "report": (("matplotlib", "jinja2"), "plots and reports"),
    "tables": (("pandas", "pyarrow"), "data frames and Parquet summaries"),
    "tensorboard": (("tensorboard",), "TensorBoard event files"),
    "flower": (("flwr",), "runs over Flower"),
    "dp": (("dp_accounting",), "privacy accounting"),
}


class Check(NamedTuple):
    """One line: what was looked at, whether it is well (None: not needed), and what was seen."""

    name: str
    good: bool | None
    said: str


def examine(out: Path, data_dir: str | os.PathLike[str] | None = None) -> Iterator[Check]:
    """All checks, one after the other.

    Parameters
    ----------
    out : Path
        Where runs would be written.
    data_dir : path, optional
        Where data sets are looked for first.
    """
    yield Check("fedshift", True, f"{__version__}, commit {commit() or 'unknown (installed)'}")
    python = sys.version_info >= (3, 11)
    yield Check("python", python, platform.python_version() + ("" if python else "; needs 3.11"))
    yield Check("packages", True, ", ".join(f"{p} {version(p)}" for p in PACKAGES))
    said = f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()}"
    if has_bfloat16():
        said += "; has bfloat16: precision='bfloat16' trains networks faster"
    yield Check("processor", True, said)
    gpu = torch.cuda.is_available()
    said = torch.cuda.get_device_name() if gpu else "none that torch can use; runs are on the CPU"
    yield Check("GPU", True if gpu else None, said)
    for extra, (modules, purpose) in EXTRAS.items():
        missing = [m for m in modules if find_spec(m) is None]
        said = f"not installed ({purpose}): pip install 'fedshift[{extra}]'"
        yield Check(f"extra {extra}", None if missing else True, said if missing else purpose)
    for name in sources.NAMES:
        yield _data(name, data_dir)
    yield _tried("output folder", lambda: _write(out))
    yield _tried("ratio self-test", _ratio)
    yield _tried("training self-test", _engines)


def run_doctor(
    out: Path,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    console: Console | None = None,
) -> bool:
    """Print every check; whether all that matter are well."""
    console = console or Console()
    well = True
    for check in examine(out, data_dir):
        mark = {True: "[green]ok[/]  ", None: "[dim]--[/]  ", False: "[red]FAIL[/]"}[check.good]
        console.print(f"{mark} {check.name}: {escape(check.said)}", highlight=False, soft_wrap=True)
        well &= check.good is not False
    console.print("all is well" if well else "something essential fails; see FAIL above")
    return well


def _tried(name: str, test: Callable[[], str]) -> Check:
    begin = time.perf_counter()
    try:
        said = test()
    except (FedshiftError, AssertionError) as error:
        return Check(name, False, str(error))
    return Check(name, True, f"{said} ({time.perf_counter() - begin:.1f} s)")


def _data(name: str, data_dir: str | os.PathLike[str] | None) -> Check:
    if name == "digits":
        return Check("data digits", True, "inside scikit-learn")
    found = sources._find(sources._SOURCES[name], sources._roots(data_dir))
    if found is not None:
        return Check(f"data {name}", True, f"in {next(iter(found.values())).parent}")
    try:
        sources.load(name, data_dir, download=False)
    except DataNotFoundError as error:
        if os.environ.get("FEDSHIFT_OFFLINE"):
            return Check(f"data {name}", None, str(error))
        said = str(error).replace(" and downloads are switched off", "")
        return Check(f"data {name}", None, f"will be downloaded when it is needed, or: {said}")
    raise AssertionError("a data set is found or it is not")


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
    said = f"N(0, 1) to N(1, 1): log ratio has slope {slope:.2f}, truth 1"
    if abs(slope - 1) > 0.2:
        raise AssertionError(said)
    return said


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
    said = f"fused and reference engines differ by {gap:.0e} after 5 rounds"
    if not gap < 1e-9:
        raise AssertionError(said)
    return said
