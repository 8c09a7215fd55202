"""Typed rows of one site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array
from fedshift.data.tables.cells import Cells, Table
from fedshift.data.tables.deal import Piece
from fedshift.data.tables.labels import Target
from fedshift.data.tables.schema import Feature, Schema
from fedshift.data.tables.values import comma_style, count_rows, listed, number, quoted, with_point
from fedshift.errors import InputError


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of one site, for training or for deployment.

    Attributes
    ----------
    columns : mapping of feature to ndarray (n,)
        Numbers with NaN, or words (object) with None, where a value is missing.
    labels : ndarray (n,)
        Class numbers with −1, or numbers with NaN, where a label is not known.
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
        """Which rows have a label."""
        return np.asarray(
            ~np.isnan(self.labels) if self.labels.dtype.kind == "f" else self.labels >= 0
        )

    def __repr__(self) -> str:
        n, known = len(self), int(self.labelled.sum())
        return f"Part({n} rows, {known} labelled, {len(self.columns)} columns)"


def absent(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which values of a column are missing."""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    return np.array([v is None for v in values], dtype=bool)


def with_points(table: Table, taken: set[str], notes: list[str]) -> Table:
    """A table whose features have decimal points where they had commas.

    A column that may as well have thousands separators follows the others of its file.
    """
    style = {k: comma_style(c.levels) for k, c in table.columns.items() if k not in taken}
    if "sure" not in style.values():
        return table
    changed = [k for k, s in style.items() if s != "none"]
    notes.append(f"{table.name}: numbers of {quoted(changed)} are read with a decimal comma.")
    columns = {
        k: Cells(tuple(map(with_point, c.levels)), c.codes) if k in changed else c
        for k, c in table.columns.items()
    }
    return replace(table, columns=columns)


def assembled(
    pieces: Sequence[Piece], schema: Schema, notes: list[str], *, trained: bool = False
) -> Part:
    """Typed rows of a site; cells that a column cannot use are told."""
    target, n = schema.target, sum(map(len, pieces))
    columns = {f.name: _values(f, pieces, notes) for f in schema.features}
    labels = [labels_of(p, target) for p in pieces]
    strange: Counter[str] = Counter()
    for p in pieces if not trained else ():
        cells = p.cells(target.name)
        if cells is not None:
            strange.update(target.strange(cells.counts()))
    if strange:
        notes.append(
            f"Site {pieces[0].site!r}: {count_rows(strange.total(), 'deployment')} with a label "
            f"that no training row has ({quoted(strange)}); kept without a label."
        )
    weights = _weights(pieces, schema.settings.weights) if trained else None
    return Part(columns, np.concatenate(labels) if n else np.empty(0), weights)


def _values(feature: Feature, pieces: Sequence[Piece], notes: list[str]) -> npt.NDArray[Any]:
    out = []
    for p in pieces:
        cells = p.cells(feature.name)
        if cells is None:
            out.append(feature.nothing(len(p)))
            continue
        out.append(feature.values(cells))
        odd = feature.odd(cells, out[-1])
        if odd:
            codes = [i for i, level in enumerate(cells.levels) if level in odd]
            first = int(p.rows[np.argmax(np.isin(cells.codes, codes))])
            part = "training" if p.part == "train" else "deployment"
            what = "date" if feature.kind == "date" else "number"
            notes.append(
                f"Site {p.site!r}, column {feature.name!r}: {odd.total()} of "
                f"{count_rows(len(p), part)} with no usable {what} ({quoted(odd, 3)}, first in "
                f"{p.table.at(first)}); taken as missing."
            )
    return np.concatenate(out)


def labels_of(piece: Piece, target: Target) -> npt.NDArray[Any]:
    cells = piece.cells(target.name)
    return target.values(Cells(("",), np.zeros(len(piece), np.int32)) if cells is None else cells)


def _weights(pieces: Sequence[Piece], column: str | None) -> Float64Array | None:
    if column is None:
        return None
    out = []
    for p in pieces:
        if column not in p.table.columns:
            raise InputError(
                f"{p.table.name} must have the weights column {column!r}, as it holds training "
                f"rows; it has {listed(p.table.columns, 30)}"
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
                f"got {cells.levels[cells.codes[row]]!r}"
            )
        out.append(values)
    return np.concatenate(out)
