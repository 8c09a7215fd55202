"""Federated training with the interface of scikit-learn."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fedshift.core.params import nearest
from fedshift.core.samples import Float64Array, Rows, as_rows, column_names, same_names
from fedshift.core.weights import Weighting
from fedshift.data.federation import Federation, check_federation
from fedshift.data.labels import encode_classes, learn_classes, with_numbers
from fedshift.errors import InputError, NoBetterThanConstant
from fedshift.federation.ledger import Ledger
from fedshift.federation.plan import FedSGD, Plan
from fedshift.federation.scaling import Scaling
from fedshift.learn.evaluate import Evaluation, LossName, predict
from fedshift.learn.gate import difference
from fedshift.outcome import Outcome
from fedshift.outcome.predictor import Predictor, Saving
from fedshift.settings import Settings
from fedshift.training import hold_out, score
from fedshift.workflow import run

Model = str | nn.Module | Callable[[tuple[int, ...], int], nn.Module]
#: the default plan for vectors, and its early stopping
TABLES: dict[str, Any] = {"iterations": 2000, "lr": 0.003}
STOP: dict[str, Any] = {"validation": 0.2, "patience": 12, "choose": "best", "check_every": 25}
#: standard errors by which a model must beat a constant on held-out rows
BETTER = 1.0


class _Federated(Saving, BaseEstimator, ABC):
    """Base of classifier and regressor: `fit` learns an `Outcome`."""

    _loss: LossName

    def __init__(
        self,
        model: Model = "mlp",
        *,
        objective: str = "ftw",
        ratio: Any = "federated-auto",
        pooling: float = 0.0,
        weighting: Weighting | None = None,
        plan: Plan | None = None,
        scale: bool = True,
        validation: float | None = None,
        patience: int | None = None,
        choose: str | None = None,
        engine: str = "fused",
        device: str | None = None,
        folder: Path | str | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.objective = objective
        self.ratio = ratio
        self.pooling = pooling
        self.weighting = weighting
        self.plan = plan
        self.scale = scale
        self.validation = validation
        self.patience = patience
        self.choose = choose
        self.engine = engine
        self.device = device
        self.folder = folder
        self.seed = seed

    def settings(self, federation: Federation) -> Settings:
        """Return all settings of training, with the defaults for these rows."""
        default = self.plan is None and federation[0].x.ndim == 2
        stop = default and self.validation != 0 and min(len(c.x) for c in federation) > 1
        plan = FedSGD(**(TABLES if default else {}))
        options = {"loss": self._loss, "plan": plan, **(STOP if stop else {})}
        own = self.get_params(deep=False).items()
        known = {n: v for n, v in own if v is not None and n in Settings.__dataclass_fields__}
        return Settings(**options | known)

    def fit(self, federation: Federation, y: None = None) -> Self:
        """Estimate ratios, train, and evaluate if there are test labels.

        Parameters
        ----------
        federation : Federation
        y : None
            Labels are in the federation.

        Warns
        -----
        NoBetterThanConstant
            If there are held-out rows, on which a constant prediction is as good up to noise.
        """
        check_federation(federation, "fit")
        if y is not None:
            raise InputError("fit needs a Federation alone, which holds the labels; got y; drop y")
        for c in federation:
            c.check_labels()
        scaling, ledger = None, Ledger()
        encoded, settings = self.encode(federation), self.settings(federation)
        if self.scale and self.model in ("mlp", "linear") and federation[0].x.ndim == 2:
            scaling = Scaling.of(encoded, self._loss, ledger)
        self.outcome_: Outcome = run(encoded, settings, folder=self.folder, scaling=scaling)
        self.outcome_.ledger.merge(ledger)
        _compare_with_constant(self.outcome_, encoded, settings)
        self.weights_ = self.outcome_.weights
        self.history_ = self.outcome_.history
        self.ledger_ = self.outcome_.ledger
        self.row_shape_ = federation[0].x.shape[1:]
        if federation.columns is not None:
            self.feature_names_in_ = np.array(federation.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    @property
    def predictor(self) -> Predictor:
        """The model with all that it needs to predict, which `save` writes."""
        check_is_fitted(self, "outcome_")
        # a list of an array of objects may hold NumPy's numbers, which JSON does not have
        classes = np.array(getattr(self, "classes_", np.empty(0)).tolist()).tolist()
        return replace(self.outcome_.predictor, classes=tuple(classes))

    def evaluate(self, federation: Federation) -> Evaluation:
        """Evaluate on the test rows of each client, all of which must have labels."""
        check_is_fitted(self, "outcome_")
        check_federation(federation, "evaluate")
        for c in federation:
            self._check_columns(c.columns, f"client {c.name!r}")
        out = self.outcome_
        encoded, settings = self.encode(federation, learn=False), self.settings(federation)
        return score(out.task, out.state, encoded, settings, out.weights)

    def _scores(self, X: Rows, client: str | None) -> Float64Array:
        check_is_fitted(self, "outcome_")
        x = as_rows(X, name="X")
        self._check_columns(column_names(X), "X")
        if x.shape[1:] != self.row_shape_:
            raise InputError(
                f"X must have rows of shape {self.row_shape_}, as in fit; got {x.shape[1:]}"
            )
        predictor = self.outcome_.predictor
        if client is not None and client not in predictor.sites:
            raise InputError(f"client must be {nearest(client, predictor.sites)}")
        return predictor.scores(x, client)

    def _check_columns(self, names: Sequence[Any] | None, who: str) -> None:
        """Raise unless data frames have the columns of `fit`, in the same order."""
        need = getattr(self, "feature_names_in_", None)
        have = None if names is None else [str(n) for n in names]
        same_names(need, have, who, of="fit, feature_names_in_")

    def score(self, federation: Federation) -> float:
        """Return the accuracy (classifier) or R² (regression) on test rows, mean over clients.

        R² is NaN if all labels of each client are equal. `evaluate` returns further scores and
        intervals. `fedshift.cross_validate` needs no test labels.
        """
        mean = self.evaluate(federation).mean_of("accuracy" if self._loss != "squared" else "r2")
        return float("nan") if mean is None else mean

    @abstractmethod
    def encode(self, federation: Federation, *, learn: bool = True) -> Federation:
        """Return the federation with labels for the training engine.

        With `learn`, the classes are those of this federation, otherwise those of `fit`.
        """


class FederatedClassifier(_Federated):
    """A classifier for all clients, trained on weighted training rows, which stay at their client.

    Parameters
    ----------
    model : {"mlp", "linear", "lenet", "resnet18"}, module or callable
    objective : str
        "erm", "ftw", "fitw", "focus:CLIENT" (`fedshift.learn.objective.Objective`).
    ratio : str, estimator or mapping
        The source of log ratios: a name, an estimator of `fedshift.ratio`, or log ratios by client.
        "federated-auto" decides from unlabelled test rows between label shift and covariate shift
        (`fedshift.FederatedAuto`); ``outcome_.reason`` explains its choice. "exact" needs known
        distributions. With "ftw", estimators other than "federated-auto", "federated-mlls" and
        "multi-source" read the raw test rows of all clients, as the ledger shows.
    pooling : float
        Partial pooling of training rows, from 0 (none) to 1 (full). With 1, the weight of a row
        does not depend on the client that holds it (`fedshift.Settings`).
    weighting : Weighting, optional
    plan : FedSGD or FedAvg, optional
        By default, vectors are trained on with early stopping, and images for 1000 rounds.
    scale : bool
        Whether columns of vectors, and numbers to predict, are scaled to mean 0 and standard
        deviation 1 for "mlp" and "linear", by sums over all clients. Ratios are not affected.
    validation, patience, choose
        Early stopping and model choice by importance-weighted validation (`fedshift.Settings`).
        By default, there is none, except that the default plan for vectors holds 20 % of each
        client's training rows out and returns the best state; ``validation=0`` trains on all rows.
    engine : {"fused", "reference"}
        "fused" computes all clients in one tensor program and is fast. "reference" computes one
        client after another in plain code. Both give the same result up to rounding.
    device : str, optional
    folder : path, optional
        Folder of checkpoints. A second `fit` with the same settings and code continues from the
        last one. Code in a notebook is never resumed (`fedshift.run`).
    seed : int

    Attributes
    ----------
    classes_ : ndarray
        Classes of the training labels of all clients.
    feature_names_in_ : ndarray of str
        Columns, if `fit` got data frames. Frames for `predict` must have the same columns.
    outcome_ : Outcome
    weights_, history_, ledger_
        The attributes of `outcome_` with these names.

    Examples
    --------
    >>> from fedshift.data import GaussianShift
    >>> from fedshift import FedSGD
    >>> fed = GaussianShift.mean_shift(d=2, clients=2).draw(seed=0)
    >>> plan = FedSGD(iterations=50, lr=0.05)
    >>> clf = FederatedClassifier("linear", ratio="exact", plan=plan).fit(fed)
    >>> clf.predict(fed[0].test_x[:3]).shape
    (3,)
    """

    _loss = "cross-entropy"

    def encode(self, federation: Federation, *, learn: bool = True) -> Federation:
        """Return the federation with class numbers as labels; with `learn`, learn the classes."""
        if learn:
            self.classes_ = learn_classes(federation)
        return encode_classes(federation, self.classes_)

    def predict_proba(self, X: Rows, *, client: str | None = None) -> Float64Array:
        """Predict class probabilities (n, classes).

        With local BatchNorm each client has its own model, and `client` names the one to use.
        """
        return np.asarray(softmax(self._scores(X, client), axis=1))

    def predict(self, X: Rows, *, client: str | None = None) -> npt.NDArray[Any]:
        """Predict the classes of rows (n,)."""
        best = self._scores(X, client).argmax(axis=1)
        return np.asarray(self.classes_[best])


class FederatedRegressor(_Federated):
    """A regression for all clients with squared loss; parameters as in `FederatedClassifier`."""

    _loss = "squared"

    def encode(self, federation: Federation, *, learn: bool = True) -> Federation:
        """Return the federation with labels in float64; there is nothing to learn."""
        return with_numbers(federation)

    def predict(self, X: Rows, *, client: str | None = None) -> Float64Array:
        """Predict the values of rows (n,)."""
        return np.asarray(self._scores(X, client), dtype=np.float64).reshape(-1)


def _compare_with_constant(out: Outcome, federation: Federation, settings: Settings) -> None:
    """Warn unless held-out rows say that the model is better than a constant prediction."""
    (train, weights), held_out = hold_out(federation, out.weights, settings)
    if held_out is None:
        return
    y, numbers = np.concatenate([c.y for c in train]), settings.loss == "squared"
    weights = weights or {c.name: np.ones(len(c.y)) for c in train}
    v = np.concatenate([weights[c.name] / len(c.y) for c in train])
    constant = np.average(y, weights=v) if numbers else np.bincount(y, v).argmax()
    model, flat = dict[str, Float64Array](), dict[str, Float64Array]()
    local, shared = out.task.plan.norm == "local", out.model()
    for c in held_out[0]:
        scores = predict(out.model(c.name) if local else shared, c.x).numpy()
        guess = scores.reshape(-1) if numbers else scores.argmax(axis=1)
        for losses, value in ((model, guess), (flat, constant)):
            losses[c.name] = ((c.y - value) ** 2 if numbers else c.y != value).astype(np.float64)
    d = difference(model, flat, held_out[1] or {n: np.ones(len(e)) for n, e in model.items()})
    if d.value + BETTER * d.error < 0:
        return
    figure = "mean squared error {:.4g}" if numbers else "accuracy {:.3f}"
    ours, theirs = (figure.format(r if numbers else 1 - r) for r in (d.risk + d.value, d.risk))
    warnings.warn(
        f"on held-out rows the model has {ours}, and the best constant has {theirs}, which is as "
        "good up to noise; check columns and labels, or compare other settings by "
        "fs.cross_validate(estimator, federation, grid)",
        NoBetterThanConstant,
        stacklevel=3,
    )
