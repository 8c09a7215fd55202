"""scikit-learn faces of federated training."""

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
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError, UnscaledColumns
from fedshift.federation.plan import FedSGD, Plan
from fedshift.learn.evaluate import Evaluation, predict
from fedshift.settings import Settings
from fedshift.training import score
from fedshift.workflow import Outcome, run

Model = str | nn.Module | Callable[[tuple[int, ...], int], nn.Module]
#: models that take columns as they are, and how far the scales of these may lie apart
PLAIN, APART = ("mlp", "linear"), 1e3


class _Federated(BaseEstimator, ABC):
    """What classifier and regressor share: settings in, an `Outcome` learned."""

    _loss: str

    def __init__(
        self,
        model: Model = "mlp",
        *,
        objective: str = "ftw",
        ratio: Any = "federated-auto",
        lean: float = 0.0,
        weighting: Weighting | None = None,
        plan: Plan | None = None,
        validation: float = 0.0,
        patience: int | None = None,
        choose: str = "last",
        flattenings: Sequence[float] = (),
        engine: str = "fused",
        device: str | None = None,
        folder: Path | str | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.objective = objective
        self.ratio = ratio
        self.lean = lean
        self.weighting = weighting
        self.plan = plan
        self.validation = validation
        self.patience = patience
        self.choose = choose
        self.flattenings = flattenings
        self.engine = engine
        self.device = device
        self.folder = folder
        self.seed = seed

    def _settings(self) -> Settings:
        options: dict[str, Any] = {
            "objective": self.objective,
            "ratio": self.ratio,
            "lean": self.lean,
            "weighting": Weighting() if self.weighting is None else self.weighting,
            "model": self.model,
            "plan": FedSGD(seed=self.seed) if self.plan is None else self.plan,
            "loss": self._loss,
            "validation": self.validation,
            "patience": self.patience,
            "choose": self.choose,
            "flattenings": self.flattenings,
            "engine": self.engine,
            "device": self.device,
            "seed": self.seed,
        }
        return Settings(**options)

    def fit(self, federation: Federation, y: None = None) -> Self:
        """Estimate ratios, train, and evaluate where test labels are there.

        Parameters
        ----------
        federation : Federation
        y : None
            Labels are in the federation.

        Warns
        -----
        UnscaledColumns
            If a model by the name "mlp" or "linear" gets columns of very different scale.
        """
        _check_federation(federation, "fit")
        if y is not None:
            raise InputError("fit takes a Federation alone, which holds the labels; got y; drop it")
        for c in federation:
            c.check_labels()
        self._learn_labels(federation)
        if self.model in PLAIN:
            _check_scales(federation)
        folder = None if self.folder is None else Path(self.folder)
        self.outcome_: Outcome = run(self._encoded(federation), self._settings(), folder=folder)
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
        """Scores on every client's test rows; all need test labels."""
        check_is_fitted(self, "outcome_")
        _check_federation(federation, "evaluate")
        for c in federation:
            self._check_columns(c.columns, f"client {c.name!r}")
            c.check_labels()
        out = self.outcome_
        return score(out.task, out.state, self._encoded(federation), self._settings(), out.weights)

    def _scores(self, X: Rows, client: str | None) -> FloatArray:
        check_is_fitted(self, "outcome_")
        x = as_rows(X, name="X")
        self._check_columns(column_names(X), "X")
        if x.shape[1:] != self.row_shape_:
            raise InputError(
                f"X must have rows of shape {self.row_shape_}, as in fit; got {x.shape[1:]}"
            )
        model = self.outcome_.model(client)
        kind = next(model.parameters()).dtype
        found: FloatArray = predict(model, torch.tensor(x, dtype=kind)).double().numpy()
        return found

    def _check_columns(self, names: Sequence[Any] | None, who: str) -> None:
        """Data frames must have the columns of `fit`, in their order."""
        need = getattr(self, "feature_names_in_", None)
        have = None if names is None else [str(n) for n in names]
        same_names(need, have, who, of="fit, feature_names_in_")

    def _learn_labels(self, federation: Federation) -> None:
        """Remember the classes."""

    @abstractmethod
    def _encoded(self, federation: Federation) -> Federation:
        """The federation with labels as the training engine takes them."""


class FederatedClassifier(_Federated):
    """One classifier for all clients, trained on weighted rows that stay where they are.

    Parameters
    ----------
    model : {"mlp", "linear", "lenet", "resnet18"}, module or callable
    objective : str
        "erm", "ftw", "fitw", "focus:CLIENT" (`fedshift.learn.objective.Objective`).
    ratio : str, estimator or mapping
        "federated-auto" finds out from unlabelled test rows whether labels or inputs shifted
        (`fedshift.federation.FederatedAuto`; ``outcome_.reason`` says which); "exact", another
        name, an estimator of `fedshift.ratio`, or log ratios by client. Other than
        "federated-auto", "federated-mlls" and "multi-source", estimators for "ftw" read all
        clients' raw test rows; the ledger says so.
    lean : float
        How far clients lean on each other's training rows, from 0, each for itself, to 1, where a
        row weighs the same wherever it lies (`fedshift.Settings`).
    weighting : Weighting, optional
    plan : FedSGD or FedAvg, optional
    validation, patience, choose
        Early stopping and model choice on importance-weighted validation rows.
    flattenings : sequence of float
        Exponents of the ratios to train with, for example (1.0, 0.75, 0.5); the model of lowest
        importance-weighted validation loss is kept. Needs `validation`.
    engine : {"fused", "reference"}
    device : str, optional
    folder : path, optional
        Keeps checkpoints; a second `fit` of the same goes on from them.
    seed : int

    Attributes
    ----------
    classes_ : ndarray
        Of all clients' training labels.
    feature_names_in_ : ndarray of str
        Columns, if a client's rows came as a data frame; frames given later must have the same.
    outcome_ : Outcome
    weights_, history_, ledger_
        Parts of it.

    Examples
    --------
    >>> from fedshift.data import GaussianShift
    >>> from fedshift.federation import FedSGD
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
                f"labels must be of one kind, all text or all numbers, at all clients; {error}; "
                "convert them, for example with y.astype(str)"
            ) from None
        if len(self.classes_) < 2:
            raise InputError(
                f"a classifier needs at least two classes over all clients; got {self.classes_}"
            )

    def _encoded(self, federation: Federation) -> Federation:
        return replace(
            federation,
            clients=tuple(
                replace(
                    c,
                    y=self._codes(c, c.y, "y"),
                    test_y=None if c.test_y is None else self._codes(c, c.test_y, "test_y"),
                )
                for c in federation
            ),
            truth=_Translated(federation) if federation.truth is not None else None,
        )

    def _codes(self, c: ClientData, y: npt.NDArray[Any], part: str) -> npt.NDArray[np.int64]:
        at = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[at] != y
        if unknown.any():
            raise InputError(
                f"client {c.name!r}: {part} must hold classes met in training, "
                f"{list(self.classes_)}; got {y[np.argmax(unknown)]!r}; no client can teach it"
            )
        return np.asarray(at, dtype=np.int64)

    def predict_proba(self, X: Rows, *, client: str | None = None) -> Float64Array:
        """Class probabilities (n, classes); a client's own model where BatchNorm is local."""
        scores = torch.as_tensor(self._scores(X, client))
        out: Float64Array = torch.softmax(scores, dim=1).numpy()
        return out

    def predict(self, X: Rows, *, client: str | None = None) -> npt.NDArray[Any]:
        """Classes of rows."""
        return np.asarray(self.classes_[self._scores(X, client).argmax(axis=1)])


class FederatedRegressor(_Federated):
    """One regression for all clients, with squared loss; parameters as `FederatedClassifier`."""

    _loss = "squared"

    def _encoded(self, federation: Federation) -> Federation:
        return replace(
            federation,
            clients=tuple(
                replace(
                    c,
                    y=_numbers(c, c.y, "y"),
                    test_y=None if c.test_y is None else _numbers(c, c.test_y, "test_y"),
                )
                for c in federation
            ),
        )

    def predict(self, X: Rows, *, client: str | None = None) -> Float64Array:
        """Predictions of rows, (n,)."""
        return np.asarray(self._scores(X, client), dtype=np.float64).reshape(-1)


def _check_federation(federation: object, who: str) -> None:
    if not isinstance(federation, Federation):
        raise InputError(
            f"{who} takes a fedshift.data.Federation; got {type(federation).__name__}; make one "
            "with Federation.of({name: (x, y, test_x)}) or a shift of fedshift.data"
        )


def _numbers(c: ClientData, y: npt.NDArray[Any], part: str) -> Float64Array:
    try:
        if y.dtype.kind in "biufO":
            return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    raise InputError(
        f"client {c.name!r}: {part} must hold numbers; got {y[0]!r} ({y.dtype}); convert them, or "
        "take FederatedClassifier for classes"
    )


def _check_scales(federation: Federation) -> None:
    """Warn of vectors whose columns reach values too far apart; columns of zeros do not count.

    What a column reaches, not its deviation: a pixel or word that is rarely seen is no fault.
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
    said = ", ".join(f"{names[i]} (up to {reach[i]:.2g})" for i in odd[:8])
    warnings.warn(
        f"columns differ in scale by more than {APART:.0f}, so that small ones are hardly learned "
        f"from: {said}{', …' if len(odd) > 8 else ''}; standardise every column with the same "
        "numbers at all sites, for example mean and deviation of the first client's rows",
        UnscaledColumns,
        stacklevel=3,
    )


class _Translated:
    """Exact ratios of a federation whose labels were encoded: ask the one with its own labels."""

    def __init__(self, federation: Federation) -> None:
        self._original = federation

    def log_ratio(self, federation: Federation, client: str, goal: str) -> Float64Array:
        """Log ratio at every training row of a client."""
        return self._original.exact_log_ratio(client, goal)

    def log_laws(self, federation: Federation, client: str) -> Float64Array:
        """Log densities of all training laws at every training row of a client."""
        return self._original.exact_log_laws(client)
