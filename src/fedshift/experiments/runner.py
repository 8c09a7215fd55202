"""Run every method and seed of a recipe that is not finished yet."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fedshift.core.device import check_device
from fedshift.core.files import locked
from fedshift.data.federation import Federation
from fedshift.data.sources import Images, available
from fedshift.errors import FedshiftWarning, InputError, TrainingDiverged
from fedshift.experiments.compare import compare
from fedshift.experiments.published import formatter
from fedshift.experiments.recipe import Recipe
from fedshift.experiments.records import RunFolder
from fedshift.experiments.shifts import Data
from fedshift.federation.client_weights import Ratios
from fedshift.progress import bar
from fedshift.report.comparison import render
from fedshift.workflow import run as run_workflow

#: what to do if another process works in the folder of a run
ADVICE = "wait until it ends, or choose another folder with --output"


@dataclass
class _Cache:
    """Data sets of the recipe; federations and log ratios of the current seed."""

    data_dir: str | os.PathLike[str] | None
    images: dict[tuple[str | None, float], Images | None] = field(default_factory=dict)
    federations: dict[str, Federation] = field(default_factory=dict)
    ratios: dict[str, Ratios] = field(default_factory=dict)
    seed: int | None = None

    def federation(self, data: Data, seed: int) -> Federation:
        if seed != self.seed:
            self.federations.clear()
            self.ratios.clear()
            self.seed = seed
        source, key = (data.source, data.share), repr(data)
        if source not in self.images:
            self.images[source] = data.load(self.data_dir)
        if key not in self.federations:
            self.federations[key] = data.federation(self.images[source], seed=seed)
        return self.federations[key]


def run_folders(
    recipe: Recipe, out: Path, *, methods: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[RunFolder]:
    """Folders of the runs of a recipe, seed by seed; by default of all methods and seeds."""
    for word, values in (("methods", methods), ("seeds", seeds)):
        if len(set(values)) < len(values):
            raise InputError(f"{word} must differ from each other; got {list(values)}")
    names = [recipe[m].name for m in methods] or [m.name for m in recipe.methods]
    return [
        RunFolder(Path(out), recipe.narrow(name, seed))
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
    commit: str | None = None,
    console: Console | None = None,
    verbose: bool = True,
) -> list[dict[str, Any]]:
    """Run all methods and seeds that are not finished, and print all results.

    After a kill or an interrupt, the next call continues from the last checkpoints. Within one
    call, log ratios are estimated once per seed for all methods that need the same ones. These log
    ratios are on disk only while a run is unfinished. After a kill, the remaining methods
    therefore use the log ratios that the killed run stored. If it stored none, they estimate new
    ones.

    Parameters
    ----------
    out : Path
        Folder of all runs; those of this recipe are in a folder with its name.
    methods, seeds : sequence, optional
        Run only these methods and seeds.
    data_dir : path, optional
        Folder in which data sets are searched first.
    fresh : bool
        Replace finished runs and runs with other settings.
    commit : str, optional
        Commit of the code, recorded as stated where the code is not in a git checkout.
    verbose : bool
        False leaves out the columns of the last tables that do not fit into the terminal.

    Returns
    -------
    list of dict
        The result.json of every run.

    Raises
    ------
    TrainingDiverged
        If a run diverged; raised after all other runs.
    """
    console = console or Console()
    todo = run_folders(recipe, out, methods=methods, seeds=seeds)
    _check_devices(todo)
    for folder in todo if not fresh else ():
        folder.check()  # all of them before the first run starts
    cache, results, failures = _Cache(data_dir), [], []
    with bar("runs", len(todo), console=console) as advance:
        for done, folder in enumerate(todo, 1):
            result = None if fresh else folder.result()
            if result is not None:
                prefix = "finished before: "
            else:
                try:
                    with locked(folder.path, advice=ADVICE):
                        folder.begin(fresh=fresh, commit=commit)
                        result = _run_one(folder, cache)
                except TrainingDiverged as error:
                    failures.append(f"{folder.method} seed {folder.seed}: {error}")
                    console.print(f"[red]✗[/] {escape(failures[-1])}", highlight=False)
                    advance(done)
                    continue
                prefix = ""
                for note in result["notes"]:
                    console.print(f"  [dim]{escape(note)}[/]", highlight=False)
            results.append(result)
            console.print(f"[green]✓[/] {prefix}{escape(_sentence(result))}", highlight=False)
            advance(done)
    for comparison in compare([folder.path for folder in todo], known=[recipe], needed=False):
        sheets = [comparison.sheet()]
        if all(len(row.runs) == 1 for row in comparison.rows):
            sheets.append(comparison.by_client())
        text = render(sheets, verbose=verbose)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
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
    """Print what `run` would do, run by run."""
    console = console or Console()
    todo = run_folders(recipe, out, methods=methods, seeds=seeds)
    _check_devices(todo)
    source = recipe.data.source
    there = source is None or available(source, data_dir)
    console.print(f"{recipe.name}: {recipe.title}", highlight=False)
    console.print(f"data: {recipe.data}" + ("" if there else " (not downloaded yet)"), markup=False)
    for folder in todo:
        settings = folder.recipe.settings(folder.method, folder.seed)
        state = "continues" if folder.path.exists() else "new"
        if folder.clash():
            state = "has a run with other settings"
        elif folder.result() is not None:
            state = "finished"
        ratio = "" if settings.objective == "erm" else f", {settings.ratio} ratios"
        console.print(
            f"{folder.path} ({state}): {settings.objective}{ratio}, {settings.plan!r}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _check_devices(todo: Sequence[RunFolder]) -> None:
    """Raise for a device that is not available, before the first run starts."""
    for device in dict.fromkeys(r.recipe.train.device for r in todo):
        if device is not None:
            check_device(device)


def _run_one(folder: RunFolder, cache: _Cache) -> dict[str, Any]:
    recipe = folder.recipe
    settings = recipe.settings(folder.method, folder.seed)
    with (
        bar(f"{folder.method} seed {folder.seed}"),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always", FedshiftWarning)
        outcome = run_workflow(
            cache.federation(recipe.data, folder.seed),
            settings,
            folder=folder.checkpoints,
            shared=cache.ratios,
            watch=folder.watch,
        )
    notes: dict[str, None] = {f"ratios: {outcome.reason}": None} if outcome.reason else {}
    for w in caught:
        if issubclass(w.category, FedshiftWarning):
            notes[f"{w.category.__name__}: {w.message}"] = None
        else:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return folder.finish(outcome, notes=list(notes))


def _sentence(result: Mapping[str, Any]) -> str:
    name = f"{result['method']} seed {result['seed']}"
    if not result["clients"]:
        return f"{name}: no test labels; {result['seconds']:.1f} s"
    show = formatter(result["figure"])
    mean, low, high = map(show, (result["mean"], *result["interval"]))
    return (
        f"{name}: {result['figure']} {mean} [{low}, {high}] over {len(result['clients'])} clients, "
        f"{result['seconds']:.1f} s"
    )
