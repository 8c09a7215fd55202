"""From sites to numbers: a federation ready for training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from fedshift.core.samples import Float64Array
from fedshift.data.federation import ClientData, Federation
from fedshift.data.tables.encoder import Code, Encoder
from fedshift.data.tables.labels import Class
from fedshift.data.tables.schema import Schema
from fedshift.data.tables.settings import Task
from fedshift.data.tables.sites import Sites
from fedshift.data.tables.told import Told, together
from fedshift.data.tables.values import quoted
from fedshift.errors import InputError

#: words of one categorical column that get a column of their own, the commonest
MOST_LEVELS = 50
#: deviations below this share of the mean are rounding
FLAT = 1e-12


@dataclass(frozen=True, eq=False, kw_only=True)
class Encoded:
    """A federation of numbers, and how it came about.

    Attributes
    ----------
    federation : Federation
        Class numbers (or numbers) as labels; test labels only if every site knows all of its own.
    encoder : Encoder
    classes : tuple
        What class numbers mean; empty in regression.
    columns : mapping of encoded column to feature
    test_labels : mapping of site to ndarray
        Labels of deployment rows, −1 or NaN where they are not known. For evaluation only.
    weights : mapping of site to ndarray, optional
        The user's sample weights of training rows.
    left : mapping of site to Told
        The numbers and words that left each site to agree on the encoding.
    notes : tuple of str
        Those of the sites, and what encoding did.
    """

    federation: Federation
    encoder: Encoder
    classes: tuple[Class, ...]
    columns: Mapping[str, str]
    test_labels: Mapping[str, npt.NDArray[Any]]
    weights: Mapping[str, Float64Array] | None
    left: Mapping[str, Told]
    notes: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """What is learned: classes or a number."""
        return self.encoder.schema.target.task

    def __repr__(self) -> str:
        known = all(c.test_y is not None for c in self.federation)
        return (
            f"Encoded({len(self.federation)} clients, {len(set(self.columns.values()))} features "
            f"as {len(self.columns)} columns, {self.task}, test labels "
            f"{'known' if known else 'not known to all'})"
        )


def encode(sites: Sites, *, indicators: bool = True) -> Encoded:
    r"""Encode all sites with numbers made of their training rows' sums.

    A numeric value becomes (v − mean) / sd with mean and deviation over the training rows of all
    sites, cut at ±1000. A missing one becomes 0, the mean; a column "… missing" beside it (where
    enough training rows lack the value) lets the model choose another. A categorical value becomes
    a column for every word that enough training rows have (`rare_below`); rarer and unseen words
    share one. Columns that say nothing in training are left out.

    Parameters
    ----------
    sites : Sites
    indicators : bool
        Whether to add the "missing" columns.

    Raises
    ------
    InputError
        If no column is left, or a site has a name that stands for a goal.
    """
    first = {n: Told.of(p, sites.schema) for n, p in sites.train.items()}
    total = together(list(first.values()))
    means = {k: s / max(total.present[k], 1) for k, s in total.sums.items()}
    told = {n: t.about(sites.train[n], means) for n, t in first.items()}
    encoder, notes = _encoder(sites.schema, together(list(told.values())), means, indicators)
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
        left=told,
        notes=tuple(dict.fromkeys(notes)),
    )


def _encoder(
    schema: Schema, total: Told, means: Mapping[str, float], indicators: bool
) -> tuple[Encoder, list[str]]:
    codes: list[Code] = []
    notes: list[str] = []
    for f in schema.features:
        lacks = indicators and total.rows - total.present[f.name] >= rare_below(total.rows)
        if f.kind == "categorical":
            code = _words(f.name, total, lacks, notes)
        else:
            mean = means[f.name]
            sd = math.sqrt(total.squares[f.name] / max(total.present[f.name], 1))
            flat = sd <= FLAT * abs(mean)
            code = Code(feature=f.name, mean=mean, sd=0.0 if flat else sd, missing=lacks)
        if code.names():
            codes.append(code)
        else:
            notes.append(f"Column {f.name!r} is left out: it says the same in every training row.")
    if not codes:
        raise InputError(
            "tables must have a column that differs between training rows; got "
            f"{quoted(schema.names)}, each the same everywhere; add columns or rows"
        )
    return Encoder(schema=schema, codes=tuple(codes)), notes


def _words(name: str, total: Told, lacks: bool, notes: list[str]) -> Code:
    """Words that enough rows have get a column; with a single column there is nothing to tell."""
    counts = Counter(total.levels[name])
    least = rare_below(total.rows)
    ranked = sorted(counts, key=lambda w: (-counts[w], w))
    kept = sorted(w for w in ranked[:MOST_LEVELS] if counts[w] >= least)
    rare = [w for w in counts if w not in set(kept)]
    if rare:
        notes.append(
            f"Column {name!r}: {len(rare)} of {len(counts)} values are rare ({quoted(rare, 3)}) "
            "and share a column."
        )
    if len(kept) + bool(rare) < 2:
        return Code(feature=name, missing=lacks)
    return Code(feature=name, levels=tuple(kept), other=bool(rare), missing=lacks)


def rare_below(rows: int) -> int:
    """Training rows a word (or a gap) needs for a column of its own: a hundredth, from 2 to 10.

    Examples
    --------
    >>> rare_below(50), rare_below(500), rare_below(10_000)
    (2, 5, 10)
    """
    return min(10, max(2, math.ceil(rows / 100)))
