"""What every column is: how its cells are read at every site, now and later."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array
from fedshift.data.tables.cells import Cells
from fedshift.data.tables.labels import Target
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.values import SOFT, Order, day, listed, missing, numbers, plain, truth
from fedshift.errors import InputError

Kind = Literal["numeric", "date", "categorical"]
KINDS: tuple[Kind, ...] = ("numeric", "date", "categorical")


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A column and how its cells are read.

    Attributes
    ----------
    name : str
    kind : {"numeric", "date", "categorical"}
        Dates become days since 1970.
    levels : tuple of str
        Values of a categorical column met in the training rows of any site, sorted.
    known : mapping of str to str
        Other spellings of them met there.
    order : {"ymd", "dmy", "mdy"}
        Of dates.
    markers : tuple of str
        Cells that mean missing, besides the usual.
    """

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()
    known: Mapping[str, str] = dataclasses.field(default_factory=dict)
    order: Order = "ymd"
    markers: tuple[str, ...] = ()

    def __repr__(self) -> str:
        more = f", {len(self.levels)} levels" if self.kind == "categorical" else ""
        return f"Feature({self.name!r}, {self.kind}{more})"

    def values(self, cells: Cells) -> npt.NDArray[Any]:
        """Numbers with NaN, or words (object) with None, where a cell is missing or unreadable."""
        if self.kind == "categorical":
            words = np.empty(len(cells.levels), dtype=object)
            words[:] = [self.word(level) for level in cells.levels]
            return np.asarray(words[cells.codes])
        return np.asarray(self._numbers(cells.levels)[cells.codes])

    def nothing(self, n: int) -> npt.NDArray[Any]:
        """A column of n missing values."""
        return np.full(n, None, dtype=object) if self.kind == "categorical" else np.full(n, np.nan)

    def word(self, text: str) -> str | None:
        """The level a cell spells, or the cell itself if no training row has it."""
        if missing(text, self.markers):
            return None
        word = plain(text)
        if word in self._known:
            return self._known[word]
        return self._folded.get(word.casefold(), word)

    def _numbers(self, levels: Sequence[str]) -> Float64Array:
        """The number or day each cell spells, or NaN."""
        if self.kind == "date":
            values = np.array([day(v, self.order) for v in levels], dtype=np.float64)
        else:
            values, which = numbers(levels)
            for i in np.flatnonzero(~which).tolist():
                values[i] = truth(levels[i])
        if self.markers:
            values[[missing(v, self.markers) for v in levels]] = np.nan
        return values

    def odd(self, cells: Cells, values: npt.NDArray[Any]) -> Counter[str]:
        """Cells that hold something, but nothing this column can use, and how often they occur.

        `values` are what `values` made of the cells.
        """
        if self.kind == "categorical":
            return Counter()
        counts = Counter(cells.codes[np.isnan(values)].tolist())
        found = Counter({cells.levels[code]: n for code, n in counts.items()})
        return Counter(
            {
                text: n
                for text, n in found.items()
                if not missing(text, self.markers) and text.casefold() not in SOFT
            }
        )

    @cached_property
    def _known(self) -> dict[str, str]:
        return {level: level for level in self.levels} | dict(self.known)

    @cached_property
    def _folded(self) -> dict[str, str]:
        """Levels without case, where case does not matter."""
        count = Counter(level.casefold() for level in self.levels)
        return {v.casefold(): v for v in self.levels if count[v.casefold()] == 1}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `from_dict` takes them."""
        return dataclasses.asdict(self) | {
            "levels": list(self.levels),
            "markers": list(self.markers),
            "known": dict(self.known),
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """The feature `to_dict` wrote."""
        told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
        made = cls(**told)
        if made.kind not in KINDS:
            raise ValueError(f"kind {made.kind!r}")
        return made


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What all sites' tables hold: the target, the features, and why other columns were left.

    Attributes
    ----------
    target : Target
    features : tuple of Feature
        In the order of the first training file.
    dropped : mapping of str to str
        Columns that were left out, and why.
    settings : TableSettings
        What was said, with the site, split and weights columns that were found.
    """

    target: Target
    features: tuple[Feature, ...]
    dropped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: TableSettings = dataclasses.field(default_factory=TableSettings)

    def __repr__(self) -> str:
        kinds = Counter(f.kind for f in self.features)
        told = ", ".join(f"{kinds[k]} {k}" for k in KINDS if kinds[k])
        return f"Schema({self.target!r}; {told} features, {len(self.dropped)} columns left out)"

    def __getitem__(self, name: str) -> Feature:
        """A feature by its name."""
        if name not in self._features:
            raise InputError(f"no feature {name!r}; there are {listed(self.names, 30)}")
        return self._features[name]

    @cached_property
    def _features(self) -> dict[str, Feature]:
        return {f.name: f for f in self.features}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(f.name for f in self.features)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `from_dict` takes them."""
        return {
            "target": self.target.to_dict(),
            "features": [f.to_dict() for f in self.features],
            "dropped": dict(self.dropped),
            "settings": self.settings.to_dict(),
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """The schema `to_dict` wrote."""
        return cls(
            target=Target.from_dict(table["target"]),
            features=tuple(Feature.from_dict(f) for f in table["features"]),
            dropped=dict(table["dropped"]),
            settings=TableSettings.of(table["settings"]),
        )
