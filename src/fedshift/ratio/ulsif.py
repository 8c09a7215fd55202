r"""Least-squares kernel ratios, `ULSIF` and `RULSIF`, solved in closed form.

The ratio is a sum of Gaussian bumps at centres drawn from the target,

.. math:: r_\theta(x) = \sum_{l=1}^b \theta_l\,k_l(x), \qquad
          k_l(x) = \exp\bigl(-\|x - c_l\|^2 / 2\sigma^2\bigr),

on columns that were brought to mean zero and variance one over source and target together, so
units do not matter. Work is O(n b²) and memory O(b²) plus one block of rows, never n × n.

References
----------
Kanamori, Hido, Sugiyama: A least-squares approach to direct importance estimation. JMLR 2009.
Yamada, Suzuki, Kanamori, Hachiya, Sugiyama: Relative density-ratio estimation. NIPS 2011.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
from fedshift.core.samples import Float64Array, FloatArray, Laws, Rows, Sample
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator

#: Default ridges.
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)


@dataclass(frozen=True)
class Spectrum:
    """H = U diag(e) Uᵀ and g = Uᵀh: every ridge is solved from here in O(b)."""

    values: Float64Array
    vectors: Float64Array
    g: Float64Array

    @classmethod
    def of(cls, H: Float64Array, h: Float64Array) -> Spectrum:
        """Decompose once."""
        e, U = np.linalg.eigh(H)
        return cls(np.maximum(e, 0.0), U, U.T @ h)

    def solve(self, ridge: float) -> Float64Array:
        """θ = (H + λI)⁻¹ h."""
        out: Float64Array = self.vectors @ (self.g / (self.values + ridge))
        return out

    def degrees_of_freedom(self, ridges: Float64Array) -> Float64Array:
        """Trace of H (H + λI)⁻¹ for each ridge."""
        out: Float64Array = (self.values[:, None] / (self.values[:, None] + ridges)).sum(axis=0)
        return out

    def left_out(
        self, phi: Float64Array, c: Float64Array, v: Float64Array, ridges: Float64Array
    ) -> Float64Array:
        """Predictions of `ulsif_loo` for a block of rows."""
        z = phi @ self.vectors
        z2 = z * z
        out = np.empty((len(phi), len(ridges)))
        # a law of one row cannot lose it
        c, v = np.where(c < 1.0, c, 0.0), np.where(v < 1.0, v, 0.0)
        masses, group = np.unique(c, return_inverse=True)
        for k, mass in enumerate(masses):  # as many as there are different weights: a handful
            rows = slice(None) if len(masses) == 1 else np.flatnonzero(group == k)
            inverse = 1.0 / (self.values[:, None] + ridges * (1.0 - mass))
            q = z2[rows] @ inverse
            a = z[rows] @ (self.g[:, None] * inverse)
            vk = v[rows][:, None]
            out[rows] = (1.0 - mass) * (a - vk * q) / ((1.0 - vk) * (1.0 - mass * q))
        return out


def ulsif_loo(
    phi: Float64Array,
    denominator: Float64Array,
    numerator: Float64Array,
    ridges: Sequence[float] | Float64Array,
) -> Float64Array:
    r"""Leave-one-out predictions of ridge least-squares ratio fitting, in closed form.

    With masses c (denominator law) and v (numerator law), each summing to one over all rows,

    .. math:: H = \sum_i c_i \phi_i \phi_i^T, \quad h = \sum_i v_i \phi_i, \quad
              \theta = (H + \lambda I)^{-1} h .

    Row i is taken out of both laws, which are then renormalised; the centres stay:

    .. math:: H^{(i)} = \frac{H - c_i \phi_i \phi_i^T}{1 - c_i}, \quad
              h^{(i)} = \frac{h - v_i \phi_i}{1 - v_i}, \quad
              \phi_i^T \theta^{(i)} = \frac{(1 - c_i)\,(a_i - v_i q_i)}
                                           {(1 - v_i)\,(1 - c_i q_i)},

    where :math:`a_i = \phi_i^T A^{-1} h`, :math:`q_i = \phi_i^T A^{-1} \phi_i` and
    :math:`A = H + \lambda (1 - c_i) I`. A source row has v = 0 and, for the plain ratio, a target
    row has c = 0; for the α-relative ratio c is (1 − α) times a source weight or α times a target
    weight. Rows that come several times are one row with their weights added, so no twin of a
    left-out row stays behind. A law with a single row keeps it.

    Parameters
    ----------
    phi : ndarray (n, b)
        Basis functions at all rows of both laws.
    denominator, numerator : ndarray (n,)
        Masses c and v.
    ridges : sequence (g,)
        Values of λ > 0.

    Returns
    -------
    ndarray (n, g)
        :math:`\phi_i^T \theta^{(i)}` for each row and ridge.

    Examples
    --------
    >>> import numpy as np
    >>> phi = np.array([[1.0, 0.5], [0.5, 1.0], [0.2, 0.9]])
    >>> c, v = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])
    >>> fast = ulsif_loo(phi, c, v, [0.1])[0, 0]
    >>> theta = np.linalg.solve(np.outer(phi[1], phi[1]) + 0.1 * np.eye(2), phi[2])
    >>> bool(np.isclose(fast, phi[0] @ theta))
    True
    """
    H = (phi * denominator[:, None]).T @ phi
    spectrum = Spectrum.of(H, phi.T @ numerator)
    return spectrum.left_out(phi, denominator, numerator, np.asarray(ridges, dtype=np.float64))


class _Tally:
    """Mean losses of g candidates under one law, and the moments that give paired errors."""

    def __init__(self, g: int) -> None:
        self.mean = np.zeros(g)
        self._first = np.zeros(g)
        self._second = np.zeros((g, g))
        self._mass = 0.0

    def add(self, loss: Float64Array, weight: Float64Array) -> None:
        """Losses (n, g) of a block of rows."""
        weighted = loss * weight[:, None]
        self.mean += weighted.sum(axis=0)
        self._first += weight @ weighted
        self._second += weighted.T @ weighted
        self._mass += float(weight @ weight)

    def variance(self, k: int) -> Float64Array:
        """Variance of each candidate's mean loss minus that of candidate `k`."""
        gap, first = self.mean - self.mean[k], self._first - self._first[k]
        second = np.diag(self._second) - 2.0 * self._second[k] + self._second[k, k]
        out: Float64Array = np.maximum(second - 2.0 * gap * first + gap**2 * self._mass, 0.0)
        return out


class _LeastSquares(RatioEstimator):
    """Common fit of `ULSIF` (α = 0) and `RULSIF`."""

    n_centers: int
    bandwidths: Iterable[float] | float | None
    ridges: Iterable[float] | float | None
    slack: float
    seed: int

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
        laws = [(zs, (1.0 - alpha) * ws, 0.0 * ws, ws), (zt, alpha * wt, wt, wt)]
        H, h = np.zeros((len(widths), b, b)), np.zeros((len(widths), b))
        for z, c, v, _ in laws:
            for rows in kernel_blocks(len(z), b):
                d2 = squared_distances(z[rows], centres)
                for k, width in enumerate(widths):
                    phi = gaussian(d2, width)
                    if v.any():
                        h[k] += v[rows] @ phi
                    if c.any():
                        phi *= np.sqrt(c[rows])[:, None]
                        H[k] += phi.T @ phi
        spectra = [Spectrum.of(H[k], h[k]) for k in range(len(widths))]

        n = len(zs)
        cap = np.full(len(widths) * g, n / (1.0 - alpha + alpha * n))
        witnessed = np.full(len(cap), FLOOR)
        tallies = [_Tally(len(cap)), _Tally(len(cap))]
        for (z, c, v, w), tally in zip(laws, tallies, strict=True):
            of_source = tally is tallies[0]
            for rows in kernel_blocks(len(z), b):
                d2 = squared_distances(z[rows], centres)
                r = np.concatenate(
                    [
                        s.left_out(gaussian(d2, width), c[rows], v[rows], ridges)
                        for s, width in zip(spectra, widths, strict=True)
                    ],
                    axis=1,
                )
                np.clip(r, FLOOR, cap, out=r)
                if of_source:
                    witnessed = np.maximum(witnessed, r.max(axis=0))
                    tally.add(0.5 * (1.0 - alpha) * r * r, w[rows])
                else:
                    tally.add((0.5 * alpha * r - 1.0) * r, w[rows])
            if of_source and alpha == 0.0:
                cap = witnessed

        self.loo_scores_ = (tallies[0].mean + tallies[1].mean).reshape(len(widths), g)
        best = int(np.argmin(self.loo_scores_))
        error = np.sqrt(tallies[0].variance(best) + tallies[1].variance(best))
        near = self.loo_scores_.ravel() - self.loo_scores_.ravel()[best] <= self.slack * error
        freedom = np.concatenate([s.degrees_of_freedom(ridges) for s in spectra])
        chosen = int(np.argmin(np.where(near, freedom, np.inf)))
        k, j = divmod(chosen, g)
        self.bandwidth_, self.ridge_ = float(widths[k]), float(ridges[j])
        self.loo_score_ = float(self.loo_scores_[k, j])
        self.coef_ = spectra[k].solve(self.ridge_)
        self.cap_ = float(witnessed[chosen])

    def _fitted(self, x: FloatArray) -> Float64Array:
        """The fitted ratio of each row (relative for `RULSIF`), within [FLOOR, cap]."""
        z, out = self._units(x), np.empty(len(x))
        for rows in kernel_blocks(len(z), len(self.centers_)):
            d2 = squared_distances(z[rows], self.centers_)
            out[rows] = gaussian(d2, self.bandwidth_) @ self.coef_
        return np.clip(out, FLOOR, self.cap_)

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        return np.log(self._fitted(x))


class ULSIF(_LeastSquares):
    r"""Unconstrained least-squares importance fitting.

    .. math:: \min_\theta\ \tfrac12 \theta^T H \theta - h^T \theta
              + \tfrac\lambda2 \|\theta\|^2, \qquad
              H = E_{source}\, k(x) k(x)^T, \quad h = E_{target}\, k(x),

    solved as θ = (H + λI)⁻¹ h for every width and ridge of a grid; one eigendecomposition a width
    serves all ridges. Each pair (σ, λ) is scored by ½ E_source r² − E_target r on predictions
    that left the row out (`ulsif_loo`, exact), and the pair with the fewest degrees of freedom
    within `slack` standard errors of the best is taken.

    Nothing forces θᵀk(x) into range, so the ratio is floored at 1e-3 (cutting θ at zero instead,
    as is often done, ruins the fit where large positive and negative bumps cancel) and capped at
    the largest left-out ratio of any source row: beyond that the data show nothing, and the
    least-squares loss would reward any height there.

    Parameters
    ----------
    n_centers : int
        Most centres, drawn from the target rows.
    bandwidths : numbers or None
        Kernel widths σ to try, as multiples of the median distance between standardised rows and
        centres.
    ridges : numbers or None
        Values of λ to try.
    slack : float
        Standard errors (of the paired difference) by which a simpler fit may be worse; 0 takes
        the lowest score.
    seed : int
        Seeds the draw of the centres.

    Attributes
    ----------
    bandwidth_, ridge_ : float
        The pair chosen; the width in standardised units.
    loo_score_, loo_scores_ : float, ndarray (widths, ridges)
        Leave-one-out least-squares loss; lower is better.
    centers_, coef_ : ndarray (b, d), (b,)
    cap_ : float

    Notes
    -----
    Fails where the ratio has a heavy tail, for its loss squares it, and in many dimensions, where
    bumps cannot follow a ratio that changes along one direction: take `Classifier` there, or
    `RULSIF`, whose ratio is bounded.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> est = ULSIF().fit(source=rng.normal(size=2000), target=rng.normal(1, 1, size=2000))
    >>> bool(np.abs(est.log_ratio([[0.0], [1.0]]) - [-0.5, 0.5]).max() < 0.35)  # truth: x − ½
    True
    """

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


class RULSIF(_LeastSquares):
    r"""Relative least-squares importance fitting.

    Fits the α-relative ratio, which is bounded by 1/α however far apart the laws are,

    .. math:: r_\alpha = \frac{p_{target}}{\alpha\,p_{target} + (1 - \alpha)\,p_{source}}, \qquad
              H = \alpha\,E_{target} k k^T + (1 - \alpha)\,E_{source} k k^T,

    with the machinery of `ULSIF`. **`log_ratio` gives the plain ratio**, as in all estimators,
    recovered by :math:`r = (1 - \alpha) r_\alpha / (1 - \alpha r_\alpha)`;
    `relative_log_ratio` gives log r_α. As in `ULSIF` no ratio exceeds the largest left-out one of
    any source row, nor the number of distinct source rows (their ratios have mean one).

    Parameters
    ----------
    alpha : float
        0 ≤ α < 1; 0 is the plain ratio.
    n_centers, bandwidths, ridges, slack, seed
        As in `ULSIF`.

    Attributes
    ----------
    divergence_ : float
        α-relative Pearson divergence ½ E_mix (r_α − 1)² of the target from the mixture (for several
        target laws: of their mean), estimated by minus the leave-one-out loss less ½. Left-out
        rows keep it from growing with over-fitting; near zero it may fall slightly below.

    Notes
    -----
    Use `relative_log_ratio` for weights that must stay bounded, and for testing whether two
    samples differ. The plain ratio is unstable where r_α comes near 1/α: take a smaller α or
    `Classifier` if large plain ratios matter.

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
        self.alpha = alpha
        self.n_centers = n_centers
        self.bandwidths = bandwidths
        self.ridges = ridges
        self.slack = slack
        self.seed = seed

    def _relative(self) -> float:
        if not (isinstance(self.alpha, (int, float)) and 0.0 <= self.alpha < 1.0):
            raise InputError(
                f"alpha must be at least 0 and below 1; got {self.alpha!r}; 0 is the plain ratio"
            )
        return float(self.alpha)

    @property
    def divergence_(self) -> float:
        """α-relative Pearson divergence of the target from the mixture."""
        return -self.loo_score_ - 0.5

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        r = self._fitted(x)
        out: Float64Array = np.log(r) + math.log1p(-self.alpha) - np.log1p(-self.alpha * r)
        return out

    def relative_log_ratio(self, X: Rows) -> Any:
        """Log of the α-relative ratio of each row, shape (n,); of the mean of several laws."""
        plain = self.log_ratio(X) - math.log(self.n_laws_)
        if self.alpha == 0.0:
            return plain
        a, b = math.log1p(-self.alpha), math.log(self.alpha)
        if isinstance(plain, torch.Tensor):
            return plain - torch.logaddexp(torch.full_like(plain, a), plain + b)
        return plain - np.logaddexp(a, plain + b)


def relative_pearson(*, source: Rows, target: Laws, alpha: float = 0.1, seed: int = 0) -> float:
    """α-relative Pearson divergence ½ E_mix (r_α − 1)² of the target from the source.

    The mixture is α target + (1 − α) source; see `RULSIF`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> same = relative_pearson(source=rng.normal(size=500), target=rng.normal(size=500))
    >>> bool(abs(same) < 0.02)
    True
    """
    return float(RULSIF(alpha=alpha, seed=seed).fit(source=source, target=target).divergence_)
