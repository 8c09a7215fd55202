"""The schema: how the cells of each column are read, at every site and for new rows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from fedshift.core.by_name import ByName
from fedshift.core.samples import Float64Array
from fedshift.data.tables.cells import SOFT, Order, day, is_missing, numbers, plain, truth
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.target import PlainValues, Target
from fedshift.data.tables.text_table import TextColumn

ColumnKind = Literal["numeric", "date", "categorical"]
KINDS: tuple[ColumnKind, ...] = ("numeric", "date", "categorical")


@dataclass(frozen=True, kw_only=True)
class Feature(PlainValues):
    """A column that a model learns from, and how its cells are read.

    Attributes
    ----------
    name : str
    kind : {"numeric", "date", "categorical"}
        Dates become days since 1970.
    levels : tuple of str
        Values of a categorical column in the training rows of any site, sorted.
    known : mapping of str to str
        Other spellings in the training rows, each with the level it stands for.
    order : {"ymd", "dmy", "mdy"}
        Order of year, month and day in a date.
    markers : tuple of str
        Cells that mean missing, besides usual ones such as "NA".
    """

    name: str
    kind: ColumnKind
    levels: tuple[str, ...] = ()
    known: Mapping[str, str] = dataclasses.field(default_factory=dict)
    order: Order = "ymd"
    markers: tuple[str, ...] = ()

    def __repr__(self) -> str:
        more = f", {len(self.levels)} levels" if self.kind == "categorical" else ""
        return f"Feature({self.name!r}, {self.kind}{more})"

    def values(self, cells: TextColumn) -> npt.NDArray[Any]:
        """Return the values (n,) of cells: numbers, or words (object) if categorical.

        A cell that is missing or cannot be used becomes NaN, or None if categorical.
        """
        if self.kind == "categorical":
            words = np.empty(len(cells.levels), dtype=object)
            words[:] = [self.word(level) for level in cells.levels]
            return np.asarray(words[cells.codes])
        return np.asarray(self._numbers(cells.levels)[cells.codes])

    def all_missing(self, n: int) -> npt.NDArray[Any]:
        """Return a column of n missing values."""
        return np.full(n, None, dtype=object) if self.kind == "categorical" else np.full(n, np.nan)

    def word(self, text: str) -> str | None:
        """Return the level of a cell, the cell itself if it is new, or None if missing."""
        if is_missing(text, self.markers):
            return None
        word = plain(text)
        if word in self._known:
            return self._known[word]
        return self._folded.get(word.casefold(), word)

    def _numbers(self, levels: Sequence[str]) -> Float64Array:
        """Return the number, or the days since 1970, of each cell; NaN if there is none."""
        if self.kind == "date":
            values = np.array([day(v, self.order) for v in levels], dtype=np.float64)
        else:
            values, which = numbers(levels)
            for i in np.flatnonzero(~which).tolist():
                values[i] = truth(levels[i])
        if self.markers:
            values[[is_missing(v, self.markers) for v in levels]] = np.nan
        return values

    def unusable(self, cells: TextColumn, values: npt.NDArray[Any]) -> Counter[str]:
        """Count the cells that are not missing but that this column cannot use.

        Parameters
        ----------
        cells : TextColumn
        values : ndarray (n,)
            What the method `values` returns for these cells.
        """
        if self.kind == "categorical":
            return Counter()
        counts = Counter(cells.codes[np.isnan(values)].tolist())
        texts = Counter({cells.levels[code]: n for code, n in counts.items()})
        return Counter(
            {
                text: n
                for text, n in texts.items()
                if not is_missing(text, self.markers) and text.casefold() not in SOFT
            }
        )

    @cached_property
    def _known(self) -> dict[str, str]:
        return {level: level for level in self.levels} | dict(self.known)

    @cached_property
    def _folded(self) -> dict[str, str]:
        """Levels by their case-folded text, where that is unique."""
        count = Counter(level.casefold() for level in self.levels)
        return {v.casefold(): v for v in self.levels if count[v.casefold()] == 1}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """Return the feature that `to_dict` wrote."""
        feature = super().from_dict(table)
        if feature.kind not in KINDS:
            raise ValueError(f"kind {feature.kind!r}")
        return feature


@dataclass(frozen=True, kw_only=True)
class Schema(ByName[Feature]):
    """The columns of all sites' tables: the label, the features, and columns left out.

    Attributes
    ----------
    target : Target
        The label.
    features : tuple of Feature
        In the order of the first training file.
    dropped : mapping of str to str
        Columns left out, and why.
    settings : TableSettings
        The settings, in which guessed label, site and split columns are filled in.
    """

    _entries, _key = "features", "name"

    target: Target
    features: tuple[Feature, ...]
    dropped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: TableSettings = dataclasses.field(default_factory=TableSettings)

    def __repr__(self) -> str:
        kinds = Counter(f.kind for f in self.features)
        parts = ", ".join(f"{kinds[k]} {k}" for k in KINDS if kinds[k])
        return f"Schema({self.target!r}; {parts} features, {len(self.dropped)} columns left out)"

    @cached_property
    def _by_name(self) -> Mapping[str, Feature]:
        return {f.name: f for f in self.features}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(f.name for f in self.features)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which `from_dict` reads."""
        return {
            "target": self.target.to_dict(),
            "features": [f.to_dict() for f in self.features],
            "dropped": dict(self.dropped),
            "settings": self.settings.to_dict(),
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """Return the schema that `to_dict` wrote."""
        return cls(
            target=Target.from_dict(table["target"]),
            features=tuple(Feature.from_dict(f) for f in table["features"]),
            dropped=dict(table["dropped"]),
            settings=TableSettings.of(table["settings"]),
        )
