"""What training on tables leaves: the candidates, the gate's verdict and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedshift.core.samples import Float64Array
from fedshift.core.weights import Weights
from fedshift.federation.crossval import Fit
from fedshift.federation.explain import Explanation, Marginals
from fedshift.federation.export import write_sample_weights
from fedshift.federation.ledger import Ledger
from fedshift.learn.evaluate import Evaluation
from fedshift.learn.foresee import Forecast
from fedshift.learn.gate import Gate


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to train, tried.

    Attributes
    ----------
    name : str
        "erm", "label", "covariate" or "given".
    fit : Fit
        Of scaled columns.
    model : Module
        Of columns as they come, in float64.
    weights : mapping of client to Weights, or None for ERM
    evaluation : Evaluation or None
        On the test rows, if all their labels are known. Nothing is chosen by it.
    """

    name: str
    fit: Fit
    model: nn.Module
    weights: Mapping[str, Weights] | None
    evaluation: Evaluation | None

    def __repr__(self) -> str:
        return f"Candidate({self.name}: {self.fit})"


@dataclass(frozen=True, eq=False)
class TabularOutcome:
    """A trained federation of tables, and why it was trained that way.

    Attributes
    ----------
    candidates : mapping of name to Candidate
        "erm" and those that were weighed against it.
    gate : Gate
    explanations : mapping of kind to Explanation
        What the unlabelled rows say of the kinds of shift.
    marginals : Marginals or None
        Label laws, where there are classes.
    forecast : Forecast
        Of the chosen model at every site, without a label.
    ledger : Ledger
        What left the sites.
    objective : str
    seed : int
    seconds : float
    """

    candidates: Mapping[str, Candidate]
    gate: Gate
    explanations: Mapping[str, Explanation]
    marginals: Marginals | None
    forecast: Forecast
    ledger: Ledger
    objective: str
    seed: int
    seconds: float

    @property
    def choice(self) -> str:
        """Name of the chosen candidate."""
        return self.gate.choice

    @property
    def chosen(self) -> Candidate:
        """The chosen candidate."""
        return self.candidates[self.choice]

    @property
    def model(self) -> nn.Module:
        """The chosen model, of columns as they come."""
        return self.chosen.model

    @property
    def evaluation(self) -> Evaluation | None:
        """Test figures of the chosen model."""
        return self.chosen.evaluation

    @property
    def before(self) -> Evaluation | None:
        """Test figures of ERM."""
        return self.candidates["erm"].evaluation

    @property
    def status(self) -> str:
        """One sentence."""
        fit = self.chosen.fit
        return f"{self.gate.status}; {fit.model} model, ridge {fit.ridge:g}; {self.forecast.status}"

    def __repr__(self) -> str:
        return f"TabularOutcome({self.status})"

    def sample_weights(self) -> dict[str, Float64Array]:
        """Weights the chosen model was trained with, by site; 1 for ERM."""
        chosen = self.chosen
        sizes = {n: len(v) for n, v in chosen.fit.losses.items()}
        if chosen.weights is None:
            return {n: np.ones(m) for n, m in sizes.items()}
        return {n: np.array(w.values) for n, w in chosen.weights.items()}

    def write_weights(
        self, folder: Path | str, *, rows: Mapping[str, Any] | None = None
    ) -> dict[str, Path]:
        """`sample_weights` as a Parquet file for every site (`write_sample_weights`)."""
        return write_sample_weights(folder, self.sample_weights(), rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """Everything but models and rows, ready for JSON."""
        return {
            "status": self.status,
            "choice": self.choice,
            "objective": self.objective,
            "seed": self.seed,
            "seconds": self.seconds,
            "gate": self.gate.to_dict(),
            "explanations": {k: e.against().to_dict() for k, e in self.explanations.items()},
            "label_laws": None
            if self.marginals is None
            else {
                side: {n: q.tolist() for n, q in getattr(self.marginals, side).items()}
                for side in ("train", "test")
            },
            "candidates": {
                name: {
                    "model": c.fit.model,
                    "ridge": c.fit.ridge,
                    "held_out_loss": c.fit.risk,
                    "ess": None if c.weights is None else {n: w.ess for n, w in c.weights.items()},
                    "evaluation": None if c.evaluation is None else c.evaluation.to_records(),
                }
                for name, c in self.candidates.items()
            },
            "forecast": self.forecast.to_records(),
            "ledger": self.ledger.to_records(),
        }
