"""Cross-validation of federated estimators, within the training rows of each client."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from fedshift.core.params import whole_number
from fedshift.core.score_text import plain_text, share_text
from fedshift.data.federation import Federation, check_federation
from fedshift.errors import FedshiftWarning, InputError
from fedshift.estimators import FederatedClassifier, FederatedRegressor
from fedshift.federation.client_weights import Ratios, estimate_log_ratios
from fedshift.federation.marginals import folds_of
from fedshift.learn.weighted_risk import WeightedRisk
from fedshift.training import validate
from fedshift.workflow import validation_weights

Grid = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
#: standard errors in half of a 95 % interval
Z = 1.96


@dataclass(frozen=True)
class GridScore:
    """The held-out score of one entry of a grid.

    Attributes
    ----------
    params : mapping of parameter to value
    mean : float
        Accuracy, or mean squared error, of all held-out rows; importance-weighted if there are
        weights.
    low, high : float
        95 % interval of `mean`, for newly drawn rows.
    ess : float
        Effective number of held-out rows. Below about 50, the interval is too narrow.
    """

    params: Mapping[str, Any]
    mean: float
    low: float
    high: float
    ess: float


@dataclass(frozen=True, repr=False)
class CrossValidation:
    """The table that `cross_validate` returns.

    Attributes
    ----------
    rows : tuple of GridScore
        One for each entry of the grid, in its order.
    figure : {"accuracy", "mse"}
    """

    rows: tuple[GridScore, ...]
    figure: str

    @property
    def best(self) -> GridScore:
        """The entry with the highest accuracy or lowest mean squared error.

        ``estimator.set_params(**table.best.params)`` sets its parameters.
        """
        sign = 1 if self.figure == "mse" else -1
        return min(self.rows, key=lambda row: sign * row.mean)

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dict per entry: its parameters, mean and interval."""
        return [{**r.params, self.figure: r.mean, "low": r.low, "high": r.high} for r in self.rows]

    def __repr__(self) -> str:
        show = plain_text if self.figure == "mse" else share_text
        lines = [f"{self.figure} on held-out rows [95 % interval] (effective rows)"]
        for row in self.rows:
            score = f"{show(row.mean)} [{show(row.low)}, {show(row.high)}] ({row.ess:,.0f})"
            text = ", ".join(f"{name}={value!r}" for name, value in row.params.items())
            lines.append(f"  {score}  {text}{'  best' * (row is self.best)}")
        return "\n".join(lines)


def cross_validate(
    estimator: FederatedClassifier | FederatedRegressor,
    federation: Federation,
    grid: Grid | None = None,
    *,
    folds: int = 5,
    seed: int = 0,
) -> CrossValidation:
    r"""Score settings of a federated estimator on held-out training rows, without test labels.

    scikit-learn's `cross_val_score` cannot split a federation, and its unweighted scores are those
    of the training distribution. Here, each fold holds out a part of every client's training rows.
    The score is the importance-weighted mean over all held-out rows i of clients k,

    .. math:: \frac{Σ_{ki} w_{ki} s_{ki} / n_k}{Σ_{ki} w_{ki} / n_k}

    where s is 1 if the prediction is correct (classifier) or the squared error (regression), n_k
    is the number of the client's rows in the fold, and w are the weights of `estimator` itself,
    from ratios that are neither flattened nor held to `min_ess`. So all entries are compared on
    the same target, also those with other ratios or without weights. With ``objective="erm"``
    all w are 1.

    Parameters
    ----------
    estimator : FederatedClassifier or FederatedRegressor
        It is cloned, not fitted.
    federation : Federation
    grid : mapping of parameter to values, or a list of such mappings, optional
        All combinations are tried, as in scikit-learn's `ParameterGrid`. By default, the estimator
        as it is.
    folds : int
        Number of folds. Each class is spread evenly over them; the only row of a client, and a
        class that only one fold has, are always trained on.
    seed : int
        Seed of the folds.

    Returns
    -------
    CrossValidation

    Examples
    --------
    >>> from fedshift import FedSGD
    >>> from fedshift.data import GaussianShift
    >>> fed = GaussianShift.mean_shift(d=2, clients=2).draw(seed=0)
    >>> clf = FederatedClassifier("linear", ratio="exact", plan=FedSGD(iterations=50))
    >>> table = cross_validate(clf, fed, {"objective": ["erm", "ftw"]}, folds=2)
    >>> len(table.rows), sorted(table.best.params)
    (2, ['objective'])
    """
    if not isinstance(estimator, FederatedClassifier | FederatedRegressor):
        need = "FederatedClassifier or FederatedRegressor"
        raise InputError(f"estimator must be a {need}; got {estimator!r}")
    check_federation(federation, "cross_validate")
    whole_number(folds, "folds", least=2)
    whole_number(seed, "seed", least=0)
    federation, shared = clone(estimator).encode(federation), dict[str, Ratios]()
    fold = _folds(federation, folds, seed)
    settings, ratios = estimator.settings(federation), _ratios(estimator, federation, shared)
    weights = {c.name: np.ones(len(c.y)) for c in federation}
    if ratios is not None:
        target = validation_weights(federation, ratios, settings)
        weights = {name: w.values for name, w in target.items()}
    rows = []
    for params in ParameterGrid({} if grid is None else grid):
        entry = clone(estimator).set_params(**params, folder=None)
        ratios, risks = _ratios(entry, federation, shared), []
        for j in range(folds):
            train = _rows(federation, {n: f != j for n, f in fold.items()})
            held_out = _rows(federation, {n: f == j for n, f in fold.items()})
            if ratios is not None:
                values = {n: r[fold[n] != j] for n, r in ratios.values.items()}
                entry.set_params(ratio=replace(ratios, values=values))
            with warnings.catch_warnings():  # the ratios of all rows gave theirs
                warnings.simplefilter("ignore", FedshiftWarning)
                out = entry.fit(train).outcome_
            part = {n: w[fold[n] == j] for n, w in weights.items()}
            risks.append(validate(out.task, out.state, (held_out, part), settings))
        rows.append(_score(params, reduce(add, risks)))
    return CrossValidation(tuple(rows), "mse" if settings.loss == "squared" else "accuracy")


def _ratios(estimator: Any, federation: Federation, shared: dict[str, Ratios]) -> Ratios | None:
    names = ("ratio", "objective", "pooling", "seed", "device")
    options = {name: getattr(estimator, name) for name in names}
    return estimate_log_ratios(federation, shared=shared, **options)


def _folds(federation: Federation, folds: int, seed: int) -> dict[str, npt.NDArray[np.int64]]:
    out = {c.name: folds_of(c.name, c.y, folds, seed=seed) for c in federation}
    y, fold = np.concatenate([c.y for c in federation]), np.concatenate(list(out.values()))
    classes = np.unique(y[:0] if y.dtype.kind == "f" else y)
    alone = [v for v in classes if len(np.unique(fold[y == v])) == 1]
    return {c.name: np.where(np.isin(c.y, alone), -1, out[c.name]) for c in federation}


def _rows(federation: Federation, at: Mapping[str, npt.NDArray[np.bool_]]) -> Federation:
    rows = (replace(c, x=c.x[at[c.name]], y=c.y[at[c.name]], test_y=None) for c in federation)
    return Federation(tuple(rows))


def _score(params: Mapping[str, Any], risk: WeightedRisk) -> GridScore:
    """Return mean and interval: Wilson's for accuracies, the normal one for squared errors."""
    if risk.accuracy is None:
        mean, half = 2 * risk.loss, 2 * Z * risk.loss_error
        return GridScore(params, mean, mean - half, mean + half, risk.ess)
    p, v = risk.accuracy, Z**2 / risk.ess
    middle, half = (p + v / 2) / (1 + v), (v * (p * (1 - p) + v / 4)) ** 0.5 / (1 + v)
    return GridScore(params, p, middle - half, middle + half, risk.ess)
