"""The JSON record of `fedshift diagnose` and `fedshift train`, from which the report is built.

======================  ===========================================================================
key                     content
======================  ===========================================================================
schema                  "fedshift.sites/1"
title, created          text; a date such as "2026-11-16"
environment, settings   versions and machine; every setting, nested
sites                   a list, one per site: ``site``, ``train_rows``, ``test_rows``,
                        ``columns``, ``classes``, ``train_distribution`` {class: share}, ``notes``
notes                   sentences about how the tables were read
diagnosis, drift        ``Diagnosis.to_dict()``, ``Drift.to_dict()``
shift_type, outside     the federation's shift type; the share of deployment rows that look like no
                        training row
label_distributions     ``train`` (counted) and ``test`` (estimated), {site: shares}; null unless
                        the shift type is "label"
gate, candidates        ``Gate.to_dict()``; names of the models that were compared
evaluation              {"erm": [...], "chosen": [...]}, each with ``client``, ``accuracy`` or
                        ``mse``, ``low``, ``high``, ``n``; null if no test row has a label
scores                  a list of ``SiteScores.to_dict()``: the chosen model beside models that
                        sites train alone, on labelled deployment rows first, if there are any
choice, model           name of the chosen model; its model class
expected                forecasts without test labels: ``site``, ``accuracy`` or ``mse``, ``low``,
                        ``high``, ``note``
weights                 {site: ``n``, ``mean``, ``max``, ``ess``, ``coverage``, ``changes`` (how
                        weights differ from ratios), ``histogram`` {``edges``, ``counts``}}
ledger                  a list: ``client``, ``phase``, ``disclosure_level`` (0 to 5), ``up``,
                        ``down`` (bytes), ``rows`` (rows of data that left the site)
replies                 {site: number of replies that it sent in training}
theory                  ``spectrum`` (``Spectra.to_records()``)
======================  ===========================================================================

The first six keys are required; others may be missing or null. Unknown keys are ignored. Numbers
may be null or NaN. Keys and values of older versions are mapped by `fedshift.core.old_files`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift.errors import InputError

SCHEMA = "fedshift.sites/1"


def check(record: Any) -> None:
    """Raise an InputError unless a value is a record of this schema and version."""
    schema = record.get("schema") if isinstance(record, Mapping) else None
    if schema != SCHEMA:
        got = f"schema {schema!r}" if isinstance(record, Mapping) else type(record).__name__
        raise not_a_record(f"a JSON object with schema {SCHEMA!r}", got[:100])


def read_record(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise not_a_record("a file with a JSON object", str(error)) from error


def not_a_record(need: str, got: str) -> InputError:
    """Make the error for a file that is not a record, or is damaged."""
    return InputError(
        f"a record of sites must be {need}; got {got}; give the file that 'fedshift train' or "
        "'fedshift diagnose -o' wrote, or run that command again"
    )
