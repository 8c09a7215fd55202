"""Measure the false alarms, the power, the named shift types and the time of `diagnose`.

1. False alarms: federations without any shift, of 2 to 5 sites, with 50 to 50,000 rows per side
   (log-uniform, drawn for every sample), 1 to 15 columns that are Gaussian, correlated,
   heavy-tailed, discrete, binary or constant, and 2 or 3 classes; half of them have test labels. A
   false alarm is a diagnosis with any comparison called a shift. Tests use at most 5,000 rows per
   side, so larger samples take no longer.
2. Power: one of three sites has label shift (class shares .3 → .6, classes two standard deviations
   apart) or covariate shift (one of eight columns moved by half a standard deviation), with 500
   rows per side; the share of diagnoses that call that site shifted. Label shift .3 → .5 is printed
   without a bar.
3. Shift types: two sites with 1,000 rows per side and test labels; the share of sites with the
   right shift type, for label, covariate and concept shift. Without test labels, label shift must
   be distinguished from covariate shift.
4. The smallest effect that matters: for two Gaussian classes and every change of their
   proportions, the accuracy that the best weights gain, by AUC of the inputs. Printed without a
   bar.
5. Time of a diagnosis of four sites with 1,000 and with 50,000 rows per side and 15 columns, three
   of them with a shift, on one core.

    python benchmarks/diagnose.py --quick
    python benchmarks/diagnose.py --json benchmarks/records/diagnose.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: times are those of one core

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import Bar, arguments, report
from scipy.stats import norm

from fedshift.data.federation import Federation
from fedshift.diagnose import diagnose
from fedshift.diagnose.finding import SMALLEST

Array = np.ndarray[Any, np.dtype[Any]]
Rng = np.random.Generator
Draw = Callable[[int, Rng], tuple[Array, Array]]


def mixed_table(rng: Rng) -> Draw:
    """Make a distribution of rows and labels with all sorts of columns."""
    d = int(rng.integers(1, 16))
    sorts = rng.integers(0, 6, size=d)
    mix = rng.standard_normal((d, d)) * 0.4 + np.eye(d)
    k = int(rng.integers(2, 4))
    slope = rng.standard_normal((d, k))

    def draw(n: int, rng: Rng) -> tuple[Array, Array]:
        g = rng.standard_normal((n, d))
        x = g @ mix
        score = x @ slope / np.sqrt(d) + rng.gumbel(size=(n, k))
        for j, sort in enumerate(sorts):
            if sort == 1:
                x[:, j] = rng.standard_t(1.1, size=n) * np.exp(g[:, j])
            elif sort == 2:
                x[:, j] = np.floor(2.0 * x[:, j])
            elif sort == 3:
                x[:, j] = x[:, j] > 1.0
            elif sort == 4:
                x[:, j] = 7.0
        return x, score.argmax(axis=1)

    return draw


def log_uniform(rng: Rng, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high))))


def without_shift(rng: Rng, low: int = 50, high: int = 50_000) -> Federation:
    draw = mixed_table(rng)
    labelled = rng.random() < 0.5
    clients: dict[str, tuple[Array, ...]] = {}
    for k in range(int(rng.integers(2, 6))):
        x, y = draw(log_uniform(rng, low, high), rng)
        test_x, test_y = draw(log_uniform(rng, low, high), rng)
        clients[f"site {k}"] = (x, y, test_x, test_y) if labelled else (x, y, test_x)
    return Federation.of(clients)


def two_classes(n: int, rng: Rng, *, share: float = 0.3, d: int = 8) -> tuple[Array, Array]:
    """Two Gaussian classes, two standard deviations apart."""
    y = (rng.random(n) < share).astype(np.int64)
    x = rng.standard_normal((n, d))
    x[:, :3] += 2.0 / np.sqrt(3.0) * y[:, None]
    return x, y


def shifted(kind: str, n: int, rng: Rng, *, strong: bool, d: int = 8) -> tuple[Array, Array]:
    """Rows of a distribution that differs from `two_classes` in one way."""
    if kind == "label":
        return two_classes(n, rng, share=0.65 if strong else 0.6, d=d)
    if kind == "weak label":
        return two_classes(n, rng, share=0.5, d=d)
    if kind == "covariate":
        x, y = two_classes(8 * n, rng, d=d)
        size = 1.0 if strong else 0.5
        # rows drawn in proportion to a tilt of the last column change its mean and nothing else
        keep = rng.random(len(x)) < np.exp(size * np.minimum(x[:, -1] - 3.0, 0.0))
        new_x, new_y = x[keep][:n], y[keep][:n]
        if len(new_x) < n:
            x, y = shifted(kind, n - len(new_x), rng, strong=strong, d=d)
            return np.concatenate([new_x, x]), np.concatenate([new_y, y])
        return new_x, new_y
    x, y = two_classes(n, rng, d=d)
    if kind == "concept":
        y = np.where((x[:, 4] > 0) & (rng.random(n) < 0.4), 1 - y, y)
    return x, y


def false_alarms(repeats: int, seed: int) -> dict[str, Any]:
    alarms, took, rows = [], [], []
    for r in range(repeats):
        rng = np.random.default_rng([seed, r])
        federation = without_shift(rng)
        begin = time.perf_counter()
        shifts = diagnose(federation, seed=r).shifted
        took.append(time.perf_counter() - begin)
        alarms.append([repr(f) for c in shifts for f in c.findings if f.status == "shift"])
        rows.append([(len(c.x), len(c.test_x)) for c in federation])
    rate = float(np.mean([len(a) > 0 for a in alarms]))
    return {
        "repeats": repeats,
        "rate": rate,
        "alarms": {r: a for r, a in enumerate(alarms) if a},
        "seconds": float(np.sum(took)),
        "median_rows": float(np.median([n for pair in rows for s in pair for n in s])),
    }


def power(kind: str, repeats: int, seed: int, n: int = 500) -> float:
    hits = 0
    for r in range(repeats):
        rng = np.random.default_rng([seed, r])
        clients = {}
        for name in ("a", "b", "c"):
            own = kind if name == "b" else "none"
            clients[name] = (*two_classes(n, rng), shifted(own, n, rng, strong=False)[0])
        hits += diagnose(Federation.of(clients), seed=r)["b"].status == "shift"
    return hits / repeats


def shift_types(kind: str, repeats: int, seed: int, *, labelled: bool, n: int = 1000) -> float:
    right = 0
    want = {"concept": ("none", True), "covariate": (kind, False if labelled else None)}
    for r in range(repeats):
        rng = np.random.default_rng([seed, r])
        new = shifted(kind, n, rng, strong=True)
        clients = {
            "a": (*two_classes(n, rng), *(new if labelled else new[:1])),
            "b": (*two_classes(n, rng), two_classes(n, rng)[0]),
        }
        shift_type = diagnose(Federation.of(clients), seed=r)["a"].shift_type
        right += (shift_type.name, shift_type.concept) == want.get(kind, (kind, False))
    return right / repeats


def smallest_effect() -> list[dict[str, float]]:
    """Compute the median and largest gain in accuracy of the best weights, by AUC of the inputs."""
    x = np.linspace(-10.0, 14.0, 6001)
    step = x[1] - x[0]
    gains: dict[float, list[float]] = {}
    for apart in (0.5, 1.0, 1.5, 2.0, 3.0):
        f0, f1 = norm.pdf(x), norm.pdf(x - apart)
        for a in (0.05, 0.1, 0.2, 0.3, 0.5):
            for b in np.linspace(a, 0.95, 100):
                p, q = (1 - a) * f0 + a * f1, (1 - b) * f0 + b * f1
                auc = float((q * (np.cumsum(p) - 0.5 * p)).sum() * step**2)
                old, new = a * f1 > (1 - a) * f0, b * f1 > (1 - b) * f0
                wrong = [np.where(rule, (1 - b) * f0, b * f1).sum() * step for rule in (old, new)]
                gains.setdefault(round(auc * 100) / 100, []).append(float(wrong[0] - wrong[1]))
    return [
        {"auc": auc, "median_gain": float(np.median(g)), "largest_gain": float(np.max(g))}
        for auc, g in sorted(gains.items())
        if auc <= 0.6
    ]


def seconds(n: int, seed: int) -> float:
    rng = np.random.default_rng([seed, n])
    clients = {
        kind: (*two_classes(n, rng, d=15), *shifted(kind, n, rng, strong=True, d=15))
        for kind in ("none", "label", "covariate", "concept")
    }
    federation = Federation.of(clients)
    begin = time.perf_counter()
    diagnose(federation)
    return time.perf_counter() - begin


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    repeats, few = (30, 5) if args.quick else (200, 40)
    record: dict[str, Any] = {"quick": args.quick, "seed": args.seed, "smallest": SMALLEST}
    record["false_alarms"] = alarms = false_alarms(repeats, args.seed)
    note = f"{repeats} diagnoses, {alarms['seconds']:.0f} s"
    bars = [Bar("false alarms", alarms["rate"], 0.05, note=note)]
    print(bars[-1], flush=True)
    for kind in ("label", "covariate"):
        record[f"power {kind}"] = share = power(kind, few, args.seed + 1)
        bars.append(Bar(f"power, {kind} shift, 500 rows", share, 0.8, ">="))
    record["power weak label"] = share = power("weak label", few, args.seed + 1)
    print(f"power, label shift .3 to .5, 500 rows: {share:.2f}", flush=True)
    for kind, labelled in (
        ("label", True),
        ("covariate", True),
        ("concept", True),
        ("label", False),
        ("covariate", False),
    ):
        words = f"shift type, {kind} shift, {'with' if labelled else 'without'} test labels"
        record[words] = share = shift_types(kind, few, args.seed + 2, labelled=labelled)
        bars.append(Bar(words, share, 0.9, ">="))
    record["smallest effect"] = table = smallest_effect()
    for row in table:
        print(
            f"AUC {row['auc']:.2f}: best weights gain {row['median_gain']:.4f} accuracy in the "
            f"median, {row['largest_gain']:.3f} at most"
        )
    for n, bound in ((1000, 15.0), (50_000, 60.0)):
        record[f"seconds {n}"] = took = seconds(n, args.seed)
        bars.append(Bar(f"seconds, 4 sites, {n} rows, 15 columns", took, bound))
    return report(bars, record, args.json)


if __name__ == "__main__":
    sys.exit(main())
