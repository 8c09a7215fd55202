"""Turn the text cells of one site into numbers, words, labels and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array
from fedshift.data.tables.cells import comma_style, count_rows, join, number, quote, with_point
from fedshift.data.tables.partition import Slice
from fedshift.data.tables.schema import Feature, Schema
from fedshift.data.tables.target import Target
from fedshift.data.tables.text_table import TextColumn, TextTable
from fedshift.errors import InputError, option


@dataclass(frozen=True, eq=False)
class SiteRows:
    """Training or deployment rows of one site.

    Attributes
    ----------
    columns : mapping of feature to ndarray (n,)
        Numbers, NaN where missing; or words (object), None where missing.
    labels : ndarray (n,)
        Class numbers, or numbers in regression. An unknown label is −1, or NaN in regression.
    weights : ndarray (n,), optional
        The user's sample weights.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    labels: npt.NDArray[Any]
    weights: Float64Array | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.labels)

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:
        """Mask (n,) of the rows that have a label."""
        return np.asarray(
            ~np.isnan(self.labels) if self.labels.dtype.kind == "f" else self.labels >= 0
        )

    def __repr__(self) -> str:
        n, known = len(self), int(self.labelled.sum())
        return f"SiteRows({n} rows, {known} labelled, {len(self.columns)} columns)"


@dataclass(frozen=True, eq=False)
class FileRows:
    """Where the training rows of a site are in its files, unlabelled rows included.

    Attributes
    ----------
    file : tuple of str (n,)
        Name of the file of each row.
    row : ndarray (n,)
        Number of the row in its file, from 0, without the header: the index that
        `pandas.read_csv` gives it.
    labelled : ndarray (n,)
        Whether the row has a label, and so a weight.
    """

    file: tuple[str, ...]
    row: npt.NDArray[np.intp]
    labelled: npt.NDArray[np.bool_]

    def columns(self) -> dict[str, Sequence[Any] | npt.NDArray[Any]]:
        """Return the columns that identify a row: `row`, after `file` if there are several."""
        return {**({"file": self.file} if len(set(self.file)) > 1 else {}), "row": self.row}

    def with_gaps(self, values: Float64Array) -> Float64Array:
        """Return the values of the labelled rows, with NaN for the other rows."""
        out = np.full(len(self.row), np.nan)
        out[self.labelled] = values
        return out


def isna(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of the missing values of a column."""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    return np.array([v is None for v in values], dtype=bool)


def fix_commas(table: TextTable, skip: set[str], notes: list[str]) -> TextTable:
    """Return a table with decimal commas replaced by points, and add a note if there are any.

    If the commas of a column may also be thousands separators, the other columns of its file
    decide.
    """
    style = {k: comma_style(c.levels) for k, c in table.columns.items() if k not in skip}
    if "sure" not in style.values():
        return table
    changed = [k for k, s in style.items() if s != "none"]
    notes.append(f"{table.name}: columns {quote(changed)} are read with a decimal comma.")
    columns = {
        k: TextColumn(tuple(map(with_point, c.levels)), c.codes) if k in changed else c
        for k, c in table.columns.items()
    }
    return replace(table, columns=columns)


def build_rows(
    slices: Sequence[Slice], schema: Schema, notes: list[str], *, trained: bool = False
) -> SiteRows:
    """Return the rows of a site; add a note on cells and labels that cannot be used.

    `trained` says that these are training rows. Only these have weights.
    """
    target, n = schema.target, sum(map(len, slices))
    columns = {f.name: _values(f, slices, notes) for f in schema.features}
    labels = [read_labels(p, target) for p in slices]
    unknown: Counter[str] = Counter()
    for p in slices if not trained else ():
        cells = p.cells(target.name)
        if cells is not None:
            unknown.update(target.unknown(cells.counts()))
    if unknown:
        notes.append(
            f"Site {slices[0].site!r}: {count_rows(unknown.total(), 'deployment')} with a label "
            f"that no training row has ({quote(unknown)}); used without a label."
        )
    weights = _weights(slices, schema.settings.weights) if trained else None
    return SiteRows(columns, np.concatenate(labels) if n else np.empty(0), weights)


def _values(feature: Feature, slices: Sequence[Slice], notes: list[str]) -> npt.NDArray[Any]:
    out = []
    for p in slices:
        cells = p.cells(feature.name)
        if cells is None:
            out.append(feature.all_missing(len(p)))
            continue
        out.append(feature.values(cells))
        unusable = feature.unusable(cells, out[-1])
        if unusable:
            codes = [i for i, level in enumerate(cells.levels) if level in unusable]
            first = int(p.rows[np.argmax(np.isin(cells.codes, codes))])
            part = "training" if p.part == "train" else "deployment"
            what = "date" if feature.kind == "date" else "number"
            notes.append(
                f"Site {p.site!r}, column {feature.name!r}: {unusable.total()} of "
                f"{count_rows(len(p), part)} with no usable {what} ({quote(unusable, 3)}, first in "
                f"{p.table.at(first)}); treated as missing."
            )
    return np.concatenate(out)


def read_labels(rows: Slice, target: Target) -> npt.NDArray[Any]:
    """Return the labels (n,) of rows; all unknown if the table has no label column."""
    cells = rows.cells(target.name)
    return target.values(
        TextColumn(("",), np.zeros(len(rows), np.int32)) if cells is None else cells
    )


def _weights(slices: Sequence[Slice], column: str | None) -> Float64Array | None:
    if column is None:
        return None
    out = []
    for p in slices:
        if column not in p.table.columns:
            raise InputError(
                f"{p.table.name} holds training rows and must have the weights column {column!r}; "
                f"got {join(p.table.columns, 30)}; add the column or leave out {option('weights')}"
            )
        cells = p.table.columns[column]
        comma = comma_style(cells.levels) == "sure"
        each = [number(with_point(v) if comma else v) for v in cells.levels]
        values = np.array([np.nan if v is None else v for v in each])[cells.codes[p.rows]]
        bad = ~(values >= 0)
        if bad.any():
            row = int(p.rows[np.argmax(bad)])
            raise InputError(
                f"{p.table.at(row)}: weights column {column!r} must be a number of at least 0; "
                f"got {cells.levels[cells.codes[row]]!r}; correct it or remove the row"
            )
        out.append(values)
    return np.concatenate(out)
