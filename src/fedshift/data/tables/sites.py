"""From files to sites: every column of one kind everywhere, and a note for all that was done."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedshift.data.tables.cells import Table
from fedshift.data.tables.deal import Piece, deal
from fedshift.data.tables.find import Part as PartName
from fedshift.data.tables.find import find, folder_of
from fedshift.data.tables.kinds import Evidence, decide
from fedshift.data.tables.labels import Target, target_of
from fedshift.data.tables.names import aligned, resolved
from fedshift.data.tables.parts import Part, absent, assembled, labels_of, with_points
from fedshift.data.tables.read import read_table
from fedshift.data.tables.roles import Roles, Source, roles_of
from fedshift.data.tables.schema import Feature, Schema
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.values import count_rows, listed, missing
from fedshift.errors import InputError

if TYPE_CHECKING:
    from fedshift.data.tables.encode import Encoded


@dataclass(frozen=True, eq=False, kw_only=True)
class Sites:
    """Tables of all sites, typed and checked together.

    Attributes
    ----------
    names : tuple of str
    schema : Schema
        What every column is.
    train, deploy : mapping of site to Part
        Rows to learn from, all labelled; rows the model will be used on, labelled or not.
    notes : tuple of str
        What was guessed, left out or taken for missing: a sentence each.
    """

    names: tuple[str, ...]
    schema: Schema
    train: Mapping[str, Part]
    deploy: Mapping[str, Part]
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str | os.PathLike[str], **settings: Any) -> Self:
        """Read a folder of site files, or one file with a site column.

        Parameters
        ----------
        path : path
            See `fedshift.data.tables.find.find` for the layouts, and `TableSettings` for what may
            be said about them here or in ``fedshift.toml`` in the folder.

        Raises
        ------
        InputError
            Whatever is wrong, with file, column and row where there is one.
        """
        root = Path(path)
        folder = folder_of(root)
        told = TableSettings.read(folder, settings)
        layout = find(root, told)
        _check_trained(
            folder,
            [f.site for f in layout.files if f.part == "deploy"],
            [f.site for f in layout.files if f.part != "deploy"],
        )
        sources = [
            Source(
                read_table(f.path, told, name=f.path.relative_to(folder).as_posix()),
                f.site,
                f.part,
            )
            for f in layout.files
        ]
        return cls._assembled(sources, told, [*layout.notes])

    @classmethod
    def of(cls, sites: Mapping[str, Any], **settings: Any) -> Self:
        """Sites from frames or mappings of columns.

        Parameters
        ----------
        sites : mapping of name to rows, or to (train, deploy)

        Examples
        --------
        >>> rows = {"age": [40, 50, 60, "?"], "sex": ["f", "m", "f", "m"], "y": [0, 1, 1, 0]}
        >>> Sites.of({"a": rows, "b": (rows, rows)}, seed=1)
        Sites(2 sites, 7 train + 5 deployment rows, 2 features, label 'y': 0, 1; 2 notes)
        """
        if not isinstance(sites, Mapping) or not sites:
            raise InputError(
                f"sites must be a mapping, {{name: rows}} or {{name: (train, deploy)}}; got "
                f"{type(sites).__name__}"
            )
        told, sources = TableSettings.of(settings), []
        for name, given in sites.items():
            pair = isinstance(given, tuple | list)
            if pair and len(given) != 2:
                raise InputError(f"site {name!r} must have (train, deploy); got {len(given)} parts")
            parts: tuple[PartName | None, ...] = ("train", "deploy") if pair else (None,)
            for part, rows in zip(parts, given if pair else (given,), strict=True):
                where = f"site {str(name)!r}" + (f", {part}" if part else "")
                sources.append(Source(Table.of(rows, where), str(name), part))
        return cls._assembled(sources, told, [])

    @classmethod
    def _assembled(
        cls, sources: Sequence[Source], settings: TableSettings, notes: list[str]
    ) -> Self:
        sources = sorted(sources, key=lambda s: s.part == "deploy")  # training files give names
        tables, renamed = aligned([s.table for s in sources], bool(settings.names))
        sources = [replace(s, table=t) for s, t in zip(sources, tables, strict=True)]
        settings = resolved(settings, tables)
        roles, guessed = roles_of(sources, settings)
        sources = [replace(s, table=with_points(s.table, roles.taken(), notes)) for s in sources]
        pieces, dealt = deal(sources, roles, settings)
        notes += [n for t in tables for n in t.notes] + renamed + guessed + dealt
        target, taken = _target(pieces, roles, settings)
        pieces = _labelled(pieces, target, notes)
        features, dropped = _features(pieces, roles, settings, notes)
        found = replace(
            settings, label=roles.label, site=roles.site, split=roles.split, drop=roles.drop
        )
        schema = Schema(target=target, features=features, dropped=dropped, settings=found)
        notes += taken
        names = tuple(dict.fromkeys(p.site for p in pieces))
        mine: dict[tuple[str, str], list[Piece]] = {}
        for p in pieces:
            mine.setdefault((p.site, p.part), []).append(p)
        train, deploy = (
            {n: assembled(mine[n, part], schema, notes, trained=part == "train") for n in names}
            for part in ("train", "deploy")
        )
        _tell_missing(pieces, schema, notes)
        told = tuple(dict.fromkeys(notes))
        return cls(names=names, schema=schema, train=train, deploy=deploy, notes=told)

    def encode(self, *, indicators: bool = True) -> Encoded:
        """Numbers for training: see `fedshift.data.tables.encode.encode`."""
        from fedshift.data.tables.encode import encode

        return encode(self, indicators=indicators)

    def __repr__(self) -> str:
        train, deploy = (sum(map(len, side.values())) for side in (self.train, self.deploy))
        target = self.schema.target
        told = listed(target.classes) if target.classes else "a number"
        return (
            f"Sites({len(self.names)} site{'s' * (len(self.names) > 1)}, {train} train + {deploy} "
            f"deployment rows, {len(self.schema.features)} features, label {target.name!r}: "
            f"{told}; {len(self.notes)} notes)"
        )

    def to_records(self) -> list[dict[str, Any]]:
        """One dict a site and column: kind, and missing values among training and deployment."""
        return [
            {
                "site": name,
                "column": f.name,
                "kind": f.kind,
                **{
                    f"{word} {part}": count
                    for part, side in (("train", self.train), ("deploy", self.deploy))
                    for word, count in (
                        ("rows", len(side[name])),
                        ("missing", int(absent(side[name].columns[f.name]).sum())),
                    )
                },
            }
            for name in self.names
            for f in self.schema.features
        ]

    def to_frame(self) -> Any:
        """`to_records` as a pandas frame."""
        try:
            import pandas
        except ImportError:
            raise InputError(
                "to_frame needs pandas; pip install 'fedshift[tables]', or take to_records()"
            ) from None
        return pandas.DataFrame(self.to_records())


def _check_trained(folder: Path, deploy: list[str | None], train: list[str | None]) -> None:
    lonely = [name for name in deploy if name not in train]
    if lonely:
        whose = "the folder" if lonely[0] is None else f"site {lonely[0]!r}"
        raise InputError(
            f"{folder}: {whose} must have a train file; got its test or deploy file only; add it, "
            "or take the site out"
        )


def _target(
    pieces: Sequence[Piece], roles: Roles, settings: TableSettings
) -> tuple[Target, list[str]]:
    cells = (p.cells(roles.label) for p in pieces if p.part == "train")
    return target_of(roles.label, [c.counts() for c in cells if c is not None], settings)


def _labelled(pieces: Sequence[Piece], target: Target, notes: list[str]) -> list[Piece]:
    """Pieces without the training rows that have no label."""
    out, left, gone = [], Counter[str](), Counter[str]()
    for p in pieces:
        if p.part == "train":
            values = labels_of(p, target)
            good = ~np.isnan(values) if target.task == "regression" else values >= 0
            gone[p.site] += int((~good).sum())
            left[p.site] += int(good.sum())
            p = replace(p, rows=p.rows[good])
        if len(p):
            out.append(p)
    for site in dict.fromkeys(p.site for p in pieces):
        if not left[site]:
            raise InputError(
                f"site {site!r} must have training rows with a label; all {gone[site]} lack "
                f"{target.name!r}; fill it in or take the site out"
            )
        if gone[site]:
            lost = count_rows(gone[site], "training")
            notes.append(f"Site {site!r}: {lost} without a usable label left out.")
    return out


def _features(
    pieces: Sequence[Piece], roles: Roles, settings: TableSettings, notes: list[str]
) -> tuple[tuple[Feature, ...], dict[str, str]]:
    """Features in the order of the files, and why other columns are none."""
    train = [p for p in pieces if p.part == "train"]
    names = dict.fromkeys(k for p in train for k in p.table.columns)
    features, dropped = [], dict.fromkeys(roles.drop, "as told")
    for name in (n for n in names if n not in roles.taken()):
        made = decide(_evidence(name, train, settings), settings)
        notes += made.notes
        if made.feature is not None:
            features.append(made.feature)
        else:
            dropped[name] = made.reason
            notes.append(f"Column {name!r} is left out: {made.reason}.")
    only = dict.fromkeys(k for p in pieces for k in p.table.columns if k not in names)
    for name in (n for n in only if n not in roles.taken()):
        dropped[name] = "no training file has it"
        notes.append(f"Column {name!r} is left out: no training file has it.")
    if not features:
        raise InputError(
            f"tables must have a column to learn from besides the label {roles.label!r}; got "
            + (", ".join(f"{k!r} ({v})" for k, v in list(dropped.items())[:8]) or "none")
        )
    return tuple(features), dropped


def _evidence(name: str, train: Sequence[Piece], settings: TableSettings) -> Evidence:
    markers = settings.markers(name)
    sites: dict[str, Counter[str]] = {}
    for p in train:
        cells = p.cells(name)
        counts = {} if cells is None else cells.counts()
        told = {v: n for v, n in counts.items() if not missing(v, markers)}
        sites.setdefault(p.site, Counter()).update(told)

    def at(text: str) -> str:
        for p in train:
            cells = p.table.columns.get(name)
            if cells is not None and text in cells.levels:
                row = np.flatnonzero(cells.codes == cells.levels.index(text))
                return p.table.at(int(row[0]))
        return "tables"

    return Evidence(name, {s: c for s, c in sites.items() if c}, at)


def _tell_missing(pieces: Sequence[Piece], schema: Schema, notes: list[str]) -> None:
    """Say which files lack a column altogether."""
    for f in schema.features:
        files = dict.fromkeys(p.table.name for p in pieces if f.name not in p.table.columns)
        if files:
            notes.append(
                f"Column {f.name!r} is not in {listed(files)}: taken as missing in its rows."
            )
