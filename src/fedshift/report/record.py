"""The record a report is made of: what `fedshift diagnose` and `fedshift train` write as JSON.

======================  ===========================================================================
key                     what it holds
======================  ===========================================================================
schema                  "fedshift.sites/1"
title, created          text; a date such as "2026-11-16"
environment, settings   what ran, and everything that was asked for, nested as it comes
sites                   a list, one a site: ``site``, ``train_rows``, ``test_rows``, ``columns``,
                        ``classes``, ``train_law`` {class: share}, ``notes``
notes                   sentences of whoever read the tables
diagnosis, map, drift   ``Diagnosis.to_dict()``, ``ShiftMap.to_dict()``, ``Drift.to_dict()``
gate, candidates        ``Gate.to_dict()``; names of what was weighed
evaluation              {"erm": [...], "chosen": [...]}, each with ``client``, ``accuracy`` or
                        ``mse``, ``low``, ``high``, ``n``; null where no test row has a label
choice, model           the name of the model that was taken; what kind of model it is
expected                label-free estimates before deployment: ``site``, ``accuracy`` or ``mse``,
                        ``low``, ``high``, ``note``
weights                 {site: ``n``, ``mean``, ``max``, ``ess``, ``coverage``, ``changes``,
                        ``histogram`` {``edges``, ``counts``}}
calibration             {site or "all": groups of rows}, each with ``n`` and either ``estimated``
                        and ``exact`` (mean log ratios) or ``predicted`` and ``observed`` (the
                        chance that a held-out row is a test row, and the share that are)
ledger                  a list: ``client``, ``phase``, ``rung`` (0 to 5 on the privacy
                        ladder), ``up``, ``down`` (bytes), ``rows`` (rows of data that left)
theory                  ``spectrum`` (``Spectra.to_records()``), ``bounds`` (``site``, ``terms``
                        {name: value}, ``total``, ``status``), ``sentences``
======================  ===========================================================================

The first six are needed, others may be missing or null. Keys that are not known are ignored;
numbers may be null or NaN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift.errors import InputError
from fedshift.report.shapes import (
    amount,
    anything,
    both,
    by_name,
    each,
    fields,
    figure,
    word,
    wrong,
)

SCHEMA = "fedshift.sites/1"


def check(record: Any) -> None:
    """Raise an InputError that names the key, what was needed and what was got."""
    if not isinstance(record, Mapping):
        raise wrong("it", "a JSON object", record)
    if record.get("schema") != SCHEMA:
        raise wrong("schema", repr(SCHEMA), record.get("schema"))
    RECORD(record, "")


def read_record(path: Path) -> dict[str, Any]:
    """A checked record from a JSON file."""
    path = Path(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read the record {path}: {error.strerror or error}; 'fedshift train' and "
            "'fedshift diagnose' write one"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the record {path} must be JSON; got something else: {error}; give the file that "
            "'fedshift train' or 'fedshift diagnose' wrote"
        ) from error
    try:
        check(record)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    assert isinstance(record, dict)
    return record


def _square(value: Any, at: str) -> None:
    names, auc = value["names"], value["auc"]
    if len(auc) != len(names) or any(len(row) != len(names) for row in auc):
        raise wrong(f"{at}.auc", f"a square of {len(names)} numbers a side", auc)
    sides = [n.rpartition(": ") for n in names]
    good = len(sides) % 2 == 0 and all(
        a[0] == b[0] and (a[2], b[2]) == ("training", "test")
        for a, b in zip(sides[::2], sides[1::2], strict=True)
    )
    if not good:
        raise wrong(f"{at}.names", "'site: training', 'site: test', site after site", names)


def _some(value: Any, at: str) -> None:
    if not value:
        raise wrong(at, "a list of at least one site", value)


def _binned(value: Any, at: str) -> None:
    if len(value["edges"]) != len(value["counts"]) + 1:
        raise wrong(f"{at}.edges", "one more than counts", value["edges"])


FINDING = fields(
    {"question": word, "status": word},
    **dict.fromkeys(
        ("source_rows", "target_rows", "p", "adjusted", "auc", "low", "high", "draws"), figure
    ),
    reason=word,
)
COLUMN = fields(
    {"name": word}, distance=figure, difference=figure, p=figure, adjusted=figure, share=figure
)
KIND = fields({"name": word}, meaning=word, label_law=each(figure))
EFFECT = fields({"verdict": word}, gain=figure, low=figure, high=figure, accuracy=figure)
OVERLAP = fields(
    {}, ess=figure, share=figure, coverage=figure, outside=figure, largest=figure, reason=word
)
COMPARISON = fields(
    {"site": word, "other": word, "status": word, "findings": each(FINDING), "kind": KIND},
    columns=each(COLUMN),
    overlap=OVERLAP,
    predicted_effect=EFFECT,
)
DIAGNOSIS = fields(
    {"sites": each(COMPARISON), "between": each(COMPARISON)},
    status=word,
    alpha=figure,
    smallest=figure,
    tests=figure,
    classes=each(word),
    predicted_effect=EFFECT,
    sentences=each(word),
)
MAP = both(fields({"names": each(word), "auc": each(each(figure))}), _square)
DIFFERENCE = fields(
    {"candidate": word},
    **dict.fromkeys(("value", "error", "low", "high", "risk", "ess"), figure),
    clients=by_name(fields({}, value=figure, ess=figure, n=figure)),
)
GATE = fields(
    {"choice": word, "baseline": word, "differences": each(DIFFERENCE)},
    status=word,
    reasons=by_name(word),
    level=figure,
    gain=figure,
    margin=figure,
    min_ess=figure,
)
_MEASURED = dict.fromkeys(("accuracy", "mse", "low", "high", "n"), figure)
EVALUATION = by_name(each(fields({"client": word}, **_MEASURED)))
EXPECTED = each(fields({"site": word}, **_MEASURED, note=word))
HISTOGRAM = both(fields({"edges": each(figure), "counts": each(figure)}), _binned)
WEIGHTS = by_name(
    fields(
        {},
        **dict.fromkeys(("n", "mean", "max", "ess", "coverage"), figure),
        changes=word,
        histogram=HISTOGRAM,
    )
)
GROUP = fields({}, **dict.fromkeys(("estimated", "exact", "predicted", "observed", "n"), figure))
LEDGER = each(
    fields({"client": word, "phase": word}, rung=figure, up=figure, down=figure, rows=figure)
)
THEORY = fields(
    {},
    spectrum=each(fields({"client": word}, directions=figure, holding=figure)),
    bounds=each(fields({"site": word}, terms=by_name(figure), total=figure, status=word)),
    sentences=each(word),
)
LAW = fields({"classes": each(word), "before": each(figure), "now": each(figure)})
DRIFT = fields(
    {
        "sites": each(
            fields(
                {"site": word, "verdict": word, "finding": FINDING},
                columns=each(COLUMN),
                labels=LAW,
            )
        )
    },
    verdict=word,
    sentences=each(word),
)
SITE = fields(
    {"site": word},
    train_rows=figure,
    test_rows=figure,
    columns=amount,
    classes=amount,
    train_law=by_name(figure),
    notes=each(word),
)
RECORD = fields(
    {
        "schema": word,
        "title": word,
        "created": word,
        "environment": by_name(anything),
        "settings": by_name(anything),
        "sites": both(each(SITE), _some),
    },
    notes=each(word),
    diagnosis=DIAGNOSIS,
    map=MAP,
    gate=GATE,
    candidates=each(word),
    evaluation=EVALUATION,
    choice=word,
    model=word,
    expected=EXPECTED,
    weights=WEIGHTS,
    calibration=by_name(each(GROUP)),
    ledger=LEDGER,
    theory=THEORY,
    drift=DRIFT,
)
