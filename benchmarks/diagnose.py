"""Does a diagnosis cry wolf, does it see what is there, and how long does it take?

1. False alarms: federations without any shift, of 2 to 5 sites, with 50 to 50,000 rows a side
   (log-uniform, drawn for every sample), 1 to 15 columns that are Gaussian, correlated,
   heavy-tailed, discrete, binary or constant, and 2 or 3 classes; half of them have test labels. A
   false alarm is a diagnosis with a single comparison called a shift. Tests use at most 5,000 rows
   a side, so large samples cost what 5,000 rows do.
2. Power: one of three sites has label shift (class shares .3 → .6, classes two standard deviations
   apart) or covariate shift (one of eight columns moved by half a standard deviation), with 500
   rows a side; the share of diagnoses that call that site shifted. Label shift .3 → .5 is shown
   without a bar.
3. Kinds: two sites with 1,000 rows a side and test labels; the share whose kind is right, for
   label, covariate and concept shift. Without test labels, label shift must be told from the
   rest.
4. Forecast: three sites with 1,000 rows a side, two of them with a shift, either of the shares of
   two Gaussian classes or of the inputs of a law that no straight line fits. A forecast is wrong
   if it says that weights help and exact weights harm the same linear model on labelled test rows,
   or the other way round; and the true gain should lie in its interval.
5. The smallest effect that matters: for two Gaussian classes and every change of their shares,
   what the best weights gain in accuracy where inputs have this AUC. Shown without a bar.
6. Time of a diagnosis of four sites with 1,000 and with 50,000 rows a side and 15 columns, three
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
from scipy.special import expit
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from fedshift.data.federation import Federation
from fedshift.diagnose import diagnose
from fedshift.diagnose.finding import SMALLEST

Array = np.ndarray[Any, np.dtype[Any]]
Rng = np.random.Generator
Draw = Callable[[int, Rng], tuple[Array, Array]]


def mixed_table(rng: Rng) -> Draw:
    """A law of rows and labels with columns of every sort."""
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


def moved(kind: str, n: int, rng: Rng, *, strong: bool, d: int = 8) -> tuple[Array, Array]:
    """Rows of a law that differs from `two_classes` in one way."""
    if kind == "label":
        return two_classes(n, rng, share=0.65 if strong else 0.6, d=d)
    if kind == "weak label":
        return two_classes(n, rng, share=0.5, d=d)
    if kind == "covariate":
        x, y = two_classes(8 * n, rng, d=d)
        size = 1.0 if strong else 0.5
        # rows kept in proportion to a tilt of the last column move its mean and nothing else
        kept = rng.random(len(x)) < np.exp(size * np.minimum(x[:, -1] - 3.0, 0.0))
        more, less = x[kept][:n], y[kept][:n]
        if len(more) < n:
            x, y = moved(kind, n - len(more), rng, strong=strong, d=d)
            return np.concatenate([more, x]), np.concatenate([less, y])
        return more, less
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
        found = diagnose(federation, seed=r)
        took.append(time.perf_counter() - begin)
        alarms.append([repr(f) for c in found.shifted for f in c.findings if f.status == "shift"])
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
            law = kind if name == "b" else "none"
            clients[name] = (*two_classes(n, rng), moved(law, n, rng, strong=False)[0])
        hits += diagnose(Federation.of(clients), seed=r)["b"].status == "shift"
    return hits / repeats


def kinds(kind: str, repeats: int, seed: int, *, labelled: bool, n: int = 1000) -> float:
    right = 0
    want = kind if labelled or kind == "label" else "covariate or concept"
    for r in range(repeats):
        rng = np.random.default_rng([seed, r])
        new = moved(kind, n, rng, strong=True)
        clients = {
            "a": (*two_classes(n, rng), *(new if labelled else new[:1])),
            "b": (*two_classes(n, rng), two_classes(n, rng)[0]),
        }
        right += diagnose(Federation.of(clients), seed=r)["a"].kind.name == want
    return right / repeats


def curved(n: int, rng: Rng, tilt: float = 0.0) -> tuple[Array, Array]:
    """A boundary no straight line fits; a tilt keeps rows with a large first column."""
    x = rng.standard_normal((20 * n if tilt else n, 6))
    if tilt:
        x = x[rng.random(len(x)) < expit(tilt * (x[:, 0] - 1.0))][:n]
    score = 2.0 * (np.square(x[:, 0]) - 1.0) + x[:, 1]
    return x, (rng.random(len(x)) < expit(score)).astype(np.int64)


def forecast_case(kind: str, n: int, rng: Rng) -> list[tuple[Array, ...]]:
    """Three sites: x, y, test_x, test_y and the exact weights of the training rows."""
    out = []
    for share, tilt in ((0.3, 0.0), (0.65, 2.0), (0.5, 2.0)):
        if kind == "label":
            (x, y), test = two_classes(n, rng), two_classes(n, rng, share=share)
            weight = np.where(y == 1, share / 0.3, (1.0 - share) / 0.7)
        else:
            (x, y), test = curved(n, rng), curved(n, rng, tilt)
            weight = expit(tilt * (x[:, 0] - 1.0))
        out.append((x, y, *test, weight / weight.mean()))
    return out


def forecast(kind: str, repeats: int, seed: int, n: int = 1000) -> dict[str, float]:
    wrong, held, said, gains = 0, 0, 0, []
    for r in range(repeats):
        rng = np.random.default_rng([seed, r])
        case = forecast_case(kind, n, rng)
        federation = Federation.of({f"site {k}": c[:3] for k, c in enumerate(case)})
        found = diagnose(federation, seed=r).predicted_effect
        x, y, weight = (np.concatenate([c[i] for c in case]) for i in (0, 1, 4))
        losses = []
        for w in (None, weight):
            model = LogisticRegression(max_iter=500).fit(x, y, sample_weight=w)
            p = [model.predict_proba(c[2])[np.arange(len(c[3])), c[3]] for c in case]
            losses.append(-np.mean([np.log(v).mean() for v in p]))
        gain = float(losses[0] - losses[1])
        gains.append(gain)
        said += found.verdict in ("helps", "hurts")
        wrong += found.verdict == ("hurts" if gain > 0 else "helps")
        held += found.low <= gain <= found.high
    return {
        "wrong": wrong / repeats,
        "covered": held / repeats,
        "decided": said / repeats,
        "true gain": float(np.mean(gains)),
    }


def smallest_effect() -> list[dict[str, float]]:
    """Median and largest gain in accuracy of the best weights, by AUC of the inputs."""
    x = np.linspace(-10.0, 14.0, 6001)
    step = x[1] - x[0]
    found: dict[float, list[float]] = {}
    for apart in (0.5, 1.0, 1.5, 2.0, 3.0):
        f0, f1 = norm.pdf(x), norm.pdf(x - apart)
        for a in (0.05, 0.1, 0.2, 0.3, 0.5):
            for b in np.linspace(a, 0.95, 100):
                p, q = (1 - a) * f0 + a * f1, (1 - b) * f0 + b * f1
                auc = float((q * (np.cumsum(p) - 0.5 * p)).sum() * step**2)
                old, new = a * f1 > (1 - a) * f0, b * f1 > (1 - b) * f0
                wrong = [np.where(rule, (1 - b) * f0, b * f1).sum() * step for rule in (old, new)]
                found.setdefault(round(auc * 100) / 100, []).append(float(wrong[0] - wrong[1]))
    return [
        {"auc": auc, "median_gain": float(np.median(g)), "largest_gain": float(np.max(g))}
        for auc, g in sorted(found.items())
        if auc <= 0.6
    ]


def seconds(n: int, seed: int) -> float:
    rng = np.random.default_rng([seed, n])
    clients = {
        kind: (*two_classes(n, rng, d=15), *moved(kind, n, rng, strong=True, d=15))
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
        words = f"kind, {kind} shift, {'with' if labelled else 'without'} test labels"
        record[words] = share = kinds(kind, few, args.seed + 2, labelled=labelled)
        bars.append(Bar(words, share, 0.9, ">="))
    for kind in ("label", "curved"):
        record[f"forecast {kind}"] = told = forecast(kind, few, args.seed + 3)
        note = f"decided in {told['decided']:.0%}, true gain {told['true gain']:.3f} nats"
        bars.append(Bar(f"forecast, {kind}, wrong", told["wrong"], 0.05, note=note))
        bars.append(Bar(f"forecast, {kind}, gain in the interval", told["covered"], 0.85, ">="))
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
