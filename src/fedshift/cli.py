"""The command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from fedshift import __version__
from fedshift.deploy.cli import add as add_deploy
from fedshift.deploy.cli import add_output
from fedshift.errors import FedshiftError, InputError, install_hint, naming_flags
from fedshift.report.comparison import wrap

if TYPE_CHECKING:
    from fedshift.report.comparison import Sheet

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # has no public name

# commands import their modules themselves, so --help and a mistyped option respond at once


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = argparse.ArgumentParser(
        prog="fedshift",
        description="Federated learning when training data does not look like the deployment data.",
    )
    top.add_argument("--version", action="version", version=f"fedshift {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_diagnose(commands)
    _add_train(commands)
    _add_predict(commands)
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
        help="compare training and deployment rows of site files; print what shifted and how much",
        description="Read site files (CSV or Parquet: a folder or file for each site, or one file "
        "with a site column). Compare the training rows of each site with its deployment rows and "
        "with other sites. Train nothing.",
    )
    _add_sites(sub)
    sub.add_argument(
        "--since",
        type=Path,
        metavar="RUN",
        help="compare the deployment rows in SITES with earlier ones; print whether weights must "
        "be estimated again; RUN is a folder that 'fedshift train' wrote, or earlier site files",
    )
    add_output(sub, "file to write: .json or .html", metavar="FILE")
    _add_verbose(sub, "every column of the tables, each comparison in words, and all notes")
    sub.set_defaults(command=_diagnose)


def _add_train(commands: Commands) -> None:
    sub = commands.add_parser(
        "train",
        help="train on site files, with weights only if they do no harm; write model and report",
        description="Read site files, compare them and train with and without weights. The weights "
        "are used only if they do no harm on held-out rows. Write the model, the encoder, a weight "
        "for each training row (Parquet), record.json (all results) and report.html to OUTPUT.",
    )
    _add_sites(sub)
    sub.add_argument(
        "--objective",
        default="auto",
        help="deployment rows that training rows are weighted to match. auto (default): those of "
        "all sites, by the training rows of all sites together; ftw: those of all sites, by the "
        "training rows of each site; fitw: those of the same site; focus:SITE: those of SITE; "
        "erm: no weights",
    )
    sub.add_argument(
        "--ratio",
        metavar="NAME",
        help="try weights by this density ratio, such as multi-source, even against the diagnosis; "
        "the no-harm test still decides (default: the shift type decides)",
    )
    sub.add_argument("--model", default="auto", help="model: auto (default), linear or mlp")
    text = "folder of the results; one that 'fedshift train' wrote is replaced"
    add_output(sub, text, Path("fedshift-train"))
    _add_verbose(sub, "the diagnosis of the sites and all notes")
    sub.set_defaults(command=_train)


def _add_predict(commands: Commands) -> None:
    sub = commands.add_parser(
        "predict",
        help="predict new rows with the model of a run; mark rows unlike the training rows",
        description="Read new rows (CSV or Parquet with the columns of training in any order, or "
        ".npz with an array x). Write their columns with prediction, probability_CLASS, "
        "unlike_training and new_values added.",
    )
    text = "a folder that 'fedshift train', 'fedshift run' or a deployment's server wrote"
    sub.add_argument("run", type=Path, metavar="RUN", help=text)
    sub.add_argument("new", type=Path, metavar="NEW", help="file of new rows")
    text = "the site of the rows, for a model that has parts for each site"
    sub.add_argument("--site", metavar="NAME", help=text)
    add_output(sub, "file to write: .csv or .parquet (default: print CSV)", metavar="FILE")
    sub.set_defaults(command=_predict)


def _add_report(commands: Commands) -> None:
    sub = commands.add_parser(
        "report",
        help="write the report of a run as one HTML file, which needs no network",
        description="Read results of 'fedshift train' or 'fedshift diagnose'; write their report.",
    )
    text = "a folder that 'fedshift train' wrote, or a .json file that 'fedshift diagnose' wrote"
    sub.add_argument("run", type=Path, metavar="RUN", help=text)
    add_output(sub, "file to write (default: RUN/report.html)", metavar="FILE")
    sub.set_defaults(command=_report)


#: options with one column, and with lists; named as in `TableSettings`
_COLUMNS = {
    "label": "column to predict",
    "site": "column with the site of each row",
    "split": "column with train, test or deploy for each row",
    "weights": "column with sample weights",
}
_LISTS = {
    "categorical": "columns of categories, even if they look like numbers",
    "numeric": "columns of numbers",
    "drop": "columns to leave out",
    "missing": "texts that mark a missing cell, in addition to the usual ones",
    "names": "names of columns, for files without a header",
    "files": "patterns of file names to read, such as '*.data'",
}


def _add_sites(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("sites", type=Path, metavar="SITES", help="a folder of site files, or a file")
    for name, text in _COLUMNS.items():
        sub.add_argument(f"--{name}", metavar="COLUMN", help=text)
    for name, text in _LISTS.items():
        sub.add_argument(f"--{name}", type=_commas, metavar="A,B", help=text)
    text = "the class to count as positive, or a threshold: with '>0', labels above 0 are positive"
    sub.add_argument("--positive", metavar="CLASS", help=text)
    tasks = ("classification", "regression")
    text = "what to predict: classes or numbers (default: decided by the label column)"
    sub.add_argument("--task", choices=tasks, help=text)
    sub.add_argument(
        "--test-share",
        type=float,
        metavar="SHARE",
        help="share of rows to use as deployment rows at sites that have none (default: 0.3)",
    )
    sub.add_argument("--seed", type=_seed, default=0, help="seed of randomness (default: 0)")


def _commas(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _table_settings(args: argparse.Namespace) -> dict[str, Any]:
    names = (*_COLUMNS, *_LISTS, "positive", "task", "test_share")
    return {n: v for n in names if (v := getattr(args, n)) is not None}


def _add_run(commands: Commands) -> None:
    sub = commands.add_parser(
        "run",
        help="run a recipe (a TOML file); skip finished runs and continue unfinished ones",
        description="Run every method and seed of a recipe and print a table. A run is stored in "
        "OUTPUT/RECIPE/METHOD/seed-N. If it is killed, the same command continues it.",
    )
    sub.add_argument(
        "recipe",
        metavar="RECIPE",
        help="a name from 'fedshift list', a .toml file, or paper/all for all recipes in paper/",
    )
    sub.add_argument("--seeds", metavar="0:5", help="seeds to run, such as 3, 0:5 or 0,2")
    sub.add_argument(
        "--method", action="extend", nargs="+", default=[], metavar="NAME", help="methods to run"
    )
    add_output(sub, "folder of runs", Path("runs"))
    _add_verbose(sub, "every column of the tables")
    sub.add_argument("--device", metavar="cpu|cuda", help="device (default: cuda if available)")
    sub.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        dest="changes",
        metavar="KEY=VALUE",
        help="change the recipe, such as plan.iterations=50 or method.FTW.weighting.clip=20",
    )
    sub.add_argument("--fresh", action="store_true", help="replace existing runs")
    sub.add_argument("--dry-run", action="store_true", help="check the recipe and list its runs")
    _add_commit(sub)
    _add_data_dir(sub)
    sub.set_defaults(command=_run, wrong=sub.error)


def _add_compare(commands: Commands) -> None:
    sub = commands.add_parser(
        "compare",
        help="print tables of finished runs; with --published, also published results",
        description="Print a table of finished runs for each recipe: accuracy or MSE of each "
        "method, mean over clients and seeds, 95 % interval, worst and best client. Run nothing.",
    )
    sub.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUNS",
        help="folders that contain runs at any level, or files of 'fedshift pack'",
    )
    sub.add_argument("--published", action="store_true", help="add published results of the recipe")
    sub.add_argument(
        "--recipe",
        action="append",
        default=[],
        metavar="FILE",
        help="your own recipe (.toml), to add published results from its [published] table",
    )
    sub.add_argument(
        "--format",
        choices=("text", "markdown"),
        help="format of the tables (default: by the ending of FILE, .txt or .md; else text)",
    )
    add_output(sub, "file (default: print)", metavar="FILE")
    _add_verbose(sub, "every column of the tables; a file always has them")
    sub.add_argument(
        "--curves",
        type=Path,
        metavar="FILE.svg",
        help="also draw test accuracy by iteration, for runs with train.watch_test = true",
    )
    sub.set_defaults(command=_compare)


def _add_pack(commands: Commands) -> None:
    sub = commands.add_parser(
        "pack",
        help="write finished runs to one small file that 'compare' reads",
        description="Write one line of JSON for each finished run: its recipe, environment, result "
        "and history. Models and checkpoints are left out.",
    )
    sub.add_argument(
        "runs", nargs="+", type=Path, metavar="RUNS", help="folders of runs, or packed files"
    )
    add_output(sub, "file to write", metavar="FILE.jsonl", required=True)
    _add_commit(sub)
    sub.set_defaults(command=_pack)


def _add_list(commands: Commands) -> None:
    sub = commands.add_parser(
        "list", help="print all recipes, data sets, models, objectives and estimators"
    )
    _add_data_dir(sub)
    sub.set_defaults(command=_list)


def _add_demo(commands: Commands) -> None:
    sub = commands.add_parser(
        "demo",
        help="train five clients with label shift on scikit-learn's digits; no download",
        description="Train five clients with label shift on scikit-learn's digits; no download. "
        "Trains five ways: (1) without weights; (2) FITW: weights for each client's own test "
        "distribution, exact ratios; (3) FTW: weights for all clients' test distributions, exact "
        "ratios; (4, 5) FTW with two estimates of the ratios. Prints accuracies; writes files.",
    )
    add_output(sub, "folder of the files", Path("fedshift-demo"))
    sub.add_argument("--seed", type=_seed, default=0, help="seed of randomness (default: 0)")
    sub.set_defaults(command=_demo)


def _add_doctor(commands: Commands) -> None:
    sub = commands.add_parser("doctor", help="check the installation; print what is missing")
    add_output(sub, "output folder to check", Path("runs"))
    _add_data_dir(sub)
    sub.set_defaults(command=_doctor)


def _add_commit(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--commit",
        metavar="ID",
        help="commit of the code that runs, for a copy without git; recorded as stated",
    )


def _add_data_dir(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="folder of data sets, searched before the folder in the variable FEDSHIFT_DATA, "
        "system folders and the user's cache",
    )


def _add_verbose(sub: argparse.ArgumentParser, text: str) -> None:
    sub.add_argument("-v", "--verbose", action="store_true", help=f"also print {text}")


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"a seed must be a whole number ≥ 0; got {text!r}")
    return int(text)


def _diagnose(args: argparse.Namespace) -> None:
    from fedshift.diagnose import render
    from fedshift.sites import examine, since

    settings = _table_settings(args)
    if args.since is not None:
        drift = since(args.sites, args.since, seed=args.seed, **settings)
        print("\n".join(map(wrap, drift.sentences())))
        record: dict[str, Any] = {"schema": "fedshift.sites/1", "drift": drift.to_dict()}
        if args.output is not None and args.output.suffix != ".json":
            raise InputError(f"with --since, --output must be a .json file; got {args.output}")
        notes: Sequence[str] = ()
    else:
        examined = examine(args.sites, seed=args.seed, **settings)
        render(examined.diagnosis, verbose=args.verbose)
        record, notes = examined.to_dict(), examined.encoded.notes
    if args.output is not None:
        _write_record(record, args.output)
    _print_notes(notes, args.output, verbose=args.verbose)


def _train(args: argparse.Namespace) -> None:
    from fedshift.core.files import check_folder
    from fedshift.diagnose import render
    from fedshift.outcome.folder import FILES, REPORT
    from fedshift.outcome.weights import check_pyarrow
    from fedshift.report.comparison import render as render_tables
    from fedshift.report.site_scores import first_lines, score_table
    from fedshift.sites import train

    check_pyarrow()  # and the folder, before training
    check_folder(args.output, FILES)
    trained = train(
        args.sites,
        seed=args.seed,
        objective=args.objective,
        ratio=args.ratio,
        model=args.model,
        **_table_settings(args),
    )
    page = trained.save(args.output) / REPORT
    outcome = trained.outcome
    record = trained.to_dict()
    print(wrap(outcome.status))
    for line in (*trained.label_sentences(), *first_lines(record)):
        print(wrap(line))
    print(render_tables([score_table(record["scores"][0], most=12)]), end="")
    if outcome.before is not None and outcome.evaluation is not None:
        print(wrap(f"model without weights, on test labels: {outcome.before.status}"))
        print(wrap(f"chosen model, on test labels: {outcome.evaluation.status}"))
    print(wrap(str(outcome.ledger)))
    print(f"wrote {page}")
    new = f"fedshift diagnose NEW --since {quote(str(args.output))}"
    print(f"Next, read it. With new rows of the sites, run:\n  {new}")
    if args.verbose:
        print()
        render(trained.examined.diagnosis, verbose=True)
    _print_notes(trained.examined.encoded.notes, page, verbose=args.verbose)


def _print_notes(notes: Sequence[str], path: Path | None, *, verbose: bool) -> None:
    """Print notes on how files were read, or how many there are and where: in the file `path`."""
    count = f"{len(notes)} note{'s' * (len(notes) != 1)} on how the files were read"
    if verbose and notes:
        print("\n".join(["", f"{count}:", *(wrap(f"- {note}") for note in notes)]))
    elif notes:
        print(f"{count}: " + (f"see {path}, or " if path else "") + "add --verbose")


def _write_record(record: Mapping[str, Any], path: Path) -> None:
    from fedshift.core.files import write_json, write_text

    if path.suffix in (".html", ".htm"):
        from fedshift.report.build import build_report

        write_text(path, build_report(record))
    elif path.suffix == ".json":
        write_json(path, record)
    else:
        raise InputError(f"--output must end in .json or .html; got {path}")
    print(f"wrote {path}")


def _predict(args: argparse.Namespace) -> None:
    from fedshift.outcome.folder import load
    from fedshift.outcome.prediction import PredictedFile, check_output

    if args.output is not None:
        check_output(args.output, args.new)
    result = PredictedFile.of(load(args.run).predictor, args.new, args.site)
    if args.output is None:
        print(result.to_csv(), end="")
    else:
        result.write(args.output)
    lines = [*(f"note: {note}" for note in result.notes), result.status]
    if args.output is not None:
        lines.append(f"wrote {args.output}")
    print("\n".join(lines), file=sys.stderr)


def _report(args: argparse.Namespace) -> None:
    from fedshift.outcome.folder import RECORD
    from fedshift.report.build import write_report

    path = args.run / RECORD if args.run.is_dir() else args.run
    out = args.output or path.with_name("report.html")
    if out.suffix not in (".html", ".htm"):
        raise InputError(f"--output must end in .html; got {out}")
    print(f"wrote {write_report(path, out)}")


def _run(args: argparse.Namespace) -> int:
    twice = sorted({m for m in args.method if args.method.count(m) > 1})
    if twice:
        args.wrong(f"argument --method: methods must differ; got {', '.join(twice)} more than once")
    from fedshift.core.device import check_device
    from fedshift.experiments.recipe import seeds

    try:
        chosen = () if args.seeds is None else seeds(args.seeds)
    except InputError as error:
        args.wrong(f"argument --seeds: {error}")
    if args.device is not None:
        check_device(args.device)
    failed = []
    names = _named(args.recipe)
    for name in names:
        try:
            _run_one(args, name, chosen)
        except KeyboardInterrupt:
            print(
                "fedshift: interrupted; the same command continues from the last checkpoint",
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
    """The recipe of this name, or for FOLDER/all every recipe that begins with FOLDER/."""
    from fedshift.experiments.recipe import recipes

    folder, slash, last = name.rpartition("/")
    every = [n for n in recipes() if n.startswith(f"{folder}/")] if slash and last == "all" else []
    return every or [name]


def _run_one(args: argparse.Namespace, name: str, seeds: tuple[int, ...]) -> None:
    from fedshift.experiments.runner import describe, run
    from fedshift.experiments.study import StudyRecipe, load_any
    from fedshift.report.comparison import render

    recipe = load_any(name)
    if isinstance(recipe, StudyRecipe):
        if args.recipe == name and (args.method or seeds or args.changes):
            raise InputError(
                f"{name} is a study, without methods, seeds or settings; remove --method, --seeds "
                "and --set, or run your own .toml file"
            )
        if args.dry_run:
            print(f"{name}: {recipe.title} ({recipe.study})")
        else:
            sheet = recipe.run(args.output, data_dir=args.data_dir)
            print(render([sheet], verbose=args.verbose), end="")
        return
    device = [] if args.device is None else [f'train.device="{args.device}"']
    if args.changes or device:
        recipe = recipe.changed([*args.changes, *device])
    runs = {"methods": args.method, "seeds": seeds, "data_dir": args.data_dir}
    if args.dry_run:
        describe(recipe, args.output, **runs)
    else:
        more = {"fresh": args.fresh, "commit": args.commit, "verbose": args.verbose}
        run(recipe, args.output, **runs, **more)


def _compare(args: argparse.Namespace) -> None:
    from fedshift.core.files import write_text
    from fedshift.experiments.compare import compare
    from fedshift.experiments.recipe import Recipe
    from fedshift.experiments.study import studies_in
    from fedshift.report.comparison import render

    path: Path | None = args.output
    ends = {None: "text", ".txt": "text", ".md": "markdown"}
    format = args.format or ends.get(None if path is None else path.suffix.lower())
    if format is None:
        raise InputError(f"--output must end in .txt or .md; got {path}; change it or add --format")
    known = [Recipe.load(name) for name in args.recipe]
    studies = studies_in(*args.runs)
    comparisons = compare(
        args.runs,
        published=args.published or bool(known),
        known=known,
        needed=not studies,
    )
    sheets = [comparison.sheet() for comparison in comparisons] + studies
    if args.curves is not None:
        _draw_curves([sheet for sheet in sheets if sheet.curves], args.curves)
    if path is not None:
        write_text(path, render(sheets, format, width=sys.maxsize))
        print(f"wrote {path}")
    else:
        print(render(sheets, format, verbose=args.verbose), end="")


def _draw_curves(sheets: Sequence[Sheet], path: Path) -> None:
    try:
        from fedshift.report.figures import draw_curves
    except ImportError:
        raise InputError(f"--curves needs matplotlib; {install_hint('report')}") from None
    if path.suffix != ".svg":
        raise InputError(f"--curves must end in .svg; got {path}")
    if not sheets:
        raise InputError(
            "--curves needs runs that recorded their test accuracy; got none; run them with --set "
            "train.watch_test=true"
        )
    print(f"wrote {draw_curves(sheets, path)}")


def _pack(args: argparse.Namespace) -> None:
    from fedshift.experiments.archive import SUFFIX, write
    from fedshift.experiments.compare import find
    from fedshift.experiments.records import with_commit

    if args.output.suffix != SUFFIX:
        raise InputError(f"--output must end in {SUFFIX}; got {args.output}")
    runs, unfinished = find(args.runs)
    runs = [replace(r, environment=with_commit(r.environment, args.commit)) for r in runs]
    write(args.output, runs)
    late = f"; not finished, so left out: {len(unfinished)}" if unfinished else ""
    print(f"wrote {len(runs)} run{'s' * (len(runs) > 1)} to {args.output}{late}")


def _list(args: argparse.Namespace) -> None:
    from fedshift.data.sources import NAMES, available
    from fedshift.experiments.recipe import Recipe, recipes
    from fedshift.experiments.shifts import SHIFTS
    from fedshift.experiments.study import load_any
    from fedshift.federation.client_weights import METHODS
    from fedshift.learn.models import MODELS
    from fedshift.learn.objective import Objective

    here = {name: available(name, args.data_dir) for name in NAMES}
    known = {name: load_any(name) for name in recipes()}
    width = max(map(len, known))
    print("recipes (run one with: fedshift run NAME)")
    for name, recipe in known.items():
        source = recipe.data.source if isinstance(recipe, Recipe) else recipe.study.source
        missing = "" if source is None or here[source] else f" (needs {source}, which is missing)"
        print(f"  {name:{width}}  {recipe.title}{missing}")
    print("data sets")
    for name, present in here.items():
        print(f"  {name:{width}}  {'present' if present else 'missing; see fedshift doctor'}")
    focused = (f"{kind}:CLIENT" for kind in Objective.FOCUSED)
    for title, names in (
        ("shifts", SHIFTS),
        ("models", MODELS),
        ("objectives", (*Objective.KINDS, *focused)),
        ("estimators", METHODS),
    ):
        print(f"{title}\n  {', '.join(names)}")


def _demo(args: argparse.Namespace) -> None:
    from fedshift.demo import run

    run(args.output, seed=args.seed)


def _doctor(args: argparse.Namespace) -> int:
    from fedshift.doctor import run_doctor

    return 0 if run_doctor(args.output, data_dir=args.data_dir) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns
    -------
    int
        0 on success; 1 after an error, with one line about it; 130 if interrupted. Wrong usage
        exits with 2.
    """
    args = parser().parse_args(argv)
    try:
        with naming_flags():
            code: int | None = args.command(args)  # None is 0
    except FedshiftError as error:
        print(f"fedshift: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fedshift: interrupted", file=sys.stderr)
        return 130
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
