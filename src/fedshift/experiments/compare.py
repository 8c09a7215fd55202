"""Finished runs beside one another, and beside what others report. Runs nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.errors import InputError
from fedshift.experiments.archive import SUFFIX, Run, read
from fedshift.experiments.recipe import SECTIONS, Published, Recipe, recipes
from fedshift.experiments.records import read_json
from fedshift.experiments.runner import mean_interval
from fedshift.experiments.verdict import (
    SDS,
    half_digit,
    ordering,
    printed,
    shower,
    spread,
    summary,
    verdict,
)
from fedshift.report.comparison import Sheet

#: the method others are paired with
BASE = "ERM"


@dataclass(frozen=True)
class Row:
    """A method's runs, one a seed.

    Attributes
    ----------
    method : str
    figure : str
        "accuracy" or "mse".
    runs : tuple of Run
    published : Published, optional
    """

    method: str
    figure: str
    runs: tuple[Run, ...]
    published: Published | None = None

    @property
    def ours(self) -> tuple[float, float | None]:
        """Mean over seeds of the mean over clients, and half its 95 % t interval."""
        return mean_interval([r.result["mean"] for r in self.runs])

    @property
    def worst(self) -> float:
        """Of the worst client of each run, the mean over seeds."""
        return self._ends([r.values for r in self.runs])[0]

    @property
    def best(self) -> float:
        """Of the best client of each run, the mean over seeds."""
        return self._ends([r.values for r in self.runs])[1]

    def _ends(self, values: Sequence[Mapping[str, float]]) -> tuple[float, float]:
        """Worst and best client, means over seeds."""
        low, high = (float(np.mean([end(v.values()) for v in values])) for end in (min, max))
        return (low, high) if self.figure == "accuracy" else (high, low)

    @property
    def seconds(self) -> float:
        """Of a run, on average."""
        return float(np.mean([r.result["seconds"] for r in self.runs]))

    @property
    def best_iterate(self) -> tuple[float, float | None] | None:
        """As `ours`, of the check with the highest test accuracy; None unless all recorded it."""
        if not all(r.curve for r in self.runs):
            return None
        return mean_interval([max(r.curve.values()) for r in self.runs])

    @property
    def verdicts(self) -> dict[str, str]:
        """By published cell: "mean", and "worst", "best" and clients where they are published.

        These last are of the best iterate if that is what is published and all runs recorded it.
        """
        told = self.published
        if told is None:
            return {}
        cells = {"mean": (self.ours[0], told.mean, told.sd or 0.0)}
        if told.iterate == "best" and self.best_iterate is not None:
            cells["best iterate"] = (self.best_iterate[0], told.mean, told.sd or 0.0)
        values = [r.values for r in self.runs]
        bests = [b for r in self.runs if (b := r.best_values) is not None]
        if told.iterate == "best" and len(bests) == len(values):
            values = bests
        worst, best = self._ends(values)
        if told.worst is not None:
            cells["worst"] = (worst, told.worst, 0.0)
        if told.best is not None:
            cells["best"] = (best, told.best, 0.0)
        for client, cell in told.clients.items():
            own = [v[client] for v in values if client in v]
            if own:
                cells[client] = (float(np.mean(own)), *cell)
        half = half_digit(told.numbers)
        return {name: verdict(*c, figure=self.figure, half=half) for name, c in cells.items()}

    @property
    def dots(self) -> dict[str, tuple[float, float, float]]:
        """Value and 95 % interval by client: over seeds, of one seed over test rows."""
        if len(self.runs) == 1:
            figure = self.figure
            rows = self.runs[0].result["clients"]
            return {c["client"]: (c[figure], c["low"], c["high"]) for c in rows}
        out = {}
        for client in dict.fromkeys(c for r in self.runs for c in r.values):
            mean, half = mean_interval([r.values[client] for r in self.runs if client in r.values])
            out[client] = (mean, mean - (half or 0.0), mean + (half or 0.0))
        return out

    @property
    def calibration(self) -> tuple[list[float], list[float]] | None:
        """Estimated and exact log ratios of groups of rows; None where none were recorded."""
        groups = [g for r in self.runs for g in r.result.get("calibration") or ()]
        if not groups:
            return None
        return [g["estimated"] for g in groups], [g["exact"] for g in groups]

    @property
    def curves(self) -> tuple[list[int], list[float], list[float], list[float]] | None:
        """Iterations that all seeds recorded, with mean, lowest and highest test accuracy."""
        common = set.intersection(*(set(r.curve) for r in self.runs))
        if not common:
            return None
        at = sorted(common)
        values = np.array([[r.curve[i] for i in at] for r in self.runs])
        low, high = values.min(axis=0).tolist(), values.max(axis=0).tolist()
        return at, values.mean(axis=0).tolist(), low, high


@dataclass(frozen=True)
class Comparison:
    """The methods of one recipe.

    Attributes
    ----------
    recipe : str
        Name.
    title : str
    figure : str
        "accuracy" or "mse".
    rows : tuple of Row
        As the recipe orders its methods, others after them.
    published : mapping of method to Published
        Of all methods, run or not; empty if it was not asked for.
    remarks : tuple of str
        What a reader must know of these runs.
    """

    recipe: str
    title: str
    figure: str
    rows: tuple[Row, ...]
    published: Mapping[str, Published] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __getitem__(self, method: str) -> Row:
        """A method's row."""
        return next(row for row in self.rows if row.method == method)

    def paired(self, method: str, other: str) -> tuple[float, float | None, int] | None:
        """Mean of (method − other) over the seeds both have, half its 95 % t interval, and n."""
        a, b = ({r.result["seed"]: r.result["mean"] for r in self[m].runs} for m in (method, other))
        seeds = sorted(a.keys() & b.keys())
        if not seeds:
            return None
        return (*mean_interval([a[s] - b[s] for s in seeds]), len(seeds))

    @property
    def ordering(self) -> str | None:
        """Whether the published ordering holds, in a sentence; None if none is published."""
        ours = {row.method: row.ours[0] for row in self.rows}
        return ordering({m: p.mean for m, p in self.published.items()}, ours, figure=self.figure)

    def sheet(self) -> Sheet:
        """As a table of words."""
        columns = self._columns()
        several = any(len(row.runs) > 1 for row in self.rows)
        curves = {row.method: row.curves for row in self.rows}
        return Sheet(
            title=f"{self.title} ({self.recipe})" if self.title else self.recipe,
            header=tuple(columns),
            rows=tuple(zip(*columns.values(), strict=True)),
            notes=self._notes(),
            figure=self.figure,
            dots={row.method: row.dots for row in self.rows},
            curves={name: c for name, c in curves.items() if c is not None},
            curves_note=f"Test {self.figure} over the iterations, mean over clients: mean over "
            "seeds, and from the lowest to the highest seed.",
            calibration={row.method: c for row in self.rows if (c := row.calibration)},
            dots_note="95 % t interval over seeds, of a single seed over test rows"
            if several
            else "95 % interval over test rows",
        )

    def _columns(self) -> dict[str, list[str]]:
        rows, show = self.rows, shower(self.figure)
        out = {"method": [row.method for row in rows]}
        if self.published:
            told = [row.published for row in rows]
            out["published"] = [
                "" if p is None else printed(p.mean) + (f" ± {printed(p.sd)}" if p.sd else "")
                for p in told
            ]
            for end in ("worst", "best"):
                ends = ["" if p is None else printed(getattr(p, end)) for p in told]
                if any(ends):
                    out[f"published {end}"] = ends
        out["ours"] = [spread(row.ours, show) for row in rows]
        if any(row.best_iterate for row in rows):
            bests = [row.best_iterate for row in rows]
            out["best iterate*"] = ["" if b is None else spread(b, show) for b in bests]
        base = next((row.method for row in rows if row.method == BASE), None)
        if base is not None and len(rows) > 1:
            out[f"over {base}"] = [self._over(row.method, base) for row in rows]
        out["n"] = [str(len(row.runs)) for row in rows]
        out["worst"] = [show(row.worst) for row in rows]
        out["best"] = [show(row.best) for row in rows]
        out["seconds"] = [f"{row.seconds:.1f}" for row in rows]
        if self.published:
            out["verdict"] = [summary(row.verdicts) for row in rows]
        return out

    def _over(self, method: str, base: str) -> str:
        gain = None if method == base else self.paired(method, base)
        if gain is None:
            return ""
        show = shower(self.figure)
        sign = "−" if gain[0] < 0 else "+"
        return f"{sign}{show(abs(gain[0]))}" + ("" if gain[1] is None else f" ± {show(gain[1])}")

    def _notes(self) -> tuple[str, ...]:
        notes = [
            f"ours: {self.figure}, mean over clients, of the last iterate; mean over n seeds ± "
            "95 % t interval; worst and best client: mean over seeds"
        ]
        if any(row.method == BASE for row in self.rows) and len(self.rows) > 1:
            notes.append(f"over {BASE}: difference of the same seeds, mean ± 95 % t interval")
        if any(row.best_iterate for row in self.rows):
            notes.append("* the best of all checks, chosen on test labels: not a fair result")
        if self.published:
            notes.append(
                f"verdict: reached if ours is at least published − {SDS} sd (sd 0 where none is "
                "published), to the printed digits; else by how much it misses the published number"
            )
            by_source: dict[str, list[str]] = {}
            for method, told in self.published.items():
                words = ["best iterate by test accuracy"] if told.iterate == "best" else []
                source = ", ".join([*words, *([told.source] if told.source else [])])
                if source:
                    by_source.setdefault(source, []).append(method)
            notes += [f"published for {', '.join(m)}: {s}" for s, m in by_source.items()]
        return (*notes, *([self.ordering] if self.ordering else []), *self.remarks)


# -- reading -----------------------------------------------------------------------------------


def compare(
    folders: Sequence[str | os.PathLike[str]],
    *,
    published: bool = False,
    known: Iterable[Recipe] = (),
    needed: bool = True,
) -> list[Comparison]:
    """Compare all finished runs below folders or in archives, recipe by recipe.

    Parameters
    ----------
    folders : sequence of path
        Of one run, of a method, of a recipe, or any above; or files of `fedshift pack`.
    published : bool
        Beside what others report: from the recipe as it comes with fedshift, or as the runs
        have kept it.
    known : iterable of Recipe
        Recipes of your own whose published numbers are newer than the runs.
    needed : bool
        Whether it is an error if no run is finished.

    Raises
    ------
    InputError
        If a folder is not there, nothing below is finished, or two runs are of the same method
        and seed.
    """
    runs, unfinished = find(folders, needed=needed)
    by_name = {r.name: r for r in known}
    shipped = recipes()
    out = []
    for name in sorted({r.result["recipe"] for r in runs}):
        own = by_name.get(name)
        if own is None and name in shipped:
            own = Recipe.load(name)
        its = [r for r in runs if r.result["recipe"] == name]
        for figure in sorted({str(r.result["figure"]) for r in its}):
            same = [r for r in its if r.result["figure"] == figure]
            late = [said for recipe, said in unfinished if recipe == name]
            out.append(_comparison(name, figure, same, own, late, published=published))
    return out


def find(
    places: Sequence[str | os.PathLike[str]], *, needed: bool = True
) -> tuple[list[Run], list[tuple[str, str]]]:
    """Finished runs below folders and in archives, and the recipe and words for unfinished ones.

    Raises
    ------
    InputError
        If a place is neither, nothing is finished (but one is needed), or two runs are of the
        same method and seed.
    """
    runs: dict[str, Run] = {}
    unfinished: dict[Path, tuple[str, str]] = {}
    for place in map(Path, places):
        if place.is_dir():
            _find_in(place, runs, unfinished)
        elif place.is_file() and place.suffix == SUFFIX:
            whole = place.resolve()
            runs |= {f"{whole}:{number}": run for number, run in enumerate(read(place))}
        else:
            raise InputError(
                f"runs must be a folder that 'fedshift run' wrote, or a {SUFFIX} file that "
                f"'fedshift pack' wrote; got {place}"
            )
    scored = [r for r in runs.values() if r.result["clients"]]
    if needed and not scored:
        where = ", ".join(map(str, places))
        why = f"{len(unfinished)} not finished, {len(runs)} without test labels"
        raise InputError(
            f"there must be a finished run to compare; got none below {where} ({why}); "
            "'fedshift run RECIPE' makes and finishes them"
        )
    seen: dict[tuple[str, str, int], str] = {}
    for run in scored:
        if run.key in seen:
            recipe, method, seed = run.key
            raise InputError(
                f"each method and seed of a recipe must be there once; got {recipe} {method} seed "
                f"{seed} in {seen[run.key]} and {run.place}; compare these one by one"
            )
        seen[run.key] = run.place
    return scored, list(unfinished.values())


def _find_in(folder: Path, runs: dict[str, Run], unfinished: dict[Path, tuple[str, str]]) -> None:
    for path in sorted(folder.rglob("recipe.toml")):
        if read_json(path.parent / "result.json") is None:
            late = Run.of_folder(path.parent, {}).recipe
            if late is not None and len(late.methods) == len(late.seeds) == 1:
                said = f"{late.methods[0].name} seed {late.seeds[0]}"
                unfinished[path.resolve()] = late.name, said
    for path in sorted(folder.rglob("result.json")):
        result = read_json(path)
        if result is not None and "fingerprint" in result:
            runs.setdefault(str(path.resolve()), Run.of_folder(path.parent, result))


def _comparison(
    name: str,
    figure: str,
    runs: Sequence[Run],
    own: Recipe | None,
    unfinished: Sequence[str],
    *,
    published: bool,
) -> Comparison:
    kept = [r.recipe for r in runs if r.recipe is not None]
    told: dict[str, Published] = {}
    for recipe in (*kept, *([own] if own else [])) if published else ():
        told |= recipe.published
    first = [m.name for m in own.methods] if own else []
    names = sorted({r.method for r in runs})
    names.sort(key=lambda n: first.index(n) if n in first else len(first))
    rows = []
    for method in names:
        its = sorted((r for r in runs if r.method == method), key=lambda r: r.result["seed"])
        rows.append(Row(method, figure, tuple(its), told.get(method)))
    remarks = [said for row in rows for said in _settings_remarks(row, own)]
    if unfinished:
        remarks.append(f"not finished, so not counted: {', '.join(unfinished)}")
    if published and not told:
        remarks.append("the recipe has no published numbers; they stand in its [published] table")
    remarks += _machines(runs)
    title = own.title if own else next((r.title for r in kept if r.title), "")
    return Comparison(name, title, figure, tuple(rows), told, tuple(remarks))


def _settings_remarks(row: Row, own: Recipe | None) -> list[str]:
    """Where the runs were asked for something else than their neighbours or the recipe."""
    kept = [(r.recipe, r.result.get("estimator")) for r in row.runs if r.recipe is not None]
    if not kept:
        return []
    told = all(spelled for _, spelled in kept)  # with what was left to defaults
    asked = [_settings(recipe, spelled if told else None) for recipe, spelled in kept]
    out, there = [], asked[0]
    mixed = sorted({k for a in asked for k in a.keys() | there.keys() if a.get(k) != there.get(k)})
    if mixed:
        out.append(f"{row.method}: seeds differ in {', '.join(mixed)}")
    if there.get("train.choose") == "best":
        out.append(f"{row.method}: the iterate chosen on validation rows, not the last")
    if own is not None and row.method in [m.name for m in own.methods]:
        mine = own.narrow(row.method, own.seeds[0])
        spelled = mine.methods[0].ratio.parameters(mine.seeds[0]) if told else None
        here = _settings(mine, spelled)
        other = [
            f"{k} is {there.get(k, 'not given')} (recipe: {here.get(k, 'not given')})"
            for k in sorted(here.keys() | there.keys())
            if here.get(k) != there.get(k)
        ]
        if other:
            out.append(f"{row.method}: not run as the recipe is now: {', '.join(other)}")
    return out


def _settings(recipe: Recipe, estimator: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Of a narrow recipe, by dotted key; of its ratio all parameters, where they are known."""
    table = recipe.to_table()
    method = {k: v for k, v in table["method"][0].items() if k != "name"}
    ratio = method.pop("ratio", None)
    if ratio is not None and method["objective"] != "erm":  # which has no use for ratios
        method["ratio"] = {"kind": ratio} if isinstance(ratio, str) else ratio
        if estimator:
            of_all = {k: v for k, v in estimator.items() if k not in ("seed", "device")}
            method["ratio"] = {"kind": method["ratio"]["kind"], **of_all}
    out = _dotted({**{s: table[s] for s in SECTIONS}, **method})
    out.pop("train.device", None)
    return out


def _dotted(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A nested table as one, by dotted key."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        out |= _dotted(value, f"{before}{key}.") if inner else {f"{before}{key}": value}
    return out


def _machines(runs: Sequence[Run]) -> list[str]:
    """Where runs were made; which methods, of machines other than that of most runs."""
    found: dict[str, list[str]] = {}
    for run in runs:
        told = run.environment
        if told:
            device = told.get("device")
            name = told.get("cpu") if device == "cpu" else device
            machine = f"{name} (fedshift {told.get('fedshift')})"
            found.setdefault(machine, []).append(run.method)
    most = max(found, key=lambda machine: len(found[machine]), default="")
    others = {m: methods for m, methods in found.items() if m != most}
    said = [f"{', '.join(dict.fromkeys(methods))}: run on {m}" for m, methods in others.items()]
    return [f"run on {most}{' unless said' if others else ''}", *said] if found else []
