"""``fedshift deploy``: agreements, warm sites, and a whole deployment on this machine."""

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

#: options that say what the task is; a task file says all of it itself
_OF_TASK = {
    "clients": "--clients",
    "method": "--method",
    "seed": "--seed",
    "rung": "--rung",
    "deadline": "--deadline",
    "minimum": "--minimum",
    "changes": "--set",
}

# what the commands need is imported in them, so that --help answers at once


def add(commands: Commands) -> None:
    """Add ``deploy`` to the command line."""
    top = commands.add_parser(
        "deploy",
        help="a federation of real sites on Flower: try it here, agree on a task, serve a site",
        description="Runs a recipe on Flower's deployment engine. Needs fedshift[flower].",
    )
    parts = top.add_subparsers(dest="part", required=True, metavar="WHAT")
    local = parts.add_parser(
        "local",
        help="SuperLink, SuperNodes, keys and a run, all on this machine",
        description="Starts a SuperLink and a SuperNode for every client on loopback, with an own "
        "certificate authority and node keys, runs a recipe to its record, and stops everything "
        "it started. The same command goes on from where it was stopped.",
    )
    _add_task(local, default="smoke/flower")
    local.add_argument("--tls", action=argparse.BooleanOptionalAction, default=True)
    local.add_argument("--out", type=Path, default=Path("fedshift-deploy"), help="folder")
    local.add_argument(
        "--warm",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep data and model loaded beside every node",
    )
    local.add_argument(
        "--privacy",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="[privacy] of every site, such as noise=4.0 min_rows=50",
    )
    local.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS")
    local.set_defaults(command=_local)
    agree = parts.add_parser(
        "agree",
        help="write the file that server and sites agree on",
        description="Writes what all parties need to know of a run: the task, in TOML.",
    )
    _add_task(agree, default=None)
    agree.add_argument("-o", "--output", type=Path, default=Path("task.toml"), metavar="FILE")
    agree.set_defaults(command=_agree)
    site = parts.add_parser(
        "site",
        help="keep a site's data and model loaded, for its SuperNode to ask",
        description="Loads the rows that SITE.toml names and answers at its socket.",
    )
    site.add_argument("site", type=Path, metavar="SITE.toml")
    site.set_defaults(command=_site)
    look = parts.add_parser(
        "look",
        help="which kind of shift a site has, and which ratios suit it; nothing leaves",
        description="Compares the training rows that SITE.toml names with its test rows, on this "
        "machine alone, and says which ratio kind to agree on.",
    )
    look.add_argument("site", type=Path, metavar="SITE.toml")
    look.set_defaults(command=_look)
    app = parts.add_parser("app", help="the folder of the Flower app, for flwr run")
    app.set_defaults(command=_app)
    rungs = parts.add_parser("rungs", help="the privacy ladder: what leaves a site on each rung")
    rungs.set_defaults(command=_rungs)


def _add_task(sub: argparse.ArgumentParser, default: str | None) -> None:
    sub.add_argument(
        "recipe",
        nargs=None if default is None else "?",
        default=default,
        metavar="RECIPE",
        help="a recipe, or a task file of 'deploy agree'" + (f" ({default})" if default else ""),
    )
    sub.add_argument("--clients", type=int, metavar="N", help="the first N clients (all)")
    sub.add_argument("--method", metavar="NAME", help="of the recipe (its first)")
    sub.add_argument("--seed", type=int, metavar="S", help="of the recipe (its first)")
    sub.add_argument(
        "--rung",
        type=int,
        choices=range(6),
        help="of the privacy ladder, highest that may be needed (the lowest that will do)",
    )
    sub.add_argument(
        "--raw-rows",
        action="store_true",
        help="needed with --rung 5: unlabelled test rows leave the sites as they are, and whoever "
        "runs the server can read them",
    )
    sub.add_argument("--deadline", type=float, metavar="SECONDS", help="of a round (120)")
    sub.add_argument("--minimum", type=int, metavar="N", help="answers that make a round (half)")
    sub.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="changes")
    sub.add_argument("--data-dir", metavar="DIR", help="folder of data sets")


def _agreement(given: argparse.Namespace) -> Agreement:
    from fedshift.deploy.agreement import Agreement
    from fedshift.errors import InputError
    from fedshift.experiments.recipe import Recipe

    _check_raw(given.rung, given)
    if _is_agreement(given.recipe):
        said = [flag for name, flag in _OF_TASK.items() if getattr(given, name) not in (None, [])]
        if said:
            raise InputError(
                f"{given.recipe} is a task and says all of it; got {', '.join(said)} as well; "
                "give a recipe, or write what you mean into the file"
            )
        return Agreement.read(given.recipe)
    recipe = Recipe.load(given.recipe)
    if given.changes:
        recipe = recipe.changed(given.changes)
    return Agreement.of(
        recipe,
        method=given.method,
        seed=given.seed,
        clients=given.clients,
        rung=given.rung,
        data_dir=given.data_dir,
        minimum=given.minimum,
        **({} if given.deadline is None else {"deadline": given.deadline}),
    )


def _check_raw(rung: int | None, given: argparse.Namespace) -> None:
    from fedshift.errors import InputError
    from fedshift.privacy.policy import describe

    if rung == 5 and not given.raw_rows:
        raise InputError(f"{describe(5)} Say --raw-rows as well if that is meant")


def _is_agreement(name: str) -> bool:
    from fedshift.errors import InputError

    path = Path(name)
    if path.suffix != ".toml" or not path.is_file():
        return False
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be TOML, in UTF-8: {error}") from None
    return re.search(r"^\[deploy\]", text, re.MULTILINE) is not None


def _agree(given: argparse.Namespace) -> int:
    from fedshift.privacy.policy import describe

    agreement = _agreement(given)
    path = agreement.write(given.output)
    print(f"{agreement}\nwritten to {path}; give a copy to the server and to every site")
    print(describe(agreement.job.rung))
    return 0


def _site(given: argparse.Namespace) -> int:
    from fedshift.deploy.serve import main

    main(str(given.site))
    return 0


def _look(given: argparse.Namespace) -> int:
    from fedshift.deploy.look import look

    print(look(given.site))
    return 0


def _app(_: argparse.Namespace) -> int:
    from fedshift.deploy.simulate import app_folder

    print(app_folder())
    return 0


def _rungs(_: argparse.Namespace) -> int:
    from fedshift.privacy.policy import RUNGS, describe

    print("\n\n".join(describe(rung) for rung in range(len(RUNGS))))
    return 0


def _local(given: argparse.Namespace) -> int:
    from rich.console import Console

    from fedshift.deploy.simulate import deploy_local
    from fedshift.privacy.policy import describe

    # names, reasons and logs are text of others: none of it is markup
    agreement, console = _agreement(given), Console(markup=False, highlight=False)
    policy = _policy(given, agreement.job.rung)
    console.print(f"{agreement}")
    console.print(describe(agreement.job.rung), style="dim")
    with _Shown(console) as shown:
        done = deploy_local(
            agreement,
            given.out,
            tls=given.tls,
            warm=given.warm,
            privacy=policy,
            data_dir=given.data_dir,
            on_line=shown.line,
            on_event=shown.event,
            timeout=given.timeout,
        )
    _tell(done.result, console)
    console.print(f"{done}")
    return 0


def _policy(given: argparse.Namespace, rung: int) -> Privacy | None:
    """What --privacy and --raw-rows say for all sites; None where they say nothing."""
    import tomllib

    from fedshift.errors import InputError
    from fedshift.experiments.spelling import Place, make
    from fedshift.privacy.policy import Privacy

    _check_raw(rung, given)
    try:
        said = tomllib.loads("\n".join(given.privacy))
    except tomllib.TOMLDecodeError:
        raise InputError(
            f"--privacy takes KEY=VALUE, such as noise=4.0; got {' '.join(given.privacy)!r}"
        ) from None
    if rung == 5:
        said = {"raw": True, **said}
    if not said:
        return None
    made: Privacy = make(Privacy, {"rung": rung, **said}, Place("--privacy"))
    return made


class _Shown:
    """Events as lines, rounds as bars."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = console
        phase, said = (
            TextColumn(what, markup=False) for what in ("{task.description}", "{task.fields[said]}")
        )
        self._progress = Progress(phase, BarColumn(), MofNCompleteColumn(), said, console=console)
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> _Shown:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def event(self, text: str) -> None:
        self._say(text, "dim")

    def line(self, text: str) -> None:
        found = re.match(r"(train\.\w+) (\d+)/(\d+) ?(.*)", text)
        if found is not None:
            phase, done, total, said = found.groups()
            if phase not in self._bars:
                self._bars[phase] = self._progress.add_task(phase, total=int(total), said="")
            self._progress.update(self._bars[phase], completed=int(done), said=said)
        elif re.match(r"(dropped|too few|audit|resume)\b", text):
            self._say(text, "yellow")

    def _say(self, text: str, style: str) -> None:
        self._console.print(text, style=style, markup=False, highlight=False)


def _tell(result: Mapping[str, Any], console: Console) -> None:
    """A row a client: its score, its weights, and what left it."""
    from rich.table import Table

    from fedshift.federation.ledger import Ledger, human

    costs = Ledger.from_records(result["ledger"]).by_client()
    scores = {row["client"]: row for row in result["evaluation"] or []}
    table = Table(title=f"{result['objective']}, ratios {result['ratio']}, rung {result['rung']}")
    for column in ("client", "score", "95 %", "ESS share", "ε", "sent", "rows sent"):
        table.add_column(column, justify="left" if column == "client" else "right")
    for name, facts in sorted(result["sites"].items()):
        row = scores.get(name)
        value = None if row is None else row.get("accuracy", row.get("mse"))
        table.add_row(
            name,
            "–" if value is None else f"{value:.3f}",
            "–" if row is None else f"{row['low']:.3f} to {row['high']:.3f}",
            _said(facts.get("ess_share", "–")),
            _said(facts.get("epsilon", "–")),
            human(costs[name].up) if name in costs else "–",
            f"{costs[name].rows:,}" if name in costs else "–",
        )
    console.print(table)
    dropped = [e for e in result["events"] if e["what"] == "dropped"]
    for e in dropped[:10]:
        said = f"{e['client']} was left out of {e['phase']}, round {e['round']}: {e['why']}"
        console.print(said)
    if len(dropped) > 10:
        console.print(f"… and {len(dropped) - 10} more, see record/events.jsonl")
    if result["mean"] is not None:
        console.print(f"mean over {len(scores)} clients: {result['mean']:.3f}")


def _said(value: object) -> str:
    """What a site says of itself, which may be anything, in few letters."""
    return f"{value:.2f}" if isinstance(value, float) else f"{value}"[:20]
