"""Run a recipe: every method and seed that is not finished yet."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from scipy import stats

from fedshift.core.device import check_device
from fedshift.core.weights import calibration
from fedshift.data.federation import Federation
from fedshift.data.sources import Images, available
from fedshift.errors import FedshiftWarning, InputError, TrainingDiverged
from fedshift.experiments.recipe import Recipe
from fedshift.experiments.records import Record, summarise
from fedshift.experiments.shifts import Data
from fedshift.federation.weigh import log_ratios
from fedshift.learn.objective import Objective
from fedshift.settings import Settings
from fedshift.workflow import Outcome
from fedshift.workflow import run as run_workflow

#: most clients a table shows
SHOWN = 20


@dataclass
class _Shelf:
    """Data sets as long as the recipe runs, federations as long as their seed does."""

    data_dir: str | os.PathLike[str] | None
    images: dict[tuple[str | None, float], Images | None] = field(default_factory=dict)
    federations: dict[str, Federation] = field(default_factory=dict)
    seed: int | None = None

    def federation(self, data: Data, seed: int) -> Federation:
        if seed != self.seed:
            self.federations.clear()
            self.seed = seed
        source, key = (data.source, data.share), repr(data)
        if source not in self.images:
            self.images[source] = data.load(self.data_dir)
        if key not in self.federations:
            self.federations[key] = data.federation(self.images[source], seed=seed)
        return self.federations[key]


def records(
    recipe: Recipe, out: Path, *, methods: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[Record]:
    """The runs of a recipe, seed after seed; all methods and seeds unless some are named."""
    for word, given in (("methods", methods), ("seeds", seeds)):
        if len(set(given)) < len(given):
            raise InputError(f"{word} must be named once each; got {list(given)}")
    names = [recipe[m].name for m in methods] or [m.name for m in recipe.methods]
    return [
        Record(Path(out), recipe.narrow(name, seed))
        for seed in (seeds or recipe.seeds)
        for name in names
    ]


def run(
    recipe: Recipe,
    out: Path,
    *,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    data_dir: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Run what is not finished, and show the results of all.

    Killed or interrupted at any moment, the next call goes on from the last checkpoints.

    Parameters
    ----------
    out : Path
        Folder of all runs; this recipe's are below its name.
    methods, seeds : sequence, optional
        Only these.
    data_dir : path, optional
        Where data sets are looked for first.
    fresh : bool
        Run finished ones again, and replace runs with other settings.

    Returns
    -------
    list of dict
        What every run's result.json holds.

    Raises
    ------
    TrainingDiverged
        After all other runs, if one of them diverged.
    """
    console = console or Console()
    todo = records(recipe, out, methods=methods, seeds=seeds)
    _check_devices(todo)
    for record in todo if not fresh else ():
        record.check()  # all of them before the first one takes its time
    shelf, results, failures = _Shelf(data_dir), [], []
    with _Bars(console, len(todo)) as bars:
        for record in todo:
            found = None if fresh else record.result()
            if found is not None:
                said = "finished before: "
            else:
                record.begin(fresh=fresh)
                try:
                    found = _run_one(record, shelf, bars, borrow=_siblings(record, todo, fresh))
                except TrainingDiverged as error:
                    failures.append(f"{record.method} seed {record.seed}: {error}")
                    console.print(f"[red]✗[/] {escape(failures[-1])}", highlight=False)
                    bars.step()
                    continue
                said = ""
                for note in found["notes"]:
                    console.print(f"  [dim]{escape(note)}[/]", highlight=False)
            results.append(found)
            console.print(f"[green]✓[/] {said}{escape(_sentence(found))}", highlight=False)
            bars.step()
    summarise(Path(out) / recipe.name)
    for table in tables(results, title=recipe.title or recipe.name):
        console.print(table)
    if failures:
        raise TrainingDiverged(f"{len(failures)} of {len(todo)} runs diverged: {failures[0]}")
    return results


def describe(
    recipe: Recipe,
    out: Path,
    *,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    data_dir: str | os.PathLike[str] | None = None,
    console: Console | None = None,
) -> None:
    """Say what `run` would do, run by run."""
    console = console or Console()
    todo = records(recipe, out, methods=methods, seeds=seeds)
    _check_devices(todo)
    source = recipe.data.source
    there = source is None or available(source, data_dir)
    console.print(f"{recipe.name}: {recipe.title}", highlight=False)
    console.print(f"data: {recipe.data}" + ("" if there else " (not here yet)"), markup=False)
    for record in todo:
        settings = record.recipe.settings(record.method, record.seed)
        state = "goes on" if record.folder.exists() else "new"
        if record.clash():
            state = "other settings are there"
        elif record.result() is not None:
            state = "finished"
        ratio = "" if settings.objective == "erm" else f", {settings.ratio} ratios"
        console.print(
            f"{record.folder} ({state}): {settings.objective}{ratio}, {settings.plan!r}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _check_devices(todo: Sequence[Record]) -> None:
    """All of them before the first run takes its time."""
    for device in dict.fromkeys(r.recipe.train.device for r in todo):
        if device is not None:
            check_device(device)


def _siblings(record: Record, todo: Sequence[Record], fresh: bool) -> list[Path]:
    """Where runs of the same seed keep log ratios; when run afresh, only those of this call."""
    if fresh:
        return [r.checkpoints for r in todo[: todo.index(record)] if r.seed == record.seed]
    return sorted(record.folder.parent.parent.glob(f"*/seed-{record.seed}/checkpoints"))


def _run_one(
    record: Record, shelf: _Shelf, bars: _Bars, *, borrow: Sequence[Path]
) -> dict[str, Any]:
    recipe = record.recipe
    settings = recipe.settings(record.method, record.seed)
    bars.begin(f"{record.method} seed {record.seed}")
    federation = shelf.federation(recipe.data, record.seed)

    def watch(event: dict[str, Any]) -> None:
        record.watch(event)
        bars.watch(event)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FedshiftWarning)
        outcome = run_workflow(
            federation, settings, folder=record.checkpoints, borrow=borrow, watch=watch
        )
    notes: dict[str, None] = {f"ratios: {outcome.reason}": None} if outcome.reason else {}
    for w in caught:
        if issubclass(w.category, FedshiftWarning):
            notes[f"{w.category.__name__}: {w.message}"] = None
        else:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return record.finish(
        outcome, notes=list(notes), calibration=_calibration(outcome, federation, settings)
    )


def _calibration(
    outcome: Outcome, federation: Federation, settings: Settings
) -> list[dict[str, float]]:
    """Estimated weights beside exact ratios, where there are both."""
    if outcome.weights is None or federation.truth is None or settings.ratio == "exact":
        return []
    goals = Objective.of(settings.objective).goals(federation)
    truth = log_ratios(federation, "exact", goals, lean=settings.lean)
    pairs = [
        (outcome.weights[name].values, truth[name])
        for name, goal in goals.items()
        if goal is not None
    ]
    if not pairs:
        return []
    weight, exact = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return calibration(weight, exact)


class _Bars:
    """A bar for the runs and one for the rounds of the current one, with it/s and time left."""

    def __init__(self, console: Console, runs: int) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.runs = self.progress.add_task("runs", total=runs, rate="")
        self.rounds: TaskID | None = None

    def __enter__(self) -> _Bars:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, name: str) -> None:
        self.name = name
        self.done = 0
        self._remove()
        self.rounds = self.progress.add_task(f"{name}: data", total=None, rate="")

    def watch(self, event: Mapping[str, Any]) -> None:
        if self.rounds is None:
            return
        if event["phase"] == "ratio":
            self.progress.update(self.rounds, description=f"{self.name}: ratios")
        elif event["phase"] == "train":
            self.done = event["round"]
            which = f", flatten {event['flatten']}" if "flatten" in event else ""
            self.progress.reset(
                self.rounds,
                description=f"{self.name}{which}",
                total=event["rounds"],
                completed=self.done,
            )
        else:
            rate = (event["round"] - self.done) / max(event["seconds"], 1e-9)
            self.done = event["round"]
            self.progress.update(self.rounds, completed=self.done, rate=f"{rate:,.0f} it/s")

    def step(self) -> None:
        self._remove()
        self.progress.advance(self.runs)

    def _remove(self) -> None:
        if self.rounds is not None:
            self.progress.remove_task(self.rounds)
            self.rounds = None


# -- tables ------------------------------------------------------------------------------------


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and the half width of its 95 % t interval (None of a single value).

    Examples
    --------
    >>> mean, half = mean_interval([0.8, 0.82, 0.84])
    >>> f"{mean:.2f} ± {half:.3f}"
    '0.82 ± 0.050'
    """
    v = np.asarray(values, dtype=np.float64)
    if len(v) < 2:
        return float(v.mean()), None
    half = float(stats.t.ppf(0.975, len(v) - 1)) * float(v.std(ddof=1)) / math.sqrt(len(v))
    return float(v.mean()), half


def tables(results: Sequence[Mapping[str, Any]], *, title: str) -> list[Table]:
    """Methods side by side; with a single seed also client by client."""
    scored = [r for r in results if r["clients"]]
    if not scored:
        return []
    figure = scored[0]["figure"]
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for result in scored:
        by_method.setdefault(result["method"], []).append(result)
    seeds = max(len(runs) for runs in by_method.values())
    said = (
        "mean over clients, ± 95 % t interval over seeds"
        if seeds > 1
        else "mean over clients, 95 % interval over test rows"
    )
    top = Table(title=title, caption=said)
    top.add_column("method", no_wrap=True)
    for name in ("seeds", figure, "worst", "best", "seconds"):
        top.add_column(name, justify="right", no_wrap=True)
    for method, runs in by_method.items():
        ends = [sorted((c[figure] for c in r["clients"]), reverse=figure == "mse") for r in runs]
        mean, half = mean_interval([r["mean"] for r in runs])
        low, high = runs[0]["interval"]
        spread = f"[{_show(low, figure)}, {_show(high, figure)}]"
        top.add_row(
            method,
            str(len(runs)),
            f"{_show(mean, figure)} {spread if half is None else f'± {_show(half, figure)}'}",
            _show(float(np.mean([e[0] for e in ends])), figure),
            _show(float(np.mean([e[-1] for e in ends])), figure),
            f"{np.mean([r['seconds'] for r in runs]):.1f}",
        )
    return [top] if seeds > 1 else [top, _by_client(by_method, figure)]


def _by_client(by_method: Mapping[str, Sequence[Mapping[str, Any]]], figure: str) -> Table:
    first = next(iter(by_method.values()))[0]["clients"]
    more = f"; {len(first) - SHOWN} more in result.json" if len(first) > SHOWN else ""
    table = Table(title=f"{figure} by client{more}")
    table.add_column("client", no_wrap=True)
    for name in ("n", *by_method):
        table.add_column(name, justify="right")
    for i, client in enumerate(first[:SHOWN]):
        values = (runs[0]["clients"][i][figure] for runs in by_method.values())
        table.add_row(client["client"], str(client["n"]), *(_show(v, figure) for v in values))
    return table


def _show(value: float, figure: str) -> str:
    return f"{value:.3f}" if figure == "accuracy" else f"{value:.3g}"


def _sentence(result: Mapping[str, Any]) -> str:
    name = f"{result['method']} seed {result['seed']}"
    if not result["clients"]:
        return f"{name}: no test labels; {result['seconds']:.1f} s"
    figure, (low, high) = result["figure"], result["interval"]
    said = f"{_show(result['mean'], figure)} [{_show(low, figure)}, {_show(high, figure)}]"
    return (
        f"{name}: {figure} {said} over {len(result['clients'])} clients, {result['seconds']:.1f} s"
    )
