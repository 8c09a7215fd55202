"""The door: a record in, one page out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift.core.files import write_text
from fedshift.report.markup import join
from fedshift.report.page import page
from fedshift.report.record import check, read_record
from fedshift.report.sections.appendix import data, glossary, settings
from fedshift.report.sections.cards import cards
from fedshift.report.sections.drift import drift
from fedshift.report.sections.effect import effect
from fedshift.report.sections.gate import gate
from fedshift.report.sections.ledger import ledger
from fedshift.report.sections.shift import shift, shift_map
from fedshift.report.sections.summary import summary
from fedshift.report.sections.theory import theory
from fedshift.report.sections.weights import calibration, weights

#: in the order of the page
SECTIONS = (
    effect,
    gate,
    shift,
    shift_map,
    cards,
    weights,
    calibration,
    ledger,
    theory,
    drift,
    data,
    settings,
    glossary,
)


def build_report(record: Mapping[str, Any]) -> str:
    """A report as one HTML page that needs nothing else.

    Parameters
    ----------
    record : mapping
        See `fedshift.report.record`. What is missing is said to be, with the command that adds it.

    Raises
    ------
    InputError
        If it is no record: the key, what was needed and what was got.

    Examples
    --------
    >>> page = build_report({
    ...     "schema": "fedshift.sites/1", "title": "Wards", "created": "2026-11-16",
    ...     "environment": {}, "settings": {}, "sites": [{"site": "ward-3"}],
    ... })
    >>> page[:15], "ward-3" in page, "http" in page.replace("http-equiv", "")
    ('<!DOCTYPE html>', True, False)
    """
    check(record)
    made = [make(record) for make in SECTIONS]
    sections = sorted(made, key=lambda s: not s.ran)  # what was not run comes last
    body = join(summary(record), *(s.html() for s in sections))
    foot = f"Made by fedshift from a record of {record['created']}; makes no network request."
    return page(f"{record['title']} – fedshift report", body, contents=sections, foot=foot)


def write_report(record_path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Read a record and write its report, whole or not at all.

    Parameters
    ----------
    record_path : path
        JSON, as 'fedshift train' and 'fedshift diagnose' write it.
    out : path
        Of the HTML file.
    """
    return write_text(Path(out), build_report(read_record(Path(record_path))))
