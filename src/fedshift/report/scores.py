"""What was measured and what was expected of every site, with the words for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedshift.report.spell import UNKNOWN, finite, known, number, share, signed, span

#: one site's figure with its interval
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Scores:
    """Figures by site.

    Attributes
    ----------
    measure : {"accuracy", "mse"}
    before, after : mapping of site to row
        Measured without weights, and with the model that was taken.
    expected : mapping of site to row
        Estimated without test labels, for the model that was taken.
    same : bool
        The model without weights was taken, so before and after are the same.
    """

    measure: str
    before: Mapping[str, Row]
    after: Mapping[str, Row]
    expected: Mapping[str, Row]
    same: bool

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Scores:
        """From a record; what is missing is empty."""
        made = record.get("evaluation") or {}
        before = {r["client"]: r for r in made.get("erm") or []}
        after = {r["client"]: r for r in made.get("chosen") or []}
        expected = {r["site"]: r for r in record.get("expected") or []}
        rows = (r for part in (before, after, expected) for r in part.values())
        name = "mse" if any(known(r.get("mse")) for r in rows) else "accuracy"
        gate = record.get("gate") or {}
        choice = record.get("choice") or gate.get("choice")
        same = choice == gate.get("baseline", "erm")
        return cls(name, before, after or (before if same else {}), expected, same)

    @property
    def name(self) -> str:
        """Of the figure, in words."""
        return "MSE" if self.measure == "mse" else "accuracy"

    def sites(self) -> list[str]:
        """All that have a figure."""
        return list(dict.fromkeys([*self.before, *self.after, *self.expected]))

    def value(self, row: Row | None) -> float:
        """The figure of a row; NaN where there is none."""
        return finite((row or {}).get(self.measure))

    def write(self, value: Any) -> str:
        """A figure in words."""
        return share(value, 1) if self.measure == "accuracy" else number(value)

    def told(self, row: Row | None) -> tuple[str, str]:
        """A figure and its interval."""
        if row is None or not known(self.value(row)):
            return UNKNOWN, ""
        return self.write(self.value(row)), span(row.get("low"), row.get("high"), self.write)

    def change(self, before: float, after: float) -> str:
        """What weights changed: points of accuracy, or per cent of the mse."""
        if not (known(before) and known(after)):
            return UNKNOWN
        if self.measure == "accuracy":
            return f"{signed(100 * (after - before), 1)} points"
        by = (after - before) / before if before else math.nan
        return f"{signed(100 * by, 0)}%" if known(by) else UNKNOWN

    def better(self, before: float, after: float) -> bool:
        """Whether the second figure is better than the first."""
        return after > before if self.measure == "accuracy" else after < before

    def means(self) -> tuple[float, float]:
        """Before and after, over sites that have both; each counts the same."""
        pairs = [
            (self.value(row), self.value(self.after.get(site))) for site, row in self.before.items()
        ]
        told = [p for p in pairs if known(p[0]) and known(p[1])]
        if not told:
            return math.nan, math.nan
        return sum(a for a, _ in told) / len(told), sum(b for _, b in told) / len(told)

    def worse(self) -> list[str]:
        """Sites at which the model that was taken did worse than the one without weights."""
        both = {s: (self.value(self.after.get(s)), self.value(r)) for s, r in self.before.items()}
        return [site for site, (after, before) in both.items() if self.better(after, before)]

    def agreement(self) -> tuple[int, int]:
        """Sites whose measured figure lies in the expected interval, and sites that have both."""
        pairs = [(row, self.value(self.after.get(site))) for site, row in self.expected.items()]
        told = [
            row["low"] <= value <= row["high"]
            for row, value in pairs
            if known(value) and known(row.get("low")) and known(row.get("high"))
        ]
        return sum(told), len(told)
