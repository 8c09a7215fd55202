"""The demonstration: five label-shifted clients of scikit-learn's digits, ratios against truth."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits

from fedshift.core.files import write_text
from fedshift.core.samples import Float64Array
from fedshift.core.weights import effective_sample_size
from fedshift.data import Federation, Labels
from fedshift.ratio.auto import Auto
from fedshift.ratio.multi_source import MultiSource

#: rows of the main class and of each other class that a client trains on and is used on
TRAIN, TEST = (90, 3), (55, 3)


@dataclass(frozen=True)
class Row:
    """One line of the demo's table.

    Attributes
    ----------
    correlation : float
        Of estimated with exact log ratios over the client's training rows.
    error, constant : float
        Normalised mean squared error of the weights, and that of equal weights.
    ess, exact_ess : float
        Effective sample size with estimated and with exact ratios.
    """

    client: str
    estimator: str
    n: int
    correlation: float
    error: float
    constant: float
    ess: float
    exact_ess: float


def digits_federation(*, seed: int = 0) -> Federation:
    """Five clients: each trains mostly on one of 5..9 and is used mostly on one of 0..4."""
    digits = load_digits()
    rng = np.random.default_rng(seed)
    train = np.zeros(len(digits.target), dtype=bool)
    for c in range(10):  # six tenths of every class may be trained on
        index = rng.permutation(np.flatnonzero(digits.target == c))
        train[index[: int(0.6 * len(index))]] = True
    x = digits.images / 16.0
    return Labels.one_class_each(train=TRAIN, test=TEST).split(
        x[train], digits.target[train], x[~train], digits.target[~train], seed=seed
    )


def compare(client: str, estimator: str, exact: Float64Array, estimated: Float64Array) -> Row:
    """Estimated against exact log ratios of one client."""
    truth, weight = np.exp(exact), np.exp(estimated)
    truth, weight = truth / truth.mean(), weight / weight.mean()
    return Row(
        client,
        estimator,
        len(exact),
        float(np.corrcoef(exact, estimated)[0, 1]),
        float(np.mean(np.square(weight - truth))),
        float(np.var(truth)),
        effective_sample_size(weight),
        effective_sample_size(truth),
    )


def estimate(
    federation: Federation, *, seed: int, console: Console
) -> dict[str, dict[str, Float64Array]]:
    """Out-of-fold log ratios of every client's training rows, by estimator and client."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task("multi-source network over all ten laws")
        shared = MultiSource(folds=5, seed=seed).fit(
            source=federation.train, target=federation.test
        )
        by_client = {c.name: shared.source_log_ratio(c.name) for c in federation}
        alone = {}
        for c in federation:
            progress.add_task(f"Auto for {c.name}")
            alone[c.name] = (
                Auto(seed=seed).fit(source=c.x, target=federation.test).source_log_ratio_
            )
    return {"MultiSource": by_client, "Auto": alone}


def run(out: Path, *, seed: int = 0, console: Console | None = None) -> list[Row]:
    """Estimate, print the table, write the plot and the record; returns the table's rows."""
    console = console or Console()
    federation = digits_federation(seed=seed)
    exact = {c.name: federation.exact_log_ratio(c.name) for c in federation}
    estimated = estimate(federation, seed=seed, console=console)
    rows = [
        compare(c.name, name, exact[c.name], by_client[c.name])
        for c in federation
        for name, by_client in estimated.items()
    ]
    console.print(_table(rows))
    write_text(out / "demo.json", json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    console.print(f"record: {out / 'demo.json'}")
    try:
        from fedshift.report.figures import ratio_scatter
    except ImportError:
        console.print("no plot: matplotlib is missing; pip install 'fedshift[report]' adds it")
    else:
        console.print(f"plot:   {ratio_scatter(exact, estimated, out / 'ratios.svg')}")
    return rows


def _table(rows: list[Row]) -> Table:
    table = Table(
        title="Estimated against exact ratios Σ p_test / p_train (digits, five clients)",
        caption="corr.: of log ratios · error: of the weights, and that of equal weights · "
        "ESS: effective sample size",
    )
    for name in ("client", "rows", "estimator"):
        table.add_column(name, no_wrap=True)
    for name in ("corr.", "error", "equal", "ESS", "exact"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in rows:
        table.add_row(
            r.client,
            str(r.n),
            r.estimator,
            f"{r.correlation:.2f}",
            f"{r.error:.2f}",
            f"{r.constant:.2f}",
            f"{r.ess:.0f}",
            f"{r.exact_ess:.0f}",
        )
    return table
