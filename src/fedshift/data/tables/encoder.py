"""The encoder: turns rows into numbers in the same way at every site, also for new rows."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedshift.core.files import write_text
from fedshift.core.samples import MISSING, Float64Array
from fedshift.data.tables.cells import count_rows, quote
from fedshift.data.tables.column_names import match_names
from fedshift.data.tables.column_roles import SiteTable
from fedshift.data.tables.folder import find_files, folder_of, stem
from fedshift.data.tables.partition import Slice, split_table
from fedshift.data.tables.read import read_table
from fedshift.data.tables.schema import Feature, Schema
from fedshift.data.tables.site_rows import SiteRows, build_rows, fix_commas, isna
from fedshift.data.tables.text_table import TextTable
from fedshift.errors import InputError

#: standardised values are clipped here, so that float32 never overflows
REACH = 1000.0
_KIND = "fedshift.data.tables.Encoder"


@dataclass(frozen=True, kw_only=True)
class Code:
    """The encoding of one feature as columns.

    Attributes
    ----------
    feature : str
    mean, sd : float
        Mean and standard deviation of a numeric feature. If the standard
        deviation is 0, the feature has no column for its values.
    levels : tuple of str
        Words of a categorical feature that have a column each.
    other : bool
        Whether rarer words share a column.
    missing : bool
        Whether a column marks missing values.
    """

    feature: str
    mean: float = 0.0
    sd: float = 0.0
    levels: tuple[str, ...] = ()
    other: bool = False
    missing: bool = False

    def names(self) -> list[str]:
        """Return the names of the columns."""
        own = [self.feature] if self.sd else []
        words = [f"{self.feature}={level}" for level in self.levels]
        other = [f"{self.feature}=(other)"] if self.other else []
        return own + words + other + ([f"{self.feature} missing"] if self.missing else [])

    def values(self, values: npt.NDArray[Any]) -> Float64Array:
        """Return the encoded columns (n, d) for the n values of the feature, one for each name.

        A missing value is `MISSING` in all columns but the one that marks it.
        """
        gaps = isna(values)
        out = np.zeros((len(values), len(self.names())))
        if self.sd:
            with np.errstate(over="ignore"):
                z = (np.where(gaps, self.mean, values).astype(np.float64) - self.mean) / self.sd
            out[:, 0] = np.clip(z, -REACH, REACH)
        elif self.levels or self.other:
            place = {level: j for j, level in enumerate(self.levels)}
            other = len(self.levels) if self.other else -1
            column = np.array([place.get(v, other) for v in values.tolist()], dtype=np.intp)
            rows = np.flatnonzero(~gaps & (column >= 0))
            out[rows, column[rows]] = 1.0
        out[gaps] = MISSING
        if self.missing:
            out[:, -1] = gaps
        return out


@dataclass(frozen=True, eq=False, kw_only=True)
class EncodedRows:
    """New rows of a site as numbers.

    Attributes
    ----------
    x : ndarray (n, d)
    labels : ndarray (n,)
        Class numbers, or numbers in regression. An unknown label is −1, or NaN in regression.
    notes : tuple of str
    absent : frozenset of str
        Features without a value in any row.
    """

    x: Float64Array
    labels: npt.NDArray[Any]
    notes: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.x)

    def __repr__(self) -> str:
        return (
            f"EncodedRows({len(self.x)} rows, {self.x.shape[1]} columns, {len(self.notes)} notes)"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Encoder:
    """Turns rows into numbers in the same way at every site, also for new rows.

    It depends on training rows only. Column kinds and words come from the cells of all sites; means
    and standard deviations come from sums over all sites. It never uses test labels.

    Attributes
    ----------
    schema : Schema
    codes : tuple of Code
        One per feature that varies in the training rows.
    """

    schema: Schema
    codes: tuple[Code, ...]

    @property
    def columns(self) -> dict[str, str]:
        """Encoded columns in their order, each with its feature."""
        out: dict[str, str] = {}
        for code in self.codes:
            for name in code.names():
                while name in out:  # a feature may itself be called "age missing"
                    name += "'"
                out[name] = code.feature
        return out

    def encode(self, rows: Any, *, site: str = "new rows") -> EncodedRows:
        """Return new rows as numbers.

        A word that no training row has is encoded as a rare word, or as zeros if no column is for
        rare words. If the rows lack a column, all its values count as missing. The notes list
        such words and columns.

        Parameters
        ----------
        rows : SiteRows, data frame or mapping of columns
        site : str
            Name of the rows in notes and errors.
        """
        notes: list[str] = []
        part = (
            rows
            if isinstance(rows, SiteRows)
            else self._part(TextTable.of(rows, site), site, notes)
        )
        x = self.numbers(part, site, notes)
        return EncodedRows(x=x, labels=part.labels, notes=tuple(dict.fromkeys(notes)))

    def rows_of(self, table: TextTable, notes: list[str]) -> SiteRows:
        """Return the rows of a new table, which must have every column that the model reads.

        Raises
        ------
        InputError
            If such a column is absent. The message names it.
        """
        known = match_names(table, self.schema.names).columns
        absent = [c.feature for c in self.codes if c.feature not in known]
        if absent:
            raise InputError(
                f"{table.name} must have every column that the model reads; got no "
                f"{quote(absent, 20)}; add {'it' if len(absent) == 1 else 'them'}; empty cells "
                "count as missing"
            )
        return self._part(table, table.name, notes)

    def measured(self, x: Float64Array) -> Float64Array:
        """Return the numeric columns of encoded rows in their own units; NaN if marked missing."""
        out, at = [np.empty((len(x), 0))], 0
        for code in self.codes:
            end = at + len(code.names())
            if code.sd:
                gaps = x[:, end - 1] == 1 if code.missing else np.zeros(len(x), dtype=bool)
                out.append(np.where(gaps, np.nan, x[:, at] * code.sd + code.mean)[:, None])
            at = end
        return np.concatenate(out, axis=1)

    def new_words(self, part: SiteRows) -> list[str]:
        """Return for each row the categories that no training row has, as "ward=ICU"."""
        out = [""] * len(part)
        for f in (self.schema[c.feature] for c in self.codes):
            known = {None, *f.levels}
            values = part.columns[f.name].tolist() if f.kind == "categorical" else []
            for i, word in enumerate(values):
                if word not in known:
                    out[i] += f"{'; ' if out[i] else ''}{f.name}={word}"
        return out

    def read(self, path: str | os.PathLike[str]) -> dict[str, EncodedRows]:
        """Return new deployment rows from files as numbers, by site.

        Parameters
        ----------
        path : path
            A folder or file, as in `Sites.read`, but without training rows: ``train`` files are
            not read. A file without a site column is one site with the file's name.

        Raises
        ------
        InputError
            If there are no deployment rows, or a file cannot be read.
        """
        root, schema = Path(path), self.schema
        # file patterns are for the training files only
        layout, folder = find_files(root, replace(schema.settings, files=())), folder_of(root)
        by_site: dict[str, list[Slice]] = {}
        notes = [*layout.notes]
        files = [f for f in layout.files if f.part != "train"]
        if not files:
            raise InputError(f"{root} needs a deployment file; got training files only; add one")
        for f in files:
            table = read_table(f.path, schema.settings, name=f.path.relative_to(folder).as_posix())
            notes += table.notes
            table = self._match_training(table, notes)
            name = f.site
            if name is None and schema.settings.site not in table.columns:
                name = stem(f.path)
            for p in split_table(SiteTable(table, name, "deploy"), schema.settings.site, None):
                by_site.setdefault(p.site, []).append(p)
        out = {}
        for site, slices in by_site.items():
            own = [*notes]
            part = build_rows(slices, schema, own)
            x = self.numbers(part, site, own)
            absent = frozenset(k for k, values in part.columns.items() if isna(values).all())
            out[site] = EncodedRows(
                x=x, labels=part.labels, notes=tuple(dict.fromkeys(own)), absent=absent
            )
        return out

    def _match_training(self, table: TextTable, notes: list[str]) -> TextTable:
        """Return a table with column names and decimal points as in training."""
        s, target = self.schema.settings, self.schema.target.name
        roles = [n for n in (s.site, s.split, s.weights, target) if n is not None]
        table = match_names(table, [*self.schema.names, *self.schema.dropped, *roles])
        new = [
            k for k in table.columns if k not in (*self.schema.names, *self.schema.dropped, *roles)
        ]
        if new:
            notes.append(f"{table.name}: columns {quote(new)} are ignored, as training lacks them.")
        lacking = [n for n in self.schema.names if n not in table.columns]
        if lacking:
            notes.append(f"{table.name}: columns {quote(lacking)} are absent; treated as missing.")
        return fix_commas(table, {*roles, *new}, notes)

    def _part(self, table: TextTable, site: str, notes: list[str]) -> SiteRows:
        known = self._match_training(table, notes)
        return build_rows([Slice(site, "deploy", known, np.arange(len(known)))], self.schema, notes)

    def numbers(self, part: SiteRows, site: str, notes: list[str]) -> Float64Array:
        """Return the encoded columns (n, d) of rows whose cells are already numbers or words.

        It adds notes on new words, on numbers far from the training mean, and on missing values.
        """
        blocks = []
        for code in self.codes:
            values = part.columns[code.feature]
            blocks.append(code.values(values))
            notes += _new_values(code, values, self.schema[code.feature], site)
        return np.ascontiguousarray(np.concatenate(blocks, axis=1))

    def __repr__(self) -> str:
        return f"Encoder({len(self.codes)} features to {len(self.columns)} columns)"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which `from_dict` reads."""
        codes = [dataclasses.asdict(c) | {"levels": list(c.levels)} for c in self.codes]
        return {"kind": _KIND, "schema": self.schema.to_dict(), "codes": codes}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """Return the encoder that `to_dict` wrote.

        Raises
        ------
        InputError
            If the values are not those of an encoder.
        """
        try:
            if table["kind"] != _KIND:
                raise ValueError(f"kind {table['kind']!r}")
            schema = Schema.from_dict(table["schema"])
            codes = tuple(Code(**{**c, "levels": tuple(c["levels"])}) for c in table["codes"])
            for code in codes:
                schema[code.feature]
                if not (math.isfinite(code.mean) and 0 <= code.sd < math.inf):
                    raise ValueError(f"mean {code.mean} and sd {code.sd} of {code.feature!r}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"an encoder must be what Encoder.to_dict wrote; got {type(table).__name__} "
                f"({error}); save it again"
            ) from None
        return cls(schema=schema, codes=codes)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the encoder as JSON and return the path; a failed write leaves no partial file."""
        return write_text(Path(path), json.dumps(self.to_dict(), indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the encoder that `save` wrote.

        Raises
        ------
        InputError
            If the file cannot be read or holds no encoder.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:  # an InputError is a ValueError
            raise InputError(
                f"{path} must hold an encoder as JSON; {error}; restore the file from a copy, or "
                "write its folder again"
            ) from None


def _new_values(code: Code, values: npt.NDArray[Any], feature: Feature, site: str) -> list[str]:
    """Return notes on new words, far values, and missing values that no column marks."""
    where, out = f"Site {site!r}, column {code.feature!r}: ", []
    gaps = int(isna(values).sum())
    if feature.kind == "categorical":
        known = set(feature.levels)
        new = Counter(v for v in values.tolist() if v is not None and v not in known)
        fill, what = "zeros", "encoded as rare" if code.other else "encoded as zeros"
        if new:
            out.append(
                f"{where}{count_rows(new.total())} with a value that no training row has "
                f"({quote(new, 3)}); {what}."
            )
    else:
        fill = "the training mean"
        with np.errstate(over="ignore"):
            far = int((np.abs(values - code.mean) > REACH * code.sd).sum()) if code.sd else 0
        if far:
            out.append(
                f"{where}{count_rows(far)} more than {REACH:.0f} standard deviations from the "
                "training mean; clipped."
            )
    if gaps and not code.missing and len(code.names()):
        out.append(
            f"{where}{count_rows(gaps)} without a value; filled with {fill}, not marked as missing."
        )
    return out
