"""Rows to numbers, the same way at every site, now and later."""

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
from fedshift.core.samples import Float64Array
from fedshift.data.tables.cells import Table
from fedshift.data.tables.deal import Piece, pieces
from fedshift.data.tables.find import find, folder_of, stem
from fedshift.data.tables.names import toward
from fedshift.data.tables.parts import Part, absent, assembled, with_points
from fedshift.data.tables.read import read_table
from fedshift.data.tables.roles import Source
from fedshift.data.tables.schema import Feature, Schema
from fedshift.data.tables.values import count_rows, quoted
from fedshift.errors import InputError

#: standardised values end here, so that no float32 model meets an infinity
REACH = 1000.0
_KIND = "fedshift.data.tables.Encoder"


@dataclass(frozen=True, kw_only=True)
class Code:
    """How one feature becomes columns.

    Attributes
    ----------
    feature : str
    mean, sd : float
        Of a numeric feature; with an sd of 0 it gets no column of its own.
    levels : tuple of str
        Words of a categorical feature with a column each.
    other : bool
        Whether rarer words share a column.
    missing : bool
        Whether a column tells that the value is missing.
    """

    feature: str
    mean: float = 0.0
    sd: float = 0.0
    levels: tuple[str, ...] = ()
    other: bool = False
    missing: bool = False

    def names(self) -> list[str]:
        """Names of the columns."""
        own = [self.feature] if self.sd else []
        words = [f"{self.feature}={level}" for level in self.levels]
        other = [f"{self.feature}=(other)"] if self.other else []
        return own + words + other + ([f"{self.feature} missing"] if self.missing else [])

    def values(self, values: npt.NDArray[Any]) -> Float64Array:
        """The columns (n, ·) of a feature's values."""
        gone = absent(values)
        out = np.zeros((len(values), len(self.names())))
        if self.sd:
            with np.errstate(over="ignore"):
                z = (np.where(gone, self.mean, values).astype(np.float64) - self.mean) / self.sd
            out[:, 0] = np.clip(z, -REACH, REACH)
        elif self.levels or self.other:
            place = {level: j for j, level in enumerate(self.levels)}
            other = len(self.levels) if self.other else -1
            column = np.array([place.get(v, other) for v in values.tolist()], dtype=np.intp)
            rows = np.flatnonzero(~gone & (column >= 0))
            out[rows, column[rows]] = 1.0
        if self.missing:
            out[:, -1] = gone
        return out


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """New rows of a site, encoded.

    Attributes
    ----------
    x : ndarray (n, d)
    labels : ndarray (n,)
        Class numbers with −1, or numbers with NaN, where a label is not known.
    notes : tuple of str
    """

    x: Float64Array
    labels: npt.NDArray[Any]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.x)

    def __repr__(self) -> str:
        return f"Batch({len(self.x)} rows, {self.x.shape[1]} columns, {len(self.notes)} notes)"


@dataclass(frozen=True, eq=False, kw_only=True)
class Encoder:
    """Rows to numbers, the same way at every site, now and later.

    It depends on training rows only: kinds and words on all sites' cells, means and deviations
    on their sums. Test labels have no part in it.

    Attributes
    ----------
    schema : Schema
    codes : tuple of Code
        One for every feature that tells anything.
    """

    schema: Schema
    codes: tuple[Code, ...]

    @property
    def columns(self) -> dict[str, str]:
        """Encoded columns in their order, and the feature each is made of."""
        out: dict[str, str] = {}
        for code in self.codes:
            for name in code.names():
                while name in out:  # a feature may itself be called "age missing"
                    name += "'"
                out[name] = code.feature
        return out

    def encode(self, rows: Any, *, site: str = "new rows") -> Batch:
        """Encode new rows: a `Part`, a data frame or a mapping of columns.

        Words no training row has go to the column of rare words, or are all zeros where there is
        none; columns that are absent are missing. The notes tell.
        """
        notes: list[str] = []
        part = rows if isinstance(rows, Part) else self._part(Table.of(rows, site), site, notes)
        x = self.numbers(part, site, notes)
        return Batch(x=x, labels=part.labels, notes=tuple(dict.fromkeys(notes)))

    def read(self, path: str | os.PathLike[str]) -> dict[str, Batch]:
        """Encode new deployment rows from files, by site.

        Parameters
        ----------
        path : path
            As `Sites.read` takes it, but deployment rows suffice and ``train`` files are not
            read. A single file without the site column is one site, called after the file.
        """
        root, schema = Path(path), self.schema
        # patterns were made for the training files
        layout, folder = find(root, replace(schema.settings, files=())), folder_of(root)
        mine: dict[str, list[Piece]] = {}
        notes = [*layout.notes]
        files = [f for f in layout.files if f.part != "train"]
        if not files:
            raise InputError(f"{root} must hold deployment rows; got train files only")
        for f in files:
            table = read_table(f.path, schema.settings, name=f.path.relative_to(folder).as_posix())
            notes += table.notes
            table = self._known(table, notes)
            name = f.site
            if name is None and schema.settings.site not in table.columns:
                name = stem(f.path)
            for p in pieces(Source(table, name, "deploy"), schema.settings.site, None):
                mine.setdefault(p.site, []).append(p)
        out = {}
        for site, found in mine.items():
            told = [*notes]
            part = assembled(found, schema, told)
            x = self.numbers(part, site, told)
            out[site] = Batch(x=x, labels=part.labels, notes=tuple(dict.fromkeys(told)))
        return out

    def _known(self, table: Table, notes: list[str]) -> Table:
        """A table with the names and decimal points of training."""
        s, target = self.schema.settings, self.schema.target.name
        roles = [n for n in (s.site, s.split, s.weights, target) if n is not None]
        table = toward(table, [*self.schema.names, *self.schema.dropped, *roles])
        new = [
            k for k in table.columns if k not in (*self.schema.names, *self.schema.dropped, *roles)
        ]
        if new:
            notes.append(f"{table.name}: columns {quoted(new)} were not met in training: not used.")
        lacking = [n for n in self.schema.names if n not in table.columns]
        if lacking:
            notes.append(
                f"{table.name}: columns {quoted(lacking)} are not there: taken as missing."
            )
        return with_points(table, {*roles, *new}, notes)

    def _part(self, table: Table, site: str, notes: list[str]) -> Part:
        known = self._known(table, notes)
        return assembled([Piece(site, "deploy", known, np.arange(len(known)))], self.schema, notes)

    def numbers(self, part: Part, site: str, notes: list[str]) -> Float64Array:
        """The columns (n, d) of typed rows; what is worth telling is added to the notes."""
        blocks = []
        for code in self.codes:
            values = part.columns[code.feature]
            blocks.append(code.values(values))
            notes += _strange(code, values, self.schema[code.feature], site)
        return np.ascontiguousarray(np.concatenate(blocks, axis=1))

    def __repr__(self) -> str:
        return f"Encoder({len(self.codes)} features to {len(self.columns)} columns)"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as `from_dict` takes them."""
        codes = [dataclasses.asdict(c) | {"levels": list(c.levels)} for c in self.codes]
        return {"kind": _KIND, "schema": self.schema.to_dict(), "codes": codes}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """The encoder `to_dict` wrote.

        Raises
        ------
        InputError
            If it is something else.
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
        """Write it as JSON, whole or not at all."""
        return write_text(Path(path), json.dumps(self.to_dict(), indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The encoder `save` wrote."""
        try:
            table = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} must hold an encoder as JSON; {error}") from None
        return cls.from_dict(table)


def _strange(code: Code, values: npt.NDArray[Any], feature: Feature, site: str) -> list[str]:
    """What is worth telling of values that training rows did not have."""
    where, out = f"Site {site!r}, column {code.feature!r}: ", []
    gone = int(absent(values).sum())
    if feature.kind == "categorical":
        known = set(feature.levels)
        new = Counter(v for v in values.tolist() if v is not None and v not in known)
        fill, what = "zeros", "counted as rare" if code.other else "encoded as zeros"
        if new:
            out.append(
                f"{where}{count_rows(new.total())} with a value that no training row has "
                f"({quoted(new, 3)}); {what}."
            )
    else:
        fill = "the mean of training"
        with np.errstate(over="ignore"):
            far = int((np.abs(values - code.mean) > REACH * code.sd).sum()) if code.sd else 0
        if far:
            out.append(
                f"{where}{count_rows(far)} more than {REACH:.0f} deviations from the mean of "
                "training; cut there."
            )
    if gone and not code.missing and len(code.names()):
        out.append(
            f"{where}{count_rows(gone)} without a value, and no column tells; filled with {fill}."
        )
    return out
