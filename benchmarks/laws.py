"""How well are the clients' test label laws found, and what does a calibration by a matrix give?

    python benchmarks/laws.py --quick --data-dir DATA
    python benchmarks/laws.py --data-dir DATA --json benchmarks/records/laws.json

`FederatedMLLS` trains classifiers of all clients' rows once and calibrates them twice on rows they
have not seen: by a temperature and biases ("bcts"), and by a matrix besides ("matrix", the
default). A figure is the L1 distance of estimated and true test label law, mean over clients.

Bars, for seeds that nothing was chosen on: by a matrix the laws are at most .005 further away
in any case (no harm), and at most three quarters as far away on five clients of CIFAR-10, whose
rare classes look like common ones. Where the processor has bfloat16, networks are computed in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch are imported

import numpy as np
from _common import Bar, arguments, report
from scipy import stats
from torch import nn

import fedshift as fs
from fedshift.core.device import has_bfloat16
from fedshift.federation import FederatedMLLS
from fedshift.learn.models import ResNet18

CALIBRATIONS = ("bcts", "matrix")


def small_resnet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of the recipe small/cifar-five."""
    return ResNet18(shape, classes, width=16)


@dataclass(frozen=True)
class Case:
    """A federation and the classifiers that find its label laws; as in the recipe of its name."""

    source: str
    shift: Callable[[], Any]
    seeds: range
    model: Any = "mlp"
    plan: fs.FedSGD = field(default_factory=fs.FedSGD)
    folds: int = 2
    lean: float = 0.0
    harmless: bool = True  # or does it have to help?


CROPPED = fs.FedSGD(iterations=2000, importance="sampling", augment="crop-flip")
BLENDED = fs.FedSGD(
    iterations=800,
    importance="sampling",
    augment="crop-flip",
    mixup=1.0,
    average=0.998,
    norm="synchronous",
    weight_decay=1e-4,
)
CASES = {
    "digits, five": Case(
        "digits",
        lambda: fs.shift.Labels.one_class_each(train=(90, 3), test=(55, 3)),
        range(10, 30),
        folds=5,
    ),
    "digits, five, milder": Case(
        "digits",
        lambda: fs.shift.Labels.one_class_each(train=(50, 10), test=(30, 8)),
        range(10, 30),
        folds=5,
    ),
    "digits, five, linear": Case(
        "digits",
        lambda: fs.shift.Labels.one_class_each(train=(90, 3), test=(55, 3)),
        range(10, 30),
        model="linear",
        folds=5,
    ),
    "Fashion-MNIST, five": Case(
        "fashion-mnist",
        lambda: fs.shift.Labels.paper("five-clients"),
        range(10, 15),
        model="lenet",
        plan=CROPPED,
    ),
    "Fashion-MNIST, two": Case(
        "fashion-mnist",
        lambda: fs.shift.Labels.paper("two-clients"),
        range(10, 15),
        model="lenet",
        plan=CROPPED,
    ),
    "CIFAR-10, five, LeNet": Case(
        "cifar10",
        lambda: fs.shift.Labels.paper("five-clients-cifar"),
        range(10, 13),
        model="lenet",
        plan=fs.FedSGD(iterations=3000, importance="sampling", augment="crop-flip"),
        harmless=False,
    ),
    "CIFAR-10, five, ResNet": Case(
        "cifar10",
        lambda: fs.shift.Labels.paper("five-clients-cifar"),
        range(10, 12),
        model=small_resnet,
        plan=BLENDED,
        lean=1.0,
        harmless=False,
    ),
    "CIFAR-10, hundred, LeNet": Case(
        "cifar10",
        lambda: fs.shift.Labels.paper("hundred-clients-cifar"),
        range(10, 12),
        model="lenet",
        plan=fs.FedSGD(
            iterations=5000, participation=5, importance="sampling", augment="crop-flip"
        ),
    ),
}
QUICK = ("digits, five", "digits, five, linear", "Fashion-MNIST, two")


def distances(case: Case, data: Any, seed: int) -> dict[str, float]:
    """L1 distance of estimated and true laws, mean over clients, by calibration."""
    of = data.split(case.shift(), seed=seed)
    fitted = FederatedMLLS(
        model=case.model,
        plan=case.plan,
        folds=case.folds,
        lean=case.lean,
        precision="bfloat16" if has_bfloat16() and case.source != "digits" else "float32",
        device="cpu",
        seed=seed,
    ).fit(of)
    out = {}
    for name in CALIBRATIONS:
        found, off = fitted.recalibrated(name), []
        for c in of:
            assert c.test_y is not None
            law = found.marginals_[c.name]
            truth = np.bincount(c.test_y, minlength=len(law)) / len(c.test_y)
            off.append(np.abs(law - truth).sum())
        out[name] = float(np.mean(off))
    return out


def half_width(values: np.ndarray[Any, Any]) -> float:
    """Of a 95 % t interval of the mean."""
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
        data = fs.data.load(case.source, data_dir=args.data_dir)
        seeds = case.seeds[: 5 if case.source == "digits" else 1] if args.quick else case.seeds
        found: dict[str, list[float]] = {c: [] for c in CALIBRATIONS}
        for seed in seeds:
            for calibration, off in distances(case, data, seed).items():
                found[calibration].append(off)
            print(f"{name}: seed {seed} done", file=sys.stderr, flush=True)
        plain, mended = (np.array(found[c]) for c in CALIBRATIONS)
        gap, half = float((mended - plain).mean()), half_width(mended - plain)
        note = f"{plain.mean():.4f} → {mended.mean():.4f}, ± {half:.4f}, {len(plain)} seeds"
        if case.harmless:
            bars.append(Bar(f"{name}: further away by a matrix", gap, 0.005, "<=", note))
        else:
            part = float(mended.mean() / plain.mean())
            bars.append(Bar(f"{name}: matrix / temperature", part, 0.75, "<=", note))
        cases[name] = {"seeds": list(seeds), "l1": found, "gap": gap, "half_width": half}
    return report(bars, {"quick": args.quick, "cases": cases}, args.json)


if __name__ == "__main__":
    sys.exit(main())
