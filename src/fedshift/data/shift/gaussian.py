"""Covariate shift between Gaussian distributions: synthetic clients with known densities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.special import expit, logsumexp

from fedshift.core.params import check_numbers
from fedshift.core.samples import Float64Array, FloatArray, as_numbers
from fedshift.data.federation import Federation, Goal
from fedshift.data.shift.pool import assemble, client_names, per_client
from fedshift.errors import InputError

#: maps rows (n, d) and a random generator to labels (n,)
OutcomeFunction = Callable[[Float64Array, np.random.Generator], npt.NDArray[Any]]


@dataclass(frozen=True)
class LogisticOutcome:
    """Draw labels 0 and 1 with P(y = 1 | x) = logistic(coef · x + intercept).

    Parameters
    ----------
    coef : sequence of float (d,)
    intercept : float
    """

    coef: Sequence[float]
    intercept: float = 0.0

    def __call__(self, x: Float64Array, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return a label (n,) for each row of x (n, d)."""
        check_numbers(type(self), vars(self))
        p = expit(_linear(x, self.coef) + self.intercept)
        return np.asarray(rng.random(len(x)) < p, dtype=np.int64)


@dataclass(frozen=True)
class LinearOutcome:
    """Draw y = coef · x + intercept + noise · ε with ε ~ N(0, 1).

    Parameters
    ----------
    coef : sequence of float (d,)
    intercept : float
    noise : float
        Standard deviation of the noise.
    """

    coef: Sequence[float]
    intercept: float = 0.0
    noise: float = 1.0

    def __call__(self, x: Float64Array, rng: np.random.Generator) -> Float64Array:
        """Return a value (n,) for each row of x (n, d)."""
        check_numbers(type(self), vars(self))
        mean = _linear(x, self.coef) + self.intercept
        return np.asarray(mean + self.noise * rng.normal(size=len(x)))


@dataclass(frozen=True, eq=False)
class GaussianDistributions:
    """Exact ratios between Gaussians N(mean, L Lᵀ), one per client and side.

    The log ratio of client k is log Σ_l p_l^te(x) − log p_k^tr(x), which is always finite. Here
    p_k^tr is the training density of client k, p_l^te is the test density of client l, and l runs
    over the clients in the target.

    Attributes
    ----------
    names : tuple of str
        Client names.
    train_mean, test_mean : ndarray (clients, d)
    train_root, test_root : ndarray (clients, d, d)
        Cholesky factors L of the covariances.
    """

    names: tuple[str, ...]
    train_mean: Float64Array
    test_mean: Float64Array
    train_root: Float64Array
    test_root: Float64Array

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Return the log ratio (n,) at the training rows of a client."""
        goals = [self.names.index(name) for name in federation.goal_names(client, goal)]
        k, x = self.names.index(client), federation[client].x
        target = [log_density(x, self.test_mean[l], self.test_root[l]) for l in goals]
        source = log_density(x, self.train_mean[k], self.train_root[k])
        return np.asarray(logsumexp(target, axis=0) - source)

    def log_densities(self, federation: Federation, client: str) -> Float64Array:
        """Return log p_j^tr(x) (n, K) of all K clients j at the training rows of `client`."""
        x, places = federation[client].x, [self.names.index(c.name) for c in federation]
        columns = [log_density(x, self.train_mean[j], self.train_root[j]) for j in places]
        return np.stack(columns, axis=1)


def log_density(x: FloatArray, mean: Float64Array, root: Float64Array) -> Float64Array:
    """Return the log density (n,) of N(mean, root rootᵀ) at rows (n, d).

    The constant −d/2 log 2π is left out.
    """
    z = solve_triangular(root, (x - mean).T, lower=True)
    return np.asarray(-0.5 * np.square(z).sum(axis=0) - np.log(np.diag(root)).sum())


@dataclass(frozen=True, eq=False)
class GaussianShift:
    """Covariate shift between Gaussians: x ~ N(mean, cov) for each client and side.

    A side is training or test. p(y | x) is the same everywhere. The exact ratio is always finite;
    `GaussianDistributions` gives its formula. `draw` makes the rows. For the common case that all
    covariances are the identity, use `mean_shift`.

    Parameters
    ----------
    train_mean, test_mean : array (clients, d)
    train_cov, test_cov : array (d, d) or (clients, d, d), optional
        Symmetric and positive definite; the identity by default.
    train_rows, test_rows : int or sequence of int, one per client
        Number of rows.
    outcome : callable, optional
        ``outcome(x, generator)`` returns the labels (n,) of rows x (n, d); all clients share it.
        By default `LogisticOutcome` with coefficient 1 for every column. For regression pass
        `LinearOutcome`.

    Raises
    ------
    InputError
        If the means differ in shape or are not finite, a covariance is not symmetric and positive
        definite, or a number of rows is not positive.

    Examples
    --------
    One client in one dimension, trained on N(0, 1) and tested on N(1, 1): log r(x) = x − 1/2.

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
    outcome: OutcomeFunction | None = None

    def __post_init__(self) -> None:
        self._distributions()
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
        outcome: OutcomeFunction | None = None,
    ) -> GaussianShift:
        """Return a shift of the means; all covariances are the identity.

        Parameters
        ----------
        d, clients : int
            Number of columns and of clients, at least 1.
        size : float
            Distance from each client's training mean to its test mean, along the first column.
        spread : float
            Distance between neighbouring clients' training means, along the last column. The
            average of these means is 0.
        train_rows, test_rows, outcome
            As in `GaussianShift`.
        """
        if d < 1 or clients < 1:
            raise InputError(f"d and clients must be at least 1; got {d} and {clients}")
        train = np.zeros((clients, d))
        train[:, -1] = spread * (np.arange(clients) - (clients - 1) / 2)
        test = train + size * np.eye(1, d)
        return cls(train, test, train_rows=train_rows, test_rows=test_rows, outcome=outcome)

    def draw(self, *, seed: int) -> Federation:
        """Return a federation of random rows and their labels.

        Parameters
        ----------
        seed : int

        Returns
        -------
        Federation
            Clients client-1, client-2, … with float64 rows (n, d), whose exact ratios are known.

        Raises
        ------
        InputError
            If `outcome` does not return one label per row.
        """
        check_numbers(GaussianShift.draw, locals())
        truth = self._distributions()
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
                    raise InputError(
                        f"outcome must return one label per row, ({n},); got {y.shape}"
                    )
                part.append((x, y))
            sides.append(part)
        return Federation(assemble(truth.names, *sides), truth)

    def _distributions(self) -> GaussianDistributions:
        means = [as_numbers(getattr(self, n), n) for n in ("train_mean", "test_mean")]
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
        return GaussianDistributions(client_names(shape[0]), means[0], means[1], roots[0], roots[1])


def _linear(x: Float64Array, coef: Sequence[float]) -> Float64Array:
    c = as_numbers(coef, "coef")
    if c.shape != x.shape[1:] or not np.isfinite(c).all():
        raise InputError(
            f"coef must have {x.shape[1]} entries, one finite number per column; got {c}"
        )
    return np.asarray(x @ c)


def _roots(cov: npt.ArrayLike | None, shape: tuple[int, ...], name: str) -> Float64Array:
    a = np.eye(shape[1]) if cov is None else np.asarray(cov, dtype=np.float64)
    if a.shape not in (shape, shape[1:]) or not np.allclose(a, np.swapaxes(a, -1, -2)):
        raise InputError(
            f"{name} must be a symmetric matrix {shape[1:]} or one per client, {shape}; "
            f"got shape {a.shape}{', not symmetric' if a.shape in (shape, shape[1:]) else ''}"
        )
    try:
        root = np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        raise InputError(
            f"{name} must be positive definite; got a matrix that is not; add a small value to its "
            "diagonal"
        ) from None
    return np.broadcast_to(root, shape)
