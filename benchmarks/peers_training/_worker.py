"""Answer jobs for one peer: JSON lines in, JSON lines out.

Run from the folder above with the peer's interpreter, for example::

    echo '{"iterations": 10}' | python -m peers_training._worker pfl

The first line out names the peer's version. Each answer holds ``seconds`` for one iteration, or
``error``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import warnings
from importlib.metadata import version


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", help="a module of this package")
    args = parser.parse_args()
    # Only answers may go to the standard output: what the peer prints, also from C, is dropped.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    module = importlib.import_module(f"peers_training.{args.peer}")
    print(json.dumps({"version": version(module.PACKAGE)}), file=answers)
    for line in sys.stdin:
        try:
            answer = {"seconds": module.block(json.loads(line)["iterations"])}
        except Exception as fault:  # the peer's failure is a result
            answer = {"error": f"{type(fault).__name__}: {fault}"[:300]}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
