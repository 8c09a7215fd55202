r"""Rows that look like a site's, drawn from a model fitted there: what leaves on rung 4.

==========================  ===============================  ===========
class                       model                            take it for
==========================  ===============================  ===========
`GaussianMixtureSampler`    mixture of normal laws           tables
`VAESampler`                small convolutional autoencoder  images
==========================  ===============================  ===========

Both have ``fit(x, seed=)`` and ``sample(n, seed=)``. Neither is differentially private: a model
keeps something of the rows it was fitted to. How much shows in `fedshift.privacy.audit`; where a
promise is needed, stay on rung 2 with noise.

Compare like with like: made rows can be told from real ones, images at a glance. A ratio between
made test rows and real training rows measures that and not the shift, so make both.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, as_rows, fold_of
from fedshift.errors import InputError


class Sampler(Protocol):
    """A model of rows."""

    def fit(self, x: npt.ArrayLike, *, seed: int) -> Self:
        """Learn the law of rows (n, …)."""

    def sample(self, n: int, *, seed: int) -> npt.NDArray[Any]:
        """Draw rows (n, …)."""


class GaussianMixtureSampler:
    r"""A mixture of normal laws, of as many as held-out rows ask for.

    Columns are scaled to variance one, and `floor` is added to every variance of every component:
    none is narrower than √floor standard deviations of the column, so that no component can shrink
    onto a row and repeat it. Columns of whole numbers come back as fractions.

    Parameters
    ----------
    components : tuple of int
        Numbers tried; those that leave a component fewer than `rows_each` rows are not.
    floor : float
        Least variance, as a share of the column's.
    rows_each : int
    folds : int
        One of so many parts of the rows is held out; the fewest components within a standard
        error of the best likelihood there are taken.

    Attributes
    ----------
    n_components_ : int

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(500, 2)) + [[5.0, 0.0]]
    >>> sampler = GaussianMixtureSampler().fit(x, seed=0)
    >>> sampler, sampler.sample(1000, seed=1).shape
    (GaussianMixtureSampler(1 component of 2 columns), (1000, 2))
    """

    def __init__(
        self,
        *,
        components: tuple[int, ...] = (1, 2, 4, 8, 16),
        floor: float = 0.05,
        rows_each: int = 30,
        folds: int = 5,
    ) -> None:
        self.components = components
        self.floor = floor
        self.rows_each = rows_each
        self.folds = folds

    def fit(self, x: npt.ArrayLike, *, seed: int) -> Self:
        """Choose the number of components on held-out rows, then fit to all."""
        if not self.floor > 0:
            raise InputError(
                f"floor must be above 0, or a component may shrink onto a row; got {self.floor!r}"
            )
        rows = as_rows(np.asarray(x), name="x").astype(np.float64)
        self.shape_ = rows.shape[1:]
        rows = rows.reshape(len(rows), -1)
        if len(rows) < 2 * self.folds:
            raise InputError(
                f"a mixture needs at least {2 * self.folds} rows; got {len(rows)}; take a lower "
                "rung, which does not need one"
            )
        self.mean_, scale = rows.mean(axis=0), rows.std(axis=0)
        self.scale_ = np.where(scale > 0, scale, 1.0)
        z = (rows - self.mean_) / self.scale_
        out = fold_of(len(z), self.folds, seed=seed) == 0
        most = max(1, len(z) // self.rows_each)
        tried = [k for k in self.components if k <= most] or [1]
        fits = [self._mixture(k, seed, z[~out]).score_samples(z[out]) for k in tried]
        self.n_components_ = tried[_simplest(fits)]
        self._law = self._mixture(self.n_components_, seed, z)
        return self

    def _mixture(self, components: int, seed: int, z: Float64Array) -> Any:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture

        law = GaussianMixture(components, reg_covar=self.floor, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a rough law will do
            return law.fit(z)

    def sample(self, n: int, *, seed: int) -> Float64Array:
        """Draw rows (n, …)."""
        law, rng = self._fitted(), np.random.default_rng(seed)
        which = rng.choice(len(law.weights_), size=n, p=law.weights_ / law.weights_.sum())
        z = rng.standard_normal((n, len(self.mean_)))
        roots = np.linalg.cholesky(law.covariances_)
        for k, root in enumerate(roots):
            own = which == k
            z[own] = law.means_[k] + z[own] @ root.T
        return np.asarray((self.mean_ + self.scale_ * z).reshape(n, *self.shape_))

    def log_density(self, x: npt.ArrayLike) -> Float64Array:
        """Log density of rows, (n,), up to a constant."""
        rows = np.asarray(x, dtype=np.float64).reshape(len(np.asarray(x)), -1)
        return np.asarray(self._fitted().score_samples((rows - self.mean_) / self.scale_))

    def _fitted(self) -> Any:
        if not hasattr(self, "_law"):
            raise InputError("GaussianMixtureSampler was not fitted; call fit(x, seed=…) first")
        return self._law

    def __repr__(self) -> str:
        if not hasattr(self, "_law"):
            return "GaussianMixtureSampler(not fitted)"
        k = self.n_components_
        return f"GaussianMixtureSampler({k} component{'s' * (k > 1)} of {len(self.mean_)} columns)"


def _simplest(fits: list[Float64Array]) -> int:
    """The first whose values lie, on average, within a standard error of the best."""
    best = max(fits, key=lambda f: float(f.mean()))
    lost = [best - f for f in fits]
    return next(i for i, d in enumerate(lost) if d.mean() <= d.std(ddof=1) / np.sqrt(len(d)))


__all__ = ["GaussianMixtureSampler", "Sampler"]
