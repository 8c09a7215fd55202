"""Make the parts of a record of sites; `fedshift.report.record` lists its keys."""

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
from fedshift.outcome import TabularOutcome
from fedshift.report.record import SCHEMA
from fedshift.theory import eigenvalue_checks

#: bars of a histogram of weights
BARS = 20
#: disclosure level of each phase; 2 for other phases
DISCLOSURE_LEVELS = {"share.pool": 5, "query.share": 1, "query.describe": 1, "share.encoding": 1}


def head(title: str, sites: Sites, encoded: Encoded) -> dict[str, Any]:
    """Make the part on the tables, the settings and the environment."""
    settings = dataclasses.asdict(sites.schema.settings)
    return {
        "schema": SCHEMA,
        "title": title,
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "environment": environment("cpu"),
        "settings": {"tables": {k: v for k, v in settings.items() if v not in (None, (), {})}},
        "sites": [_site(sites, encoded, name) for name in sites.names],
        "notes": list(encoded.notes),
    }


def _site(sites: Sites, encoded: Encoded, name: str) -> dict[str, Any]:
    shares = None
    if encoded.classes:
        y = encoded.federation[name].y.astype(np.int64)
        counts = np.bincount(y, minlength=len(encoded.classes))
        shares = {str(c): float(n / len(y)) for c, n in zip(encoded.classes, counts, strict=True)}
    return {
        "site": name,
        "train_rows": len(sites.train[name]),
        "test_rows": len(sites.deploy[name]),
        "columns": len(sites.schema.features),
        "classes": [str(c) for c in encoded.classes],
        "train_distribution": shares,
    }


def training(encoded: Encoded, outcome: TabularOutcome) -> dict[str, Any]:
    """Make the part on training: choice, no-harm test, forecast, weights, ledger."""
    results, fit = outcome.to_dict(), outcome.chosen.fit
    weights = outcome.sample_weights()
    before, after = outcome.before, outcome.evaluation
    return {
        "choice": outcome.choice,
        "candidates": list(outcome.candidates),
        "model": f"{fit.model}, ridge {fit.ridge:g}",
        "status": outcome.status,
        "gate": {**results["gate"], **results["gate"]["rule"]},
        **{k: results[k] for k in ("shift_type", "outside", "explanations")},
        "label_distributions": results["label_distributions"],
        "evaluation": None
        if before is None or after is None
        else {"erm": before.to_records(), "chosen": after.to_records()},
        "scores": results["scores"],
        "expected": [_expected(r, outcome.forecast.figure) for r in outcome.forecast.to_records()],
        "weights": {name: _weights(outcome, name, w) for name, w in weights.items()},
        "ledger": [
            {**e, "disclosure_level": DISCLOSURE_LEVELS.get(e["phase"], 2)}
            for e in results["ledger"]
        ],
        "replies": dict(outcome.ledger.replies),
    }


def _expected(row: Mapping[str, Any], figure: str) -> dict[str, Any]:
    out = {"site": row["client"], figure: row["value"], "low": row["low"], "high": row["high"]}
    return {**out, "note": row["doubt"]}


def _weights(outcome: TabularOutcome, name: str, values: Float64Array) -> dict[str, Any]:
    weights = outcome.chosen.weights
    known = None if weights is None else weights[name]
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
    """Make the part on the eigenvalue check of every site."""
    return {
        "spectrum": eigenvalue_checks(train=federation.train, test=federation.test).to_records()
    }
