"""Ratios by penalised logistic regression of target against source."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np

from fedshift.core.calibrate import RatioEvidence
from fedshift.core.features import FeatureMap, FeatureName, feature_map
from fedshift.core.logistic import Block, Blocks, ridge_path, sparse_path
from fedshift.core.params import positive, whole
from fedshift.core.samples import BLOCK, Float64Array, FloatArray, Sample, blocks
from fedshift.errors import InputError, NotConverged
from fedshift.ratio.base import Path, RatioEstimator
from fedshift.ratio.crossfit import out_of_fold

RIDGES = tuple(float(r) for r in 10.0 ** np.array([1, 0.5, 0, -0.5, -1, -1.5, -2, -3, -4, -6]))
KERNEL_RIDGES = tuple(float(r) for r in 10.0 ** np.array([-1, -1.5, -2, -2.5, -3, -3.5, -4]))
SPARSE_RIDGES = tuple(float(r) for r in 10.0 ** np.array([-1.5, -2, -2.5, -3, -3.5]))
#: most numbers in a cached feature matrix; a larger one is computed anew block by block
CACHE = 30_000_000
#: tolerance along a path, a hundredth of a nat over thousands of rows; a final fit uses 1e-8
PATH_TOL = 1e-6
#: most rows of source, and of target, for the choice of the ridge
TUNE_ROWS = 20_000


class Logistic(RatioEstimator):
    r"""Ratio by penalised logistic regression of target against source.

    The log ratio is linear in features φ(x), and minimises the log loss plus a penalty:

    .. math:: \log r(x) = \beta_0 + \phi(x)^T \beta, \qquad
              \min_\beta\ \frac1N \Bigl(\sum_{source} \log(1 + e^{\eta})
              + \sum_{target} \log(1 + e^{-\eta})\Bigr) + \frac\lambda2 \|\beta\|^2,

    with η = log r + log(n_target / n_source) and N the number of rows. Newton's method works over
    blocks of rows, so memory does not grow with N. Exchanging source and target changes
    only the sign of the log ratio.

    The features to choose:

    - ``"linear"`` is exact for Gaussians with equal covariance.
    - ``"squares"`` is exact for independent Gaussian columns. Add ``sparse=True`` if only a few
      columns shift.
    - ``"quadratic"`` is exact for Gaussians with any covariances.
    - ``"kernel"`` fits smooth ratios of any shape in moderate dimension.

    When it fails: on heavy tails the log ratio extrapolates without bound, except with
    ``"kernel"``. Use `Auto` if unsure.

    Parameters
    ----------
    features : {"linear", "squares", "quadratic", "kernel"}
        The feature map φ.
    ridge : float or "cv"
        λ, the factor of the penalty. With "cv" it is chosen from a fixed list by the out-of-fold
        log loss.
    sparse : bool
        Whether to penalise the number of coefficients instead of their size (adaptive ridge).
    width : float
        Kernel width as a multiple of the median distance.
    n_centers : int
        Number of kernel centres.
    shared_scale : bool
        Whether all columns share one scale, as pixels do.
    folds, seed : int
        Number of folds for ``ridge="cv"``, at least 2, and the seed of these folds.

    Attributes
    ----------
    ridge_ : float
        The λ of the fit.
    coef_ : ndarray (1 + p,)
        Intercept, then the coefficients of the p standardised features.

    Warns
    -----
    NotConverged
        If Newton's method stops early, usually because source and target are separable.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> r = Logistic().fit(source=rng.normal(size=2000), target=rng.normal(1, 1, 2000))
    >>> x = np.array([0.5, 1.5])
    >>> bool(np.abs(r.log_ratio(x) - (x - 0.5)).max() < 0.15)  # truth: x − ½
    True
    """

    def __init__(
        self,
        features: FeatureName = "linear",
        *,
        ridge: float | str = "cv",
        sparse: bool = False,
        width: float = 1.0,
        n_centers: int = 250,
        shared_scale: bool = False,
        folds: int = 5,
        seed: int = 0,
    ) -> None:
        self.features = features
        self.ridge = ridge
        self.sparse = sparse
        self.width = width
        self.n_centers = n_centers
        self.shared_scale = shared_scale
        self.folds = folds
        self.seed = seed

    def _ridges(self) -> tuple[float, ...]:
        positive(self, "width")
        whole(self, "n_centers", least=2)
        whole(self, "folds", least=2)
        if self.ridge != "cv":
            if not isinstance(self.ridge, int | float) or not self.ridge >= 0:
                raise InputError(f"ridge must be 'cv' or a number ≥ 0; got {self.ridge!r}")
            return (float(self.ridge),)
        if self.sparse:
            return SPARSE_RIDGES
        if self.features == "kernel":
            return KERNEL_RIDGES
        # with this many products a weak ridge is not needed
        return RIDGES[:7] if self.features == "quadratic" else RIDGES

    def _fit(self, source: Sample, target: Sample) -> None:
        ridges = self._ridges()
        if len(ridges) > 1:
            ridges = self._choose_ridges(source, target, ridges)
        self._map, coefficients = self._solve(source, target, ridges)
        self.ridge_, self.coef_ = ridges[-1], coefficients[-1]

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        return _linear(x, self._map, self.coef_[None])[:, 0]

    def _path(self, source: Sample, target: Sample) -> Path:
        features, coefficients = self._solve(source, target, self._ridges(), tol=PATH_TOL)
        return partial(_linear, features=features, coefficients=coefficients)

    def _choose_ridges(
        self, source: Sample, target: Sample, ridges: tuple[float, ...]
    ) -> tuple[float, ...]:
        """Return the ridges down to the best; of many rows, a part chooses it, scaled by 1/n."""
        s, t = source.some(TUNE_ROWS), target.some(TUNE_ROWS)
        folds = min(self.folds, len(s), len(t))
        if folds < 2:
            return ridges[:1]
        out = out_of_fold(self._path, s, t, folds=folds, seed=self.seed)
        evidence = RatioEvidence.of(s.weight, t.weight)
        losses = [evidence.loss(*out.column(j)) for j in range(len(ridges))]
        best = int(np.argmin(losses))
        shrink = (len(s) + len(t)) / (len(source) + len(target))
        return tuple(
            r * shrink for r in (ridges[best : best + 1] if self.sparse else ridges[: best + 1])
        )

    def _solve(
        self, source: Sample, target: Sample, ridges: tuple[float, ...], *, tol: float = 1e-8
    ) -> tuple[FeatureMap, Float64Array]:
        features, p = feature_map(
            self.features,
            source,
            target,
            width=self.width,
            n_centers=self.n_centers,
            shared_scale=self.shared_scale,
        )
        total = len(source) + len(target)
        parts = ((source, 0.0, len(source) / total), (target, 1.0, len(target) / total))
        offset = math.log(len(target) / len(source))
        size = max(256, min(BLOCK, CACHE // (4 * max(p, 1))))

        def read() -> Iterator[Block]:
            for sample, label, share in parts:
                for b in blocks(len(sample), size):
                    w = share * sample.weight[b]
                    yield features(sample.x[b]), np.full(len(w), label), w

        if total * p > CACHE:
            return features, self._coefficients(read, p, ridges, offset, tol)
        f, y, w = (np.concatenate(column) for column in zip(*read(), strict=True))
        if p <= total:
            return features, self._coefficients(lambda: [(f, y, w)], p, ridges, offset, tol)
        # more features than rows: the solution lies in the span of the rows
        u, d, vt = np.linalg.svd(f, full_matrices=False)
        f = u * d
        small = self._coefficients(lambda: [(f, y, w)], len(d), ridges, offset, tol)
        return features, np.concatenate([small[:, :1], small[:, 1:] @ vt], axis=1)

    def _coefficients(
        self, rows: Blocks, p: int, ridges: tuple[float, ...], offset: float, tol: float
    ) -> Float64Array:
        if self.sparse:
            return sparse_path(rows, p, ridges=ridges, offset=offset, tol=max(tol, 1e-7))
        coefficients, converged = ridge_path(rows, p, ridges=ridges, offset=offset, tol=tol)
        if not converged:
            warnings.warn(
                "Logistic: Newton's method must reach its tolerance; it stopped before, perhaps "
                "because source and target are separable; set a larger ridge",
                NotConverged,
                stacklevel=2,
            )
        return coefficients


def _linear(x: FloatArray, features: FeatureMap, coefficients: Float64Array) -> Float64Array:
    """Log ratios (n, m) of m models with coefficients (m, 1 + p), block by block."""
    parts = [features(x[b]) @ coefficients[:, 1:].T for b in blocks(len(x))]
    return np.asarray(np.concatenate(parts) + coefficients[:, 0])
