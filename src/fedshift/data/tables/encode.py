"""Encode the tables of all sites as a federation of numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from fedshift.core.moments import deviation, unit_for
from fedshift.core.samples import Float64Array
from fedshift.data.federation import ClientData, Federation
from fedshift.data.tables.cells import quote
from fedshift.data.tables.column_sums import ColumnSums, add_sums
from fedshift.data.tables.encoder import Code, Encoder
from fedshift.data.tables.schema import Schema
from fedshift.data.tables.settings import TaskType
from fedshift.data.tables.sites import Sites
from fedshift.data.tables.target import Class
from fedshift.errors import InputError

#: at most this many words of a categorical column, the most common, get columns of their own
MOST_LEVELS = 50


@dataclass(frozen=True, eq=False, kw_only=True)
class Encoded:
    """A federation of numbers, with the encoder and labels that made it.

    Attributes
    ----------
    federation : Federation
        Labels are class numbers, or numbers in regression. The federation has test labels
        only if every deployment row of every site has a label.
    encoder : Encoder
        Encodes new rows in the same way.
    classes : tuple
        Class i is ``classes[i]``; empty in regression.
    columns : mapping of encoded column to feature
    test_labels : mapping of site to ndarray (m,)
        Labels of deployment rows, for evaluation only. An unknown label is −1, or NaN in
        regression.
    weights : mapping of site to ndarray (n,), optional
        The user's sample weights of training rows.
    sums : mapping of site to ColumnSums
        The numbers and words that each site sent, so that all sites use the same encoding.
    notes : tuple of str
        The notes on reading the sites' tables, and the notes on the encoding.
    """

    federation: Federation
    encoder: Encoder
    classes: tuple[Class, ...]
    columns: Mapping[str, str]
    test_labels: Mapping[str, npt.NDArray[Any]]
    weights: Mapping[str, Float64Array] | None
    sums: Mapping[str, ColumnSums]
    notes: tuple[str, ...] = ()

    @property
    def task(self) -> TaskType:
        """The learning task, "classification" or "regression"."""
        return self.encoder.schema.target.task

    def __repr__(self) -> str:
        known = all(c.test_y is not None for c in self.federation)
        return (
            f"Encoded({len(self.federation)} clients, {len(set(self.columns.values()))} features "
            f"as {len(self.columns)} columns, {self.task}, test labels "
            f"{'known' if known else 'incomplete'})"
        )


def encode(sites: Sites) -> Encoded:
    """Return the rows of all sites as numbers, scaled with sums over all training rows.

    Only the sums and words in `Encoded.sums` leave a site.

    - A numeric value v becomes (v − mean) / sd, clipped at ±1000, with mean and standard deviation
      over the training rows of all sites. A missing value becomes 0, the mean.
    - A categorical value becomes one 0/1 column per word that at least `rare_below` training rows
      have. Rarer words share the column "…=(other)". A new word is also put in that column; if
      there is none, all columns of the feature are zero.
    - If at least `rare_below` training rows lack a value, a 0/1 column "… missing" marks them.
    - Columns that hardly vary in the training rows are left out.

    Raises
    ------
    InputError
        If no column is left, or a site is called "all" or "own".
    """
    first = {n: ColumnSums.of(p, sites.schema) for n, p in sites.train.items()}
    total = add_sums(list(first.values()))
    means = {k: s / max(total.present[k], 1) for k, s in total.sums.items()}
    units = dict.fromkeys(means, 1.0)
    sums = {n: t.add_squares(sites.train[n], means, units) for n, t in first.items()}
    total = add_sums(list(sums.values()))
    units = {k: float(unit_for(total.squares[k, 1.0])) for k in means}
    again = {k: unit for k, unit in units.items() if unit != 1.0}
    sums = {n: t.add_squares(sites.train[n], means, again) for n, t in sums.items()}
    total = add_sums(list(sums.values()))
    encoder, notes = _encoder(sites.schema, total, means, units)
    notes = [*sites.notes, *notes]
    clients = []
    for name in sites.names:
        x = encoder.numbers(sites.train[name], name, notes)
        test_x = encoder.numbers(sites.deploy[name], name, notes)
        clients.append((name, x, sites.train[name].labels, test_x))
    complete = all(part.labelled.all() for part in sites.deploy.values())
    columns = encoder.columns
    federation = Federation(
        tuple(
            ClientData(*c, sites.deploy[c[0]].labels if complete else None, tuple(columns))
            for c in clients
        )
    )
    weights = {n: p.weights for n, p in sites.train.items() if p.weights is not None}
    return Encoded(
        federation=federation,
        encoder=encoder,
        classes=sites.schema.target.classes,
        columns=columns,
        test_labels={n: p.labels for n, p in sites.deploy.items()},
        weights=weights or None,
        sums=sums,
        notes=tuple(dict.fromkeys(notes)),
    )


def _encoder(
    schema: Schema,
    total: ColumnSums,
    means: Mapping[str, float],
    units: Mapping[str, float],
) -> tuple[Encoder, list[str]]:
    codes: list[Code] = []
    notes: list[str] = []
    for f in schema.features:
        lacks = total.rows - total.present[f.name] >= rare_below(total.rows)
        if f.kind == "categorical":
            code = _words(f.name, total, lacks, notes)
        else:
            mean, unit = means[f.name], units[f.name]
            sd = deviation(total.squares[f.name, unit], total.present[f.name], unit, mean)
            code = Code(feature=f.name, mean=mean, sd=float(sd), missing=lacks)
        if code.names():
            codes.append(code)
        else:
            notes.append(f"Column {f.name!r} is left out: it hardly varies in the training rows.")
    if not codes:
        raise InputError(
            "tables must have a column that varies in the training rows; got "
            f"{quote(schema.names)}, which hardly vary; add columns or rows"
        )
    return Encoder(schema=schema, codes=tuple(codes)), notes


def _words(name: str, total: ColumnSums, lacks: bool, notes: list[str]) -> Code:
    """Give each word that enough rows have a column; a single column would be constant."""
    counts = Counter(total.levels[name])
    least = rare_below(total.rows)
    ranked = sorted(counts, key=lambda w: (-counts[w], w))
    levels = sorted(w for w in ranked[:MOST_LEVELS] if counts[w] >= least)
    rare = [w for w in counts if w not in set(levels)]
    if rare:
        notes.append(
            f"Column {name!r}: {len(rare)} of {len(counts)} values are rare ({quote(rare, 3)}) "
            "and share the column (other)."
        )
    if len(levels) + bool(rare) < 2:
        return Code(feature=name, missing=lacks)
    return Code(feature=name, levels=tuple(levels), other=bool(rare), missing=lacks)


def rare_below(rows: int) -> int:
    """Return how many training rows must have a word for it to get its own column.

    The same number of rows without a value is needed for a "… missing" column. It is 1 % of the
    training rows, rounded up, but at least 2 and at most 10.

    Examples
    --------
    >>> rare_below(50), rare_below(500), rare_below(10_000)
    (2, 5, 10)
    """
    return min(10, max(2, math.ceil(rows / 100)))
