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
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fedshift.core.samples import Float64Array, FloatArray, Rows, as_rows, column_names, same_names
from fedshift.core.weights import Weighting
from fedshift.data.federation import Federation
from fedshift.data.labels import encode_classes, learn_classes, with_numbers
from fedshift.errors import InputError, NoBetterThanConstant, UnscaledColumns
from fedshift.federation.ledger import Ledger
from fedshift.federation.plan import FedSGD, Plan
from fedshift.federation.scaling import Scaling
from fedshift.learn.evaluate import Evaluation, predict
from fedshift.learn.gate import difference
from fedshift.outcome import Outcome
from fedshift.settings import Settings
from fedshift.training import hold_out, score
from fedshift.workflow import run

Model = str | nn.Module | Callable[[tuple[int, ...], int], nn.Module]
#: models that do not scale columns, and the largest ratio of scales without a warning
PLAIN, APART = ("mlp", "linear"), 1e3
#: the default plan for vectors, and its early stopping; without them, the last state is taken
TABLES: dict[str, Any] = {"iterations": 2000, "lr": 0.01, "batch_size": 64}
STOP: dict[str, Any] = {"validation": 0.2, "patience": 4, "choose": "best"}
CHECK_EVERY = 25
LAST: dict[str, Any] = {"validation": 0.0, "patience": None, "choose": "last"}
#: standard errors by which a model must beat a constant on held-out rows
BETTER = 1.0


class _Federated(BaseEstimator, ABC):
    """Base of classifier and regressor: `fit` learns an `Outcome`."""

    _loss: str

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
        names = ("objective", "ratio", "pooling", "model", "engine", "device", "seed")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        default = self.plan is None and federation[0].x.ndim == 2
        stop = default and self.validation != 0 and min(len(c.x) for c in federation) > 1
        for name, value in (STOP if stop else LAST).items():
            own = getattr(self, name)
            options[name] = value if own is None else own
        plan = FedSGD(seed=self.seed, **(TABLES if default else {}))
        options["check_every"] = CHECK_EVERY if stop else None
        return Settings(
            **options,
            loss=self._loss,
            plan=plan if self.plan is None else self.plan,
            weighting=Weighting() if self.weighting is None else self.weighting,
        )

    def fit(self, federation: Federation, y: None = None) -> Self:
        """Estimate ratios, train, and evaluate if there are test labels.

        Parameters
        ----------
        federation : Federation
        y : None
            Labels are in the federation.

        Warns
        -----
        UnscaledColumns
            If the model is "mlp" or "linear" and columns have very different scales.
        """
        check_federation(federation, "fit")
        if y is not None:
            raise InputError("fit needs a Federation alone, which holds the labels; got y; drop y")
        scaling, ledger = None, Ledger()
        encoded, settings = self.encode(federation), self.settings(federation)
        if self.model in PLAIN and federation[0].x.ndim == 2:
            if self.scale:
                scaling = Scaling.of(encoded, self._loss, ledger)
            else:
                _check_scales(federation)
        folder = None if self.folder is None else Path(self.folder)
        self.outcome_: Outcome = run(encoded, settings, folder=folder, scaling=scaling)
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

    def evaluate(self, federation: Federation) -> Evaluation:
        """Evaluate on the test rows of each client, all of which must have labels."""
        check_is_fitted(self, "outcome_")
        check_federation(federation, "evaluate")
        for c in federation:
            self._check_columns(c.columns, f"client {c.name!r}")
            c.check_labels()
        out = self.outcome_
        encoded, settings = self._encoded(federation), self.settings(federation)
        return score(out.task, out.state, encoded, settings, out.weights)

    def _scores(self, X: Rows, client: str | None) -> FloatArray:
        check_is_fitted(self, "outcome_")
        x = as_rows(X, name="X")
        self._check_columns(column_names(X), "X")
        if x.shape[1:] != self.row_shape_:
            raise InputError(
                f"X must have rows of shape {self.row_shape_}, as in fit; got {x.shape[1:]}"
            )
        model = self.outcome_.model(client)
        dtype = next(model.parameters()).dtype
        scores: FloatArray = predict(model, torch.tensor(x, dtype=dtype)).double().numpy()
        return scores

    def _check_columns(self, names: Sequence[Any] | None, who: str) -> None:
        """Raise unless data frames have the columns of `fit`, in the same order."""
        need = getattr(self, "feature_names_in_", None)
        have = None if names is None else [str(n) for n in names]
        same_names(need, have, who, of="fit, feature_names_in_")

    def score(self, federation: Federation) -> float:
        """Return the accuracy (classifier) or R² (regression) on test rows, mean over clients.

        `evaluate` returns further scores and intervals. `fedshift.cross_validate` needs no test
        labels.
        """
        evaluation = self.evaluate(federation)
        if evaluation.figure == "accuracy":
            return evaluation.mean
        r2 = evaluation.mean_of("r2")
        if r2 is None:
            raise InputError("R² needs test labels that differ; got one value at each client")
        return r2

    @abstractmethod
    def encode(self, federation: Federation) -> Federation:
        """Learn the labels, and return the federation with labels for the training engine."""

    def _encoded(self, federation: Federation) -> Federation:
        """The federation with labels encoded as in `fit`."""
        return self.encode(federation)


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
    validation, patience, choose
        Early stopping and model choice by importance-weighted validation (`fedshift.Settings`).
    engine : {"fused", "reference"}
        "fused" computes all clients in one tensor program and is fast. "reference" computes one
        client after another in plain code. Both give the same result up to rounding.
    device : str, optional
    folder : path, optional
        Folder of checkpoints. A second `fit` with the same settings continues from the last one.
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

    def encode(self, federation: Federation) -> Federation:
        """Learn the classes, and return the federation with class numbers as labels."""
        self.classes_ = learn_classes(federation)
        return self._encoded(federation)

    def _encoded(self, federation: Federation) -> Federation:
        return encode_classes(federation, self.classes_)

    def predict_proba(self, X: Rows, *, client: str | None = None) -> Float64Array:
        """Predict class probabilities (n, classes).

        With local BatchNorm each client has its own model, and `client` names the one to use.
        """
        scores = torch.as_tensor(self._scores(X, client))
        out: Float64Array = torch.softmax(scores, dim=1).numpy()
        return out

    def predict(self, X: Rows, *, client: str | None = None) -> npt.NDArray[Any]:
        """Predict the classes of rows (n,)."""
        best = self._scores(X, client).argmax(axis=1)
        return np.asarray(self.classes_[best])


class FederatedRegressor(_Federated):
    """A regression for all clients with squared loss; parameters as in `FederatedClassifier`."""

    _loss = "squared"

    def encode(self, federation: Federation) -> Federation:
        """Return the federation with labels in float64."""
        return with_numbers(federation)

    def predict(self, X: Rows, *, client: str | None = None) -> Float64Array:
        """Predict the values of rows (n,)."""
        return np.asarray(self._scores(X, client), dtype=np.float64).reshape(-1)


def check_federation(federation: object, who: str) -> None:
    if not isinstance(federation, Federation):
        raise InputError(
            f"{who} needs a fedshift.Federation; got {type(federation).__name__}; make one "
            "with Federation.of({name: (x, y, test_x)}); then score(federation) and "
            "fs.cross_validate(estimator, federation, grid) do what scikit-learn's functions of "
            "(X, y) do"
        )


def _compare_with_constant(out: Outcome, federation: Federation, settings: Settings) -> None:
    """Warn unless held-out rows say that the model is better than a constant prediction."""
    (train, weights), held_out = hold_out(federation, out.weights, settings)
    if held_out is None:
        return
    y = np.concatenate([c.y for c in train])
    part = [1.0 if weights is None else weights[c.name] for c in train]
    v = np.concatenate([w * np.ones(len(c.y)) / len(c.y) for w, c in zip(part, train, strict=True)])
    numbers, local = settings.loss == "squared", out.task.plan.norm == "local"
    constant = np.average(y, weights=v) if numbers else np.bincount(y, v).argmax()
    shared, model, flat, ones = out.model(), {}, {}, {}
    for c in held_out[0]:
        scores = predict(out.model(c.name) if local else shared, c.x).numpy()
        guess = scores.reshape(-1) if numbers else scores.argmax(axis=1)
        for losses, of in ((model, guess), (flat, constant)):
            losses[c.name] = (c.y - of) ** 2 if numbers else (c.y != of).astype(np.float64)
        ones[c.name] = np.ones(len(c.y))
    d = difference(model, flat, held_out[1] or ones)
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


def _check_scales(federation: Federation) -> None:
    """Warn if columns of vectors have very different largest absolute values, zero columns aside.

    Standard deviations would also warn of rare pixels and words, which do no harm.
    """
    reach = np.max([np.abs([c.x.min(axis=0), c.x.max(axis=0)]) for c in federation], axis=(0, 1))
    where = np.flatnonzero(reach)
    if not len(where) or reach[where].max() <= APART * reach[where].min():
        return
    scale = np.log10(reach[where].astype(np.float64))
    odd = where[np.abs(scale - np.median(scale)) > np.log10(APART) / 2]
    names = federation.columns or tuple(map(str, range(len(reach))))
    columns = ", ".join(f"{names[i]} (up to {reach[i]:.2g})" for i in odd[:8])
    warnings.warn(
        f"scales of columns must be within a factor of {APART:.0f}, or columns of small values "
        f"hardly count; got {columns}{', …' if len(odd) > 8 else ''}; standardise each column with "
        "the same numbers at all sites, for example mean and deviation of one client's rows",
        UnscaledColumns,
        stacklevel=3,
    )

