"""What a run returns: `Outcome` of `fs.run`, and `TabularOutcome` of `fs.fit_tables`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from fedshift.core.samples import Float64Array
from fedshift.core.weights import Weights
from fedshift.data.tables import Encoder
from fedshift.data.tables.target import Class
from fedshift.learn.evaluate import Evaluation, predict
from fedshift.learn.forecast import Forecast
from fedshift.learn.gate import Gate
from fedshift.outcome.predictor import Predicting, Predictor
from fedshift.outcome.weights import write_sample_weights

if TYPE_CHECKING:  # a deployment's server, in fedshift.federation, saves its model by this package
    from fedshift.federation.crossval import CrossFittedModel
    from fedshift.federation.ledger import Ledger
    from fedshift.federation.shift_type import (
        Explanation,
        ShiftTypeName,
        SiteLabelDistributions,
    )
    from fedshift.federation.task import State, Task


@dataclass(frozen=True, eq=False)
class Outcome(Predicting):
    """A trained federation, which also predicts (`Predicting`).

    Attributes
    ----------
    task : Task
    state : State
        The last or the best state, as set by `Settings.choose`.
    weights : mapping of client to Weights, or None for ERM
    history : list of dict
        An entry for each check: round, loss, seconds, and the validation loss and accuracy.
    ledger : Ledger
        What left the clients, for ratios and for training.
    evaluation : Evaluation or None
        Scores on the test rows; None without test labels.
    stopped : str
        Why training ended.
    seconds : float
        Duration of this run after the ratios: weights, training and evaluation.
    ratio_seconds : float
        Duration of the estimation of ratios, in the run that estimated them if they come from
        `shared` or `folder`; 0 for ERM.
    reason : str
        Why the estimator chose its ratios (`FederatedAuto.reason_`); empty for other estimators.
    columns : tuple of str or None
        Columns of the rows, if clients had names for them.
    """

    task: Task
    state: State
    weights: Mapping[str, Weights] | None
    history: list[dict[str, Any]]
    ledger: Ledger
    evaluation: Evaluation | None
    stopped: str
    seconds: float
    ratio_seconds: float = 0.0
    reason: str = ""
    columns: tuple[str, ...] | None = None

    @cached_property
    def predictor(self) -> Predictor:
        """The model with all that it needs to predict."""
        model, rows = self.model().cpu(), self.task.x[:1]
        local: dict[str, dict[str, Tensor]] = {}
        if self.task.plan.norm == "local":
            shared = model.state_dict()
            for site in self.task.names:
                own = self.model(site).cpu().state_dict()
                local[site] = {n: t for n, t in own.items() if not t.equal(shared[n])}
        outputs = predict(model, rows).shape[-1]
        return Predictor(
            model=model,
            shape=tuple(rows.shape[1:]),
            classes=() if self.task.y.is_floating_point() else tuple(range(outputs)),
            sites=self.task.names,
            columns=self.columns,
            local=local,
        )

    def model(self, client: str | None = None) -> nn.Module:
        """Return the trained model in evaluation mode.

        With local BatchNorm each client has its own model, and `client` names the one to return.
        """
        return self.task.module(self.state, client)

    def __repr__(self) -> str:
        status = "no test labels" if self.evaluation is None else self.evaluation.status
        return f"Outcome({status}; {self.stopped})"


if TYPE_CHECKING:
    from fedshift.tabular.site_scores import SiteScores


@dataclass(frozen=True, eq=False)
class ModelCandidate:
    """A model trained in one way, with or without weights.

    Attributes
    ----------
    name : str
        "erm", "label", "covariate", or "given" for weights from the `ratio` argument.
    fit : CrossFittedModel
        The cross-fitted model, on scaled columns.
    model : Module
        The model for unscaled columns, in float64.
    weights : mapping of client to Weights, or None for ERM
    evaluation : Evaluation or None
        Scores on the test rows, if all their labels are known. They never influence a choice.
    """

    name: str
    fit: CrossFittedModel
    model: nn.Module
    weights: Mapping[str, Weights] | None
    evaluation: Evaluation | None

    def __repr__(self) -> str:
        return f"ModelCandidate({self.name}: {self.fit})"

    def sample_weights(self) -> dict[str, Float64Array]:
        """Weights of the training rows by site; 1 for ERM."""
        if self.weights is None:
            return {n: np.ones(len(v)) for n, v in self.fit.losses.items()}
        return {n: np.array(w.values) for n, w in self.weights.items()}


@dataclass(frozen=True, eq=False)
class TabularOutcome(Predicting):
    """A trained federation of tables, with the reasons for each choice, which also predicts.

    Attributes
    ----------
    candidates : mapping of name to ModelCandidate
        "erm" and the weighted models that the gate compared with it.
    gate : Gate
    explanations : mapping of shift type to Explanation
        For each shift type, how well the density ratio that it implies separates unlabelled test
        rows from training rows (held-out log loss).
    shift_type : {"none", "label", "covariate", "inconclusive"}
        The shift type of the federation, from unlabelled rows.
    marginals : SiteLabelDistributions or None
        Label distributions; those of the deployment rows are estimates that hold under label
        shift. None unless the shift type is "label".
    forecast : Forecast
        Predicted performance of the chosen model at every site, without deployment labels.
    scores : tuple of SiteScores
        Scores of the chosen model beside models that sites train alone: on labelled deployment
        rows, if there are any, and on held-out training rows.
    ledger : Ledger
        Everything that left the sites.
    objective : str
    seed : int
    seconds : float
    shape : tuple of int
        Shape of a row.
    columns : tuple of str or None
        Columns of the rows, if clients had names for them.
    classes : tuple
        The classes; empty in regression.
    encoder : Encoder or None
        Turns the rows of a table into numbers, if the model was trained on tables.
    """

    candidates: Mapping[str, ModelCandidate]
    gate: Gate
    explanations: Mapping[str, Explanation]
    shift_type: ShiftTypeName
    marginals: SiteLabelDistributions | None
    forecast: Forecast
    scores: tuple[SiteScores, ...]
    ledger: Ledger
    objective: str
    seed: int
    seconds: float
    shape: tuple[int, ...]
    columns: tuple[str, ...] | None = None
    classes: tuple[Class, ...] = ()
    encoder: Encoder | None = None

    @cached_property
    def predictor(self) -> Predictor:
        """The chosen model with all that it needs to predict."""
        return Predictor(
            model=self.model,
            shape=tuple(self.shape),
            classes=self.classes,
            sites=tuple(self.chosen.fit.losses),
            columns=self.columns,
            encoder=self.encoder,
        )

    @property
    def choice(self) -> str:
        """Name of the chosen candidate."""
        return self.gate.choice

    @property
    def chosen(self) -> ModelCandidate:
        """The chosen candidate."""
        return self.candidates[self.choice]

    @property
    def model(self) -> nn.Module:
        """The chosen model, for unscaled columns."""
        return self.chosen.model

    @property
    def evaluation(self) -> Evaluation | None:
        """Test scores of the chosen model."""
        return self.chosen.evaluation

    @property
    def before(self) -> Evaluation | None:
        """Test scores of the model without weights (ERM)."""
        return self.candidates["erm"].evaluation

    @property
    def status(self) -> str:
        """The choice and the forecast in one sentence."""
        fit = self.chosen.fit
        return f"{self.gate.status}; {fit.model} model, ridge {fit.ridge:g}; {self.forecast.status}"

    def __repr__(self) -> str:
        return f"TabularOutcome({self.status})"

    def sample_weights(self) -> dict[str, Float64Array]:
        """Training weights of the chosen model by site; 1 for ERM."""
        return self.chosen.sample_weights()

    def write_weights(self, folder: Path | str) -> dict[str, Path]:
        """Write `sample_weights` to a Parquet file for every site (`write_sample_weights`)."""
        return write_sample_weights(folder, self.sample_weights())

    def to_dict(self) -> dict[str, Any]:
        """Return everything except models and rows, ready for JSON."""
        return {
            "status": self.status,
            "choice": self.choice,
            "objective": self.objective,
            "seed": self.seed,
            "seconds": self.seconds,
            "gate": self.gate.to_dict(),
            "explanations": {k: e.against().to_dict() for k, e in self.explanations.items()},
            "shift_type": self.shift_type,
            "outside": self.explanations["covariate"].outside,
            "label_distributions": None
            if self.marginals is None
            else {
                "estimated": ["test"],
                **{
                    side: {n: q.tolist() for n, q in getattr(self.marginals, side).items()}
                    for side in ("train", "test")
                },
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
            "scores": [scores.to_dict() for scores in self.scores],
            "ledger": self.ledger.to_records(),
        }
