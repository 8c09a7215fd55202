"""What is the federation worth to a site? The federated model beside one that it trains alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedshift.learn.evaluate import ClientScore, Evaluation
from fedshift.learn.gate import Difference


@dataclass(frozen=True, eq=False)
class SiteScores:
    """Scores of the federated model and of models that sites train alone, on the same rows.

    A site trains alone on its own rows only, with the model class, ridge penalties and folds of the
    federated model.

    Attributes
    ----------
    rows : str
        The rows that are scored: "deployment rows" or "held-out training rows". A held-out row is
        scored by models that were trained without it.
    federated : Evaluation
        Scores of the federated model at every site that has such rows.
    local : mapping of site to ClientScore
        Scores of the models trained alone, without the sites that have too few rows.
    differences : mapping of site to Difference
        Mean loss (log loss or mse) of the federated model minus that of the model trained alone.
        Above 0, the site is better off alone. Held-out rows have their training weights, so that
        they represent the deployment rows.
    """

    rows: str
    federated: Evaluation
    local: Mapping[str, ClientScore]
    differences: Mapping[str, Difference]

    @property
    def better_alone(self) -> list[str]:
        """Sites where the model trained alone is better beyond noise, worst harm first."""
        harm = {n: d.value for n, d in self.differences.items() if d.interval[0] > 0}
        return sorted(harm, key=harm.__getitem__, reverse=True)

    def __repr__(self) -> str:
        alone = ", ".join(self.better_alone) or "no site"
        return f"SiteScores(on {self.rows}: {self.federated.status}; better alone: {alone})"

    def to_dict(self) -> dict[str, Any]:
        """Return all values, ready for JSON."""
        keys = ("value", "low", "high", "risk")
        each = {n: d.to_dict() for n, d in self.differences.items()}
        return {
            "rows": self.rows,
            "figure": self.federated.figure,
            "federated": self.federated.to_records(),
            "local": Evaluation(tuple(self.local.values())).to_records() if self.local else [],
            "better_alone": self.better_alone,
            "differences": {n: {k: d[k] for k in keys} for n, d in each.items()},
        }
