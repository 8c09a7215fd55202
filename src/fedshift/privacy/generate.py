r"""Generated rows from a model fitted at a site: what leaves at disclosure level 4.

==========================  ===============================  ===========
class                       model                            use it for
==========================  ===============================  ===========
`GaussianMixtureSampler`    mixture of normal distributions  tables
`VAESampler`                small convolutional autoencoder  images
==========================  ===============================  ===========

Both have ``fit(x, seed=)`` and ``sample(n, seed=)``. Neither is differentially private: a model can
memorise rows it was fitted to. `fedshift.privacy.audit` measures how much its rows reveal. If you
need a guarantee, stay at disclosure level 2 with noise.

Generated rows differ from real rows, and generated images visibly so. A ratio between generated
test rows and real training rows would measure that difference and not the shift. So generate
both the test rows and the training rows, and estimate the ratio between the two.
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
        """Learn the distribution of rows (n, …)."""

    def sample(self, n: int, *, seed: int) -> npt.NDArray[Any]:
        """Draw rows (n, …)."""


class GaussianMixtureSampler:
    r"""A mixture of normal distributions; held-out rows choose the number of components.

    Columns are scaled to variance one, and `floor` is added to every variance of every component.
    No component is then narrower than √floor standard deviations of the column, so none can shrink
    onto one row and repeat it. In columns of whole numbers, generated values are fractions.

    Parameters
    ----------
    components : tuple of int
        Numbers of components to try.
    floor : float
        Least variance of a component, as a share of the column's variance.
    rows_each : int
        Least number of rows per component. More components than this allows are not tried.
    folds : int
        To choose the number of components, one of this many parts of the rows is held out. The
        sampler uses the smallest number of components whose held-out likelihood is within one
        standard error of the best.

    Attributes
    ----------
    n_components_ : int
        Number of components that was chosen.

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
        """Choose the number of components on held-out rows, then fit to all rows."""
        if not self.floor > 0:
            raise InputError(
                f"floor must be above 0, or a component can shrink onto a row; got {self.floor!r}"
            )
        rows = as_rows(np.asarray(x), name="x").astype(np.float64)
        self.shape_ = rows.shape[1:]
        rows = rows.reshape(len(rows), -1)
        if len(rows) < 2 * self.folds:
            raise InputError(
                f"a mixture needs at least {2 * self.folds} rows; got {len(rows)}; take a lower "
                "disclosure level, which needs no mixture"
            )
        self.mean_, scale = rows.mean(axis=0), rows.std(axis=0)
        self.scale_ = np.where(scale > 0, scale, 1.0)
        z = (rows - self.mean_) / self.scale_
        out = fold_of(len(z), self.folds, seed=seed) == 0
        most = max(1, len(z) // self.rows_each)
        sizes = [k for k in self.components if k <= most] or [1]
        fits = [self._fit_mixture(k, seed, z[~out]).score_samples(z[out]) for k in sizes]
        self.n_components_ = sizes[_simplest(fits)]
        self._mixture = self._fit_mixture(self.n_components_, seed, z)
        return self

    def _fit_mixture(self, components: int, seed: int, z: Float64Array) -> Any:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture

        mixture = GaussianMixture(components, reg_covar=self.floor, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a rough fit is enough
            return mixture.fit(z)

    def sample(self, n: int, *, seed: int) -> Float64Array:
        """Draw rows (n, …)."""
        mixture, rng = self._get_mixture(), np.random.default_rng(seed)
        shares = mixture.weights_ / mixture.weights_.sum()
        which = rng.choice(len(shares), size=n, p=shares)
        z = rng.standard_normal((n, len(self.mean_)))
        roots = np.linalg.cholesky(mixture.covariances_)
        for k, root in enumerate(roots):
            own = which == k
            z[own] = mixture.means_[k] + z[own] @ root.T
        return np.asarray((self.mean_ + self.scale_ * z).reshape(n, *self.shape_))

    def log_density(self, x: npt.ArrayLike) -> Float64Array:
        """Log density of rows, (n,), up to a constant."""
        rows = np.asarray(x, dtype=np.float64).reshape(len(np.asarray(x)), -1)
        return np.asarray(self._get_mixture().score_samples((rows - self.mean_) / self.scale_))

    def _get_mixture(self) -> Any:
        if not hasattr(self, "_mixture"):
            raise InputError("GaussianMixtureSampler is not fitted; call fit(x, seed=…) first")
        return self._mixture

    def __repr__(self) -> str:
        if not hasattr(self, "_mixture"):
            return "GaussianMixtureSampler(not fitted)"
        k = self.n_components_
        return f"GaussianMixtureSampler({k} component{'s' * (k > 1)} of {len(self.mean_)} columns)"


def _simplest(fits: list[Float64Array]) -> int:
    """Index of the first fit whose mean is within one standard error of the best."""
    best = max(fits, key=lambda f: float(f.mean()))
    lost = [best - f for f in fits]
    return next(i for i, d in enumerate(lost) if d.mean() <= d.std(ddof=1) / np.sqrt(len(d)))
