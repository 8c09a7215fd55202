"""``fedshift deploy``: agreements, site workers, and a whole deployment on this machine."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from fedshift.deploy.agreement import Agreement
    from fedshift.privacy.policy import Privacy

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

#: options that define the task, which are not allowed with a task file
_OF_TASK = ("clients", "method", "seed", "disclosure_level", "deadline", "minimum", "set")

_PAIRS: Any = {"nargs": "+", "default": [], "metavar": "KEY=VALUE"}

# commands import what they need themselves, so that --help is fast


def add(commands: Commands) -> None:
    """Add ``deploy`` to the command line."""
    top = commands.add_parser(
        "deploy",
        help="run deployments on Flower: try one here, agree on a task, run a site",
        description="Runs a recipe as a deployment, over the network, on Flower. The SuperLink is "
        "Flower's server process; a SuperNode is the Flower process at a site; SuperExec is the "
        "separate process in which both of them start Flower apps. Needs the extra 'flower'.",
    )
    parts = top.add_subparsers(dest="part", required=True, metavar="WHAT")
    local = parts.add_parser(
        "local",
        help="run a whole deployment on this machine",
        description="Makes certificates and node keys, starts Flower's server process (SuperLink) "
        "and one client process (SuperNode) per client, all on this machine, runs a recipe, and "
        "ends all processes. If it is stopped, the same command continues the run.",
    )
    _add_task(local, default="smoke/flower")
    for flag, text in (
        ("--tls", "encrypt messages and accept only nodes with registered keys (default: on)"),
        ("--warm", "run a worker per site, which keeps its data and models loaded (default: on)"),
    ):
        action = argparse.BooleanOptionalAction
        local.add_argument(flag, action=action, default=True, help=text)
    add_output(local, "folder for task, sites, logs and results", Path("fedshift-deploy"))
    rules = "settings for [privacy] in each site's file, like noise=4.0 min_rows=50 (default: only"
    local.add_argument("--privacy", **_PAIRS, help=f"{rules} the task's disclosure level is set)")
    limit = "seconds after which an unfinished run is stopped (default: 3600)"
    local.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS", help=limit)
    local.set_defaults(command=_local)
    agree = parts.add_parser(
        "agree",
        help="write or check the task file that server and sites agree on",
        description="Given a recipe, writes the task file of a deployment (TOML). Given a task "
        "file, checks it and writes a copy. Prints the task's digest. The server and every site "
        "need a copy of the task file.",
    )
    _add_task(agree, default=None)
    add_output(agree, "task file to write", Path("task.toml"), metavar="FILE")
    agree.set_defaults(command=_agree)
    site = parts.add_parser(
        "site",
        help="run a worker that keeps a site's data and models loaded",
        description="Loads the rows that SITE.toml names, keeps them in memory, and answers the "
        "requests that the site's SuperNode (Flower's process at a site) passes on. Runs until "
        "you stop it.",
    )
    site.set_defaults(command=_site)
    check = parts.add_parser(
        "check",
        help="print a site's shift type and how to estimate ratios; no data leave the site",
        description="Compares the training rows that SITE.toml names with its test rows, on this "
        "machine alone. Recommends how to estimate density ratios: the 'kind' in the table "
        "[deploy.ratio] of the task file.",
    )
    check.set_defaults(command=_check)
    for part in (site, check):
        text = "file that names the site's task, rows and policy"
        part.add_argument("site", type=Path, metavar="SITE.toml", help=text)
    for name, text, command in (
        ("app", "print the path of fedshift's Flower app, to give to 'flwr run'", _app),
        ("levels", "print what may leave a site at each disclosure level", _levels),
    ):
        description = f"P{text[1:]}."
        parts.add_parser(name, help=text, description=description).set_defaults(command=command)


def add_output(
    sub: argparse.ArgumentParser, text: str, default: Path | None = None, **more: Any
) -> None:
    """Add -o, --output to a command; argparse also takes a beginning of it, such as --out."""
    text += f" (default: {default})" if default else ""
    sub.add_argument("-o", "--output", type=Path, default=default, help=text, **more)


def _add_task(sub: argparse.ArgumentParser, default: str | None) -> None:
    sub.add_argument(
        "recipe",
        nargs=None if default is None else "?",
        default=default,
        metavar="RECIPE",
        help="name of a recipe, or a task file that 'fedshift deploy agree' wrote"
        + (f" (default: {default})" if default else ""),
    )
    for flag, kind, metavar, text in (
        ("--clients", int, "N", "use only the first N clients of the recipe (default: all)"),
        ("--method", str, "NAME", "method of the recipe to run (default: its first method)"),
        ("--seed", int, "S", "seed of the recipe to run (default: its first seed)"),
        ("--deadline", float, "SECONDS", "seconds that a round waits for replies (default: 120)"),
        ("--minimum", int, "N", "number of replies that a round needs (default: half its clients)"),
        ("--data-dir", str, "DIR", "folder of data sets (default: the one in $FEDSHIFT_DATA)"),
    ):
        sub.add_argument(flag, type=kind, metavar=metavar, help=text)
    sub.add_argument(
        "--disclosure-level",
        type=int,
        choices=range(6),
        help="highest disclosure level that the task is allowed to use (default: the lowest with "
        "which its method can run); 'fedshift deploy levels' explains the levels",
    )
    sub.add_argument(
        "--raw-rows",
        action="store_true",
        help="required with --disclosure-level 5: sites send unlabelled test rows as they are, "
        "and the server's operator can read them",
    )
    changes = "settings of the recipe to change, such as plan.rounds=20 (default: none)"
    sub.add_argument("--set", **_PAIRS, help=changes)


def _agreement(args: argparse.Namespace) -> Agreement:
    from fedshift.deploy.agreement import Agreement
    from fedshift.errors import InputError
    from fedshift.experiments.recipe import Recipe

    _check_raw(args.disclosure_level, args)
    if _is_agreement(args.recipe):
        flags = [f"--{n.replace('_', '-')}" for n in _OF_TASK if getattr(args, n) not in (None, [])]
        if flags:
            raise InputError(
                f"{args.recipe} is a task file, which already sets these options; got "
                f"{', '.join(flags)}; leave them out, edit the file, or give a recipe instead"
            )
        return Agreement.read(args.recipe)
    recipe = Recipe.load(args.recipe)
    if args.set:
        recipe = recipe.changed(args.set)
    return Agreement.of(
        recipe,
        method=args.method,
        seed=args.seed,
        clients=args.clients,
        disclosure_level=args.disclosure_level,
        data_dir=args.data_dir,
        minimum=args.minimum,
        **({} if args.deadline is None else {"deadline": args.deadline}),
    )


def _check_raw(disclosure_level: int | None, args: argparse.Namespace) -> None:
    from fedshift.errors import InputError
    from fedshift.privacy.policy import describe

    if disclosure_level == 5 and not args.raw_rows:
        raise InputError(f"{describe(5)} Add --raw-rows if you intend this")


def _is_agreement(name: str) -> bool:
    from fedshift.errors import InputError

    path = Path(name)
    if path.suffix != ".toml" or not path.is_file():
        return False
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be TOML in UTF-8: {error}; save it as UTF-8") from None
    return re.search(r"^\[deploy\]", text, re.MULTILINE) is not None


def _agree(args: argparse.Namespace) -> int:
    from fedshift.privacy.policy import describe

    agreement = _agreement(args)
    path = agreement.write(args.output)
    print(f"{agreement}\nwritten to {path}; the server and every site need a copy of this file")
    print(describe(agreement.job.disclosure_level))
    return 0


def _site(args: argparse.Namespace) -> int:
    from fedshift.deploy.site_worker import main

    main(str(args.site))
    return 0


def _check(args: argparse.Namespace) -> int:
    from fedshift.deploy.shift_check import check_shift

    print(check_shift(args.site))
    return 0


def _app(_: argparse.Namespace) -> int:
    from fedshift.deploy.local_deployment import app_folder

    print(app_folder())
    return 0


def _levels(_: argparse.Namespace) -> int:
    from fedshift.privacy.policy import DISCLOSURE_LEVELS, describe

    print("\n\n".join(map(describe, range(len(DISCLOSURE_LEVELS)))))
    return 0


def _local(args: argparse.Namespace) -> int:
    from rich.console import Console

    from fedshift.deploy.local_deployment import deploy_local
    from fedshift.privacy.policy import describe

    # names, reasons and logs come from others, so none of it is markup
    agreement, console = _agreement(args), Console(markup=False, highlight=False)
    policy = _policy(args, agreement.job.disclosure_level)
    console.print(f"{agreement}")
    console.print(describe(agreement.job.disclosure_level), style="dim")
    with _Display(console) as display:
        done = deploy_local(
            agreement,
            args.output,
            tls=args.tls,
            warm=args.warm,
            privacy=policy,
            data_dir=args.data_dir,
            on_line=display.line,
            on_event=display.event,
            timeout=args.timeout,
        )
    _print_result(done.result, console)
    console.print(f"{done}")
    return 0


def _policy(args: argparse.Namespace, disclosure_level: int) -> Privacy | None:
    """Return the policy for all sites from --privacy and --raw-rows; None without them."""
    import tomllib

    from fedshift.errors import InputError
    from fedshift.experiments.toml_tables import Location, make
    from fedshift.privacy.policy import Privacy

    _check_raw(disclosure_level, args)
    try:
        table = tomllib.loads("\n".join(args.privacy))
    except tomllib.TOMLDecodeError:
        raise InputError(
            f"--privacy takes KEY=VALUE, such as noise=4.0; got {' '.join(args.privacy)!r}"
        ) from None
    if disclosure_level == 5:
        table = {"raw": True, **table}
    if not table:
        return None
    table = {"disclosure_level": disclosure_level, **table}
    policy: Privacy = make(Privacy, table, Location("--privacy"))
    return policy


class _Display:
    """Prints events as lines and rounds as progress bars."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = console
        phase = TextColumn("{task.description}", markup=False)
        text = TextColumn("{task.fields[text]}", markup=False)
        self._progress = Progress(phase, BarColumn(), MofNCompleteColumn(), text, console=console)
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def event(self, text: str) -> None:
        self._print(text, "dim")

    def line(self, text: str) -> None:
        match = re.match(r"(train\.\w+) (\d+)/(\d+) ?(.*)", text)
        if match is not None:
            phase, done, total, rest = match.groups()
            if phase not in self._bars:
                self._bars[phase] = self._progress.add_task(phase, total=int(total), text="")
            self._progress.update(self._bars[phase], completed=int(done), text=rest)
        elif re.match(r"(dropped|too few|audit|resume)\b", text):
            self._print(text, "yellow")

    def _print(self, text: str, style: str) -> None:
        self._console.print(text, style=style, markup=False, highlight=False)


def _print_result(result: Mapping[str, Any], console: Console) -> None:
    """Print a table with a row per client: score, weights, and what left the client."""
    from fedshift.federation.ledger import Ledger, human
    from fedshift.learn.evaluate import Evaluation
    from fedshift.report.comparison import Sheet, render

    costs = Ledger.from_records(result["ledger"]).by_client()
    scores = {row["client"]: row for row in result["evaluation"] or []}
    rows = []
    for name, facts in sorted(result["sites"].items()):
        row = scores.get(name)
        value = None if row is None else row.get("accuracy", row.get("mse"))
        cells = (
            name,
            "" if value is None else f"{value:.3f}",
            "" if row is None else f"{row['low']:.3f} to {row['high']:.3f}",
            _short(facts.get("ess_share", "")),
            _short(facts.get("epsilon", "")),
            human(costs[name].up) if name in costs else "",
            f"{costs[name].rows:,}" if name in costs else "",
        )
        rows.append(cells)
    title = (
        f"{result['objective']}, ratios {result['ratio']}, "
        f"disclosure level {result['disclosure_level']}"
    )
    header = ("client", "score", "95 %", "ESS share", "ε", "sent", "rows sent")
    table = render([Sheet(title=title, header=header, rows=tuple(rows))], width=console.width)
    console.print(table, soft_wrap=True)
    dropped = [e for e in result["events"] if e["what"] == "dropped"]
    for e in dropped[:10]:
        where = f"{e['phase']}, round {e['round']}"
        console.print(f"{e['client']} was left out of {where}: {e['why']}")
    if len(dropped) > 10:
        console.print(f"… and {len(dropped) - 10} more such events; see record/events.jsonl")
    if scores:
        console.print(Evaluation.from_records(scores.values()).status, highlight=False)


def _short(value: object) -> str:
    """Return a value that a site reports, which may be anything, in at most 20 characters."""
    return f"{value:.2f}" if isinstance(value, float) else " ".join(f"{value}".split())[:20]
