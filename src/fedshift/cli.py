"""The command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedshift import __version__
from fedshift.errors import FedshiftError


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="fedshift",
        description="Federated learning when training data does not look like the data met in use.",
    )
    top.add_argument("--version", action="version", version=f"fedshift {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="estimate the ratios of five label-shifted clients and compare with the truth",
        description="Five clients of scikit-learn's digits, nothing to download: estimates every "
        "client's density ratios, prints them against the exact ones, writes a plot and a record.",
    )
    demo.add_argument(
        "--out", type=Path, default=Path("fedshift-demo"), help="folder for plot and record"
    )
    demo.add_argument("--seed", type=int, default=0, help="seed of the split and the estimators")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what was asked, 1 with one line on what went wrong."""
    arguments = parser().parse_args(argv)
    try:
        from fedshift.demo import run  # heavy imports wait until the arguments are sound

        run(arguments.out, seed=arguments.seed)
    except FedshiftError as error:
        print(f"fedshift: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fedshift: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
