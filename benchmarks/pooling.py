"""Gain from partial pooling of the clients' training distributions.

    python benchmarks/pooling.py --quick --data-dir DATA
    python benchmarks/pooling.py --data-dir DATA --json benchmarks/records/pooling.json

The label distributions of the paper's hundred clients (95 % of one class, five clients a round) on
Fashion-MNIST, LeNet, 1000 iterations of FedSGD, 64 rows per client, exact ratios, the mean of the
server's parameters; weights in the loss, and weights as sampling probabilities. Pooling 0 is
FTW-ERM, 1 the balance heuristic. Differences are between equal seeds, with 95 % intervals.

Bars, stated before the measurement (after a look at seeds 0 and 1; the figures are for seeds 100
and on): with weighted losses, pooling 0.5 gains at least .01. With weighted sampling, which already
limits the noise from a few heavy rows, it loses at most .01.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch are imported

import numpy as np
from _common import Bar, arguments, report
from scipy import stats

import fedshift as fs
from fedshift.errors import FedshiftWarning
from fedshift.learn.evaluate import Evaluation

POOLINGS = (0.0, 0.5, 1.0)
#: how weights act, and the least gain of pooling 0.5
WAYS = {"loss": 0.01, "sampling": -0.01}
FIRST = 100


def evaluate(of: fs.Federation, way: Any, pooling: float, seed: int, iterations: int) -> Evaluation:
    """Train by FTW-ERM with this pooling and score every client."""
    plan = fs.FedSGD(
        iterations=iterations,
        lr=1e-3,
        batch_size=64,
        participation=5,
        importance=way,
        average=0.99,
        seed=seed,
    )
    settings = fs.Settings(
        ratio="exact", pooling=pooling, model="lenet", plan=plan, device="cpu", seed=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedshiftWarning)  # few rows have much weight, on purpose
        scores = fs.run(of, settings).evaluation
    assert scores is not None
    return scores


def main() -> int:
    """Run the benchmark and return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many splits")
    parser.add_argument("--data-dir", type=Path, help="folder with fashion-mnist")
    args = parser.parse_args()
    images = fs.data.load("fashion-mnist", data_dir=args.data_dir)
    seeds = range(FIRST, FIRST + (2 if args.quick else args.seeds))
    iterations = 600 if args.quick else 1000
    ways = {"loss": WAYS["loss"]} if args.quick else WAYS
    cases = list(itertools.product(ways, POOLINGS[:2] if args.quick else POOLINGS))
    values: dict[str, list[float]] = {f"{way}, pooling {pooling}": [] for way, pooling in cases}
    worst: dict[str, list[float]] = {name: [] for name in values}
    for seed in seeds:
        of = images.split(fs.shift.Labels.paper("hundred-clients-cifar"), seed=seed)
        for way, pooling in cases:
            scores = evaluate(of, way, pooling, seed, iterations)
            values[f"{way}, pooling {pooling}"].append(float(scores.mean))
            worst[f"{way}, pooling {pooling}"].append(float(scores.scores.min()))
        print(f"seed {seed} done", file=sys.stderr, flush=True)
    means: dict[str, Any] = {}
    for way, pooling in cases:
        name = f"{way}, pooling {pooling}"
        gap = np.array(values[name]) - np.array(values[f"{way}, pooling 0.0"])
        half = float(stats.t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / len(gap) ** 0.5)
        means[name] = {
            "accuracy": float(np.mean(values[name])),
            "worst": float(np.mean(worst[name])),
            "gain": float(gap.mean()),
            "half_width": half,
        }
        m = means[name]
        print(f"{name:20s} {m['accuracy']:.4f}  worst client {m['worst']:.3f}", end="  ")
        print(f"{m['gain']:+.4f} ± {half:.4f}")
    bars = [
        Bar(
            f"{way}: pooling 0.5 - 0",
            means[f"{way}, pooling 0.5"]["gain"],
            bound,
            ">=",
            f"± {means[f'{way}, pooling 0.5']['half_width']:.4f}",
        )
        for way, bound in ways.items()
    ]
    record = {
        "quick": args.quick,
        "iterations": iterations,
        "seeds": list(seeds),
        "means": means,
        "accuracy": values,
        "worst": worst,
    }
    return report(bars, record, args.json)


if __name__ == "__main__":
    sys.exit(main())
