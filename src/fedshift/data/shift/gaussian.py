"""Synthetic Gaussian clients: the ratio is known everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.special import expit, logsumexp

from fedshift.core.samples import Float64Array, FloatArray
from fedshift.data.federation import Federation, Goal
from fedshift.data.shift.pool import assemble, client_names, per_client
from fedshift.errors import InputError

#: (rows (n, d), generator) ↦ labels (n,)
Outcome = Callable[[Float64Array, np.random.Generator], npt.NDArray[Any]]


@dataclass(frozen=True)
class LogisticOutcome:
    """Labels 0 and 1 with P(y = 1 | x) = logistic(coef · x + intercept)."""

    coef: Sequence[float]
    intercept: float = 0.0

    def __call__(self, x: Float64Array, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """A label for each row."""
        p = expit(_linear(x, self.coef) + self.intercept)
        return np.asarray(rng.random(len(x)) < p, dtype=np.int64)


@dataclass(frozen=True)
class LinearOutcome:
    """y = coef · x + intercept + noise · ε with ε ~ N(0, 1)."""

    coef: Sequence[float]
    intercept: float = 0.0
    noise: float = 1.0

    def __call__(self, x: Float64Array, rng: np.random.Generator) -> Float64Array:
        """A value for each row."""
        mean = _linear(x, self.coef) + self.intercept
        return np.asarray(mean + self.noise * rng.normal(size=len(x)))


@dataclass(frozen=True, eq=False)
class GaussianLaws:
    """N(mean, L Lᵀ) of every client and side; log r_k = log Σ_l p_l^te(x) − log p_k^tr(x), finite.

    Attributes
    ----------
    train_mean, test_mean : ndarray (clients, d)
    train_root, test_root : ndarray (clients, d, d)
        Cholesky factors L.
    """

    names: tuple[str, ...]
    train_mean: Float64Array
    test_mean: Float64Array
    train_root: Float64Array
    test_root: Float64Array

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Log ratio at every training row of a client."""
        goals = [self.names.index(name) for name in federation.goal_names(client, goal)]
        k, x = self.names.index(client), federation[client].x
        target = [log_density(x, self.test_mean[l], self.test_root[l]) for l in goals]
        source = log_density(x, self.train_mean[k], self.train_root[k])
        return np.asarray(logsumexp(target, axis=0) - source)

    def log_laws(self, federation: Federation, client: str) -> Float64Array:
        """Log p_j(x) of all clients' training laws at the training rows of one, (n, K)."""
        x, places = federation[client].x, [self.names.index(c.name) for c in federation]
        laws = [log_density(x, self.train_mean[j], self.train_root[j]) for j in places]
        return np.stack(laws, axis=1)


def log_density(x: FloatArray, mean: Float64Array, root: Float64Array) -> Float64Array:
    """Log density of N(mean, root rootᵀ) at rows (n, d), less the constant d/2 log 2π."""
    z = solve_triangular(root, (x - mean).T, lower=True)
    return np.asarray(-0.5 * np.square(z).sum(axis=0) - np.log(np.diag(root)).sum())


@dataclass(frozen=True, eq=False)
class GaussianShift:
    """Covariate shift between Gaussian laws: x ~ N(mean, cov) by client and side, y | x shared.

    Parameters
    ----------
    train_mean, test_mean : array (clients, d)
    train_cov, test_cov : array (d, d) or (clients, d, d), optional
        Positive definite; the identity by default.
    train_rows, test_rows : int or one for each client
    outcome : callable (x, generator) ↦ y, optional
        How labels follow from rows, the same for all; `LogisticOutcome` with slope 1 on every
        coordinate by default. `LinearOutcome` is the other one at hand.

    Examples
    --------
    >>> import numpy as np
    >>> fed = GaussianShift.mean_shift(d=1, clients=1, size=1.0).draw(seed=0)
    >>> bool(np.allclose(fed.exact_log_ratio("client-1"), fed[0].x[:, 0] - 0.5))
    True
    """

    train_mean: npt.ArrayLike
    test_mean: npt.ArrayLike
    train_cov: npt.ArrayLike | None = None
    test_cov: npt.ArrayLike | None = None
    train_rows: int | Sequence[int] = 500
    test_rows: int | Sequence[int] = 500
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        self._laws()
        clients = len(np.asarray(self.train_mean))
        per_client(self.train_rows, clients, "train_rows")
        per_client(self.test_rows, clients, "test_rows")

    @classmethod
    def mean_shift(
        cls,
        *,
        d: int = 2,
        clients: int = 2,
        size: float = 1.0,
        spread: float = 0.5,
        train_rows: int | Sequence[int] = 500,
        test_rows: int | Sequence[int] = 500,
        outcome: Outcome | None = None,
    ) -> GaussianShift:
        """Unit covariances; clients lie `spread` apart, and a test law `size` from its train law.

        Clients lie along the last coordinate, centred at 0; the train-to-test shift is along the
        first.
        """
        if d < 1 or clients < 1:
            raise InputError(f"d and clients must be at least 1; got {d} and {clients}")
        train = np.zeros((clients, d))
        train[:, -1] = spread * (np.arange(clients) - (clients - 1) / 2)
        test = train + size * np.eye(1, d)
        return cls(train, test, train_rows=train_rows, test_rows=test_rows, outcome=outcome)

    def draw(self, *, seed: int) -> Federation:
        """Draw every client's rows and labels.

        Returns
        -------
        Federation
            Rows (n, d) of float64.
        """
        truth = self._laws()
        clients, d = truth.train_mean.shape
        outcome = LogisticOutcome([1.0] * d) if self.outcome is None else self.outcome
        sides = []
        for mean, root, rows, rng in zip(
            (truth.train_mean, truth.test_mean),
            (truth.train_root, truth.test_root),
            (self.train_rows, self.test_rows),
            np.random.default_rng(seed).spawn(2),
            strict=True,
        ):
            part = []
            for k, n in enumerate(per_client(rows, clients, "rows")):
                x = mean[k] + rng.normal(size=(int(n), d)) @ root[k].T
                y = np.asarray(outcome(x, rng))
                if y.shape != (int(n),):
                    raise InputError(f"outcome must give a label a row, ({n},); got {y.shape}")
                part.append((x, y))
            sides.append(part)
        return Federation(assemble(truth.names, *sides), truth)

    def _laws(self) -> GaussianLaws:
        means = [np.asarray(m, dtype=np.float64) for m in (self.train_mean, self.test_mean)]
        if means[0].ndim != 2 or not means[0].size or means[0].shape != means[1].shape:
            raise InputError(
                "train_mean and test_mean must both be (clients, d); got "
                f"{means[0].shape} and {means[1].shape}"
            )
        if not all(np.isfinite(m).all() for m in means):
            raise InputError("train_mean and test_mean must be finite; got NaN or infinity")
        shape = (*means[0].shape, means[0].shape[1])
        roots = [
            _roots(cov, shape, name)
            for cov, name in ((self.train_cov, "train_cov"), (self.test_cov, "test_cov"))
        ]
        return GaussianLaws(client_names(shape[0]), means[0], means[1], roots[0], roots[1])


def _linear(x: Float64Array, coef: Sequence[float]) -> Float64Array:
    c = np.asarray(coef, dtype=np.float64)
    if c.shape != x.shape[1:]:
        raise InputError(f"coef must have {x.shape[1]} entries, one a column; got shape {c.shape}")
    return np.asarray(x @ c)


def _roots(cov: npt.ArrayLike | None, shape: tuple[int, ...], name: str) -> Float64Array:
    a = np.eye(shape[1]) if cov is None else np.asarray(cov, dtype=np.float64)
    if a.shape not in (shape, shape[1:]) or not np.allclose(a, np.swapaxes(a, -1, -2)):
        raise InputError(
            f"{name} must be a symmetric matrix {shape[1:]} or one for each client, {shape}; "
            f"got shape {a.shape}"
        )
    try:
        root = np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        raise InputError(
            f"{name} must be positive definite; got a matrix that is not; add a little to its "
            "diagonal"
        ) from None
    return np.broadcast_to(root, shape)
