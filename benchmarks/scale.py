"""Ratios of a million rows: time and memory of `Classifier`, `Neural` and `Logistic`.

Source and target have n × 64 float32 rows each. Every fit runs in its own process; peak memory is
that of the whole process, data included. Bars: the largest size stays under 4 GiB; the time per row
at the largest size is at most 1.5 times that at the smallest (linear in n).

    python benchmarks/scale.py --quick
    python benchmarks/scale.py --json benchmarks/records/scale.json
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from _common import Bar, arguments, report

D = 64
SIZES = (250_000, 500_000, 1_000_000)
QUICK = (20_000, 40_000, 80_000)
MEMORY, GROWTH = 4.0, 1.5
ESTIMATORS = ("Classifier", "Neural", "Logistic")


def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Source N(0, I), target with mean 1/8 in every column: log r = x·1/8 − ½."""
    rng = np.random.default_rng(0)
    source = rng.standard_normal((n, D), dtype=np.float32)
    target = rng.standard_normal((n, D), dtype=np.float32)
    target += np.float32(1 / 8)
    return source, target


def measure(name: str, n: int) -> dict[str, Any]:
    """Fit and predict once, in this process."""
    from fedshift import ratio

    # a fixed number of passes, so that sizes compare
    estimator = (
        ratio.Neural(max_epochs=2, patience=2) if name == "Neural" else getattr(ratio, name)()
    )
    source, target = draw(n)
    start = time.perf_counter()
    estimator.fit(source=source, target=target)
    fitted = time.perf_counter()
    log_ratio = estimator.log_ratio(source)
    done = time.perf_counter()
    truth = source.astype(np.float64).sum(axis=1) / 8 - 0.5
    return {
        "estimator": name,
        "n": n,
        "fit_seconds": fitted - start,
        "predict_seconds": done - fitted,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "correlation": float(np.corrcoef(log_ratio, truth)[0, 1]),
    }


def main() -> int:
    """Run every estimator at every size, smallest first."""
    parser = arguments(__doc__)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "N"), help="one fit in this process")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]))))
        return 0
    rows = []
    for name in ESTIMATORS:
        for n in QUICK if args.quick else SIZES:
            command = [sys.executable, __file__, "--one", name, str(n)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            rows.append(json.loads(out.splitlines()[-1]))
            print(
                "{estimator} n={n}: fit {fit_seconds:.1f} s, predict {predict_seconds:.1f} s, "
                "peak {peak_gib:.2f} GiB, correlation with truth {correlation:.3f}".format(
                    **rows[-1]
                ),
                flush=True,
            )
    bars = []
    for name in ESTIMATORS:
        mine = [r for r in rows if r["estimator"] == name]
        cost = [(r["fit_seconds"] + r["predict_seconds"]) / r["n"] for r in mine]
        bars += [
            Bar(f"{name}: peak GiB at {mine[-1]['n']} rows a side", mine[-1]["peak_gib"], MEMORY),
            Bar(f"{name}: time for a row, largest over smallest", cost[-1] / cost[0], GROWTH),
            Bar(f"{name}: correlation with the truth", mine[-1]["correlation"], 0.8, ">="),
        ]
    return report(bars, {"columns": D, "rows": rows}, args.json)


if __name__ == "__main__":
    sys.exit(main())
