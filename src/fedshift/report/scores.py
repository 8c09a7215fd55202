"""Measured and forecast scores (accuracy or MSE) of every site, and how to write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedshift.report.format import UNKNOWN, finite, known, number, share, signed, span

#: one site's score with its interval
Score = Mapping[str, Any]


@dataclass(frozen=True)
class Scores:
    """Scores by site.

    Attributes
    ----------
    measure : {"accuracy", "mse"}
    before, after : mapping of site to row
        Measured without weights, and with the chosen model.
    expected : mapping of site to row
        Forecast without test labels, for the chosen model.
    same : bool
        True if the chosen model is the one without weights, so before and after are equal.
    """

    measure: str
    before: Mapping[str, Score]
    after: Mapping[str, Score]
    expected: Mapping[str, Score]
    same: bool

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Scores:
        """Read the scores from a record; missing ones are left out."""
        measured = record.get("evaluation") or {}
        before = {r["client"]: r for r in measured.get("erm") or []}
        after = {r["client"]: r for r in measured.get("chosen") or []}
        expected = {r["site"]: r for r in record.get("expected") or []}
        rows = (r for part in (before, after, expected) for r in part.values())
        name = "mse" if any(known(r.get("mse")) for r in rows) else "accuracy"
        gate = record.get("gate") or {}
        choice = record.get("choice") or gate.get("choice")
        same = choice == gate.get("baseline", "erm")
        return cls(name, before, after or (before if same else {}), expected, same)

    @property
    def name(self) -> str:
        """Name of the score in words."""
        return "MSE" if self.measure == "mse" else "accuracy"

    def sites(self) -> list[str]:
        """Return all sites that have a score."""
        return list(dict.fromkeys([*self.before, *self.after, *self.expected]))

    def value(self, row: Score | None) -> float:
        """Return the score of a row; NaN if the row has none."""
        return finite((row or {}).get(self.measure))

    def write(self, value: Any) -> str:
        """Write a score as text."""
        return share(value, 1) if self.measure == "accuracy" else number(value)

    def texts(self, row: Score | None) -> tuple[str, str]:
        """Write the score of a row and its interval."""
        if row is None or not known(self.value(row)):
            return UNKNOWN, ""
        return self.write(self.value(row)), span(row.get("low"), row.get("high"), self.write)

    def change(self, before: float, after: float) -> str:
        """Write the change by weights: percentage points of accuracy, or per cent of the MSE."""
        if not (known(before) and known(after)):
            return UNKNOWN
        if self.measure == "accuracy":
            return f"{signed(100 * (after - before), 1)} percentage points"
        by = (after - before) / before if before else math.nan
        return f"{signed(100 * by, 0)}%" if known(by) else UNKNOWN

    def better(self, before: float, after: float) -> bool:
        """Whether the score `after` is better than the score `before`."""
        return after > before if self.measure == "accuracy" else after < before

    def means(self) -> tuple[float, float]:
        """Return the mean scores before and after, over the sites that have both scores."""
        pairs = [
            (self.value(row), self.value(self.after.get(site))) for site, row in self.before.items()
        ]
        both = [p for p in pairs if known(p[0]) and known(p[1])]
        if not both:
            return math.nan, math.nan
        return sum(a for a, _ in both) / len(both), sum(b for _, b in both) / len(both)

    def worse(self) -> list[str]:
        """Return the sites where the chosen model is worse than the one without weights."""
        pairs = {s: (self.value(self.after.get(s)), self.value(r)) for s, r in self.before.items()}
        return [site for site, (after, before) in pairs.items() if self.better(after, before)]

    def agreement(self) -> tuple[int, int]:
        """Return two counts of sites.

        The first is the number of sites whose measured score is in the forecast interval. The
        second is the number of sites with a measured score and a forecast interval.
        """
        pairs = [(row, self.value(self.after.get(site))) for site, row in self.expected.items()]
        inside = [
            row["low"] <= value <= row["high"]
            for row, value in pairs
            if known(value) and known(row.get("low")) and known(row.get("high"))
        ]
        return sum(inside), len(inside)
