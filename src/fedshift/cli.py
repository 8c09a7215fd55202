"""The command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift import __version__
from fedshift.deploy.command import add as add_deploy
from fedshift.errors import FedshiftError, InputError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # has no public name

# what the commands need is imported in them, so that --help and a mistyped option answer at once


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="fedshift",
        description="Federated learning when training data does not look like the data met in use.",
    )
    top.add_argument("--version", action="version", version=f"fedshift {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_diagnose(commands)
    _add_train(commands)
    _add_report(commands)
    _add_run(commands)
    _add_compare(commands)
    _add_pack(commands)
    add_deploy(commands)
    _add_list(commands)
    _add_demo(commands)
    _add_doctor(commands)
    return top


def _add_diagnose(commands: Commands) -> None:
    sub = commands.add_parser(
        "diagnose",
        help="site files: what shifted, which kind, which columns, will weighting help",
        description="Reads a folder of site files (a folder or a file for each site, or one file "
        "with a site column; CSV or Parquet) and compares every site's training rows with its "
        "deployment rows and with the other sites. Trains nothing.",
    )
    _add_sites(sub)
    sub.add_argument(
        "--since",
        type=Path,
        metavar="RUN",
        help="instead, compare new deployment rows in SITES with those a run of 'fedshift train' "
        "(or a folder of site files) had, and say whether to estimate weights anew",
    )
    sub.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="a record (.json) or a report (.html)"
    )
    sub.set_defaults(command=_diagnose)


def _add_train(commands: Commands) -> None:
    sub = commands.add_parser(
        "train",
        help="site files: a model no worse than plain federated training, weights and a report",
        description="Reads site files, diagnoses them, trains with and without weights, keeps the "
        "weights only if held-out rows say that they do no harm, and writes OUT: the model, the "
        "encoder, a weight for every training row (Parquet), the record and report.html.",
    )
    _add_sites(sub)
    sub.add_argument("--objective", default="auto", help="auto, erm, ftw, fitw, focus:SITE (auto)")
    sub.add_argument("--model", default="auto", help="auto, linear or mlp (auto)")
    sub.add_argument("-o", "--out", type=Path, default=Path("fedshift-train"), help="folder")
    sub.set_defaults(command=_train)


def _add_report(commands: Commands) -> None:
    sub = commands.add_parser(
        "report",
        help="one HTML file of a run over sites, which opens without a network",
        description="Reads the record that 'fedshift train' or 'fedshift diagnose' wrote.",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="a folder of 'train', or a record")
    sub.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: RUN/report.html")
    sub.set_defaults(command=_report)


#: columns and lists of columns that a flag may name, as `TableSettings` calls them
_COLUMNS = {
    "label": "column to predict",
    "site": "column that says whose a row is",
    "split": "column that says train, test or deploy",
    "weights": "column of sample weights",
}
_LISTS = {
    "categorical": "columns that are words, whatever they look like",
    "numeric": "columns that are numbers",
    "drop": "columns to leave out",
    "missing": "markers of missing cells besides the usual",
    "names": "columns of files without a header",
    "files": "patterns of file names to take, such as '*.data'",
}


def _add_sites(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("sites", type=Path, metavar="SITES", help="a folder of site files, or a file")
    for name, said in _COLUMNS.items():
        sub.add_argument(f"--{name}", metavar="COLUMN", help=said)
    for name, said in _LISTS.items():
        sub.add_argument(f"--{name}", type=_commas, metavar="A,B", help=said)
    sub.add_argument("--positive", metavar="CLASS", help="class to call positive, or '>0'")
    sub.add_argument("--task", choices=("classification", "regression"))
    sub.add_argument(
        "--test-share",
        type=float,
        metavar="0.3",
        help="share of a site's rows that stands for deployment where it has no such file",
    )
    sub.add_argument("--seed", type=_seed, default=0)


def _commas(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _table_settings(given: argparse.Namespace) -> dict[str, Any]:
    names = (*_COLUMNS, *_LISTS, "positive", "task", "test_share")
    return {n: v for n in names if (v := getattr(given, n)) is not None}


def _add_run(commands: Commands) -> None:
    sub = commands.add_parser(
        "run",
        help="run a recipe; finished runs are skipped, killed ones go on",
        description="Runs every method and seed of a recipe and shows them side by side. Runs are "
        "kept in OUT/RECIPE/METHOD/seed-N; the same command goes on after a kill.",
    )
    sub.add_argument(
        "recipe",
        metavar="RECIPE",
        help="a name from 'fedshift list', a .toml file, or paper/all for all that begin so",
    )
    sub.add_argument("--seeds", metavar="0:5", help="seeds instead of the recipe's: 3, 0:5 or 0,2")
    sub.add_argument(
        "--method",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME",
        help="only these methods",
    )
    sub.add_argument("--out", type=Path, default=Path("runs"), help="folder of all runs (runs)")
    sub.add_argument("--device", metavar="cpu|cuda", help="default: a GPU if there is one")
    sub.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        dest="changes",
        metavar="KEY=VALUE",
        help="change the recipe: plan.iterations=50, method.FTW.weighting.clip=20",
    )
    sub.add_argument("--fresh", action="store_true", help="replace runs that are there")
    sub.add_argument("--dry-run", action="store_true", help="check and show, do not run")
    _add_data_dir(sub)
    sub.set_defaults(command=_run, wrong=sub.error)


def _add_compare(commands: Commands) -> None:
    sub = commands.add_parser(
        "compare",
        help="finished runs side by side, and beside published numbers",
        description="Reads finished runs and shows a table for each recipe: every method's mean "
        "over clients and seeds with its 95 % interval, worst and best client. Runs nothing.",
    )
    sub.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUNS",
        help="folders of runs, at any level, or files of 'fedshift pack'",
    )
    sub.add_argument(
        "--published", action="store_true", help="beside the recipe's published numbers"
    )
    sub.add_argument(
        "--recipe",
        action="append",
        default=[],
        metavar="FILE",
        help="a .toml file of your own whose published numbers count",
    )
    sub.add_argument(
        "--format",
        choices=("text", "markdown", "html"),
        help="default: as FILE ends (.md, .html), else text",
    )
    sub.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: the screen")
    sub.set_defaults(command=_compare)


def _add_pack(commands: Commands) -> None:
    sub = commands.add_parser(
        "pack",
        help="finished runs in one small file that 'compare' reads",
        description="Keeps of every finished run its recipe, environment, result and history, a "
        "line of JSON each; models and checkpoints stay where they are.",
    )
    sub.add_argument(
        "runs", nargs="+", type=Path, metavar="RUNS", help="folders of runs, or such files"
    )
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.jsonl")
    sub.set_defaults(command=_pack)


def _add_list(commands: Commands) -> None:
    sub = commands.add_parser(
        "list", help="recipes, data sets, models, objectives and estimators there are"
    )
    _add_data_dir(sub)
    sub.set_defaults(command=_list)


def _add_demo(commands: Commands) -> None:
    sub = commands.add_parser(
        "demo",
        help="five label-shifted clients of scikit-learn's digits, nothing to download",
        description="Five clients of scikit-learn's digits, nothing to download: estimates every "
        "client's density ratios, trains five ways, without and with weights, exact and "
        "estimated, shows each client's test accuracy, and writes plots and a record.",
    )
    sub.add_argument(
        "--out", type=Path, default=Path("fedshift-demo"), help="folder for plots and record"
    )
    sub.add_argument(
        "--seed", type=_seed, default=0, help="seed of the split, the estimators and the training"
    )
    sub.set_defaults(command=_demo)


def _add_doctor(commands: Commands) -> None:
    sub = commands.add_parser("doctor", help="does this installation work, and what is missing")
    sub.add_argument("--out", type=Path, default=Path("runs"), help="folder to try to write to")
    _add_data_dir(sub)
    sub.set_defaults(command=_doctor)


def _add_data_dir(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="folder of data sets; else FEDSHIFT_DATA and the usual places",
    )


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"a seed must be a whole number ≥ 0; got {text!r}")
    return int(text)


def _diagnose(given: argparse.Namespace) -> int:
    from rich.console import Console

    from fedshift.diagnose import render
    from fedshift.sites import examine, since

    told = _table_settings(given)
    console = Console()
    if given.since is not None:
        moved = since(given.sites, given.since, seed=given.seed, **told)
        print("\n".join(moved.sentences()))
        record: dict[str, Any] = {"schema": "fedshift.sites/1", "drift": moved.to_dict()}
        if given.output is not None and given.output.suffix != ".json":
            raise InputError(f"--output of --since must be a .json file; got {given.output}")
    else:
        found = examine(given.sites, seed=given.seed, **told)
        _tell_notes(found.encoded.notes)
        render(found.diagnosis, console)
        record = found.to_dict()
    if given.output is not None:
        _write_record(record, given.output)
    return 0


def _train(given: argparse.Namespace) -> int:
    from rich.console import Console

    from fedshift.diagnose import render
    from fedshift.sites import train

    if find_spec("pyarrow") is None:  # before anything long begins
        raise InputError("train writes weights as Parquet; pip install 'fedshift[tables]'")
    made = train(
        given.sites,
        seed=given.seed,
        objective=given.objective,
        model=given.model,
        **_table_settings(given),
    )
    _tell_notes(made.examined.encoded.notes)
    render(made.examined.diagnosis, Console())
    path = made.save(given.out)
    outcome = made.outcome
    print(outcome.status)
    if outcome.before is not None and outcome.evaluation is not None:
        print(f"test labels are there: erm {outcome.before.status}")
        print(f"                    chosen {outcome.evaluation.status}")
    print(outcome.ledger)
    _write_record(made.to_dict(), path.parent / "report.html")
    return 0


def _tell_notes(notes: Sequence[str], most: int = 12) -> None:
    for note in notes[:most]:
        print(f"note: {note}")
    if len(notes) > most:
        print(f"note: and {len(notes) - most} more, all in the record")


def _write_record(record: Mapping[str, Any], path: Path) -> None:
    from fedshift.experiments.records import write_json

    if path.suffix in (".html", ".htm"):
        from fedshift.core.files import write_text
        from fedshift.report.build import build_report

        write_text(path, build_report(record))
    elif path.suffix == ".json":
        write_json(path, record)
    else:
        raise InputError(f"--output must end in .json or .html; got {path}")
    print(f"wrote {path}")


def _report(given: argparse.Namespace) -> int:
    from fedshift.experiments.records import read_json
    from fedshift.sites.store import RECORD

    path = given.run / RECORD if given.run.is_dir() else given.run
    record = read_json(path)
    if record is None:
        raise InputError(
            f"{path} must be a record that 'fedshift train' or 'fedshift diagnose -o' wrote; got "
            "no whole JSON object there"
        )
    _write_record(record, given.output or path.with_name("report.html"))
    return 0


def _run(given: argparse.Namespace) -> int:
    twice = sorted({m for m in given.method if given.method.count(m) > 1})
    if twice:
        given.wrong(f"argument --method: each must be named once; got {', '.join(twice)} again")
    from fedshift.core.device import check_device
    from fedshift.experiments.recipe import seeds

    chosen: tuple[int, ...] = ()
    try:
        chosen = chosen if given.seeds is None else seeds(given.seeds)
    except InputError as error:
        given.wrong(f"argument --seeds: {error}")
    if given.device is not None:
        check_device(given.device)
    failed = []
    names = _named(given.recipe)
    for name in names:
        try:
            _run_one(given, name, chosen)
        except KeyboardInterrupt:
            print(
                "fedshift: interrupted; the same command goes on from the last checkpoint",
                file=sys.stderr,
            )
            return 130
        except FedshiftError as error:
            if len(names) == 1:
                raise
            failed.append(name)
            print(f"fedshift: {name}: {error}", file=sys.stderr)
    if failed:
        raise FedshiftError(f"{len(failed)} of {len(names)} recipes failed: {', '.join(failed)}")
    return 0


def _named(name: str) -> list[str]:
    """One recipe, or all whose names begin as NAME/all does."""
    from fedshift.experiments.recipe import recipes

    room, slash, last = name.rpartition("/")
    every = [n for n in recipes() if n.startswith(f"{room}/")] if slash and last == "all" else []
    return every or [name]


def _run_one(given: argparse.Namespace, name: str, seeds: tuple[int, ...]) -> None:
    from rich.console import Console

    from fedshift.experiments.runner import describe, run
    from fedshift.experiments.study import StudyRecipe, load_any
    from fedshift.report.comparison import show

    recipe = load_any(name)
    if isinstance(recipe, StudyRecipe):
        if given.recipe == name and (given.method or seeds or given.changes):
            raise InputError(
                f"{name} is a study, without methods, seeds or settings; leave --method, --seeds "
                "and --set out, or run a .toml file of your own"
            )
        if given.dry_run:
            print(f"{name}: {recipe.title} ({recipe.study})")
        else:
            show([recipe.run(given.out, data_dir=given.data_dir)], Console())
        return
    device = [] if given.device is None else [f'train.device="{given.device}"']
    if given.changes or device:
        recipe = recipe.changed([*given.changes, *device])
    if given.dry_run:
        describe(recipe, given.out, methods=given.method, seeds=seeds, data_dir=given.data_dir)
    else:
        run(
            recipe,
            given.out,
            methods=given.method,
            seeds=seeds,
            data_dir=given.data_dir,
            fresh=given.fresh,
        )


def _compare(given: argparse.Namespace) -> int:
    from rich.console import Console

    from fedshift.core.files import write_text
    from fedshift.experiments.compare import compare
    from fedshift.experiments.recipe import Recipe
    from fedshift.experiments.study import studies_in
    from fedshift.report.comparison import render, show

    known = [Recipe.load(name) for name in given.recipe]
    studies = studies_in(*given.runs)
    found = compare(
        given.runs,
        published=given.published or bool(known),
        known=known,
        needed=not studies,
    )
    sheets = [comparison.sheet() for comparison in found] + studies
    path: Path | None = given.output
    ends = {".md": "markdown", ".html": "html", ".htm": "html"}
    format = given.format or ends.get("" if path is None else path.suffix.lower(), "text")
    if path is not None:
        write_text(path, render(sheets, format))
        print(f"wrote {path}")
    elif format == "text" and sys.stdout.isatty():
        show(sheets, Console())
    else:
        print(render(sheets, format), end="")
    return 0


def _pack(given: argparse.Namespace) -> int:
    from fedshift.experiments.archive import SUFFIX, write
    from fedshift.experiments.compare import find

    if given.output.suffix != SUFFIX:
        raise InputError(f"--output must end in {SUFFIX}; got {given.output}")
    runs, unfinished = find(given.runs)
    write(given.output, runs)
    late = f"; not finished, so left out: {len(unfinished)}" if unfinished else ""
    print(f"wrote {len(runs)} run{'s' * (len(runs) > 1)} to {given.output}{late}")
    return 0


def _list(given: argparse.Namespace) -> int:
    from fedshift.data.sources import NAMES, available
    from fedshift.experiments.recipe import Recipe, recipes
    from fedshift.experiments.shifts import SHIFTS
    from fedshift.experiments.study import load_any
    from fedshift.federation.weigh import METHODS
    from fedshift.learn.models import MODELS
    from fedshift.learn.objective import Objective

    here = {name: available(name, given.data_dir) for name in NAMES}
    known = {name: load_any(name) for name in recipes()}
    width = max(map(len, known))
    print("recipes (fedshift run NAME)")
    for name, recipe in known.items():
        source = recipe.data.source if isinstance(recipe, Recipe) else recipe.study.source
        missing = "" if source is None or here[source] else f" (needs {source}, not here)"
        print(f"  {name:{width}}  {recipe.title}{missing}")
    print("data sets")
    for name, found in here.items():
        print(f"  {name:{width}}  {'here' if found else 'not here; fedshift doctor says why'}")
    focused = (f"{kind}:CLIENT" for kind in Objective.FOCUSED)
    for title, names in (
        ("shifts", SHIFTS),
        ("models", MODELS),
        ("objectives", (*Objective.KINDS, *focused)),
        ("estimators", METHODS),
    ):
        print(f"{title}\n  {', '.join(names)}")
    return 0


def _demo(given: argparse.Namespace) -> int:
    from fedshift.demo import run

    run(given.out, seed=given.seed)
    return 0


def _doctor(given: argparse.Namespace) -> int:
    from fedshift.doctor import run_doctor

    return 0 if run_doctor(given.out, data_dir=given.data_dir) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns
    -------
    int
        0 if it did what was asked; 1 with one line on what went wrong; 130 if interrupted. Wrong
        usage exits with 2.
    """
    given = parser().parse_args(argv)
    try:
        code: int = given.command(given)
    except FedshiftError as error:
        print(f"fedshift: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fedshift: interrupted", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
