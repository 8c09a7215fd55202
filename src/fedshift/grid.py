"""Cross-validation of federated estimators, within the training rows of each client."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

from fedshift.core.params import whole_number
from fedshift.core.samples import Float64Array
from fedshift.core.score_text import plain_text, share_text
from fedshift.data.federation import Federation
from fedshift.errors import FedshiftWarning, InputError
from fedshift.estimators import FederatedClassifier, FederatedRegressor, check_federation
from fedshift.federation.client_weights import Ratios, estimate_log_ratios
from fedshift.federation.marginals import folds_of
from fedshift.learn.gate import difference
from fedshift.workflow import validation_weights

Grid = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
LEVEL = 0.95


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
    """

    params: Mapping[str, Any]
    mean: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class CrossValidation:
    """The table that `cross_validate` returns.

    Attributes
    ----------
    rows : tuple of GridScore
        One for each entry of the grid, in its order.
    figure : {"accuracy", "mse"}
    ess : float
        Effective number of held-out rows. Below about 50, the intervals are too narrow.
    """

    rows: tuple[GridScore, ...]
    figure: str
    ess: float

    @property
    def best(self) -> GridScore:
        """The entry with the highest accuracy or lowest mean squared error."""
        sign = 1 if self.figure == "mse" else -1
        return min(self.rows, key=lambda row: sign * row.mean)

    @property
    def best_params(self) -> dict[str, Any]:
        """Parameters of `best`, for ``estimator.set_params(**best_params)``."""
        return dict(self.best.params)

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dict per entry: its parameters, mean and interval."""
        return [{**r.params, self.figure: r.mean, "low": r.low, "high": r.high} for r in self.rows]

    def __repr__(self) -> str:
        show = plain_text if self.figure == "mse" else share_text
        lines = [f"CrossValidation by {self.figure} [95 % interval], {self.ess:.0f} effective rows"]
        for row in self.rows:
            text = ", ".join(f"{name}={value!r}" for name, value in row.params.items())
            interval = f"[{show(row.low)}, {show(row.high)}]"
            mark = "  best" * (row is self.best)
            lines.append(f"  {show(row.mean):>8} {interval:<18} {text}{mark}")
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
    is the number of the client's rows, and w are the weights of `estimator` itself. So all entries
    are compared on the same target, also those with other ratios or without weights. With
    ``objective="erm"`` all w are 1.

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
    >>> len(table.rows), sorted(table.best_params)
    (2, ['objective'])
    """
    if not isinstance(estimator, FederatedClassifier | FederatedRegressor):
        raise InputError(
            "cross_validate needs a FederatedClassifier or FederatedRegressor; got "
            f"{type(estimator).__name__}"
        )
    check_federation(federation, "cross_validate")
    whole_number(folds, "folds", least=2)
    federation, shared = clone(estimator).encode(federation), dict[str, Ratios]()
    fold = _folds(federation, folds, seed, isinstance(estimator, FederatedClassifier))
    ratios = _ratios(estimator, federation, shared)
    settings = estimator.settings(federation)
    weights = {c.name: np.ones(len(c.y)) for c in federation}
    if ratios is not None:
        weights = {
            n: w.values for n, w in validation_weights(federation, ratios, settings).items()
        }
    kept = {n: w * (fold[n] >= 0) for n, w in weights.items()}
    zeros, rows, ess = {n: np.zeros(len(w)) for n, w in kept.items()}, [], 0.0
    for params in ParameterGrid({} if grid is None else grid):
        entry = clone(estimator).set_params(**params)
        scores = _held_out(entry, federation, _ratios(entry, federation, shared), fold, folds)
        d = replace(difference(scores, zeros, kept), level=LEVEL)
        rows.append(GridScore(params, d.value, *d.interval))
        ess = d.ess
    figure = "mse" if isinstance(estimator, FederatedRegressor) else "accuracy"
    return CrossValidation(tuple(rows), figure, ess)


def _ratios(
    estimator: Any, federation: Federation, shared: dict[str, Ratios]
) -> Ratios | None:
    names = ("objective", "pooling", "seed", "device")
    options = {name: getattr(estimator, name) for name in names}
    return estimate_log_ratios(federation, estimator.ratio, shared=shared, **options)


def _folds(
    federation: Federation, folds: int, seed: int, classes: bool
) -> dict[str, npt.NDArray[np.int64]]:
    out = {c.name: folds_of(c.name, c.y, folds, seed=seed) for c in federation}
    y, fold = np.concatenate([c.y for c in federation]), np.concatenate(list(out.values()))
    alone = [v for v in np.unique(y) if len(np.unique(fold[y == v])) == 1] if classes else []
    return {c.name: np.where(np.isin(c.y, alone), -1, out[c.name]) for c in federation}


def _held_out(
    estimator: Any,
    federation: Federation,
    ratios: Ratios | None,
    fold: Mapping[str, npt.NDArray[np.int64]],
    folds: int,
) -> dict[str, Float64Array]:
    """Return the score of each row by the model that was trained without it; 0 for fold −1."""
    out = {c.name: np.zeros(len(c.y)) for c in federation}
    estimator.set_params(folder=None)
    for j in range(folds):
        keep = {n: f != j for n, f in fold.items()}
        rows = (replace(c, x=c.x[keep[c.name]], y=c.y[keep[c.name]]) for c in federation)
        if ratios is not None:
            values = {n: r[keep[n]] for n, r in ratios.values.items()}
            estimator.set_params(ratio=replace(ratios, values=values))
        with warnings.catch_warnings():  # the ratios of all rows gave theirs
            warnings.simplefilter("ignore", FedshiftWarning)
            estimator.fit(Federation(tuple(rows)))
        for c in federation:
            rest = ~keep[c.name]
            if rest.any():
                guess = estimator.predict(c.x[rest], client=c.name)
                numbers = isinstance(estimator, FederatedRegressor)
                y = c.y[rest]
                out[c.name][rest] = (y - guess) ** 2 if numbers else y == guess
    return out
