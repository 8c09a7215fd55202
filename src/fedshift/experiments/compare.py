"""Tables of finished runs beside published figures (accuracy or MSE). Runs nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fedshift.core.by_name import ByName
from fedshift.core.files import read_json
from fedshift.core.score_text import FIGURES, figure_text
from fedshift.errors import InputError
from fedshift.experiments.archive import SUFFIX, Run, is_archive, read
from fedshift.experiments.published import (
    SDS,
    formatter,
    half_digit,
    ordering,
    printed,
    spread,
    summary,
    verdict,
)
from fedshift.experiments.recipe import SECTIONS, Published, Recipe, recipes
from fedshift.experiments.records import dotted
from fedshift.report.comparison import Sheet
from fedshift.report.format import known

#: the method that others are compared with
BASE = "ERM"
#: settings of how a machine computes a method; `compare` names them with the machine
MACHINE = ("train.device", "train.precision", "train.compile")
#: the most clients in a table
MAX_CLIENTS = 20


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and half the width of its 95 % t interval (None for a single value).

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


@dataclass(frozen=True)
class MethodRow:
    """The runs of one method, one for each seed.

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
        """Figure of the worst client of each run, mean over seeds."""
        return self._ends([r.values for r in self.runs])[0]

    @property
    def best(self) -> float:
        """Figure of the best client of each run, mean over seeds."""
        return self._ends([r.values for r in self.runs])[1]

    def _ends(self, values: Sequence[Mapping[str, float]]) -> tuple[float, float]:
        """Figures of the worst and the best client, means over seeds."""
        low, high = (float(np.mean([end(v.values()) for v in values])) for end in (min, max))
        return (low, high) if self.figure == "accuracy" else (high, low)

    def mean_of(self, name: str) -> float | None:
        """Mean of a score over clients, then over runs; None unless all runs recorded it."""
        each = [[v for c in r.result["clients"] if known(v := c.get(name))] for r in self.runs]
        return float(np.mean([np.mean(values) for values in each])) if all(each) else None

    @property
    def seconds(self) -> float:
        """Mean duration of a run, with that of its ratios, whichever run estimated them."""
        # results of earlier versions have one number for both
        parts = ([r.result["seconds"], r.result.get("ratio_seconds", 0.0)] for r in self.runs)
        return float(np.mean([sum(p) for p in parts]))

    @property
    def best_iterate(self) -> tuple[float, float | None] | None:
        """`ours` at the highest test accuracy during training; None unless all runs recorded it."""
        if not all(r.curve for r in self.runs):
            return None
        return mean_interval([max(r.curve.values()) for r in self.runs])

    @property
    def verdicts(self) -> dict[str, str]:
        """Verdicts on our figures, by name; empty if no figures are published.

        Names are "mean" and, if published, "worst" and "best" (client) and the names of clients.
        Published figures can be of the best iterate. If all our runs recorded their best iterate,
        the verdicts on clients then use it. "mean" uses our last iterate, and a further entry,
        "best iterate", is the verdict on our mean at the best iterate.
        """
        theirs = self.published
        if theirs is None:
            return {}
        cells = {"mean": (self.ours[0], theirs.mean, theirs.sd or 0.0)}
        if theirs.iterate == "best" and self.best_iterate is not None:
            cells["best iterate"] = (self.best_iterate[0], theirs.mean, theirs.sd or 0.0)
        values = [r.values for r in self.runs]
        bests = [b for r in self.runs if (b := r.best_values) is not None]
        if theirs.iterate == "best" and len(bests) == len(values):
            values = bests
        worst, best = self._ends(values)
        if theirs.worst is not None:
            cells["worst"] = (worst, theirs.worst, 0.0)
        if theirs.best is not None:
            cells["best"] = (best, theirs.best, 0.0)
        for client, cell in theirs.clients.items():
            own = [v[client] for v in values if client in v]
            if own:
                cells[client] = (float(np.mean(own)), *cell)
        half = half_digit(theirs.numbers)
        return {name: verdict(*c, figure=self.figure, half=half) for name, c in cells.items()}

    @property
    def curves(self) -> tuple[list[int], list[float], list[float], list[float]] | None:
        """Iterations that all seeds recorded; mean, lowest and highest test accuracy at each."""
        common = set.intersection(*(set(r.curve) for r in self.runs))
        if not common:
            return None
        at = sorted(common)
        values = np.array([[r.curve[i] for i in at] for r in self.runs])
        low, high = values.min(axis=0).tolist(), values.max(axis=0).tolist()
        return at, values.mean(axis=0).tolist(), low, high


@dataclass(frozen=True)
class MethodComparison(ByName[MethodRow]):
    """The methods of one recipe.

    Attributes
    ----------
    recipe : str
        Name of the recipe.
    title : str
    figure : str
        "accuracy" or "mse".
    rows : tuple of MethodRow
        In the order of the recipe; methods that it does not have come last.
    published : mapping of method to Published
        Figures of all methods, run or not; empty unless requested.
    remarks : tuple of str
        What a reader must know about these runs.
    """

    _entries, _key = "rows", "method"

    recipe: str
    title: str
    figure: str
    rows: tuple[MethodRow, ...]
    published: Mapping[str, Published] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def paired(self, method: str, other: str) -> tuple[float, float | None, int] | None:
        """Mean of (method − other) over their common seeds, half its 95 % t interval, and n."""
        a, b = ({r.result["seed"]: r.result["mean"] for r in self[m].runs} for m in (method, other))
        seeds = sorted(a.keys() & b.keys())
        if not seeds:
            return None
        return (*mean_interval([a[s] - b[s] for s in seeds]), len(seeds))

    @property
    def ordering(self) -> str | None:
        """One sentence on whether the published ordering holds; None if none is published."""
        ours = {row.method: row.ours[0] for row in self.rows}
        return ordering({m: p.mean for m, p in self.published.items()}, ours, figure=self.figure)

    def sheet(self) -> Sheet:
        """The comparison as a table of text."""
        columns = self._columns()
        curves = {row.method: row.curves for row in self.rows}
        return Sheet(
            title=f"{self.title} ({self.recipe})" if self.title else self.recipe,
            header=tuple(columns),
            rows=tuple(zip(*columns.values(), strict=True)),
            notes=self._notes(),
            figure=self.figure,
            curves={name: c for name, c in curves.items() if c is not None},
        )

    def by_client(self) -> Sheet:
        """A table of the first `MAX_CLIENTS` clients, for the first seed of each method."""
        show, clients = formatter(self.figure), self.rows[0].runs[0].result["clients"]
        more = len(clients) - MAX_CLIENTS
        values = [row.runs[0].values for row in self.rows]
        return Sheet(
            title=f"{self.figure} by client",
            header=("client", "n", *(row.method for row in self.rows)),
            rows=tuple(
                (name, str(c["n"]), *(show(v[name]) if name in v else "" for v in values))
                for c in clients[:MAX_CLIENTS]
                for name in (c["client"],)
            ),
            notes=(f"{more} more in result.json",) if more > 0 else (),
        )

    def _columns(self) -> dict[str, list[str]]:
        rows, show = self.rows, formatter(self.figure)
        not_run = [m for m in self.published if m not in {row.method for row in rows}]
        out = {"method": [*(row.method for row in rows), *not_run]}
        if self.published:
            theirs = [self.published.get(method) for method in out["method"]]
            out["published"] = [
                "" if p is None else printed(p.mean) + (f" ± {printed(p.sd)}" if p.sd else "")
                for p in theirs
            ]
            for end in ("worst", "best"):
                ends = ["" if p is None else printed(getattr(p, end)) for p in theirs]
                if any(ends):
                    out[f"published {end}"] = ends
        out["ours"] = [*(spread(row.ours, show) for row in rows), *("not run" for _ in not_run)]
        if any(row.best_iterate for row in rows):
            bests = [row.best_iterate for row in rows]
            out["best iterate*"] = ["" if b is None else spread(b, show) for b in bests]
        if BASE in self and len(rows) > 1:
            out[f"over {BASE}"] = [self._over(row.method) for row in rows]
        out["n"] = [str(len(row.runs)) for row in rows]
        out["worst"] = [show(row.worst) for row in rows]
        out["best"] = [show(row.best) for row in rows]
        for name, heading in FIGURES[self.figure].items():
            means = [row.mean_of(name) for row in rows]
            if name != self.figure and any(mean is not None for mean in means):
                out[heading] = [figure_text(self.figure, name, mean) for mean in means]
        out["seconds"] = [f"{row.seconds:.1f}" for row in rows]
        if self.published:
            out["verdict"] = [summary(row.verdicts) for row in rows]
        return {
            name: cells + [""] * (len(out["method"]) - len(cells)) for name, cells in out.items()
        }

    def _over(self, method: str) -> str:
        gain = None if method == BASE else self.paired(method, BASE)
        if gain is None:
            return ""
        show = formatter(self.figure)
        sign = "−" if gain[0] < 0 else "+"
        return f"{sign}{show(abs(gain[0]))}" + ("" if gain[1] is None else f" ± {show(gain[1])}")

    def _notes(self) -> tuple[str, ...]:
        notes = [
            f"ours: {self.figure} of the last iterate, averaged over clients, then over n seeds, ± "
            "half the 95 % t interval; worst, best: of the worst and best client, mean over seeds"
        ]
        if BASE in self and len(self.rows) > 1:
            notes.append(
                f"over {BASE}: the figure minus {BASE}'s at the same seed, mean ± 95 % t interval"
            )
        if any(row.best_iterate for row in self.rows):
            notes.append("* best value during training, chosen on test labels: not a fair result")
        if self.published:
            notes.append(
                f"verdict: reached if ours, rounded as published, is at least published − {SDS} sd "
                "(sd is 0 if none is published); otherwise the distance to the published number"
            )
            by_source: dict[str, list[str]] = {}
            for method, p in self.published.items():
                words = ["best iterate by test accuracy"] if p.iterate == "best" else []
                source = ", ".join([*words, *([p.source] if p.source else [])])
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
) -> list[MethodComparison]:
    """Compare all finished runs below folders or in archives, recipe by recipe.

    Parameters
    ----------
    folders : sequence of path
        Folders of a run, a method or a recipe, or parent folders, also with files of `fedshift
        pack` in them; or such files.
    published : bool
        Add published figures: those of the recipe that comes with fedshift, else those that the
        runs recorded.
    known : iterable of Recipe
        Your own recipes, whose published figures replace those that the runs recorded.
    needed : bool
        Raise an error if no run is finished.

    Raises
    ------
    InputError
        If a folder does not exist, no run below is finished, or two runs have the same method
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
            late = [run for recipe, run in unfinished if recipe == name]
            out.append(_comparison(name, figure, same, own, late, published=published))
    return out


def find(
    places: Sequence[str | os.PathLike[str]], *, needed: bool = True
) -> tuple[list[Run], list[tuple[str, str]]]:
    """Return finished runs in folders and archives, and (recipe, run name) of unfinished ones.

    Raises
    ------
    InputError
        If a path is neither a folder nor an archive, no run is finished (and one is needed), or
        two different runs have the same method and seed. The same run in two places counts once.
    """
    runs: dict[str, Run] = {}
    unfinished: dict[Path, tuple[str, str]] = {}
    for place in map(Path, places):
        if place.is_dir():
            _find_in(place, runs, unfinished)
        elif place.is_file() and place.suffix == SUFFIX:
            _read_archive(place, runs)
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
            "run 'fedshift run RECIPE', which also continues unfinished runs"
        )
    by_key: dict[tuple[str, str, int], Run] = {}
    for run in scored:
        other = by_key.setdefault(run.key, run)
        if other is not run and other.to_record() != run.to_record():
            recipe, method, seed = run.key
            raise InputError(
                f"each method and seed of a recipe may occur only once; got {recipe} {method} seed "
                f"{seed} in {other.place} and {run.place}; compare them one by one"
            )
    return list(by_key.values()), list(unfinished.values())


def _read_archive(path: Path, runs: dict[str, Run]) -> None:
    whole = path.resolve()
    runs |= {f"{whole}:{number}": run for number, run in enumerate(read(path))}


def _find_in(folder: Path, runs: dict[str, Run], unfinished: dict[Path, tuple[str, str]]) -> None:
    for path in sorted(folder.rglob("recipe.toml")):
        if read_json(path.parent / "result.json") is None:
            late = Run.of_folder(path.parent, {}).recipe
            if late is not None and len(late.methods) == len(late.seeds) == 1:
                name = f"{late.methods[0].name} seed {late.seeds[0]}"
                unfinished[path.resolve()] = late.name, name
    for path in sorted(folder.rglob("result.json")):
        result = read_json(path)
        if result is not None and "fingerprint" in result:
            runs.setdefault(str(path.resolve()), Run.of_folder(path.parent, result))
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        if is_archive(path):
            _read_archive(path, runs)


def _comparison(
    name: str,
    figure: str,
    runs: Sequence[Run],
    own: Recipe | None,
    unfinished: Sequence[str],
    *,
    published: bool,
) -> MethodComparison:
    recorded = [r.recipe for r in runs if r.recipe is not None]
    theirs: dict[str, Published] = {}
    for recipe in (*recorded, *([own] if own else [])) if published else ():
        theirs |= recipe.published
    first = [m.name for m in own.methods] if own else []
    names = sorted({r.method for r in runs})
    names.sort(key=lambda n: first.index(n) if n in first else len(first))
    rows = []
    for method in names:
        its = sorted((r for r in runs if r.method == method), key=lambda r: r.result["seed"])
        rows.append(MethodRow(method, figure, tuple(its), theirs.get(method)))
    remarks = [remark for row in rows for remark in _settings_remarks(row, own)]
    if unfinished:
        remarks.append(f"not finished, so left out: {', '.join(unfinished)}")
    if published and not theirs:
        remarks.append("the recipe has no published numbers; add them in a [published] table")
    remarks += _machines(runs)
    title = own.title if own else next((r.title for r in recorded if r.title), "")
    return MethodComparison(name, title, figure, tuple(rows), theirs, tuple(remarks))


def _settings_remarks(row: MethodRow, own: Recipe | None) -> list[str]:
    """Settings in which the runs differ from each other or from the recipe."""
    pairs = [(r.recipe, r.result.get("estimator")) for r in row.runs if r.recipe is not None]
    if not pairs:
        return []
    whole = all(estimator for _, estimator in pairs)  # parameters left to defaults are known too
    settings = [_settings(recipe, estimator if whole else None) for recipe, estimator in pairs]
    out, there = [], settings[0]
    for recipe in {str(r.removed): r for r, _ in pairs if r.removed}.values():
        gone = ", ".join(f"{k} = {v}" for k, v in recipe.removed.items())
        out.append(f"{row.method}: run with {gone}, which fedshift no longer has")
    mixed = sorted(
        {k for a in settings for k in a.keys() | there.keys() if a.get(k) != there.get(k)}
    )
    if mixed:
        out.append(f"{row.method}: seeds differ in {', '.join(mixed)}")
    if there.get("train.choose") == "best":
        out.append(f"{row.method}: figures of the iterate chosen on validation rows, not the last")
    if own is not None and row.method in [m.name for m in own.methods]:
        mine = own.narrow(row.method, own.seeds[0])
        estimator = mine.methods[0].ratio.parameters(mine.seeds[0]) if whole else None
        here = _settings(mine, estimator)
        other = [
            f"{k} is {there.get(k, 'not set')} (recipe: {here.get(k, 'not set')})"
            for k in sorted(here.keys() | there.keys())
            if here.get(k) != there.get(k)
        ]
        if other:
            out.append(f"{row.method}: settings differ from the recipe: {', '.join(other)}")
    return out


def _settings(recipe: Recipe, estimator: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Settings of a narrow recipe by dotted key; all parameters of its ratio if they are known."""
    table = recipe.to_table()
    method = {k: v for k, v in table["method"][0].items() if k != "name"}
    ratio = method.pop("ratio", None)
    if ratio is not None and method["objective"] != "erm":  # which uses no ratios
        method["ratio"] = {"kind": ratio} if isinstance(ratio, str) else ratio
        if estimator:
            of_all = {k: v for k, v in estimator.items() if k not in ("seed", "device")}
            method["ratio"] = {"kind": method["ratio"]["kind"], **of_all}
    out = dotted({**{s: table[s] for s in SECTIONS}, **method})
    return {k: v for k, v in out.items() if k not in MACHINE}


def _arithmetic(run: Run) -> list[str]:
    """Precision and compilation of a run, where they are not the default."""
    if run.recipe is None:
        return []
    train = run.recipe.train
    names = [] if train.precision == "float32" else [train.precision]
    return names + (["compiled"] if train.compile else [])


def _machines(runs: Sequence[Run]) -> list[str]:
    """The machine of most runs, and the methods that ran on others."""
    machines: dict[str, list[str]] = {}
    for run in runs:
        own = run.environment
        if own:
            device = own.get("device")
            name = own.get("cpu") if device == "cpu" else device
            how = [f"fedshift {own.get('fedshift')}", *_arithmetic(run)]
            machine = f"{name} ({', '.join(how)})"
            machines.setdefault(machine, []).append(run.method)
    most = max(machines, key=lambda machine: len(machines[machine]), default="")
    others = {m: methods for m, methods in machines.items() if m != most}
    rest = [f"{', '.join(dict.fromkeys(methods))}: run on {m}" for m, methods in others.items()]
    return [f"run on {most}{' unless noted' if others else ''}", *rest] if machines else []
