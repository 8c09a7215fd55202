"""Read the tables of all sites, so that each column has the same kind everywhere.

Notes list each guess and everything that was left out or treated as missing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedshift.data.tables.cells import count_rows, is_missing, join
from fedshift.data.tables.column_kinds import ColumnEvidence, decide
from fedshift.data.tables.column_names import align, resolve
from fedshift.data.tables.column_roles import Roles, SiteTable, find_roles
from fedshift.data.tables.folder import PartName, find_files, folder_of
from fedshift.data.tables.partition import Slice, partition_rows
from fedshift.data.tables.read import read_table
from fedshift.data.tables.schema import Feature, Schema
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.site_rows import (
    FileRows,
    SiteRows,
    build_rows,
    fix_commas,
    read_labels,
)
from fedshift.data.tables.target import Target, infer_target
from fedshift.data.tables.text_table import TextTable
from fedshift.errors import InputError, option

if TYPE_CHECKING:
    from fedshift.data.tables.encode import Encoded

#: with fewer deployment rows, a column that is empty in all of them may be so by chance
FEWEST = 10


@dataclass(frozen=True, eq=False, kw_only=True)
class Sites:
    """The tables of all sites, read with one schema.

    `Sites.read` makes it from files, `Sites.of` from data frames; `encode` turns it into a
    federation of numbers.

    Attributes
    ----------
    names : tuple of str
        The sites.
    schema : Schema
        The kind of each column, and the label.
    train : mapping of site to SiteRows
        Training rows, all labelled.
    deploy : mapping of site to SiteRows
        Rows that the model will be used on, labelled or not.
    file_rows : mapping of site to FileRows
        Where the training rows are in the files.
    notes : tuple of str
        One sentence for each guess, each column or row left out, and each value treated as missing.
    """

    names: tuple[str, ...]
    schema: Schema
    train: Mapping[str, SiteRows]
    deploy: Mapping[str, SiteRows]
    file_rows: Mapping[str, FileRows]
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str | os.PathLike[str], **settings: Any) -> Self:
        """Return the sites in a folder of files, or in one file with a site column.

        Parameters
        ----------
        path : path
            For the layouts see `fedshift.data.tables.folder.find_files`.
        **settings
            Fields of `TableSettings`. They override ``fedshift.toml`` in the folder.

        Raises
        ------
        InputError
            If a file cannot be read, or its columns or rows cannot be used. The message names the
            file, and the column and line where there is one.
        """
        root = Path(path)
        folder = folder_of(root)
        options = TableSettings.read(folder, settings)
        layout = find_files(root, options)
        _check_trained(
            folder,
            [f.site for f in layout.files if f.part == "deploy"],
            [f.site for f in layout.files if f.part != "deploy"],
        )
        sources = [
            SiteTable(
                read_table(f.path, options, name=f.path.relative_to(folder).as_posix()),
                f.site,
                f.part,
            )
            for f in layout.files
        ]
        return cls._build(sources, options, [*layout.notes])

    @classmethod
    def of(cls, sites: Mapping[str, Any], **settings: Any) -> Self:
        """Return sites from data frames or mappings of columns.

        Parameters
        ----------
        sites : mapping of site to rows, or to (train, deploy)
            If a site has no deployment rows of its own, a random share (`test_share`) of its rows
            becomes its deployment rows.
        **settings
            Fields of `TableSettings`.

        Raises
        ------
        InputError
            If columns or rows cannot be used.

        Examples
        --------
        >>> rows = {"age": [40, 50, 60, "?"], "sex": ["f", "m", "f", "m"], "y": [0, 1, 1, 0]}
        >>> Sites.of({"a": rows, "b": (rows, rows)}, seed=1)
        Sites(2 sites, 7 train + 5 deployment rows, 2 features, label 'y': 0, 1; 2 notes)
        """
        if not isinstance(sites, Mapping) or not sites:
            raise InputError(
                f"sites must be a dict, {{name: rows}} or {{name: (train, deploy)}}; got "
                f"{type(sites).__name__}"
            )
        options, sources = TableSettings.of(settings), []
        for name, entry in sites.items():
            pair = isinstance(entry, tuple | list)
            if pair and len(entry) != 2:
                raise InputError(f"site {name!r} must be (train, deploy); got {len(entry)} parts")
            parts: tuple[PartName | None, ...] = ("train", "deploy") if pair else (None,)
            for part, rows in zip(parts, entry if pair else (entry,), strict=True):
                where = f"site {str(name)!r}" + (f", {part}" if part else "")
                sources.append(SiteTable(TextTable.of(rows, where), str(name), part))
        return cls._build(sources, options, [])

    @classmethod
    def _build(
        cls, sources: Sequence[SiteTable], settings: TableSettings, notes: list[str]
    ) -> Self:
        sources = sorted(sources, key=lambda s: s.part == "deploy")  # training files name columns
        tables, spellings, name_notes = align([s.table for s in sources], bool(settings.names))
        sources = [replace(s, table=t) for s, t in zip(sources, tables, strict=True)]
        settings = resolve(settings, spellings)
        roles, role_notes = find_roles(sources, settings)
        sources = [replace(s, table=fix_commas(s.table, roles.names(), notes)) for s in sources]
        slices, split_notes = partition_rows(sources, roles, settings)
        notes += [n for t in tables for n in t.notes] + name_notes + role_notes + split_notes
        labels = (p.cells(roles.label) for p in slices if p.part == "train")
        counts = [cells.counts() for cells in labels if cells is not None]
        target, target_notes = infer_target(roles.label, counts, settings)
        slices, file_rows = _drop_unlabelled(slices, target, notes)
        features, dropped = _features(slices, roles, settings, notes)
        settings = replace(
            settings, label=roles.label, site=roles.site, split=roles.split, drop=roles.drop
        )
        schema = Schema(target=target, features=features, dropped=dropped, settings=settings)
        notes += target_notes
        names = tuple(dict.fromkeys(p.site for p in slices))
        by_part: dict[tuple[str, str], list[Slice]] = {}
        for p in slices:
            by_part.setdefault((p.site, p.part), []).append(p)
        train, deploy = (
            {n: build_rows(by_part[n, part], schema, notes, trained=part == "train") for n in names}
            for part in ("train", "deploy")
        )
        _note_missing(slices, schema, notes)
        return cls(
            names=names,
            schema=schema,
            train=train,
            deploy=deploy,
            file_rows=file_rows,
            notes=tuple(dict.fromkeys(notes)),
        )

    def encode(self) -> Encoded:
        """Return a federation of numbers; see `fedshift.data.tables.encode.encode`."""
        from fedshift.data.tables.encode import encode

        return encode(self)

    def __repr__(self) -> str:
        train, deploy = (sum(map(len, side.values())) for side in (self.train, self.deploy))
        target = self.schema.target
        classes = join(target.classes) if target.classes else "a number"
        return (
            f"Sites({len(self.names)} site{'s' * (len(self.names) > 1)}, {train} train + {deploy} "
            f"deployment rows, {len(self.schema.features)} features, label {target.name!r}: "
            f"{classes}; {len(self.notes)} notes)"
        )


def _check_trained(folder: Path, deploy: list[str | None], train: list[str | None]) -> None:
    lonely = [name for name in deploy if name not in train]
    if lonely:
        whose = "the folder" if lonely[0] is None else f"site {lonely[0]!r}"
        raise InputError(
            f"{folder}: {whose} must have a train file; got a test or deploy file only; add a "
            "train file, or remove the site"
        )


def _drop_unlabelled(
    slices: Sequence[Slice], target: Target, notes: list[str]
) -> tuple[list[Slice], dict[str, FileRows]]:
    """Drop the training rows without a label, with a note per site; return all places in files."""
    out, usable, lost = [], Counter[str](), Counter[str]()
    places: dict[str, FileRows] = {}
    for p in slices:
        if p.part == "train":
            values = read_labels(p, target)
            good = ~np.isnan(values) if target.task == "regression" else values >= 0
            lost[p.site] += int((~good).sum())
            usable[p.site] += int(good.sum())
            old = places.get(p.site, FileRows((), np.empty(0, np.intp), np.empty(0, bool)))
            places[p.site] = FileRows(
                old.file + (p.table.name,) * len(p),
                np.append(old.row, p.table.file_rows[p.rows]),
                np.append(old.labelled, good),
            )
            p = replace(p, rows=p.rows[good])
        if len(p):
            out.append(p)
    for site in dict.fromkeys(p.site for p in slices):
        if not usable[site]:
            raise InputError(
                f"site {site!r} must have training rows with a label; all {lost[site]} lack "
                f"{target.name!r}; fill it in or remove the site"
            )
        if lost[site]:
            text = count_rows(lost[site], "training")
            notes.append(f"Site {site!r}: left out {text} without a usable label.")
    return out, places


def _features(
    slices: Sequence[Slice], roles: Roles, settings: TableSettings, notes: list[str]
) -> tuple[tuple[Feature, ...], dict[str, str]]:
    """Return the features in the order of the files, and why other columns are left out."""
    train, deploy = ([p for p in slices if p.part == part] for part in ("train", "deploy"))
    names = dict.fromkeys(k for p in train for k in p.table.columns)
    features, dropped = [], dict.fromkeys(roles.drop, f"set by {option('drop')}")
    for name in (n for n in names if n not in roles.names()):
        decision = decide(_evidence(name, train, settings), settings)
        reason = decision.reason or _absence(name, deploy, settings)
        if decision.feature is not None and not reason:
            features.append(decision.feature)
            notes += decision.notes
        else:
            dropped[name] = reason
            notes.append(f"Column {name!r} is left out: {reason}.")
    only = dict.fromkeys(k for p in slices for k in p.table.columns if k not in names)
    for name in (n for n in only if n not in roles.names()):
        dropped[name] = "no training file has it"
        notes.append(f"Column {name!r} is left out: no training file has it.")
    if not features:
        raise InputError(
            f"tables must have a column to learn from besides the label {roles.label!r}; got "
            + (", ".join(f"{k!r} ({v})" for k, v in list(dropped.items())[:8]) or "none")
        )
    return tuple(features), dropped


def _absence(name: str, deploy: Sequence[Slice], settings: TableSettings) -> str:
    """Return why a model must do without a column in deployment; empty if it need not.

    A site whose deployment files alone lack the column keeps it, as missing values.
    """
    if not any(name in p.table.columns for p in deploy):
        return "no deployment file has it, so a model cannot use it" if deploy else ""
    if sum(map(len, deploy)) < FEWEST or _evidence(name, deploy, settings).sites:
        return ""
    return "it is empty in every deployment row, so a model cannot use it"


def _evidence(name: str, train: Sequence[Slice], settings: TableSettings) -> ColumnEvidence:
    markers = settings.markers(name)
    sites: dict[str, Counter[str]] = {}
    for p in train:
        cells = p.cells(name)
        counts = {} if cells is None else cells.counts()
        present = {v: n for v, n in counts.items() if not is_missing(v, markers)}
        sites.setdefault(p.site, Counter()).update(present)

    def at(text: str) -> str:
        for p in train:
            cells = p.table.columns.get(name)
            if cells is not None and text in cells.levels:
                row = np.flatnonzero(cells.codes == cells.levels.index(text))
                return p.table.at(int(row[0]))
        return "tables"

    return ColumnEvidence(name, {s: c for s, c in sites.items() if c}, at)


def _note_missing(slices: Sequence[Slice], schema: Schema, notes: list[str]) -> None:
    """Add a note for each column that files lack."""
    for f in schema.features:
        files = dict.fromkeys(p.table.name for p in slices if f.name not in p.table.columns)
        if files:
            notes.append(
                f"Column {f.name!r} is not in {join(files)}; its values there are missing."
            )
