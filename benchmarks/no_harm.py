"""Measure the no-harm test: is the chosen model never worse than ERM, and does it keep the gain?

python benchmarks/no_harm.py --json benchmarks/records/no_harm.json

Four real tables of classes inside scikit-learn (iris, wine, breast cancer, digits) and one of
numbers (diabetes), each cut into 3 to 5 sites in 50 ways under five regimes:

none        rows split at random
label       classes rare in training are common in deployment and the other way round, odds 5 to 1,
            with label distributions that differ between sites (Dirichlet); not for numbers
covariate   rows drawn along a random direction in the span of the first three principal ones of
            the scaled columns; slopes differ between sites and change sign in deployment
concept     rows split at random, then p(y | x) of one site changes: most of its training labels
            are rotated (numbers mirrored), most of its test labels are, or its test rows are moved
            by two standard deviations, in turn
beyond      rows sorted along a random direction, as covariate; the first three fifths train, all
            deployment rows are beyond them (of classes that have training rows)

ERM is the first candidate of the same run of `fit_tables`: same model, folds, ridges and rounds.
The exact-ratio figure is `fit_tables(objective="ftw", ratio="exact", gated=False)`. Where the gate
or the overlap refused a weighted model, `fit_tables(gated=False)` measures what it would have done;
the frontier shows gain and harm for other levels of the gate's interval and other limits on the
overlap.

Bars, stated before the measurement:

- harm: for every table and regime, ERM's mean accuracy minus the gated one's, over the splits, is
  at most .005 (accuracy is the mean over sites; for numbers it is the explained share of the
  variance of all labels);
- gain: under label shift, the gated gain over ERM is at least 80 % of the exact-ratio gain, both
  summed over the tables' means; the share of every table is printed too;
- test labels are never read before the end: with shuffled ones all choices and forecasts are the
  same;
- the forecast's 95 % interval contains the accuracy of at least 90 % of the sites where p(y | x)
  did not change.

The constants of `fedshift.federation.shift_type` were chosen on seeds 100 to 149 of the same
tables and regimes; those of overlap and of inconclusive shift types on seeds 100 to 113. The
figures are of seeds 1000 to 1049.

Harm had the bar .01 before the gate required an interval wholly below zero. On seeds 100 to 113
that interval took a fifth of the gain under label shift (+.049 to +.040 a table), and the largest
mean harm of a table and regime fell from .029 to 0. So the bar of harm is lower now, and that of
gain is missed. The frontier shows what the level of the interval trades: on the reported seeds 68 %
would meet both bars. The rule is 80 %, since it shall not use weights on weak evidence.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from _common import Bar, arguments, report
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine

from fedshift.core.samples import Float64Array
from fedshift.data.federation import ClientData, Federation
from fedshift.data.shift import CovariateTilt, Labels
from fedshift.errors import FedshiftWarning
from fedshift.learn.evaluate import Evaluation
from fedshift.learn.gate import GateRule
from fedshift.tabular import fit_tables

#: table: loader, sites
TABLES: dict[str, tuple[Callable[[], Any], int]] = {
    "iris": (load_iris, 3),
    "wine": (load_wine, 3),
    "cancer": (load_breast_cancer, 4),
    "digits": (load_digits, 5),
    "diabetes": (load_diabetes, 4),
}
CLASSES = ("iris", "wine", "cancer", "digits")
FIRST, SPLITS = 1000, 50
#: odds of common to rare classes; slope of a tilt; share of labels rotated; deviations moved
ODDS, SLOPE, ROTATED, MOVED = 5.0, 2.0, 0.7, 2.0


def table(name: str) -> tuple[Float64Array, np.ndarray[Any, Any], int]:
    """Load rows, labels and the number of sites."""
    load, sites = TABLES[name]
    data = load()
    y = data.target.astype(np.int64 if name in CLASSES else np.float64)
    return data.data.astype(np.float64), y, sites


def no_shift(name: str, seed: int) -> Federation:
    """Split rows at random."""
    x, y, sites = table(name)
    flat = [0.0] * sites
    return CovariateTilt(train_slopes=flat, test_slopes=flat).split(x, y, seed=seed)


def label_shift(name: str, seed: int) -> Federation:
    """Make half of the classes rare in training and the other half rare in deployment."""
    x, y, sites = table(name)
    rng = np.random.default_rng(seed)
    classes = int(y.max()) + 1
    order = rng.permutation(classes)
    counts = []
    for rare in (order[: classes // 2], order[classes - classes // 2 :]):
        base = np.ones(classes)
        base[rare] = 1 / ODDS
        shares = rng.dirichlet(10 * base / base.mean(), size=sites)
        counts.append(np.maximum(1, np.rint(10 * len(y) * shares)).astype(np.int64))
    half = np.zeros(len(y), dtype=bool)
    for c in range(classes):
        own = rng.permutation(np.flatnonzero(y == c))
        half[own[: len(own) // 2]] = True
    shift = Labels(counts[0], counts[1], short="shrink")
    return shift.split(x[half], y[half], x[~half], y[~half], seed=seed)


def direction(x: Float64Array, rng: np.random.Generator) -> tuple[Float64Array, Float64Array]:
    """Draw a direction of the scaled columns: its coefficients, and a move of two deviations."""
    sd = x.std(axis=0)
    unit = np.where(sd > 0, sd, 1.0)
    axes = np.linalg.svd((x - x.mean(axis=0)) / unit, full_matrices=False)[2][:3]
    way = rng.normal(size=3) @ axes * (sd > 0)
    return way / unit, MOVED * way / np.linalg.norm(way) * sd


def covariate_shift(name: str, seed: int) -> Federation:
    """Draw rows along a direction; p(y | x) stays the same."""
    x, y, sites = table(name)
    rng = np.random.default_rng(seed)
    slope = SLOPE * rng.uniform(0.5, 1.0, size=sites)
    tilt = CovariateTilt(
        train_slopes=(-slope).tolist(),
        test_slopes=slope[::-1].tolist(),
        direction=direction(x, rng)[0],
    )
    return tilt.split(x, y, seed=seed)


def concept_shift(name: str, seed: int) -> Federation:
    """Change p(y | x) at one site; the others do not shift."""
    fed = no_shift(name, seed)
    rng = np.random.default_rng(seed)
    x, y, sites = table(name)
    k, kind = int(rng.integers(sites)), seed % 3
    c = fed[k]
    assert c.test_y is not None
    if kind == 2:
        changed = replace(c, test_x=c.test_x + direction(x, rng)[1])
    else:
        part = c.y if kind == 0 else c.test_y
        other = (part + 1) % (y.max() + 1) if name in CLASSES else 2 * y.mean() - part
        turned = np.where(rng.random(len(part)) < ROTATED, other, part)
        changed = replace(c, y=turned) if kind == 0 else replace(c, test_y=turned)
    return Federation(tuple(changed if i == k else old for i, old in enumerate(fed)))


def beyond(name: str, seed: int) -> Federation:
    """Train on the rows that come first along a direction; deploy on those beyond them."""
    x, y, sites = table(name)
    rng = np.random.default_rng(seed)
    order = np.argsort(x @ direction(x, rng)[0], kind="stable")
    train, test = np.split(order, [3 * len(y) // 5])
    if name in CLASSES:
        test = test[np.isin(y[test], y[train])]
    parts = (np.array_split(rng.permutation(rows), sites) for rows in (train, test))
    return Federation(
        tuple(
            ClientData(f"client-{k}", x[a], y[a], x[b], y[b])
            for k, (a, b) in enumerate(zip(*parts, strict=True))
        )
    )


REGIMES = {
    "none": no_shift,
    "label": label_shift,
    "covariate": covariate_shift,
    "concept": concept_shift,
    "beyond": beyond,
}
#: levels of the gate's interval and limits on the share of rows outside, for the frontier
LEVELS, LIMITS = (0.5, 0.68, 0.8, 0.9, 0.95), (0.02, 0.1, 0.2, 1.0)


def shuffled(fed: Federation, seed: int) -> Federation:
    """Return the same federation with shuffled test labels."""
    rng = np.random.default_rng(seed)

    def other(c: ClientData) -> ClientData:
        return replace(c, test_y=rng.permutation(c.test_y))

    return replace(fed, clients=tuple(other(c) for c in fed))


def figure(name: str, evaluation: Evaluation | None) -> float:
    """Compute the mean accuracy over sites; for numbers the explained share of the variance."""
    assert evaluation is not None
    if name in CLASSES:
        return evaluation.mean
    return 1 - evaluation.mean / float(table(name)[1].var())


def measure(name: str, regime: str, seed: int, *, blind: bool) -> dict[str, Any]:
    """Measure one split: accuracies, the choice, the forecast."""
    fed = REGIMES[regime](name, seed)
    begin = time.process_time()
    out = fit_tables(fed, seed=seed)
    spent = time.process_time() - begin
    assert out.evaluation is not None
    row: dict[str, Any] = {
        "table": name,
        "regime": regime,
        "seed": seed,
        "erm": figure(name, out.before),
        "gated": figure(name, out.evaluation),
        "choice": out.choice,
        "seconds": spent,
        "forecast": [
            [f.value, f.low, f.high, s.value]
            for f, s in zip(out.forecast.rows, out.evaluation.rows, strict=True)
        ],
    }
    asked = out
    if out.choice == "erm" and out.shift_type in out.explanations:
        asked = fit_tables(fed, seed=seed, gated=False)
    for kind, d in asked.gate.differences.items():
        row["candidate"] = {
            "figure": figure(name, asked.candidates[kind].evaluation),
            **{k: getattr(d, k) for k in ("value", "error", "ess")},
            "outside": out.explanations["covariate"].outside,
        }
    if regime == "label":
        with warnings.catch_warnings():  # of exact weights of a class with one row
            warnings.simplefilter("ignore", FedshiftWarning)
            exact = fit_tables(fed, seed=seed, objective="ftw", ratio="exact", gated=False)
        row["exact"] = figure(name, exact.evaluation)
    if blind:
        again = fit_tables(shuffled(fed, seed), seed=seed)
        row["blind"] = bool(
            again.gate.to_dict() == out.gate.to_dict() and again.forecast == out.forecast
        )
    return row


def summary(part: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute the means of one table and regime."""
    gap = np.array([r["gated"] - r["erm"] for r in part])
    means: dict[str, Any] = {
        "erm": float(np.mean([r["erm"] for r in part])),
        "gated": float(np.mean([r["gated"] for r in part])),
        "gain": float(gap.mean()) + 0.0,
        "error": float(gap.std(ddof=1) / np.sqrt(len(gap))),
        "worst": float(gap.min()),
        "weighted": float(np.mean([r["choice"] != "erm" for r in part])),
        "splits": len(part),
        "seconds": float(np.mean([r["seconds"] for r in part])),
    }
    if "exact" in part[0]:
        means["exact"] = float(np.mean([r["exact"] for r in part]))
    return means


def frontier(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measure gain and harm for other levels of the interval and other limits on the overlap."""
    exact = sum(r["exact"] - r["erm"] for r in rows if "exact" in r)
    out = []
    for limit in LIMITS:
        for level in LEVELS:
            gains: dict[str, list[float]] = {}
            for r in rows:
                c = r.get("candidate")
                good = c and c["value"] + norm.ppf((1 + level) / 2) * c["error"] < 0
                chosen = good and c["ess"] >= GateRule().min_ess and c["outside"] <= limit
                gain = c["figure"] - r["erm"] if chosen else 0.0
                for key in (r["regime"], f"{r['table']} {r['regime']}"):
                    gains.setdefault(key, []).append(gain)
            means = {key: float(np.mean(part)) for key, part in gains.items()}
            worst = min((key for key in means if " " in key), key=lambda key: means[key])
            out.append(
                {
                    "level": level,
                    "limit": limit,
                    "share": sum(gains["label"]) / exact,
                    "covariate": means["covariate"],
                    "beyond": means["beyond"],
                    "harm": 0.0 - means[worst],
                    "at": worst,
                    "split": 0.0 - min(min(part) for part in gains.values()),
                }
            )
    return out


def bars(rows: list[dict[str, Any]]) -> tuple[list[Bar], dict[str, Any]]:
    """Make the bars and the means behind them."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        groups.setdefault(f"{r['table']} {r['regime']}", []).append(r)
    means = {key: summary(part) for key, part in groups.items()}
    out = [
        Bar(
            f"harm, {key}",
            0.0 - m["gain"],
            0.005,
            note=f"± {m['error']:.4f}, {m['weighted']:.0%} weighted",
        )
        for key, m in means.items()
    ]
    label = {name: means[f"{name} label"] for name in CLASSES}
    possible = {name: m["exact"] - m["erm"] for name, m in label.items()}
    share = sum(m["gain"] for m in label.values()) / sum(possible.values())
    each = ", ".join(f"{n} {m['gain']:+.3f} of {possible[n]:+.3f}" for n, m in label.items())
    out.append(Bar("share of the exact gain under label shift", share, 0.8, ">=", each))
    sites = [
        f
        for r in rows
        if r["regime"] not in ("concept", "beyond") and r["table"] in CLASSES
        for f in r["forecast"]
    ]
    right = float(np.mean([low <= truth <= high for _, low, high, truth in sites]))
    error = float(np.mean([abs(value - truth) for value, _, _, truth in sites]))
    note = f"{len(sites)} sites, mean error {error:.3f}"
    out.append(
        Bar("forecast intervals that hold, no concept shift, overlap", right, 0.9, ">=", note)
    )
    blind = [r["blind"] for r in rows if "blind" in r]
    out.append(Bar("same choices with shuffled test labels", float(np.mean(blind)), 1.0, ">="))
    return out, {"means": means, "frontier": frontier(rows)}


def main() -> int:
    """Measure, print, record."""
    parser = arguments(__doc__)
    parser.add_argument("--first", type=int, default=FIRST, help="first seed")
    parser.add_argument("--splits", type=int, default=SPLITS)
    args = parser.parse_args()
    count = 5 if args.quick else args.splits
    begin = time.perf_counter()
    rows = [
        measure(name, regime, seed, blind=seed < args.first + 3)
        for seed in range(args.first, args.first + count)
        for name in TABLES
        for regime in REGIMES
        if regime != "label" or name in CLASSES
    ]
    results, content = bars(rows)
    spent = time.perf_counter() - begin
    print(f"{len(rows)} federations in {spent:.0f} s")
    brief = [{k: v for k, v in row.items() if k != "forecast"} for row in rows]
    record = {"seeds": [args.first, args.first + count], "seconds": spent, **content, "rows": brief}
    return report(results, record, args.json)


if __name__ == "__main__":
    sys.exit(main())
