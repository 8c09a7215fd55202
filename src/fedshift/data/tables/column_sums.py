"""The counts and sums that leave a site so that all sites encode rows in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fedshift.core.moments import square_sums
from fedshift.data.tables.schema import Schema
from fedshift.data.tables.site_rows import SiteRows, isna

#: counts that decide a column's kind: cells, numbers, dates and distinct cells
COUNTS = 4


@dataclass(frozen=True, eq=False, kw_only=True)
class ColumnSums:
    """Sums over the training rows of one site, which can be added to the sums of other sites.

    In the first round a site sends counts and sums (`of`), from which the means follow. In the
    second round it sends squared distances from the means (`add_squares`). For very small or large
    numbers, a third round sends the squared distances in another unit. Rows never leave a site.

    Attributes
    ----------
    rows : int
        Number of training rows.
    present : mapping of feature to int
        Number of rows in which the feature is not missing.
    sums : mapping of numeric feature to float
        Σ v over the values v of the feature.
    squares : mapping of (numeric feature, unit) to float
        Σ ((v − mean) / unit)² over the values v, with the mean over all sites.
    levels : mapping of categorical feature to {word: count}
    classes : tuple
        Classes that occur.
    columns : int
        Number of columns that may be features. Before the first round, a site sends four counts for
        each, which decide its kind (numeric, date or categorical); `numbers` includes them.
    """

    rows: int
    present: Mapping[str, int]
    sums: Mapping[str, float]
    levels: Mapping[str, Mapping[str, int]]
    squares: Mapping[tuple[str, float], float] = field(default_factory=dict)
    classes: tuple[Any, ...] = ()
    columns: int = 0

    @classmethod
    def of(cls, part: SiteRows, schema: Schema) -> Self:
        """Return the counts and sums of the first round."""
        present, sums, levels = {}, {}, {}
        for f in schema.features:
            values = part.columns[f.name]
            values = values[~isna(values)]
            present[f.name] = len(values)
            if f.kind == "categorical":
                levels[f.name] = dict(sorted(Counter(values.tolist()).items()))
            else:
                sums[f.name] = float(values.sum())
        classes = [c for i, c in enumerate(schema.target.classes) if (part.labels == i).any()]
        return cls(
            rows=len(part),
            present=present,
            sums=sums,
            levels=levels,
            classes=tuple(classes),
            columns=len(schema.features) + len(schema.dropped),
        )

    def add_squares(
        self, part: SiteRows, means: Mapping[str, float], units: Mapping[str, float]
    ) -> Self:
        """Return a copy that also has the squared distances from the means over all sites."""
        squares = {
            (k, unit): float(square_sums(part.columns[k] - means[k], unit))
            for k, unit in units.items()
        }
        return replace(self, squares={**self.squares, **squares})

    @property
    def numbers(self) -> int:
        """Number of numbers that leave the site."""
        counts = sum(map(len, self.levels.values()))
        moments = len(self.present) + len(self.sums) + len(self.squares)
        return 1 + COUNTS * self.columns + moments + counts

    @property
    def words(self) -> tuple[str, ...]:
        """Texts that leave the site: categories and classes."""
        return (*(w for level in self.levels.values() for w in level), *map(str, self.classes))

    @property
    def up(self) -> int:
        """Bytes that leave the site: eight per number, and the words."""
        return 8 * self.numbers + sum(len(w.encode(errors="replace")) + 1 for w in self.words)

    def __repr__(self) -> str:
        return f"ColumnSums({self.numbers} numbers and {len(self.words)} words, {self.up} bytes)"


def add_sums(sites: Sequence[ColumnSums]) -> ColumnSums:
    """Return the sums over all sites."""
    levels: dict[str, Counter[str]] = {}
    for t in sites:
        for name, counts in t.levels.items():
            levels.setdefault(name, Counter()).update(counts)
    return ColumnSums(
        rows=sum(t.rows for t in sites),
        present={k: sum(t.present[k] for t in sites) for k in sites[0].present},
        sums={k: sum(t.sums[k] for t in sites) for k in sites[0].sums},
        squares={k: sum(t.squares[k] for t in sites) for k in sites[0].squares},
        levels=levels,
    )
