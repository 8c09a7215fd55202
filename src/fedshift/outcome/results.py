"""What a run returns: `Outcome` of `fs.run`, and `TabularOutcome` of `fs.fit_tables`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
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

if TYPE_CHECKING:  # a deployment's server, in fedshift.federation, saves its model by this package
    from fedshift.federation.crossval import CrossFittedModel
    from fedshift.federation.ledger import Ledger
    from fedshift.federation.shift_type import (
        Explanation,
        ShiftTypeName,
        SiteLabelDistributions,
    )
    from fedshift.federation.task import State, Task
    from fedshift.tabular.site_scores import SiteScores

#: bars of a histogram of weights
BARS = 20
#: disclosure level of each phase; 2 for other phases
DISCLOSURE_LEVELS = {"share.pool": 5, "query.share": 1, "query.describe": 1, "share.encoding": 1}


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
        if self.task.plan.norm == "local" and self.task.stats_layout.size:
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
        None averages their local parts: no client was trained with that model.
        """
        return self.task.module(self.state, client)

    def __repr__(self) -> str:
        status = "no test labels" if self.evaluation is None else self.evaluation.status
        return f"Outcome({status}; {self.stopped})"


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

    def to_dict(self) -> dict[str, Any]:
        """Return all results except models and rows, ready for JSON.

        They are the part of a record on training; `fedshift.report.record` lists the keys.
        """
        fit, gate, shares = self.chosen.fit, self.gate.to_dict(), self.marginals
        before, after, figure = self.before, self.evaluation, self.forecast.figure
        return {
            "choice": self.choice,
            "candidates": list(self.candidates),
            "model": f"{fit.model}, ridge {fit.ridge:g}",
            "status": self.status,
            "gate": {**gate, **gate["rule"]},
            "shift_type": self.shift_type,
            "outside": self.explanations["covariate"].outside,
            "explanations": {k: e.against().to_dict() for k, e in self.explanations.items()},
            "label_distributions": None
            if shares is None
            else {
                "estimated": ["test"],
                "train": {n: q.tolist() for n, q in shares.train.items()},
                "test": {n: q.tolist() for n, q in shares.test.items()},
            },
            "evaluation": None
            if before is None or after is None
            else {"erm": before.to_records(), "chosen": after.to_records()},
            "scores": [scores.to_dict() for scores in self.scores],
            "expected": [
                {"site": r.client, figure: r.value, "low": r.low, "high": r.high, "note": r.doubt}
                for r in self.forecast.rows
            ],
            "weights": {n: self._describe_weights(n, w) for n, w in self.sample_weights().items()},
            "ledger": [
                {**e, "disclosure_level": DISCLOSURE_LEVELS.get(e["phase"], 2)}
                for e in self.ledger.to_records()
            ],
            "replies": dict(self.ledger.replies),
        }

    def _describe_weights(self, name: str, values: Float64Array) -> dict[str, Any]:
        weights = self.chosen.weights
        known = None if weights is None else weights[name]
        top = max(float(values.max()), 1e-12)
        low = max(float(values[values > 0].min(initial=top)), top * 1e-6)
        if low >= top:
            edges = np.array([0.5 * top, 2.0 * top])
        else:
            edges = np.geomspace(low, top, BARS + 1)
            edges[0], edges[-1] = low * (1 - 1e-9), top * (1 + 1e-9)
        counts, _ = np.histogram(values.clip(edges[0], edges[-1]), edges)
        return {
            "n": len(values),
            "mean": float(values.mean()),
            "max": top,
            "ess": float(values.sum() ** 2 / max(float((values**2).sum()), 1e-300)),
            "coverage": None if known is None else known.coverage,
            "changes": "unchanged" if known is None else known.changes,
            "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        }
