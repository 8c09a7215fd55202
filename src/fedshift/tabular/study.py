"""The steps of training on tables, as methods of `TableStudy`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.core.params import whole_number
from fedshift.core.samples import Float64Array, as_numbers
from fedshift.core.weights import Weighting, Weights, effective_sample_size
from fedshift.data.federation import Federation, check_federation
from fedshift.data.labels import encode_classes, learn_classes, with_numbers
from fedshift.data.tables import Encoded, Encoder
from fedshift.data.tables.target import Class
from fedshift.errors import FedshiftWarning, InputError
from fedshift.federation.client_weights import RatioMethod, compute_weights, estimate_log_ratios
from fedshift.federation.crossval import CrossFittedModel, Folds, cross_fit, make_folds, scores_of
from fedshift.federation.ledger import Ledger
from fedshift.federation.scaling import Scaling
from fedshift.federation.shift_type import (
    Explanation,
    SiteLabelDistributions,
    explain_covariate,
    explain_label,
)
from fedshift.learn.evaluate import LossName, evaluate
from fedshift.learn.forecast import Forecast, forecast_accuracy, forecast_error
from fedshift.learn.objective import Objective
from fedshift.outcome import ModelCandidate
from fedshift.settings import Settings

#: below this mean log loss of classifying a site's rows against training rows, they look like none
STRANGE = 0.1
DOUBT = "its rows differ clearly from the training rows of every site"
#: largest weight, where the mean is about 1
CLIP = 20.0
#: most rounds for a ridge penalty; alone, a perceptron of few rows changes little after 75
ROUNDS, ROUNDS_ALONE = 300, 75


@dataclass(frozen=True, eq=False)
class TableStudy:
    """A federation of tables, checked, scaled and cut into folds.

    Attributes
    ----------
    federation : Federation
        The original rows.
    scaled : Federation
        The federation with columns and regression labels scaled to mean 0 and standard deviation 1,
        without test labels.
    scaling : Scaling
    loss : {"cross-entropy", "squared"}
    names : tuple
        The classes; empty in regression.
    base : mapping of client to ndarray (n_k,), or None
        Sample weights that training rows already have, such as survey weights.
    fold : mapping of client to ndarray (n_k,)
        The fold of each training row.
    seed : int
    ledger : Ledger
        Records everything that leaves a site.
    encoder : Encoder or None
        What made numbers of the rows, if they were tables.
    """

    federation: Federation
    scaled: Federation
    scaling: Scaling
    loss: LossName
    names: tuple[Any, ...]
    base: Mapping[str, Float64Array] | None
    fold: Folds
    seed: int
    ledger: Ledger
    encoder: Encoder | None

    @classmethod
    def of(
        cls,
        tables: Federation | Encoded,
        *,
        loss: str,
        base: Mapping[str, npt.ArrayLike] | None,
        folds: int,
        seed: int,
    ) -> TableStudy:
        """Check a federation, scale it and cut it into folds."""
        ledger, names, encoder = Ledger(), tuple[Class, ...](), None
        federation = tables.federation if isinstance(tables, Encoded) else tables
        if isinstance(tables, Encoded):
            names, encoder = tables.classes, tables.encoder
            base = tables.weights if base is None else base
            for site, sums in tables.sums.items():
                ledger.add(site, "share.encoding", up=sums.up)
        check_federation(federation, "fit_tables")
        whole_number(folds, "folds", least=2)
        whole_number(seed, "seed", least=0)
        federation, name, names = _read_labels(federation, loss, names)
        rows = sum(len(c.x) for c in federation)
        if rows < 2:
            raise InputError("training needs two rows and two classes or numbers; got one row")
        scaling = Scaling.of(federation, name, ledger)
        scaled = scaling.federation(federation)
        fold = make_folds({c.name: c.y for c in scaled}, count=min(folds, rows), seed=seed)
        own = None if base is None else _checked_base(federation, base)
        return cls(federation, scaled, scaling, name, names, own, fold, seed, ledger, encoder)

    @property
    def classes(self) -> int:
        """Number of classes; 1 in regression."""
        return max(1, len(self.names))

    @property
    def rows(self) -> int:
        """Number of training rows of all sites."""
        return sum(len(c.x) for c in self.scaled)

    def fit(
        self, weights: Mapping[str, Weights] | None, model: str, site: str | None = None
    ) -> CrossFittedModel:
        """Train and cross-fit a model; by ERM if no weights are given.

        With `site`, the model is trained on the rows of this site, and nothing leaves it.
        """
        uniform = weights is None and self.base is None
        return cross_fit(
            self.scaled if site is None else Federation((self.scaled[site],)),
            None if uniform else self.times_base(weights),
            self.fold if site is None else {site: self.fold[site]},
            model=model,
            loss=self.loss,
            classes=self.classes,
            rounds=ROUNDS if site is None else ROUNDS_ALONE,
            seed=self.seed,
            ledger=self.ledger if site is None else None,
        )

    def times_base(self, weights: Mapping[str, Weights] | None) -> dict[str, Float64Array]:
        """Multiply weights (None means all 1) by the sample weights that rows already have."""
        out = {}
        for c in self.scaled:
            w = np.ones(len(c.y)) if weights is None else weights[c.name].values
            out[c.name] = w if self.base is None else w * self.base[c.name]
        return out

    def explain(
        self, erm: CrossFittedModel
    ) -> tuple[dict[str, Explanation], SiteLabelDistributions | None]:
        """Compare the shift types on unlabelled rows, and estimate label distributions.

        Each shift type implies a density ratio. The result has, for each type, the held-out log
        loss of telling test rows from training rows by that ratio.
        """
        out: dict[str, Explanation] = {}
        distributions = None
        options: dict[str, Any] = {"base": self.base, "seed": self.seed, "ledger": self.ledger}
        if self.loss == "cross-entropy":
            distributions, out["label"] = explain_label(self.scaled, erm, self.fold, **options)
        out["covariate"] = explain_covariate(self.scaled, self.fold, **options)
        return out, distributions

    def compute_weights(
        self,
        explanation: Explanation,
        distributions: SiteLabelDistributions | None,
        aim: Objective | None,
        weighting: Weighting | None,
    ) -> dict[str, Weights]:
        """Compute weights for a shift type.

        Without an objective `aim`, they are q̄/p̄: the mixture of all test distributions over the
        mixture of all training distributions.
        """
        if aim is None:
            return _split(explanation.log_ratio, weighting or Weighting(clip=CLIP))
        if explanation.shift_type == "label" and distributions is not None:
            return self.objective_weights(_by_goal(self.scaled, distributions, aim), aim, weighting)
        own = aim.kind == "fitw"  # a site's own ratio needs nothing from others
        return self.objective_weights("logistic" if own else "multi-source", aim, weighting)

    def objective_weights(
        self, ratio: RatioMethod, aim: Objective, weighting: Weighting | None
    ) -> dict[str, Weights]:
        """Weights of an objective from a ratio: a name, an estimator, or log ratios by client."""
        ratios = estimate_log_ratios(self.federation, ratio, objective=aim, seed=self.seed)
        assert ratios is not None  # an objective with weights
        self.ledger.merge(ratios.ledger)
        return compute_weights(self.federation, ratios, aim, weighting)

    def forecast(
        self,
        fit: CrossFittedModel,
        explanations: Mapping[str, Explanation],
        distributions: SiteLabelDistributions | None,
        shift: str,
    ) -> Forecast:
        """Forecast a model's performance at every site under a shift type."""
        covariate = explanations["covariate"]
        unlike = (n for n in self.scaled.train if covariate.losses[f"{n} test"].mean() < STRANGE)
        doubts = dict.fromkeys(unlike, DOUBT)
        ratios, limit = covariate.log_ratio, Weighting(clip=CLIP)
        weights = self.times_base(_split(ratios, limit) if shift == "covariate" else None)
        if self.loss == "squared":
            squares = {n: 2 * v * self.scaling.out[1] ** 2 for n, v in fit.losses.items()}
            sizes = {c.name: len(c.test_x) for c in self.scaled}
            return forecast_error(squares, sizes, weights=weights, doubts=doubts)
        lift = None
        if distributions is not None and shift in ("label", "inconclusive"):
            lift = {n: q / distributions.source for n, q in distributions.test.items()}
        forecast = forecast_accuracy(
            fit.held_out,
            {c.name: c.y for c in self.scaled},
            {c.name: scores_of(fit.module, c.test_x) for c in self.scaled},
            weights=weights,
            lift=lift,
            doubts=doubts,
        )
        self.book_sums(self.classes + 2, rounds=forecast.rounds)
        return forecast

    def book_sums(self, count: int, rounds: int = 1) -> None:
        """Record in the ledger that every site sent this many numbers, in every round."""
        for c in self.scaled:
            self.ledger.add(c.name, "query.validate", up=8 * count * rounds, replies=rounds)

    def candidate(
        self, name: str, fit: CrossFittedModel, weights: Mapping[str, Weights] | None
    ) -> ModelCandidate:
        """Make a model of unscaled columns, and evaluate it if all test labels are known."""
        model = self.scaling.model(fit.module)
        evaluation = None
        if all(c.test_y is not None for c in self.federation):
            evaluation = evaluate(model, self.federation, loss=self.loss, weights=weights)
        return ModelCandidate(name, fit, model, weights, evaluation)


def _read_labels(
    federation: Federation, loss: str, names: tuple[Any, ...]
) -> tuple[Federation, LossName, tuple[Any, ...]]:
    """The federation with labels for training, the loss by name, and the classes."""
    kinds = {np.array(c.y.tolist()).dtype.kind for c in federation}  # also those of objects
    if loss == "auto":
        loss = "cross-entropy" if kinds <= set("biuUS") else "squared"
    name: LossName = Settings(loss=loss).loss  # type: ignore[arg-type]  # checks
    if name == "squared":
        return with_numbers(federation), name, ()
    if names:
        return federation, name, names
    classes = learn_classes(federation)
    return encode_classes(federation, classes), name, tuple(classes.tolist())


def _checked_base(
    federation: Federation, base: Mapping[str, npt.ArrayLike]
) -> dict[str, Float64Array]:
    out = {}
    for c in federation:
        w = as_numbers(base.get(c.name, np.ones(len(c.x))), f"client {c.name!r}: base")
        good = w.shape == (len(c.x),) and np.isfinite(w).all() and (w >= 0).all() and w.any()
        if not good:
            raise InputError(
                f"client {c.name!r}: base must be {len(c.x)} numbers ≥ 0, one per training row, "
                f"not all 0; got shape {w.shape}"
            )
        out[c.name] = w
    return out


def _split(log_ratio: Mapping[str, Float64Array], weighting: Weighting) -> dict[str, Weights]:
    """Weights by site, computed over the rows of all sites, so a limit is the same for all."""
    with warnings.catch_warnings():  # the gate checks what they warn about
        warnings.simplefilter("ignore", FedshiftWarning)
        whole = weighting(np.concatenate(list(log_ratio.values())))
    ends = np.cumsum([len(r) for r in log_ratio.values()])[:-1]
    top = whole.max if whole.n_clipped else np.inf
    return {
        name: replace(
            whole, values=part, ess=effective_sample_size(part), n_clipped=int((part >= top).sum())
        )
        for name, part in zip(log_ratio, np.split(whole.values, ends), strict=True)
    }


def _by_goal(
    federation: Federation, distributions: SiteLabelDistributions, aim: Objective
) -> dict[str, Float64Array]:
    """Log ratios of label distributions for the targets of an objective."""
    out = {}
    for name, goal in aim.goals(federation).items():
        top = sum(distributions.test[n] for n in federation.goal_names(name, goal or "own"))
        y = federation[name].y
        above, below = (
            np.maximum(np.asarray(q)[y], 1e-12) for q in (top, distributions.train[name])
        )
        out[name] = np.log(above) - np.log(below)
    return out
