"""The result of one test: a p-value, an effect size, and a status that follows from both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedshift.core.files import without_nan

#: Below this AUC a difference is too small to matter: for two Gaussian classes under label shift,
#: the median gain of the best weights is below .01 accuracy (`benchmarks/diagnose.py`).
SMALLEST = 0.53
#: Share of alpha that the tests use. The rest allows for dependent rows, which no permutation
#: accounts for, and for the one test that is not exact (labels given inputs).
LEVEL = 0.5
#: fewest source rows, and fewest target rows, for a test
FEWEST = 10

Status = Literal["shift", "too small to matter", "no shift found", "inconclusive"]
Question = Literal[
    "inputs",
    "labels",
    "labels given inputs",
    "inputs given labels",
    "inputs after label weights",
    "labels given inputs after label weights",
]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The answer to one question about source and target rows.

    The status is "shift" only if the adjusted p-value is at most `level` *and* the AUC is at least
    `smallest`. With many rows every difference is significant, so significance is not enough.

    Attributes
    ----------
    question : str
        Which distributions are compared: p(x) for "inputs", p(y) for "labels", p(y | x) for "labels
        given inputs", p(x | y) for "inputs given labels". Before a comparison "… after label
        weights", label shift is corrected: source rows are drawn with a probability that depends
        on their class.
    source_rows, target_rows : int
        Numbers of rows that the test used, each at most the argument `rows` of `diagnose`.
    p, adjusted : float
        The p-value, raw and Holm-adjusted over all tests of the diagnosis; NaN if the test could
        not run.
    auc, low, high : float
        Held-out AUC of a classifier that separates source from target, with a 95 % interval; ½
        means no difference. For p(y), the AUC is computed from the total variation between the
        label distributions; for p(y | x), from the correlation of a classifier's score with the
        indicator of target rows (0 or 1).
    draws : int
        Random draws behind the p-value, which is at least 1 / (1 + draws).
    level, smallest : float
        Thresholds of p-value and AUC.
    reason : str
        Why the test could not run, else empty.
    """

    question: Question
    source_rows: int
    target_rows: int
    p: float = math.nan
    adjusted: float = math.nan
    auc: float = math.nan
    low: float = math.nan
    high: float = math.nan
    draws: int = 0
    level: float = 0.025
    smallest: float = SMALLEST
    reason: str = ""

    @property
    def status(self) -> Status:
        """The result in words; "inconclusive" if the test could not run."""
        if math.isnan(self.adjusted):
            return "inconclusive"
        if self.adjusted > self.level:
            return "no shift found"
        return "shift" if self.auc >= self.smallest else "too small to matter"

    @property
    def p_text(self) -> str:
        """The adjusted p-value as text, with "≤" if no draw was as extreme as the data."""
        least = "≤ " if self.draws and self.p * (1 + self.draws) < 1.5 else ""
        return f"p {least}{self.adjusted:.2g}"

    def __repr__(self) -> str:
        if self.status == "inconclusive":
            return f"Finding({self.question}: inconclusive; {self.reason})"
        return (
            f"Finding({self.question}: {self.status}; adjusted {self.p_text}, AUC "
            f"{self.auc:.3f} [{self.low:.3f}, {self.high:.3f}], n={self.source_rows} and "
            f"{self.target_rows})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dict ready for JSON, with None for a missing number."""
        values = {k: v for k, v in vars(self).items() if k not in ("level", "smallest")}
        first: dict[str, Any] = {"question": self.question, "status": self.status}
        return first | {k: without_nan(v) for k, v in values.items()}


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's method; NaN stays NaN and does not count as a test.

    The probability of any false alarm is at most α if the smallest of m p-values is compared with
    α/m, the next with α/(m − 1), and so on. This holds under any dependence.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    out = [math.nan] * len(p_values)
    running = 0.0
    for position, (p, i) in enumerate(known):
        running = max(running, min(1.0, (len(known) - position) * p))
        out[i] = running
    return out


def adjust(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with p-values adjusted over all of them."""
    adjusted = holm([f.p for f in findings])
    return [replace(f, adjusted=p) for f, p in zip(findings, adjusted, strict=True)]
