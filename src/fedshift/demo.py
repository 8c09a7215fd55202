"""The demonstration: five label-shifted clients of scikit-learn's digits, trained five ways."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedshift.core.files import write_text
from fedshift.data import Federation, Labels, load
from fedshift.experiments.records import check_writable
from fedshift.federation.choice import FederatedAuto
from fedshift.federation.plan import FedSGD
from fedshift.learn.evaluate import predict
from fedshift.settings import Settings
from fedshift.workflow import Outcome
from fedshift.workflow import run as train

#: rows of the main class and of each other class that a client trains on and is used on
TRAIN, TEST = (90, 3), (55, 3)
#: name, objective, where the ratios come from: known, or a candidate of `FederatedAuto`
METHODS = (
    ("ERM", "erm", "exact"),
    ("FITW exact", "fitw", "exact"),
    ("FTW exact", "ftw", "exact"),
    ("FTW estimated, any shift", "ftw", "inputs"),
    ("FTW estimated, label shift", "ftw", "label"),
)


def digits_federation(*, seed: int = 0) -> Federation:
    """Five clients: each trains mostly on one of 5..9 and is used mostly on one of 0..4."""
    shift = Labels.one_class_each(train=TRAIN, test=TEST)
    federation = load("digits").split(shift, seed=seed)
    grey = tuple(replace(c, x=c.x[:, 0], test_x=c.test_x[:, 0]) for c in federation)
    return replace(federation, clients=grey)


def run(out: Path, *, seed: int = 0, console: Console | None = None) -> dict[str, Outcome]:
    """Train with every method, print the tables, write plot and record; returns the outcomes."""
    console = console or Console()
    begin = time.perf_counter()
    check_writable(out)
    federation = digits_federation(seed=seed)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    outcomes: dict[str, Outcome] = {}
    with Progress(*columns, console=console, transient=True) as progress:
        shown = progress.add_task("ratios: did labels shift, or inputs? no row leaves a client")
        plan = FedSGD(iterations=300, lr=5e-3, batch_size=32)
        chosen = FederatedAuto(model="linear", plan=plan, seed=seed).fit(federation)
        ratios = {"exact": "exact", **chosen.candidates_}
        for name, objective, ratio in METHODS:
            progress.update(shown, description=f"training: {name}")
            settings = Settings(
                objective=objective,
                ratio=ratios[ratio],
                model="linear",
                plan=FedSGD(iterations=500, lr=0.01, batch_size=32, seed=seed),
                seed=seed,
            )
            outcomes[name] = train(federation, settings)
    console.print(_table(outcomes))
    console.print(f"the default takes {chosen.reason_}", highlight=False)
    default = next(name for name, _, ratio in METHODS if ratio == chosen.choice_)
    gain, error = paired_gain(federation, outcomes[default], outcomes["ERM"])
    console.print(
        f"{default}, − ERM, on the same test rows: {gain:+.3f} ± {1.96 * error:.3f} (95 %), "
        "mean over clients"
    )
    record = {
        "methods": {n: _record(o) for n, o in outcomes.items()},
        "choice": {"method": default, "reason": chosen.reason_},
        "gain": {"mean": gain, "standard_error": error},
        "seconds": time.perf_counter() - begin,
    }
    write_text(out / "demo.json", json.dumps(record, indent=1) + "\n")
    console.print(f"record: {out / 'demo.json'}")
    try:
        from fedshift.report.figures import client_accuracy, ratio_scatter
    except ImportError:
        console.print("no plot: matplotlib is missing; pip install 'fedshift[report]' adds it")
    else:
        scores = {n: o.evaluation for n, o in outcomes.items() if o.evaluation is not None}
        console.print(f"plots:  {client_accuracy(scores, out / 'accuracy.svg')}")
        truth = {c.name: federation.exact_log_ratio(c.name) for c in federation}
        found = {c.name: chosen.source_log_ratio(c.name) for c in federation}
        ratio_scatter(truth, {"estimated": found}, out / "ratios.svg")
        console.print(f"        {out / 'ratios.svg'}")
    return outcomes


def paired_gain(federation: Federation, a: Outcome, b: Outcome) -> tuple[float, float]:
    """Difference of mean accuracy over clients, a − b, and its standard error, row by row."""
    means, variances = [], []
    for c in federation:
        right = []
        for outcome in (a, b):
            scores = predict(outcome.model(c.name), torch.as_tensor(c.test_x, dtype=torch.float32))
            right.append(scores.argmax(1).numpy() == c.test_y)
        difference = right[0].astype(float) - right[1]
        means.append(difference.mean())
        variances.append(difference.var(ddof=1) / len(difference))
    return float(np.mean(means)), float(np.sqrt(np.sum(variances)) / len(means))


def _record(outcome: Outcome) -> dict[str, Any]:
    scores = outcome.evaluation
    assert scores is not None
    return {
        "mean": scores.mean,
        "interval": list(scores.interval),
        "clients": scores.to_records(),
        "ledger": outcome.ledger.to_records(),
        "seconds": outcome.seconds,
    }


def _table(outcomes: dict[str, Outcome]) -> Table:
    table = Table(
        title="Accuracy on each client's own test law (digits, five clients, linear model)",
        caption="ERM: no weights · FITW: towards the client's own test law · FTW: towards all "
        "clients' · any shift: one model over all ten laws · label shift: only label marginals",
    )
    table.add_column("client", no_wrap=True)
    for name in outcomes:
        table.add_column(name, justify="right")
    scores = {n: o.evaluation for n, o in outcomes.items() if o.evaluation is not None}
    first = next(iter(scores.values()))
    for row in first.rows:
        table.add_row(row.client, *(f"{e[row.client].value:.3f}" for e in scores.values()))
    table.add_section()
    table.add_row("mean", *(f"{e.mean:.3f}" for e in scores.values()))
    table.add_row("95 %", *("{:.2f}–{:.2f}".format(*e.interval) for e in scores.values()))
    table.add_row("worst", *(f"{e.worst.value:.3f}" for e in scores.values()))
    return table
