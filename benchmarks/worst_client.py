r"""How much of a table's worst client is chance?

The worst of a hundred clients is the minimum of a hundred noisy accuracies, each of a hundred test
rows. A minimum picks the client with the worst luck, so it lies below the accuracy of the worst
client. For one run, client k has k_k correct of n_k rows. The accuracies p_k of the clients follow
a Beta(a, b) distribution, fitted by maximum likelihood (beta-binomial), and given the rows

.. math:: p_k \mid k_k \sim \mathrm{Beta}(a + k_k,\; b + n_k - k_k).

Draws from these posteriors give the accuracy of the truly worst client, :math:`\min_k p_k`. New
rows drawn from them give the worst client that another test set of the same size would show. With
several runs, each draw also resamples the runs (seeds) and averages their minima, as `compare`
does.

Bars: on made-up clients, the 95 % intervals of both quantities hold in at least 90 % of cases.

    python benchmarks/worst_client.py --json benchmarks/records/worst_client.json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from _common import Bar, arguments, report
from scipy import optimize, stats

from fedshift.experiments.compare import compare

RECORDS = Path(__file__).parent / "records"
#: record, method
RUNS = (
    ("paper/cifar-hundred", "FTW"),
    ("small/cifar-hundred", "FTW-pooling"),
)
DRAWS = 4000
Counts = tuple[np.ndarray, np.ndarray]


def beta_fit(correct: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Return (a, b) of the beta-binomial distribution with the highest likelihood."""

    def loss(log: np.ndarray) -> float:
        a, b = np.exp(log)
        return -float(stats.betabinom.logpmf(correct, rows, a, b).sum())

    mean = correct.sum() / rows.sum()
    start = np.log([20.0 * mean, 20.0 * (1.0 - mean)])
    fit = optimize.minimize(loss, start, method="L-BFGS-B", bounds=[(-3.0, 12.0)] * 2)
    return float(np.exp(fit.x[0])), float(np.exp(fit.x[1]))


def minima(
    runs: Sequence[Counts], rng: np.random.Generator, draws: int = DRAWS
) -> tuple[np.ndarray, np.ndarray]:
    """Return draws of the worst client's accuracy, and of the one that new test rows would show."""
    own, shown = np.empty((len(runs), draws)), np.empty((len(runs), draws))
    for i, (correct, rows) in enumerate(runs):
        a, b = beta_fit(correct, rows)
        p = rng.beta(a + correct, b + rows - correct, size=(draws, len(rows)))
        own[i] = p.min(axis=1)
        shown[i] = (rng.binomial(rows, p) / rows).min(axis=1)
    drawn = rng.integers(len(runs), size=(len(runs), draws))  # seeds, with replacement
    at = np.arange(draws)
    return own[drawn, at].mean(axis=0), shown[drawn, at].mean(axis=0)


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the central 95 % interval of draws."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def coverage(cases: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return how often the intervals hold the worst accuracy, and the worst of new rows."""
    hits = np.zeros(2)
    rows = np.full(100, 100)
    for _ in range(cases):
        p = rng.beta(*rng.uniform((6.0, 1.5), (20.0, 6.0)), size=100)
        correct, again = rng.binomial(rows, p), rng.binomial(rows, p)
        both = minima([(correct, rows)], rng, draws=1000)
        for i, truth in enumerate((p.min(), (again / rows).min())):
            low, high = interval(both[i])
            hits[i] += low - 1e-9 <= truth <= high + 1e-9
    return float(hits[0] / cases), float(hits[1] / cases)


def measure(name: str, method: str, rng: np.random.Generator) -> dict[str, Any]:
    """Return the worst client of a method's runs as observed, as it is, and as new rows show it."""
    (comparison,) = compare([RECORDS / f"{name}.jsonl"], published=True)
    row = comparison[method]
    runs = []
    for run in row.runs:
        rows = np.array([c["n"] for c in run.result["clients"]])
        values = np.array([c["accuracy"] for c in run.result["clients"]])
        runs.append((np.round(values * rows).astype(int), rows))
    own, shown = minima(runs, rng)
    published = None if row.published is None else row.published.worst
    return {
        "recipe": name,
        "method": method,
        "seeds": len(runs),
        "published": published,
        "observed": row.worst,
        "worst": float(own.mean()),
        "worst_interval": interval(own),
        "new_rows": float(shown.mean()),
        "new_rows_interval": interval(shown),
        "reaches_published": None if published is None else float((shown >= published).mean()),
    }


def main() -> int:
    """Measure, print and record."""
    args = arguments(__doc__).parse_args()
    rng = np.random.default_rng(0)
    entries = [measure(*run, rng) for run in RUNS]
    for e in entries:
        low, high = e["worst_interval"]
        print(
            f"{e['recipe']} {e['method']} (n={e['seeds']}): observed {e['observed']:.3f}; the "
            f"worst client's accuracy {e['worst']:.3f} [{low:.3f}, {high:.3f}]; new test rows "
            f"would show {e['new_rows']:.3f} [{e['new_rows_interval'][0]:.3f}, "
            f"{e['new_rows_interval'][1]:.3f}]"
            + (
                f"; at least {e['published']:.4f} in {e['reaches_published']:.1%} of draws"
                if e["published"] is not None
                else ""
            )
        )
    own, again = coverage(50 if args.quick else 500, np.random.default_rng(1))
    bars = [
        Bar("made-up clients: interval of the worst accuracy holds", own, 0.9, ">="),
        Bar("made-up clients: interval of the worst of new rows holds", again, 0.9, ">="),
    ]
    return report(bars, {"runs": entries}, args.json)


if __name__ == "__main__":
    sys.exit(main())
