"""What one test found: a p-value, how large the difference is, and what to make of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

#: Below this AUC a difference is too small to matter: in the median over label shifts of two
#: Gaussian classes the best weights gain less than .01 accuracy (`benchmarks/diagnose.py`).
SMALLEST = 0.53
#: Share of alpha that tests are held to. The rest is kept for what no permutation knows of: rows
#: that hang together, and the one test that is not exact (labels given inputs).
LEVEL = 0.5
#: fewest rows a side with which a question is asked at all
FEWEST = 10

Status = Literal["shift", "too small to matter", "no shift found", "cannot tell"]
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
    """The answer to one question about a source and a target.

    A shift is said to be one only if the p-value, adjusted for all questions asked together, is at
    most `level` *and* the AUC is at least `smallest`: with many rows everything is significant.

    Attributes
    ----------
    question : str
        What was compared: p(x), p(y), p(y | x), p(x | y), or what is left after label weights.
    source_rows, target_rows : int
        Rows the test used; large samples are cut.
    p, adjusted : float
        Raw, and Holm-adjusted over the diagnosis; NaN where the question could not be asked.
    auc, low, high : float
        Held-out AUC of a classifier of the sides, or its equivalent for p(y) and p(y | x), with a
        95 % interval; ½ means no difference.
    tv, js : float or None
        Total variation and Jensen-Shannon divergence (bits), both "at least".
    draws : int
        Draws the p-value was compared with; it cannot fall below 1 / (1 + draws).
    level, smallest : float
        The bars.
    reason : str
        Why nothing can be told, if so.
    """

    question: Question
    source_rows: int
    target_rows: int
    p: float = math.nan
    adjusted: float = math.nan
    auc: float = math.nan
    low: float = math.nan
    high: float = math.nan
    tv: float | None = None
    js: float | None = None
    draws: int = 0
    level: float = 0.025
    smallest: float = SMALLEST
    reason: str = ""

    @property
    def status(self) -> Status:
        """In words."""
        if math.isnan(self.adjusted):
            return "cannot tell"
        if self.adjusted > self.level:
            return "no shift found"
        return "shift" if self.auc >= self.smallest else "too small to matter"

    @property
    def p_text(self) -> str:
        """The adjusted p-value; "≤" where no draw was as extreme as the data."""
        least = "≤ " if self.draws and self.p * (1 + self.draws) < 1.5 else ""
        return f"p {least}{self.adjusted:.2g}"

    def __repr__(self) -> str:
        if self.status == "cannot tell":
            return f"Finding({self.question}: cannot tell; {self.reason})"
        return (
            f"Finding({self.question}: {self.status}; adjusted {self.p_text}, AUC "
            f"{self.auc:.3f} [{self.low:.3f}, {self.high:.3f}], n={self.source_rows} and "
            f"{self.target_rows})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: None where a number is missing."""
        out: dict[str, Any] = {"question": self.question, "status": self.status}
        for name in (
            "source_rows",
            "target_rows",
            "p",
            "adjusted",
            "auc",
            "low",
            "high",
            "tv",
            "js",
            "draws",
        ):
            value = getattr(self, name)
            out[name] = None if value is None or math.isnan(value) else value
        return out | {"reason": self.reason}


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values; NaN stays NaN and is not counted.

    The chance of a single false alarm among all is at most α if the smallest p-value is compared
    with α/m, the next with α/(m − 1), and so on, whatever the dependence.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    asked = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    out = [math.nan] * len(p_values)
    running = 0.0
    for position, (p, i) in enumerate(asked):
        running = max(running, min(1.0, (len(asked) - position) * p))
        out[i] = running
    return out


def adjust(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with p-values adjusted over all of them."""
    adjusted = holm([f.p for f in findings])
    return [replace(f, adjusted=p) for f, p in zip(findings, adjusted, strict=True)]
