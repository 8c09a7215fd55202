"""The demonstration: five clients of scikit-learn's digits with label shift, trained five ways."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedshift.core.files import write_text
from fedshift.data import Federation, Labels, load
from fedshift.errors import install_hint
from fedshift.experiments.records import check_writable
from fedshift.federation.plan import FedSGD
from fedshift.federation.ratio_selection import FederatedAuto
from fedshift.learn.evaluate import predict
from fedshift.outcome import Outcome
from fedshift.report.comparison import Sheet, render
from fedshift.settings import Settings
from fedshift.workflow import run as train

#: rows of the main class and of each other class of a client, for training and in deployment
TRAIN, TEST = (90, 3), (55, 3)
#: name, objective, and source of ratios: exact, or a candidate of `FederatedAuto`
METHODS = (
    ("ERM", "erm", "exact"),
    ("FITW exact", "fitw", "exact"),
    ("FTW exact", "ftw", "exact"),
    ("FTW estimated, any shift", "ftw", "covariate"),
    ("FTW estimated, label shift", "ftw", "label"),
)


def digits_federation(*, seed: int = 0) -> Federation:
    """Five clients: each trains mostly on one digit of 5 to 9, and is deployed on one of 0 to 4."""
    shift = Labels.one_class_each(train=TRAIN, test=TEST)
    federation = load("digits").split(shift, seed=seed)
    grey = (replace(c, x=c.x[:, 0], test_x=c.test_x[:, 0], drawn=None) for c in federation)
    return replace(federation, clients=tuple(grey))  # labels give its exact ratios


def run(out: Path, *, seed: int = 0, console: Console | None = None) -> dict[str, Outcome]:
    """Train with every method, print tables, write plots and demo.json; return the outcomes."""
    console = console or Console()
    begin = time.perf_counter()
    check_writable(out)
    federation = digits_federation(seed=seed)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    outcomes: dict[str, Outcome] = {}
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("choosing ratios for label or covariate shift; rows stay local")
        plan = FedSGD(iterations=300, lr=5e-3, batch_size=32)
        auto = FederatedAuto(model="linear", plan=plan, seed=seed).fit(federation)
        ratios = {"exact": "exact", **auto.candidates_}
        for name, objective, ratio in METHODS:
            progress.update(bar, description=f"training: {name}")
            settings = Settings(
                objective=objective,
                ratio=ratios[ratio],
                model="linear",
                plan=FedSGD(iterations=500, lr=0.01, batch_size=32),
                seed=seed,
            )
            outcomes[name] = train(federation, settings)
    records = [_record(name, outcome) for name, outcome in outcomes.items()]
    title = "Accuracy on each client's own test distribution (digits, five clients, linear model)"
    console.print(render(_sheets(records, title)), highlight=False, soft_wrap=True)
    console.print(
        "ERM: no weights · FITW: weights for the client's own test distribution · FTW: for all "
        "clients' test distributions · any shift: ratios from one classifier of all ten "
        "distributions (five training, five test) · label shift: ratios of class proportions only",
        highlight=False,
    )
    console.print(f"federated-auto chose {auto.reason_}", highlight=False)
    default = next(name for name, _, ratio in METHODS if ratio == auto.choice_)
    gain, error = paired_gain(federation, outcomes[default], outcomes["ERM"])
    console.print(
        f"gain of {default!r} over ERM on the same test rows: {gain:+.3f} ± {1.96 * error:.3f} "
        "(95 % interval), mean over clients"
    )
    record = {
        "methods": {r["method"]: r for r in records},
        "choice": {"method": default, "reason": auto.reason_},
        "gain": {"mean": gain, "standard_error": error},
        "seconds": time.perf_counter() - begin,
    }
    write_text(out / "demo.json", json.dumps(record, indent=1) + "\n")
    console.print(f"record: {out / 'demo.json'}")
    try:
        from fedshift.report.figures import client_accuracy, ratio_scatter
    except ImportError:
        hint = f"no plots: matplotlib is missing; {install_hint('report')}"
        console.print(hint, markup=False, highlight=False)
    else:
        scores = {n: o.evaluation for n, o in outcomes.items() if o.evaluation is not None}
        console.print(f"plots:  {client_accuracy(scores, out / 'accuracy.svg')}")
        truth = {c.name: federation.exact_log_ratio(c.name) for c in federation}
        estimates = {c.name: auto.source_log_ratio(c.name) for c in federation}
        ratio_scatter(truth, {"estimated": estimates}, out / "ratios.svg")
        console.print(f"        {out / 'ratios.svg'}")
    return outcomes


def paired_gain(federation: Federation, a: Outcome, b: Outcome) -> tuple[float, float]:
    """Mean over clients of the accuracy of `a` minus that of `b`, and its standard error.

    Both outcomes are measured on the same test rows.
    """
    means, variances = [], []
    for c in federation:
        right = []
        for outcome in (a, b):
            scores = predict(outcome.model(c.name), c.test_x)
            right.append(scores.argmax(1).numpy() == c.test_y)
        difference = right[0].astype(float) - right[1]
        means.append(difference.mean())
        variances.append(difference.var(ddof=1) / len(difference))
    return float(np.mean(means)), float(np.sqrt(np.sum(variances)) / len(means))


def _sheets(records: list[dict[str, Any]], title: str) -> list[Sheet]:
    """A table by method and a table by client."""
    rows, clients = [], [[c["client"], str(c["n"])] for c in records[0]["clients"]]
    for record in records:
        scores = [c["accuracy"] for c in record["clients"]]
        figures = (record["mean"], *record["interval"], min(scores), max(scores))
        rows.append((record["method"], *(f"{x:.3f}" for x in figures)))
        for line, score in zip(clients, scores, strict=True):
            line.append(f"{score:.3f}")
    header = ("method", "accuracy", "95 % low", "high", "worst client", "best client")
    by_client = ("client", "n", *(record["method"] for record in records))
    return [
        Sheet(title=title, header=header, rows=tuple(rows)),
        Sheet(title="By client", header=by_client, rows=tuple(map(tuple, clients))),
    ]


def _record(method: str, outcome: Outcome) -> dict[str, Any]:
    scores = outcome.evaluation
    assert scores is not None
    return {
        "method": method,
        "figure": scores.figure,
        "mean": scores.mean,
        "interval": list(scores.interval),
        "clients": scores.to_records(),
        "ledger": outcome.ledger.to_records(),
        "seconds": outcome.seconds,
        "ratio_seconds": outcome.ratio_seconds,
    }
