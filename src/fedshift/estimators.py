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

from fedshift.core.samples import Float64Array, Rows, as_rows, column_names, same_names
from fedshift.core.weights import Weighting
from fedshift.data.federation import ClientData, Federation, check_federation
from fedshift.errors import InputError, UnscaledColumns
from fedshift.federation.plan import FedSGD, Plan
from fedshift.learn.evaluate import Evaluation
from fedshift.outcome import Outcome
from fedshift.outcome.predictor import Predictor, Saving
from fedshift.settings import Settings
from fedshift.training import score
from fedshift.workflow import run

Model = str | nn.Module | Callable[[tuple[int, ...], int], nn.Module]
#: models that do not scale columns, and the largest ratio of scales without a warning
PLAIN, APART = ("mlp", "linear"), 1e3


class _Federated(Saving, BaseEstimator, ABC):
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
        validation: float = 0.0,
        patience: int | None = None,
        choose: str = "last",
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
        self.validation = validation
        self.patience = patience
        self.choose = choose
        self.engine = engine
        self.device = device
        self.folder = folder
        self.seed = seed

    def _settings(self) -> Settings:
        options = self.get_params(deep=False) | {"loss": self._loss}
        del options["folder"]
        if self.weighting is None:
            options["weighting"] = Weighting()
        if self.plan is None:
            options["plan"] = FedSGD()
        return Settings(**options)

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
        for c in federation:
            c.check_labels()
        self._learn_labels(federation)
        if self.model in PLAIN:
            _check_scales(federation)
        self.outcome_: Outcome = run(
            self._encoded(federation), self._settings(), folder=self.folder
        )
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
            c.check_labels()
        out = self.outcome_
        return score(out.task, out.state, self._encoded(federation), self._settings(), out.weights)

    def _scores(self, X: Rows, client: str | None) -> Float64Array:
        check_is_fitted(self, "outcome_")
        x = as_rows(X, name="X")
        self._check_columns(column_names(X), "X")
        if x.shape[1:] != self.row_shape_:
            raise InputError(
                f"X must have rows of shape {self.row_shape_}, as in fit; got {x.shape[1:]}"
            )
        return self.outcome_.predictor.scores(x, client)

    def _check_columns(self, names: Sequence[Any] | None, who: str) -> None:
        """Raise unless data frames have the columns of `fit`, in the same order."""
        need = getattr(self, "feature_names_in_", None)
        have = None if names is None else [str(n) for n in names]
        same_names(need, have, who, of="fit, feature_names_in_")

    def _learn_labels(self, federation: Federation) -> None:
        """Learn the classes."""

    def _encoded(self, federation: Federation) -> Federation:
        """The federation with labels encoded for the training engine."""
        clients = (
            replace(
                c,
                y=self._codes(c, c.y, "y"),
                test_y=None if c.test_y is None else self._codes(c, c.test_y, "test_y"),
            )
            for c in federation
        )
        truth = None if federation.truth is None else _Translated(federation)
        return Federation(tuple(clients), truth)

    @abstractmethod
    def _codes(self, c: ClientData, y: npt.NDArray[Any], part: str) -> npt.NDArray[Any]:
        """Labels as numbers; errors call them `part`."""


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

    def _learn_labels(self, federation: Federation) -> None:
        try:
            self.classes_ = np.unique(np.concatenate([np.unique(c.y) for c in federation]))
        except TypeError as error:
            raise InputError(
                f"labels of all clients must be all text or all numbers; got both ({error}); "
                "convert them, for example with y.astype(str)"
            ) from None
        if len(self.classes_) < 2:
            raise InputError(
                f"a classifier needs two classes over all clients; got {self.classes_}; check y"
            )

    def _codes(self, c: ClientData, y: npt.NDArray[Any], part: str) -> npt.NDArray[np.int64]:
        at = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[at] != y
        if unknown.any():
            raise InputError(
                f"client {c.name!r}: {part} must hold classes of the training labels, "
                f"{list(self.classes_)}; got {y[np.argmax(unknown)]!r}; remove these rows"
            )
        return np.asarray(at, dtype=np.int64)

    def predict_proba(self, X: Rows, *, client: str | None = None) -> Float64Array:
        """Predict class probabilities (n, classes).

        With local BatchNorm each client has its own model, and `client` names the one to use.
        """
        return np.asarray(softmax(self._scores(X, client), axis=1))

    def predict(self, X: Rows, *, client: str | None = None) -> npt.NDArray[Any]:
        """Predict the classes of rows (n,)."""
        return np.asarray(self.classes_[self._scores(X, client).argmax(axis=1)])


class FederatedRegressor(_Federated):
    """A regression for all clients with squared loss; parameters as in `FederatedClassifier`."""

    _loss = "squared"

    def _codes(self, c: ClientData, y: npt.NDArray[Any], part: str) -> Float64Array:
        try:
            if y.dtype.kind in "biufO":
                return np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError):
            pass
        raise InputError(
            f"client {c.name!r}: {part} must hold numbers; got {y[0]!r} ({y.dtype}); convert them, "
            "or take FederatedClassifier for classes"
        )

    def predict(self, X: Rows, *, client: str | None = None) -> Float64Array:
        """Predict the values of rows (n,)."""
        return np.asarray(self._scores(X, client), dtype=np.float64).reshape(-1)


def _check_scales(federation: Federation) -> None:
    """Warn if columns of vectors have very different largest absolute values, zero columns aside.

    Standard deviations would also warn of rare pixels and words, which do no harm.
    """
    if federation[0].x.ndim != 2:
        return
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


class _Translated:
    """Exact ratios of a federation with encoded labels, from that with the original labels."""

    def __init__(self, federation: Federation) -> None:
        self._original = federation

    def log_ratio(self, federation: Federation, client: str, goal: str) -> Float64Array:
        """Log ratio at each training row of a client."""
        return self._original.exact_log_ratio(client, goal)

    def log_densities(self, federation: Federation, client: str) -> Float64Array:
        """Log densities of all training distributions at each training row of a client."""
        return self._original.exact_log_densities(client)
