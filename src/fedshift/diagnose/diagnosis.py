"""Results of `diagnose` as immutable values, ready for JSON and pandas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedshift.core.by_name import ByName
from fedshift.diagnose.columns import ColumnShift
from fedshift.diagnose.finding import Finding, Status
from fedshift.diagnose.overlap import Overlap
from fedshift.diagnose.sentences import sentences
from fedshift.diagnose.shift_type import ShiftType

#: schema of `Diagnosis.to_dict`; its number rises when a key changes its meaning
SCHEMA = "fedshift.diagnosis/1"


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(ByName[Finding]):
    """A comparison of source rows with target rows.

    Attributes
    ----------
    site : str
        The site whose rows are compared.
    other : str
        What these rows are compared with: "its test rows", another site, or "the other sites".
    findings : tuple of Finding
        One test result per question.
    shift_type : ShiftType
    columns : tuple of ColumnShift
        The columns that differ most; empty unless the inputs shifted.
    """

    _entries, _key = "findings", "question"

    site: str
    other: str
    findings: tuple[Finding, ...]
    shift_type: ShiftType
    columns: tuple[ColumnShift, ...] = ()

    @property
    def status(self) -> Status:
        """The most serious status among the findings."""
        statuses = {f.status for f in self.findings}
        order: tuple[Status, ...] = ("shift", "too small to matter", "no shift found")
        return next((s for s in order if s in statuses), "inconclusive")

    @property
    def main(self) -> Finding:
        """The finding that decides the status; if several do, the one with the largest AUC."""
        mine = [f for f in self.findings if f.status == self.status]
        return max(mine, key=lambda f: -1.0 if math.isnan(f.auc) else f.auc)

    def __repr__(self) -> str:
        shift_type = f", {self.shift_type}" if self.status == "shift" else ""
        return f"{type(self).__name__}({self.site} and {self.other}: {self.status}{shift_type})"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict ready for JSON."""
        shift_type = self.shift_type
        return {
            "site": self.site,
            "other": self.other,
            "status": self.status,
            "findings": [f.to_dict() for f in self.findings],
            "shift_type": {
                **shift_type.__dict__,
                "meaning": shift_type.meaning,
                "findings": [f.to_dict() for f in shift_type.findings],
            },
            "columns": [dict(c.__dict__) for c in self.columns],
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class SiteDiagnosis(Comparison):
    """A comparison of a site's training rows with its test rows.

    Attributes
    ----------
    train_rows, test_rows : int
        Numbers of rows.
    overlap : Overlap
        How well the training rows cover the test rows.
    """

    train_rows: int
    test_rows: int
    overlap: Overlap

    def to_dict(self) -> dict[str, Any]:
        """Return a dict ready for JSON."""
        return {
            **super().to_dict(),
            "train_rows": self.train_rows,
            "test_rows": self.test_rows,
            "overlap": self.overlap.to_dict(),
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis(ByName[SiteDiagnosis]):
    """Shifts within sites and between them.

    Attributes
    ----------
    sites : tuple of SiteDiagnosis
        For each site, its training rows compared with its test rows.
    between : tuple of Comparison
        For each site, its training rows compared with those of the other sites. Two sites give one
        comparison.
    classes : tuple of str
        Class names by class number.
    alpha : float
        Bound on the probability of any false alarm in the whole diagnosis.
    smallest : float
        AUC below which a shift is too small to matter.
    tests : int
        Number of tests that the p-values are adjusted for.
    seed : int
    """

    _entries, _key = "sites", "site"

    sites: tuple[SiteDiagnosis, ...]
    between: tuple[Comparison, ...]
    classes: tuple[str, ...]
    alpha: float
    smallest: float
    tests: int
    seed: int

    @property
    def shifted(self) -> tuple[Comparison, ...]:
        """All comparisons with status "shift"."""
        return tuple(c for c in (*self.sites, *self.between) if c.status == "shift")

    @property
    def status(self) -> str:
        """Where shifts were found, in one phrase."""
        inside = sum(s.status == "shift" for s in self.sites)
        apart = sum(c.status == "shift" for c in self.between)
        n = len(self.sites)
        m, text = len(self.between), f"training and test differ at {inside} of {n} site"
        between = f"; sites differ in {apart} of {m} comparison{'s' * (m > 1)}" if m else ""
        return f"{text}{'s' * (n > 1)}{between}"

    def __repr__(self) -> str:
        return f"Diagnosis({self.status})"

    def sentences(self) -> list[str]:
        """Return what shifted and what to do next as sentences."""
        return sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict ready for JSON; its version is under "schema"."""
        return {
            "schema": SCHEMA,
            "status": self.status,
            "alpha": self.alpha,
            "smallest": self.smallest,
            "tests": self.tests,
            "seed": self.seed,
            "classes": list(self.classes),
            "sites": [s.to_dict() for s in self.sites],
            "between": [c.to_dict() for c in self.between],
            "sentences": self.sentences(),
        }

    def to_records(self) -> list[dict[str, Any]]:
        """Return one flat dict per comparison, ready for a table."""
        return [_record(c) for c in (*self.sites, *self.between)]


def _record(c: Comparison) -> dict[str, Any]:
    first = c.main.to_dict()
    overlap = c.overlap.to_dict() if isinstance(c, SiteDiagnosis) else {}
    return {
        "site": c.site,
        "other": c.other,
        "status": c.status,
        "shift_type": c.shift_type.name,
        "concept": c.shift_type.concept,
        **{name: first[name] for name in ("question", "p", "adjusted", "auc", "low", "high")},
        "column": c.columns[0].name if c.columns else None,
        **{name: overlap.get(name) for name in ("ess", "coverage")},
    }
