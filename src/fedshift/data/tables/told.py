"""What a site tells so that all can encode alike: counts and sums, never a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from fedshift.data.tables.parts import Part, absent
from fedshift.data.tables.schema import Schema

#: counts that decide a column's kind: cells, numbers, dates and different cells
COUNTS = 4


@dataclass(frozen=True, eq=False, kw_only=True)
class Told:
    """Sums over one site's training rows; those of several sites add up.

    The means need the first round (`of`), the squares about them a second (`about`).

    Attributes
    ----------
    rows : int
    present : mapping of feature to int
        Rows in which it is not missing.
    sums, squares : mapping of numeric feature to float
        Of its values, and of their squared distance from the mean of all sites.
    levels : mapping of categorical feature to a count for every word
    classes : tuple
        Labels met (classification).
    columns : int
        Columns whose kind had to be agreed on.
    """

    rows: int
    present: Mapping[str, int]
    sums: Mapping[str, float]
    levels: Mapping[str, Mapping[str, int]]
    squares: Mapping[str, float] = field(default_factory=dict)
    classes: tuple[Any, ...] = ()
    columns: int = 0

    @classmethod
    def of(cls, part: Part, schema: Schema) -> Self:
        """The first round."""
        present, sums, levels = {}, {}, {}
        for f in schema.features:
            values = part.columns[f.name]
            held = values[~absent(values)]
            present[f.name] = len(held)
            if f.kind == "categorical":
                levels[f.name] = dict(sorted(Counter(held.tolist()).items()))
            else:
                sums[f.name] = float(held.sum())
        classes = [c for i, c in enumerate(schema.target.classes) if (part.labels == i).any()]
        return cls(
            rows=len(part),
            present=present,
            sums=sums,
            levels=levels,
            classes=tuple(classes),
            columns=len(schema.features) + len(schema.dropped),
        )

    def about(self, part: Part, means: Mapping[str, float]) -> Self:
        """The second round: squared distances from the means of all sites."""
        squares = {k: float(np.nansum((part.columns[k] - m) ** 2)) for k, m in means.items()}
        return replace(self, squares=squares)

    @property
    def numbers(self) -> int:
        """How many numbers leave the site."""
        counts = sum(map(len, self.levels.values()))
        moments = len(self.present) + len(self.sums) + len(self.squares)
        return 1 + COUNTS * self.columns + moments + counts

    @property
    def words(self) -> tuple[str, ...]:
        """Which texts leave the site: categories and classes."""
        return (*(w for level in self.levels.values() for w in level), *map(str, self.classes))

    @property
    def up(self) -> int:
        """Bytes that leave the site: eight a number, and the words."""
        return 8 * self.numbers + sum(len(w.encode(errors="replace")) + 1 for w in self.words)

    def __repr__(self) -> str:
        return f"Told({self.numbers} numbers and {len(self.words)} words, {self.up} bytes)"


def together(told: Sequence[Told]) -> Told:
    """What all sites tell, added up."""
    levels: dict[str, Counter[str]] = {}
    for t in told:
        for name, counts in t.levels.items():
            levels.setdefault(name, Counter()).update(counts)
    return Told(
        rows=sum(t.rows for t in told),
        present={k: sum(t.present[k] for t in told) for k in told[0].present},
        sums={k: sum(t.sums[k] for t in told) for k in told[0].sums},
        squares={k: sum(t.squares[k] for t in told) for k in told[0].squares},
        levels=levels,
    )
