r"""Error of the clients' estimated test label distributions, with and without matrix calibration.

    python benchmarks/label_distributions.py --quick --data-dir DATA
    python benchmarks/label_distributions.py --data-dir DATA \
        --json benchmarks/records/label_distributions.json

`FederatedMLLS` trains classifiers on all clients' rows once and calibrates them twice on held-out
rows: by a temperature and biases ("bcts"), and also by a matrix if cross-validation supports it
("matrix", the default). A figure is the L1 distance between estimated and true test label
distribution, mean over clients.

Bars, on seeds that were not used for any choice: with a matrix the distance grows by at most .005
in every case (no harm). On five clients of CIFAR-10, whose rare classes look like common ones, it
is at most three quarters as large. On processors with bfloat16, convolutions are computed in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch are imported

import numpy as np
from _common import Bar, arguments, report
from scipy import stats

import fedshift as fs
from fedshift.core.device import has_bfloat16
from fedshift.federation.marginals import FederatedMLLS

CALIBRATIONS = ("bcts", "matrix")


def hundred_classes(seed: int) -> fs.Federation:
    """Three clients, ten columns, a hundred overlapping classes, random label distributions."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(100, 10))

    def rows(n: int) -> tuple[Any, Any]:
        y = np.concatenate([np.arange(100), rng.choice(100, n, p=rng.dirichlet(np.ones(100)))])
        return (middle[y] + rng.normal(size=(len(y), 10))).astype(np.float32), y

    clients = {}
    for k in range(3):
        x, y = rows(2000)
        clients[f"client-{k + 1}"] = (x, y, *rows(1000))
    return fs.Federation.of(clients)


def dealt(source: str, shift: Any) -> Callable[[int, Path | None], fs.Federation]:
    """Clients of a data set, by seed and folder."""
    return lambda seed, folder: fs.data.load(source, data_dir=folder).split(shift, seed=seed)


@dataclass(frozen=True)
class Case:
    """A federation and the classifiers that estimate its label distributions."""

    clients: Callable[[int, Path | None], fs.Federation]
    seeds: range
    model: Any = "mlp"
    plan: fs.FedSGD = field(default_factory=fs.FedSGD)
    folds: int = 2
    harmless: bool = True  # if False, the matrix must help


CROPPED = fs.FedSGD(iterations=2000, importance="sampling", augment="crop-flip")
SKEWED = fs.shift.Labels.one_class_each(train=(90, 3), test=(55, 3))
MILDER = fs.shift.Labels.one_class_each(train=(50, 10), test=(30, 8))
FIVE, TWO = fs.shift.Labels.paper("five-clients"), fs.shift.Labels.paper("two-clients")
PHOTOS = fs.shift.Labels.paper("five-clients-cifar")
HUNDRED = fs.shift.Labels.paper("hundred-clients-cifar")
FRESH = range(10, 30)
CASES = {
    "digits, five": Case(dealt("digits", SKEWED), FRESH, folds=5),
    "digits, five, milder": Case(dealt("digits", MILDER), FRESH, folds=5),
    "digits, five, linear": Case(dealt("digits", SKEWED), FRESH, "linear", folds=5),
    "a hundred classes, three": Case(lambda s, _: hundred_classes(s), FRESH[:5], "linear"),
    "Fashion-MNIST, five": Case(dealt("fashion-mnist", FIVE), FRESH[:5], "lenet", CROPPED),
    "Fashion-MNIST, two": Case(dealt("fashion-mnist", TWO), FRESH[:5], "lenet", CROPPED),
    "CIFAR-10, five, LeNet": Case(
        dealt("cifar10", PHOTOS),
        FRESH[:3],
        "lenet",
        replace(CROPPED, iterations=3000),
        harmless=False,
    ),
    "CIFAR-10, hundred, LeNet": Case(
        dealt("cifar10", HUNDRED),
        FRESH[:2],
        "lenet",
        replace(CROPPED, iterations=5000, participation=5),
    ),
}
QUICK = ("digits, five", "digits, five, linear", "a hundred classes, three", "Fashion-MNIST, two")


def precision_of(case: Case) -> Literal["float32", "bfloat16"]:
    """Convolutions in bfloat16 where that is fast."""
    return "bfloat16" if has_bfloat16() and case.model not in ("mlp", "linear") else "float32"


def distances(case: Case, of: fs.Federation, seed: int) -> dict[str, float]:
    """L1 distance of estimated and true distributions, mean over clients, by calibration."""
    fitted = FederatedMLLS(
        model=case.model,
        plan=case.plan,
        folds=case.folds,
        precision=precision_of(case),
        device="cpu",
        seed=seed,
    ).fit(of)
    out = {}
    for name in CALIBRATIONS:
        again, off = fitted.recalibrated(name), []
        for c in of:
            assert c.test_y is not None
            distribution = again.marginals_[c.name]
            truth = np.bincount(c.test_y, minlength=len(distribution)) / len(c.test_y)
            off.append(np.abs(distribution - truth).sum())
        out[name] = float(np.mean(off))
    return out


def half_width(values: np.ndarray[Any, Any]) -> float:
    """Half the width of a 95 % t interval of the mean."""
    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / n**0.5) if n > 1 else np.nan


def main() -> int:
    """Run the benchmark and return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder with fashion-mnist and cifar10")
    parser.add_argument("--case", nargs="+", choices=list(CASES), help="only these")
    args = parser.parse_args()
    names = args.case or (QUICK if args.quick else list(CASES))
    bars, cases = [], {}
    for name in names:
        case = CASES[name]
        seeds = case.seeds[:2] if args.quick else case.seeds
        l1: dict[str, list[float]] = {c: [] for c in CALIBRATIONS}
        for seed in seeds:
            of = case.clients(seed, args.data_dir)
            for calibration, off in distances(case, of, seed).items():
                l1[calibration].append(off)
            print(f"{name}: seed {seed} done", file=sys.stderr, flush=True)
        plain, matrix = (np.array(l1[c]) for c in CALIBRATIONS)
        gap, half = float((matrix - plain).mean()), half_width(matrix - plain)
        note = f"{plain.mean():.4f} → {matrix.mean():.4f}, ± {half:.4f}, {len(plain)} seeds"
        if case.harmless:
            bars.append(Bar(f"{name}: further away by a matrix", gap, 0.005, "<=", note))
        else:
            part = float(matrix.mean() / plain.mean())
            bars.append(Bar(f"{name}: matrix / temperature", part, 0.75, "<=", note))
        cases[name] = {
            "seeds": list(seeds),
            "precision": precision_of(case),
            "l1": l1,
            "gap": gap,
            "half_width": half,
        }
    return report(bars, {"quick": args.quick, "cases": cases}, args.json)


if __name__ == "__main__":
    sys.exit(main())
