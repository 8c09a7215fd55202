"""Build the HTML report of a record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift.core.files import write_text
from fedshift.core.old_files import modern_sites_record
from fedshift.errors import InputError
from fedshift.report.markup import join
from fedshift.report.page import page
from fedshift.report.record import SCHEMA, check, not_a_record, read_record
from fedshift.report.sections.appendix import data, glossary, settings
from fedshift.report.sections.cards import cards
from fedshift.report.sections.drift import drift
from fedshift.report.sections.effect import effect
from fedshift.report.sections.gate import gate
from fedshift.report.sections.ledger import ledger
from fedshift.report.sections.shift import shift
from fedshift.report.sections.summary import summary
from fedshift.report.sections.theory import theory
from fedshift.report.sections.weights import weights

#: in page order
SECTIONS = (
    effect,
    gate,
    shift,
    cards,
    weights,
    ledger,
    theory,
    drift,
    data,
    settings,
    glossary,
)


def build_report(record: Mapping[str, Any]) -> str:
    """Build a report as one self-contained HTML page.

    Parameters
    ----------
    record : mapping
        See `fedshift.report.record`. The page lists missing parts with the command that adds them.

    Returns
    -------
    str
        The page; it loads nothing from the network.

    Raises
    ------
    InputError
        If the record has another schema or version, or is damaged.

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
    try:
        record = modern_sites_record(record)
        parts = [make(record) for make in SECTIONS]
        sections = sorted(parts, key=lambda s: not s.ran)  # empty sections come last
        body = join(summary(record), *(s.html() for s in sections))
        foot = f"Made by fedshift from a record of {record['created']}. This page needs no network."
        return page(f"{record['title']} – fedshift report", body, contents=sections, foot=foot)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        got = f"a damaged or incomplete one ({type(error).__name__}: {error})"
        raise not_a_record(f"complete and of schema {SCHEMA!r}", got) from error


def write_report(record_path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Read a record and write its report.

    Parameters
    ----------
    record_path : path
        A JSON file written by 'fedshift train' or 'fedshift diagnose'.
    out : path
        The HTML file. After an error it is not written at all.

    Returns
    -------
    Path
        The HTML file.
    """
    try:
        return write_text(Path(out), build_report(read_record(Path(record_path))))
    except InputError as error:
        raise InputError(f"{record_path}: {error}") from error
