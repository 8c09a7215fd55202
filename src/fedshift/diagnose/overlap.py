"""Overlap: how much of the target the source rows cover, and with how many effective rows."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedshift.core.files import without_nan
from fedshift.core.samples import Float64Array, Sample
from fedshift.core.weights import Weighting
from fedshift.diagnose.two_sample import Budget, Pair
from fedshift.errors import FedshiftError, FedshiftWarning
from fedshift.ratio.auto import Auto
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.classifier import Classifier
from fedshift.ratio.logistic import Logistic

#: effective sample size, and its share of the rows, below which overlap is poor
POOR_ROWS, POOR_SHARE = 30.0, 0.1
#: overlap is poor if a larger share of the target rows lies where there are hardly any source rows
POOR_OUTSIDE = 0.05
#: a target row is outside if the target is this many times denser there than the source
OUTSIDE = 50.0
#: source rows, and target rows, on which the ratio models are compared
CHOOSE_ROWS = 2500


class Quick(Auto):
    """`Auto` with its cheap models only: no network, no forests, one kernel."""

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
    """How well weighted source rows represent the target.

    Attributes
    ----------
    ess, share : float
        Effective sample size of the weighted source rows, and its share of all source rows.
    coverage : float
        Part of the target distribution that source rows cover: the mean ratio over source
        rows, but at most 1.
    outside : float
        Share of target rows where the target is at least 50 times (`OUTSIDE`) denser than the
        source.
    largest : float
        Largest ratio at a source row.
    model : str
        The ratio model that held-out rows selected.
    reason : str
        Why the overlap is unknown, else empty.
    """

    ess: float = math.nan
    share: float = math.nan
    coverage: float = math.nan
    outside: float = math.nan
    largest: float = math.nan
    model: str = ""
    reason: str = ""

    @property
    def poor(self) -> bool:
        """Whether weights would depend on a few rows or miss part of the target."""
        if self.reason:
            return False
        few = self.ess < POOR_ROWS or self.share < POOR_SHARE
        return few or self.outside > POOR_OUTSIDE or self.coverage < 1.0 - 5 * POOR_OUTSIDE

    @property
    def sentence(self) -> str:
        """The overlap in words, with the next step if it is poor."""
        if self.reason:
            return f"The overlap is unknown: {self.reason}."
        size = f"the effective sample size with weights is {self.ess:.0f} rows ({self.share:.0%})"
        if self.outside > POOR_OUTSIDE:
            return (
                f"For {self.outside:.0%} of the test rows there are hardly any similar training "
                f"rows to weight, and {size}. Collect such training rows."
            )
        if self.poor:
            return f"Overlap is poor: {size}. Flatten or clip the weights, or collect more rows."
        return f"Training rows cover the test rows; {size}."

    def __repr__(self) -> str:
        if self.reason:
            return f"Overlap(unknown; {self.reason})"
        return (
            f"Overlap(ESS {self.ess:.0f} = {self.share:.0%}, coverage {self.coverage:.2f}, "
            f"outside {self.outside:.1%}, ratio up to {self.largest:.3g}, {self.model})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dict ready for JSON, with None for a missing number."""
        return {**{k: without_nan(v) for k, v in vars(self).items()}, "poor": self.poor}


def whole(rows: int) -> Overlap:
    """Overlap of equal distributions: the effective sample size is the number of rows."""
    n = float(rows)
    return Overlap(ess=n, share=1.0, coverage=1.0, outside=0.0, largest=1.0, model="none")


def overlap(pair: Pair, budget: Budget, *, rows: int | None = None) -> Overlap:
    """Estimate the overlap by the held-out log ratio of target to source.

    Parameters
    ----------
    pair : Pair
    budget : Budget
    rows : int, optional
        Number of all source rows, if the pair has only some of them, drawn at random. `ess` is then
        multiplied by `rows` / (source rows in the pair).
    """
    source, target = pair.z[~pair.target], pair.z[pair.target]
    if source.shape[1] == 0:
        return Overlap(reason="all columns are constant")
    model = Quick(seed=budget.seed, folds=3, max_rows=CHOOSE_ROWS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedshiftWarning)
            model.fit(source=source, target=target)
            at_target = np.asarray(model.log_ratio(target))
            at_source: Float64Array = model.source_log_ratio_
            weights = Weighting()(at_source)
    except FedshiftError as error:
        return Overlap(reason=str(error))
    share = weights.ess / len(source)
    return Overlap(
        ess=share * (rows or len(source)),
        share=share,
        coverage=weights.coverage,
        outside=float(np.mean(at_target > math.log(OUTSIDE))),
        largest=weights.max,
        model=model.choice_,
    )
