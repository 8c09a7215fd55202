"""What do clients gain by leaning on each other's training rows?

    python benchmarks/lean.py --quick --data-dir DATA
    python benchmarks/lean.py --data-dir DATA --json benchmarks/records/lean.json

The label laws of the paper's hundred clients (95 % of one class, five clients a round) on
Fashion-MNIST, LeNet, 1000 iterations of FedSGD, 64 rows a client, exact ratios, the mean of the
server's parameters; weights in the loss, and weights as sampling probabilities. Lean 0 is FTW-ERM,
1 the balance heuristic. Differences are of the same seeds, with 95 % intervals.

Bars, stated before the measurement (seeds 0 and 1 were looked at before; the figures are of seeds
100 and on): where losses are weighted, lean 0.5 gains at least .01; where rows are sampled, which
already keeps few heavy rows from being noise, it loses at most .01.
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

LEANS = (0.0, 0.5, 1.0)
#: how weights act, and the least gain of lean 0.5
WAYS = {"loss": 0.01, "sampling": -0.01}
FIRST = 100


def evaluated(of: fs.Federation, way: Any, lean: float, seed: int, iterations: int) -> Evaluation:
    """FTW-ERM of clients that lean so far."""
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
        ratio="exact", lean=lean, model="lenet", plan=plan, device="cpu", seed=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedshiftWarning)  # few rows weigh much: that is the point
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
    cases = list(itertools.product(ways, LEANS[:2] if args.quick else LEANS))
    values: dict[str, list[float]] = {f"{way}, lean {lean}": [] for way, lean in cases}
    worst: dict[str, list[float]] = {name: [] for name in values}
    for seed in seeds:
        of = images.split(fs.shift.Labels.paper("hundred-clients-cifar"), seed=seed)
        for way, lean in cases:
            scores = evaluated(of, way, lean, seed, iterations)
            values[f"{way}, lean {lean}"].append(float(scores.mean))
            worst[f"{way}, lean {lean}"].append(float(scores.values.min()))
        print(f"seed {seed} done", file=sys.stderr, flush=True)
    means: dict[str, Any] = {}
    for way, lean in cases:
        name = f"{way}, lean {lean}"
        gap = np.array(values[name]) - np.array(values[f"{way}, lean 0.0"])
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
            f"{way}: lean 0.5 - 0",
            means[f"{way}, lean 0.5"]["gain"],
            bound,
            ">=",
            f"± {means[f'{way}, lean 0.5']['half_width']:.4f}",
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
