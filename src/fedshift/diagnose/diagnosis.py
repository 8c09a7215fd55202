"""What was found, as values that speak."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedshift.core.params import nearest
from fedshift.diagnose.columns import ColumnShift
from fedshift.diagnose.finding import Finding, Status
from fedshift.diagnose.kind import Kind
from fedshift.diagnose.overlap import Overlap
from fedshift.diagnose.predict import PredictedEffect
from fedshift.diagnose.words import sentences
from fedshift.errors import InputError

#: of `Diagnosis.to_dict`; raised when a key changes its meaning
SCHEMA = "fedshift.diagnosis/1"


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """A source against a target.

    Attributes
    ----------
    site : str
        The site it is about.
    other : str
        What it is compared with: "its test rows", another site, or "the other sites".
    findings : tuple of Finding
    kind : Kind
    columns : tuple of ColumnShift
        The columns that moved most; empty unless there is a shift.
    """

    site: str
    other: str
    findings: tuple[Finding, ...]
    kind: Kind
    columns: tuple[ColumnShift, ...] = ()

    @property
    def status(self) -> Status:
        """The most serious status of its findings."""
        found = {f.status for f in self.findings}
        order: tuple[Status, ...] = ("shift", "too small to matter", "no shift found")
        return next((s for s in order if s in found), "cannot tell")

    @property
    def main(self) -> Finding:
        """The finding its status rests on; the largest AUC of several."""
        mine = [f for f in self.findings if f.status == self.status]
        return max(mine, key=lambda f: -1.0 if math.isnan(f.auc) else f.auc)

    def __getitem__(self, question: str) -> Finding:
        """The finding on a question."""
        for f in self.findings:
            if f.question == question:
                return f
        raise InputError(
            f"the question must be {nearest(question, [f.question for f in self.findings])}"
        )

    def __repr__(self) -> str:
        kind = f", {self.kind.name}" if self.status == "shift" else ""
        return f"{type(self).__name__}({self.site} and {self.other}: {self.status}{kind})"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "site": self.site,
            "other": self.other,
            "status": self.status,
            "findings": [f.to_dict() for f in self.findings],
            "kind": {
                "name": self.kind.name,
                "meaning": self.kind.meaning,
                "label_law": self.kind.label_law and list(self.kind.label_law),
                "findings": [f.to_dict() for f in self.kind.findings],
            },
            "columns": [dict(c.__dict__) for c in self.columns],
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class SiteDiagnosis(Comparison):
    """A site's training rows against its test rows.

    Attributes
    ----------
    train_rows, test_rows : int
    overlap : Overlap
    predicted_effect : PredictedEffect
        Of weights on this site's test law.
    """

    train_rows: int
    test_rows: int
    overlap: Overlap
    predicted_effect: PredictedEffect

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            **super().to_dict(),
            "train_rows": self.train_rows,
            "test_rows": self.test_rows,
            "overlap": self.overlap.to_dict(),
            "predicted_effect": self.predicted_effect.to_dict(),
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """What shifted within and between sites, and whether weighting will help.

    Attributes
    ----------
    sites : tuple of SiteDiagnosis
        Every site's training rows against its test rows.
    between : tuple of Comparison
        Every site's training rows against those of the others; of two sites there is one.
    predicted_effect : PredictedEffect
        Of weights, mean over sites.
    classes : tuple of str
        What class numbers stand for.
    alpha, smallest : float
        Chance of a single false alarm, and the AUC below which a shift does not matter.
    tests : int
        Questions the p-values are adjusted for.
    seed : int
    """

    sites: tuple[SiteDiagnosis, ...]
    between: tuple[Comparison, ...]
    predicted_effect: PredictedEffect
    classes: tuple[str, ...]
    alpha: float
    smallest: float
    tests: int
    seed: int

    @property
    def shifted(self) -> tuple[Comparison, ...]:
        """The comparisons in which a shift was found."""
        return tuple(c for c in (*self.sites, *self.between) if c.status == "shift")

    @property
    def status(self) -> str:
        """One sentence."""
        inside = sum(s.status == "shift" for s in self.sites)
        apart = sum(c.status == "shift" for c in self.between)
        n = len(self.sites)
        between = f", between sites in {apart} of {len(self.between)}" if self.between else ""
        return (
            f"shift between training and test at {inside} of {n} site{'s' * (n > 1)}{between}; "
            f"weighting: {self.predicted_effect.verdict}"
        )

    def __repr__(self) -> str:
        return f"Diagnosis({self.status})"

    def __getitem__(self, site: str) -> SiteDiagnosis:
        """A site's own diagnosis."""
        for s in self.sites:
            if s.site == site:
                return s
        raise InputError(f"the site must be {nearest(site, [s.site for s in self.sites])}")

    def sentences(self) -> list[str]:
        """What was found and what to do about it, in plain words."""
        return sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, with a version of its own under "schema"."""
        return {
            "schema": SCHEMA,
            "status": self.status,
            "alpha": self.alpha,
            "smallest": self.smallest,
            "tests": self.tests,
            "seed": self.seed,
            "classes": list(self.classes),
            "predicted_effect": self.predicted_effect.to_dict(),
            "sites": [s.to_dict() for s in self.sites],
            "between": [c.to_dict() for c in self.between],
            "sentences": self.sentences(),
        }

    def to_records(self) -> list[dict[str, Any]]:
        """One flat dict a comparison, ready for a table."""
        return [_record(c) for c in (*self.sites, *self.between)]

    def to_frame(self) -> Any:
        """A pandas frame, one row a comparison."""
        try:
            import pandas
        except ImportError:
            raise ImportError(
                "to_frame needs pandas; install fedshift[tables], or take to_records()"
            ) from None
        return pandas.DataFrame(self.to_records())


def _record(c: Comparison) -> dict[str, Any]:
    first = c.main
    out: dict[str, Any] = {
        "site": c.site,
        "other": c.other,
        "status": c.status,
        "kind": c.kind.name,
        "question": first.question,
        "p": _known(first.p),
        "adjusted": _known(first.adjusted),
        "auc": _known(first.auc),
        "low": _known(first.low),
        "high": _known(first.high),
        "tv": first.tv,
        "js": first.js,
        "column": c.columns[0].name if c.columns else None,
    }
    if isinstance(c, SiteDiagnosis):
        out |= {"ess": _known(c.overlap.ess), "coverage": _known(c.overlap.coverage)}
        effect = c.predicted_effect
        out |= {"weighting": effect.verdict, "gain": _known(effect.gain)}
    else:
        out |= dict.fromkeys(("ess", "coverage", "weighting", "gain"))
    return out


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
