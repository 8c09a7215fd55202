"""What a record of sites holds, part by part (schema "fedshift.sites/1")."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedshift.core.samples import Float64Array
from fedshift.data.federation import Federation
from fedshift.data.tables import Encoded, Sites
from fedshift.experiments.records import environment
from fedshift.learn.evaluate import Evaluation
from fedshift.sites.balance import reliability
from fedshift.sites.theory import error_bounds
from fedshift.tabular import TabularOutcome
from fedshift.theory import eigenvalue_checks

SCHEMA = "fedshift.sites/1"
#: bars of a histogram of weights
BARS = 20
#: what leaves a site in a phase, on the privacy ladder
RUNGS = {"share.pool": 5, "query.share": 1, "query.describe": 1, "share.encoding": 1}


def head(title: str, sites: Sites, encoded: Encoded) -> dict[str, Any]:
    """What was read."""
    told = dataclasses.asdict(sites.schema.settings)
    return {
        "schema": SCHEMA,
        "title": title,
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "environment": environment("cpu"),
        "settings": {"tables": {k: v for k, v in told.items() if v not in (None, (), {})}},
        "sites": [_site(sites, encoded, name) for name in sites.names],
        "notes": list(encoded.notes),
    }


def _site(sites: Sites, encoded: Encoded, name: str) -> dict[str, Any]:
    law = None
    if encoded.classes:
        y = encoded.federation[name].y.astype(np.int64)
        counts = np.bincount(y, minlength=len(encoded.classes))
        law = {str(c): float(n / len(y)) for c, n in zip(encoded.classes, counts, strict=True)}
    return {
        "site": name,
        "train_rows": len(sites.train[name]),
        "test_rows": len(sites.deploy[name]),
        "columns": len(sites.schema.features),
        "classes": [str(c) for c in encoded.classes],
        "train_law": law,
    }


def training(encoded: Encoded, outcome: TabularOutcome) -> dict[str, Any]:
    """What was trained, why, and what it cost."""
    told, fit = outcome.to_dict(), outcome.chosen.fit
    weights = outcome.sample_weights()
    before, after = outcome.before, outcome.evaluation
    return {
        "choice": outcome.choice,
        "candidates": list(outcome.candidates),
        "model": f"{fit.model}, ridge {fit.ridge:g}",
        "status": outcome.status,
        "gate": {**told["gate"], **told["gate"]["rule"]},
        "explanations": told["explanations"],
        "label_laws": told["label_laws"],
        "evaluation": None
        if before is None or after is None
        else {"erm": _rows(before), "chosen": _rows(after)},
        "expected": [_expected(r, outcome.forecast.figure) for r in outcome.forecast.to_records()],
        "weights": {name: _weights(outcome, name, w) for name, w in weights.items()},
        "calibration": {"all": reliability(encoded.federation, weights, seed=outcome.seed)},
        "ledger": [{**e, "rung": RUNGS.get(e["phase"], 2)} for e in told["ledger"]],
    }


def _rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    keep = ("client", evaluation.figure, "low", "high", "n")
    return [{k: row[k] for k in keep} for row in evaluation.to_records()]


def _expected(row: Mapping[str, Any], figure: str) -> dict[str, Any]:
    told = {"site": row["client"], figure: row["value"], "low": row["low"], "high": row["high"]}
    return {**told, "note": row["doubt"]}


def _weights(outcome: TabularOutcome, name: str, values: Float64Array) -> dict[str, Any]:
    made = outcome.chosen.weights
    known = None if made is None else made[name]
    top = max(float(values.max()), 1e-12)
    low = max(float(values[values > 0].min(initial=top)), top * 1e-6)
    if low >= top:
        edges = np.array([0.5 * top, 2.0 * top])
    else:
        edges = np.geomspace(low, top, BARS + 1)
        edges[0], edges[-1] = low * (1 - 1e-9), top * (1 + 1e-9)
    counts, _ = np.histogram(values.clip(edges[0], edges[-1]), edges)
    return {
        "n": len(values),
        "mean": float(values.mean()),
        "max": top,
        "ess": float(values.sum() ** 2 / max(float((values**2).sum()), 1e-300)),
        "coverage": None if known is None else known.coverage,
        "changes": "unchanged" if known is None else known.changes,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def theory(federation: Federation) -> dict[str, Any]:
    """What the paper's theory says of these rows."""
    flat = {c.name: c.x.reshape(len(c.x), -1) for c in federation}
    test = {c.name: c.test_x.reshape(len(c.test_x), -1) for c in federation}
    spectra = eigenvalue_checks(train=flat, test=test)
    bounds = error_bounds(federation)
    worst = max(bounds, key=lambda b: b["total"])
    said = [
        f"In your data {spectra.status}. It is a condition for some weight to be allowed by the "
        "paper's theorem 2, not a proof that weighting helps.",
        f"For log ratios linear in the columns, {worst['status']} at {worst['site']}, where it is "
        "largest. Bounds of this kind are loose with so few rows; their terms say what more rows "
        "would buy.",
    ]
    return {"spectrum": spectra.to_records(), "bounds": bounds, "sentences": said}
