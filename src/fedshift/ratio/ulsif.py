r"""Least-squares kernel ratios in closed form: `ULSIF` and `RULSIF`.

The ratio is a sum of Gaussian kernels at centres drawn from the target,

.. math:: r_\theta(x) = \sum_{l=1}^b \theta_l\,k_l(x), \qquad
          k_l(x) = \exp\bigl(-\|x - c_l\|^2 / 2\sigma^2\bigr),

with b centres c_l, coefficients θ_l and width σ. The columns have mean zero and variance one over
source and target together, so units do not matter. For n rows, time is O(n b²). Memory is O(b²)
plus one block of rows, never n × n.

References
----------
Kanamori, Hido, Sugiyama: A least-squares approach to direct importance estimation. JMLR 2009.
Yamada, Suzuki, Kanamori, Hachiya, Sugiyama: Relative density-ratio estimation. NIPS 2011.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedshift.core.kernel import (
    FLOOR,
    WIDTHS,
    Units,
    count,
    draw,
    gaussian,
    grid,
    kernel_blocks,
    median_distance,
    squared_distances,
)
from fedshift.core.samples import Float64Array, FloatArray, Rows, Sample
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator

#: Default ridges.
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)


@dataclass(frozen=True)
class KernelSpectrum:
    """Eigendecomposition H = U diag(e) Uᵀ and g = Uᵀh, from which (H + λI)⁻¹ h follows for any λ.

    Attributes
    ----------
    values, vectors, g : ndarray (b,), (b, b), (b,)
        e, U and g, with the matrix H and the vector h of `ULSIF`.
    """

    values: Float64Array
    vectors: Float64Array
    g: Float64Array

    @classmethod
    def of(cls, H: Float64Array, h: Float64Array) -> KernelSpectrum:
        """Decompose H (b, b), with h (b,)."""
        e, U = np.linalg.eigh(H)
        return cls(np.maximum(e, 0.0), U, U.T @ h)

    def solve(self, ridge: float) -> Float64Array:
        """Return θ = (H + λI)⁻¹ h, shape (b,)."""
        out: Float64Array = self.vectors @ (self.g / (self.values + ridge))
        return out

    def degrees_of_freedom(self, ridges: Float64Array) -> Float64Array:
        """Return the trace of H (H + λI)⁻¹ for each ridge λ."""
        out: Float64Array = (self.values[:, None] / (self.values[:, None] + ridges)).sum(axis=0)
        return out

    def leave_one_out(
        self, phi: Float64Array, c: Float64Array, v: Float64Array, ridges: Float64Array
    ) -> Float64Array:
        r"""Return leave-one-out predictions of the ridge least-squares fit, in closed form.

        With row weights c of the denominator and v of the numerator, each summing to one over all
        rows,

        .. math:: H = \sum_i c_i \phi_i \phi_i^T, \quad h = \sum_i v_i \phi_i, \quad
                  \theta = (H + \lambda I)^{-1} h .

        Without row i, both sets of weights are renormalised. The centres stay the same:

        .. math:: H^{(i)} = \frac{H - c_i \phi_i \phi_i^T}{1 - c_i}, \quad
                  h^{(i)} = \frac{h - v_i \phi_i}{1 - v_i}, \quad
                  \phi_i^T \theta^{(i)} = \frac{(1 - c_i)\,(a_i - v_i q_i)}
                                               {(1 - v_i)\,(1 - c_i q_i)},

        where :math:`a_i = \phi_i^T A^{-1} h`, :math:`q_i = \phi_i^T A^{-1} \phi_i` and
        :math:`A = H + \lambda (1 - c_i) I`. A source row has v = 0 and, for the plain ratio, a
        target row has c = 0. For the α-relative ratio, c is (1 − α) times a source weight or α
        times a target weight. Duplicates must be merged into one row with their total weight, so
        that no copy of row i remains. If a distribution has only one row, that row is not left out.

        Parameters
        ----------
        phi : ndarray (n, b)
            Basis functions at all rows of both distributions.
        c, v : ndarray (n,)
            Row weights of denominator and numerator.
        ridges : ndarray (g,)
            Values of λ > 0.

        Returns
        -------
        ndarray (n, g)
            :math:`\phi_i^T \theta^{(i)}` for each row and ridge.

        Examples
        --------
        >>> phi = np.array([[1.0, 0.5], [0.5, 1.0], [0.2, 0.9]])
        >>> c, v = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])
        >>> spectrum = KernelSpectrum.of((phi * c[:, None]).T @ phi, phi.T @ v)
        >>> fast = spectrum.leave_one_out(phi, c, v, np.array([0.1]))[0, 0]
        >>> theta = np.linalg.solve(np.outer(phi[1], phi[1]) + 0.1 * np.eye(2), phi[2])
        >>> bool(np.isclose(fast, phi[0] @ theta))
        True
        """
        z = phi @ self.vectors
        z2 = z * z
        out = np.empty((len(phi), len(ridges)))
        # a distribution of one row cannot lose it
        c, v = np.where(c < 1.0, c, 0.0), np.where(v < 1.0, v, 0.0)
        masses, group = np.unique(c, return_inverse=True)
        for k, mass in enumerate(masses):  # few different weights
            rows = slice(None) if len(masses) == 1 else np.flatnonzero(group == k)
            inverse = 1.0 / (self.values[:, None] + ridges * (1.0 - mass))
            q = z2[rows] @ inverse
            a = z[rows] @ (self.g[:, None] * inverse)
            vk = v[rows][:, None]
            out[rows] = (1.0 - mass) * (a - vk * q) / ((1.0 - vk) * (1.0 - mass * q))
        return out


class _Tally:
    """Sums over the rows of one distribution: mean losses of g fits, and their second moments."""

    def __init__(self, g: int) -> None:
        self.mean = np.zeros(g)
        self._first = np.zeros(g)
        self._second = np.zeros((g, g))
        self._mass = 0.0

    def add(self, loss: Float64Array, weight: Float64Array) -> None:
        """Add the losses (n, g) of a block of rows with weights (n,)."""
        weighted = loss * weight[:, None]
        self.mean += weighted.sum(axis=0)
        self._first += weight @ weighted
        self._second += weighted.T @ weighted
        self._mass += float(weight @ weight)

    def variance(self, k: int) -> Float64Array:
        """Return the variance of each fit's mean loss minus that of fit `k`, shape (g,)."""
        gap, first = self.mean - self.mean[k], self._first - self._first[k]
        second = np.diag(self._second) - 2.0 * self._second[k] + self._second[k, k]
        out: Float64Array = np.maximum(second - 2.0 * gap * first + gap**2 * self._mass, 0.0)
        return out


class _LeastSquares(RatioEstimator):
    """The common fit of `ULSIF` (α = 0) and `RULSIF`."""

    def __init__(
        self,
        *,
        n_centers: int = 100,
        bandwidths: Iterable[float] | float | None = None,
        ridges: Iterable[float] | float | None = None,
        slack: float = 0.3,
        seed: int = 0,
    ) -> None:
        self.n_centers = n_centers
        self.bandwidths = bandwidths
        self.ridges = ridges
        self.slack = slack
        self.seed = seed

    def _relative(self) -> float:
        return 0.0

    def _fit(self, source: Sample, target: Sample) -> None:
        alpha = self._relative()
        n_centers = count(self.n_centers, "n_centers")
        widths = np.asarray(grid(self.bandwidths, "bandwidths", WIDTHS))
        ridges = np.asarray(grid(self.ridges, "ridges", RIDGES))
        if not 0.0 <= self.slack < math.inf:
            raise InputError(f"slack must be a number of at least 0; got {self.slack!r}")
        rng = np.random.default_rng(count(self.seed, "seed", least=0))
        self._units = Units.of(source, target)
        (zs, ws), (zt, wt) = self._units.read(source), self._units.read(target)
        self.centers_ = centres = zt[draw(wt, n_centers, rng)]
        widths = widths * median_distance(centres, zs, zt)

        b, g = len(centres), len(ridges)
        samples = [(zs, (1.0 - alpha) * ws, 0.0 * ws, ws), (zt, alpha * wt, wt, wt)]
        H, h = np.zeros((len(widths), b, b)), np.zeros((len(widths), b))
        for z, c, v, _ in samples:
            for rows in kernel_blocks(len(z), b):
                d2 = squared_distances(z[rows], centres)
                for k, width in enumerate(widths):
                    phi = gaussian(d2, width)
                    if v.any():
                        h[k] += v[rows] @ phi
                    if c.any():
                        phi *= np.sqrt(c[rows])[:, None]
                        H[k] += phi.T @ phi
        spectra = [KernelSpectrum.of(H[k], h[k]) for k in range(len(widths))]

        n = len(zs)
        cap = np.full(len(widths) * g, n / (1.0 - alpha + alpha * n))
        largest = np.full(len(cap), FLOOR)
        tallies = [_Tally(len(cap)), _Tally(len(cap))]
        for (z, c, v, w), tally in zip(samples, tallies, strict=True):
            of_source = tally is tallies[0]
            for rows in kernel_blocks(len(z), b):
                d2 = squared_distances(z[rows], centres)
                r = np.concatenate(
                    [
                        s.leave_one_out(gaussian(d2, width), c[rows], v[rows], ridges)
                        for s, width in zip(spectra, widths, strict=True)
                    ],
                    axis=1,
                )
                np.clip(r, FLOOR, cap, out=r)
                if of_source:
                    largest = np.maximum(largest, r.max(axis=0))
                    tally.add(0.5 * (1.0 - alpha) * r * r, w[rows])
                else:
                    tally.add((0.5 * alpha * r - 1.0) * r, w[rows])
            if of_source and alpha == 0.0:
                cap = largest

        self.loo_scores_ = (tallies[0].mean + tallies[1].mean).reshape(len(widths), g)
        best = int(np.argmin(self.loo_scores_))
        error = np.sqrt(tallies[0].variance(best) + tallies[1].variance(best))
        near = self.loo_scores_.ravel() - self.loo_scores_.ravel()[best] <= self.slack * error
        freedom = np.concatenate([s.degrees_of_freedom(ridges) for s in spectra])
        pick = int(np.argmin(np.where(near, freedom, np.inf)))
        k, j = divmod(pick, g)
        self.bandwidth_, self.ridge_ = float(widths[k]), float(ridges[j])
        self.loo_score_ = float(self.loo_scores_[k, j])
        self.coef_ = spectra[k].solve(self.ridge_)
        self.cap_ = float(largest[pick])

    def _clipped_ratio(self, x: FloatArray) -> Float64Array:
        """Return the ratio of each row (relative for `RULSIF`), clipped to [FLOOR, cap_]."""
        z, out = self._units(x), np.empty(len(x))
        for rows in kernel_blocks(len(z), len(self.centers_)):
            d2 = squared_distances(z[rows], self.centers_)
            out[rows] = gaussian(d2, self.bandwidth_) @ self.coef_
        return np.clip(out, FLOOR, self.cap_)

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        return np.log(self._clipped_ratio(x))


class ULSIF(_LeastSquares):
    r"""Ratio by unconstrained least-squares fitting of Gaussian kernels; fast, in closed form.

    The ratio is θᵀk(x), with kernels k centred at target rows, and θ solves

    .. math:: \min_\theta\ \tfrac12 \theta^T H \theta - h^T \theta
              + \tfrac\lambda2 \|\theta\|^2, \qquad
              H = E_{source}\, k(x) k(x)^T, \quad h = E_{target}\, k(x),

    that is θ = (H + λI)⁻¹ h. Every width σ and ridge λ of a grid is tried; one eigendecomposition
    per width serves all ridges. Each pair (σ, λ) is scored by ½ E_source r² − E_target r on exact
    leave-one-out predictions (`KernelSpectrum.leave_one_out`). Of all pairs within `slack` standard
    errors of the best, the one with the fewest degrees of freedom is chosen.

    θᵀk(x) may be negative or very large, so the ratio is clipped. It is at least 1e-3. (Setting
    negative θ to zero instead, as is often done, ruins the fit where large positive and negative
    terms cancel.) It is at most the largest leave-one-out ratio of any source row, because the
    data do not support larger values. Target rows cannot set this limit, because a larger ratio at
    them always lowers the least-squares loss.

    When it fails: if the ratio has a heavy tail, because its square enters the loss; use `RULSIF`,
    whose ratio is bounded. It also fails in many dimensions, where kernels cannot follow a ratio
    that changes along a single direction; use `Classifier`.

    Parameters
    ----------
    n_centers : int
        Largest number of centres. They are drawn from the target rows.
    bandwidths : numbers or None
        Kernel widths σ to try, as multiples of the median distance between standardised rows and
        centres. None tries a default list.
    ridges : numbers or None
        Values of λ to try. None tries a default list.
    slack : float
        By how many standard errors of the paired difference a simpler fit may be worse than the
        best; 0 chooses the lowest score.
    seed : int
        Seeds the draw of the centres.

    Attributes
    ----------
    bandwidth_, ridge_ : float
        The chosen width σ, in standardised units, and the chosen ridge λ.
    loo_score_, loo_scores_ : float, ndarray (widths, ridges)
        Leave-one-out least-squares loss of the chosen pair and of all pairs; lower is better.
    centers_, coef_ : ndarray (b, d), (b,)
        Kernel centres, and θ.
    cap_ : float
        Upper limit of the ratio.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> est = ULSIF().fit(source=rng.normal(size=2000), target=rng.normal(1, 1, size=2000))
    >>> bool(np.abs(est.log_ratio([[0.0], [1.0]]) - [-0.5, 0.5]).max() < 0.35)  # truth: x − ½
    True
    """


class RULSIF(_LeastSquares):
    r"""Ratio by relative least-squares fitting: the fitted α-relative ratio is at most 1/α.

    If source and target are far apart, the plain ratio is very large, and least squares fails.
    The α-relative ratio is bounded by 1/α for any two distributions:

    .. math:: r_\alpha = \frac{p_{target}}{\alpha\,p_{target} + (1 - \alpha)\,p_{source}}, \qquad
              H = \alpha\,E_{target} k k^T + (1 - \alpha)\,E_{source} k k^T,

    where H replaces the H of `ULSIF`; the rest of the fit is the same. **`log_ratio` returns the
    plain ratio**, as in all estimators, computed as
    :math:`r = (1 - \alpha) r_\alpha / (1 - \alpha r_\alpha)`. `relative_log_ratio` returns
    log r_α. No ratio exceeds the largest leave-one-out ratio of any source row, nor the number of
    distinct source rows (their ratios have mean one).

    Use `relative_log_ratio` for weights that must stay bounded, and to test whether two samples
    differ.

    When it fails: the plain ratio is unstable where r_α is close to 1/α. If large plain ratios
    matter, use a smaller α or `Classifier`.

    Parameters
    ----------
    alpha : float
        0 ≤ α < 1; 0 fits the plain ratio.
    n_centers, bandwidths, ridges, slack, seed
        As in `ULSIF`.

    Attributes
    ----------
    divergence_ : float
        α-relative Pearson divergence ½ E_mix (r_α − 1)² of the target (with several target
        distributions, of their mean) from the mixture α p_target + (1 − α) p_source. The estimate
        is −(leave-one-out loss) − ½, so it does not grow with overfitting. If the divergence is
        near zero, it can be slightly negative.
    bandwidth_, ridge_, loo_score_, loo_scores_, centers_, coef_, cap_
        As in `ULSIF`, for r_α.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> source, target = rng.normal(size=1000), rng.normal(1, 1, size=1000)
    >>> est = RULSIF(alpha=0.1).fit(source=source, target=target)
    >>> bool(np.exp(est.relative_log_ratio([[9.0]]))[0] <= 10)
    True
    """

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        n_centers: int = 100,
        bandwidths: Iterable[float] | float | None = None,
        ridges: Iterable[float] | float | None = None,
        slack: float = 0.3,
        seed: int = 0,
    ) -> None:
        super().__init__(
            n_centers=n_centers, bandwidths=bandwidths, ridges=ridges, slack=slack, seed=seed
        )
        self.alpha = alpha

    def _relative(self) -> float:
        if not (isinstance(self.alpha, (int, float)) and 0.0 <= self.alpha < 1.0):
            raise InputError(
                f"alpha must be at least 0 and below 1; got {self.alpha!r}; 0 is the plain ratio"
            )
        return float(self.alpha)

    @property
    def divergence_(self) -> float:
        """The α-relative Pearson divergence of the target from the mixture."""
        return -self.loo_score_ - 0.5

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        r = self._clipped_ratio(x)
        out: Float64Array = np.log(r) + math.log1p(-self.alpha) - np.log1p(-self.alpha * r)
        return out

    def relative_log_ratio(self, X: Rows) -> Any:
        """Return the log of the α-relative ratio of each row, shape (n,).

        With several target distributions, the numerator is their mean.
        """
        plain = self.log_ratio(X) - math.log(self.n_targets_)
        if self.alpha == 0.0:
            return plain
        a, b = math.log1p(-self.alpha), math.log(self.alpha)
        if isinstance(plain, torch.Tensor):
            return plain - torch.logaddexp(torch.full_like(plain, a), plain + b)
        return plain - np.logaddexp(a, plain + b)
