"""Make the parts of a record of sites; `fedshift.report.record` lists its keys."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from fedshift.data.federation import Federation
from fedshift.data.tables import Encoded, Sites
from fedshift.experiments.records import environment
from fedshift.report.record import SCHEMA
from fedshift.theory import eigenvalue_checks


def head(title: str, sites: Sites, encoded: Encoded) -> dict[str, Any]:
    """Make the part on the tables, the settings and the environment."""
    return {
        "schema": SCHEMA,
        "title": title,
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "environment": environment("cpu"),
        "settings": {"tables": sites.schema.settings.to_dict()},
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


def theory(federation: Federation) -> dict[str, Any]:
    """Make the part on the eigenvalue check of every site."""
    return {
        "spectrum": eigenvalue_checks(train=federation.train, test=federation.test).to_records()
    }
