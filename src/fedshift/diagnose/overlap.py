"""How much of the target do the source rows stand for, and with how many rows?"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedshift.core.bound import largest_ratio, nested_masses, tabulate
from fedshift.core.samples import Float64Array, Sample
from fedshift.core.weights import Weighting
from fedshift.diagnose.two_sample import Budget, Pair
from fedshift.errors import FedshiftError, FedshiftWarning
from fedshift.ratio.auto import Auto
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.classifier import Classifier
from fedshift.ratio.logistic import Logistic

#: effective rows, and share of rows that count, below which overlap is poor
POOR_ROWS, POOR_SHARE = 30.0, 0.1
#: share of the target that lies where next to no source row does, above which overlap is poor
POOR_OUTSIDE = 0.05
#: a target row is outside where the target is so many times denser than the source
OUTSIDE = 50.0
#: rows a side the models of the ratio are compared on
CHOOSE_ROWS = 2500
#: rows of the smallest cell the bound is read off, as a share of both laws
CELL_ROWS = 10.0


class Quick(Auto):
    """`Auto` with the cheap half of its family: no network, no forests, one kernel."""

    def _estimators(self, s: Sample, t: Sample) -> dict[str, RatioEstimator]:
        members: dict[str, RatioEstimator] = {
            "linear": Logistic("linear"),
            "squares": Logistic("squares"),
            "kernel": Logistic("kernel", n_centers=100),
        }
        if min(len(s), len(t)) >= 50:
            members["boosting"] = Classifier(folds=0, seed=self.seed)
        return members


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What the ratio of target to source says at the source rows.

    Attributes
    ----------
    ess, share : float
        Effective sample size of the weighted source rows, and as a share of them.
    coverage : float
        Part of the target that the source rows stand for: mean ratio, at most one.
    outside : float
        Part of the target rows where the target is at least `OUTSIDE` times denser.
    largest, bound : float
        Largest ratio at a source row; upper 95 % limit of the ratio from nested cells.
    model : str
        Which model of the ratio held-out rows chose.
    reason : str
        Why there are no figures, if so.
    """

    ess: float = math.nan
    share: float = math.nan
    coverage: float = math.nan
    outside: float = math.nan
    largest: float = math.nan
    bound: float = math.nan
    model: str = ""
    reason: str = ""

    @property
    def poor(self) -> bool:
        """Whether weights would rest on a few rows, or leave part of the target out."""
        if self.reason:
            return False
        few = self.ess < POOR_ROWS or self.share < POOR_SHARE
        return few or self.outside > POOR_OUTSIDE or self.coverage < 1.0 - 5 * POOR_OUTSIDE

    @property
    def sentence(self) -> str:
        """What it means."""
        if self.reason:
            return f"overlap cannot be told: {self.reason}"
        said = f"{self.ess:.0f} rows count ({self.share:.0%})"
        if self.outside > POOR_OUTSIDE:
            return (
                f"{self.outside:.0%} of the test rows lie where there are next to no training "
                f"rows, which no weight can stand for; {said}; collect such rows"
            )
        if self.poor:
            return f"weights would rest on few rows: {said}; flatten or clip them, or collect rows"
        return f"training rows cover the test rows; with weights {said}"

    def __repr__(self) -> str:
        if self.reason:
            return f"Overlap(cannot tell; {self.reason})"
        return (
            f"Overlap(ESS {self.ess:.0f} = {self.share:.0%}, coverage {self.coverage:.2f}, "
            f"outside {self.outside:.1%}, ratio up to {self.largest:.3g}, {self.model})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in self.__dict__.items()
        } | {"poor": self.poor}


def whole(rows: int) -> Overlap:
    """The overlap of laws that did not move: every row counts."""
    n = float(rows)
    return Overlap(
        ess=n, share=1.0, coverage=1.0, outside=0.0, largest=1.0, bound=1.0, model="none"
    )


def overlap(
    pair: Pair, budget: Budget, *, rows: int | None = None
) -> tuple[Overlap, Float64Array | None]:
    """Figures, and the held-out log ratio of every source row of the pair (None: no ratio).

    Parameters
    ----------
    rows : int, optional
        Source rows in all, of which the pair holds a part.
    """
    source, target = pair.z[~pair.target], pair.z[pair.target]
    if source.shape[1] == 0:
        return Overlap(reason="all columns are constant"), None
    model = Quick(seed=budget.seed, folds=3, max_rows=CHOOSE_ROWS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedshiftWarning)
            model.fit(source=source, target=target)
            at_target = np.asarray(model.log_ratio(target))
            at_source: Float64Array = model.source_log_ratio_
            weights = Weighting()(at_source)
    except FedshiftError as error:
        return Overlap(reason=str(error)), None
    share = weights.ess / len(source)
    found = Overlap(
        ess=share * (rows or len(source)),
        share=share,
        coverage=weights.coverage,
        outside=float(np.mean(at_target > math.log(OUTSIDE))),
        largest=weights.max,
        bound=_bound(at_source, at_target),
        model=model.choice_,
    )
    return found, at_source


def _bound(source: Float64Array, target: Float64Array) -> float:
    """Upper limit of the largest ratio over nested cells of the held-out log ratio."""
    n, m = len(source), len(target)
    _, s, t = nested_masses(
        source,
        target,
        np.full(n, 1.0 / n),
        np.full(m, 1.0 / m),
        n_cells=20,
        smallest=min(1.0, CELL_ROWS / min(n, m)),
    )
    cells = tabulate(s, t, n_source=n, n_target=m)
    return largest_ratio(cells, min_count=CELL_ROWS / 2.0, upper=True)
