"""Kernel mean matching, `KMM`: source weights that reproduce the kernel mean of the target.

References
----------
Huang, Smola, Gretton, Borgwardt, Schölkopf: Correcting sample selection bias by unlabeled data.
NIPS 2006.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import numpy as np
from scipy.linalg import solve_triangular

from fedshift.core.kernel import (
    FLOOR,
    Units,
    count,
    draw,
    gaussian,
    grid,
    kernel_blocks,
    median_distance,
    squared_distances,
)
from fedshift.core.samples import Float64Array, FloatArray, Sample
from fedshift.errors import InputError, NotConverged
from fedshift.ratio.base import RatioEstimator

#: Default widths of the matching kernel and of the smoother, as multiples of the median distance.
MATCH_WIDTHS = (0.25, 0.5, 1.0)
SMOOTH_WIDTHS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75)


def project(
    point: Float64Array, weight: Float64Array, bound: float, low: float, high: float
) -> Float64Array:
    """Return the β nearest to `point` with 0 ≤ β ≤ bound and low ≤ Σ wβ ≤ high.

    Distances are weighted by w, the row weights. The solution is β = clip(point − ν, 0, bound) for
    a number ν. If Σ wβ is in the interval for ν = 0, ν is 0. Otherwise ν moves Σ wβ to the nearer
    limit.

    Examples
    --------
    >>> import numpy as np
    >>> project(np.array([0.0, 4.0]), np.array([0.5, 0.5]), 3.0, 1.0, 1.0)
    array([0., 2.])
    """
    out: Float64Array = np.clip(point, 0.0, bound)
    mass = float(weight @ out)
    if low <= mass <= high:
        return out
    goal = low if mass < low else high
    a, b = float(point.min()) - bound, float(point.max())  # masses bound and 0
    for _ in range(100):
        nu = 0.5 * (a + b)
        out = np.clip(point - nu, 0.0, bound)
        excess = float(weight @ out) - goal
        if abs(excess) <= 1e-15 or b - a <= 1e-15 * max(1.0, abs(a), abs(b)):
            break
        a, b = (nu, b) if excess > 0.0 else (a, nu)
        inner = (out > 0.0) & (out < bound)  # between kinks the mass is linear: jump to the root
        slope = float(weight[inner].sum())
        jump = nu + excess / slope if slope > 0.0 else nu
        if a < jump < b:
            trial = np.clip(point - jump, 0.0, bound)
            gap = float(weight @ trial) - goal
            if abs(gap) <= 1e-15:
                return trial
            a, b = (jump, b) if gap > 0.0 else (a, jump)
    return out


def duality_gap(
    beta: Float64Array,
    gradient: Float64Array,
    weight: Float64Array,
    bound: float,
    low: float,
    high: float,
) -> float:
    """Return an upper bound on f(β) − min f of a convex f: max_d Σ w ∇f (β − d).

    Here w are the row weights, and ∇f is `gradient`, the gradient of f divided by w. The maximum
    is over 0 ≤ d ≤ `bound` with `low` ≤ Σ w d ≤ `high`. To find it, d is set to `bound` row by
    row, in order of increasing gradient: rows with a negative gradient until Σ w d reaches `high`,
    then the other rows until Σ w d reaches `low`. All other d are 0.
    """
    order = np.argsort(gradient, kind="stable")
    g, capacity = gradient[order], bound * weight[order]
    total = np.cumsum(capacity)
    until_low = np.clip(low - (total - capacity), 0.0, capacity)
    until_high = np.clip(high - (total - capacity), 0.0, capacity)
    fill = np.where(g < 0.0, until_high, until_low)
    return float((weight * beta) @ gradient - fill @ g)


def kmm_weights(
    features: Float64Array,
    weight: Float64Array,
    mean: Float64Array,
    *,
    bound: float,
    eps: float,
    tol: float = 1e-6,
    max_iter: int = 2000,
) -> tuple[Float64Array, float]:
    r"""Return row weights whose weighted feature mean is nearest to a target mean.

    .. math:: \min_\beta\ \tfrac12 \Bigl\| \sum_i w_i \beta_i \phi_i - \mu \Bigr\|^2
              \quad\text{with}\quad 0 \le \beta_i \le B, \quad
              \Bigl| \sum_i w_i \beta_i - 1 \Bigr| \le \varepsilon,

    The method is accelerated projected gradient descent with restarts, O(n b) per step. It stops
    when the duality gap is at most `tol` ‖μ‖².

    Parameters
    ----------
    features : ndarray (n, b)
        φ_i of each row.
    weight : ndarray (n,)
        Row weights w, which sum to one.
    mean : ndarray (b,)
        μ, the mean to match.
    bound, eps : float
        B ≥ 1 and ε ≥ 0.
    tol : float
        Stop when the relative duality gap, which is the gap divided by ‖μ‖², is at most this value.
    max_iter : int
        Largest number of steps.

    Returns
    -------
    beta : ndarray (n,)
        The row weights β.
    gap : float
        Relative duality gap; above `tol` if the iteration did not converge.

    Examples
    --------
    >>> import numpy as np
    >>> beta, gap = kmm_weights(np.eye(2), np.full(2, 0.5), np.array([0.3, 0.7]), bound=9, eps=0)
    >>> beta.round(3)
    array([0.6, 1.4])
    """
    low, high = max(0.0, 1.0 - eps), 1.0 + eps
    moment = (features * weight[:, None]).T @ features
    rate = 1.0 / max(float(np.linalg.eigvalsh(moment)[-1]), 1e-300)
    scale = max(float(mean @ mean), 1e-300)
    beta = np.ones(len(weight))
    ahead, momentum, gap = beta, 1.0, math.inf
    for step in range(max_iter):
        gradient = features @ ((weight * ahead) @ features - mean)
        new = project(ahead - rate * gradient, weight, bound, low, high)
        if float(weight @ ((ahead - new) * (new - beta))) > 0.0:  # uphill: drop the momentum
            momentum = 1.0
        next_momentum = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
        ahead = new + ((momentum - 1.0) / next_momentum) * (new - beta)
        beta, momentum = new, next_momentum
        if step % 10 == 9 or step == max_iter - 1:
            gradient = features @ ((weight * beta) @ features - mean)
            gap = duality_gap(beta, gradient, weight, bound, low, high) / scale
            if gap <= tol:
                break
    return beta, gap


def smooth(
    x: Float64Array, rows: Float64Array, mass: Float64Array, values: Float64Array, width: float
) -> Float64Array:
    r"""Return :math:`\sum_i m_i k(x, x_i) v_i / \sum_i m_i k(x, x_i)` at each x, shape (n,).

    Here x_i are the `rows`, m_i their `mass`, v_i their `values`, and k is the Gaussian kernel.
    Numerator and denominator are both divided by the kernel value of the nearest row. Far from all
    rows the result is therefore the value of the nearest row, not 0/0.
    """
    out = np.empty(len(x))
    for block in kernel_blocks(len(x), len(rows)):
        d2 = squared_distances(x[block], rows)
        d2 -= d2.min(axis=1, keepdims=True)
        k = gaussian(d2, width) * mass
        out[block] = (k @ values) / k.sum(axis=1)
    return out


class KMM(RatioEstimator):
    r"""Ratio by kernel mean matching: weighted source rows get the kernel mean of the target.

    The weights β of source rows solve

    .. math:: \min_\beta\ \Bigl\| \sum_i w_i \beta_i \phi(x_i) - E_{target} \phi \Bigr\|^2
              \quad\text{with}\quad 0 \le \beta_i \le B, \quad
              \Bigl| \sum_i w_i \beta_i - 1 \Bigr| \le \varepsilon

    Here w_i is the weight of a row: 1/n, or more for duplicates. φ are Nyström features of the
    Gaussian kernel, :math:`\phi(x)^T \phi(x') = k(x, C) K_{CC}^{-1} k(C, x')`, with b landmarks C
    drawn from source and target and K_CC their kernel matrix. The features are exact if there are
    at most b rows. Memory is O(n b), never n × n.

    The solution β is defined at source rows only, and it varies strongly from row to row. The
    ratio at any x, also at source rows, is a kernel mean of β (Nadaraya-Watson),

    .. math:: r(x) = \frac{\sum_i w_i \beta_i\,k_s(x, x_i)}{\sum_i w_i\,k_s(x, x_i)},

    divided by its mean over the source, so that its scale does not depend on n. The widths of the
    kernel k and of the smoother k_s are chosen on a held-out third of the rows, by the
    least-squares loss ½ E_source r² − E_target r. The final fit uses all rows.

    When it fails: in many dimensions no row is near another, and the smoother makes the ratio
    too flat. Use `Classifier` then. Prediction costs O(max_rows) per row. The ratio is at least
    1e-3 everywhere.

    Parameters
    ----------
    n_centers : int
        Largest number of landmarks, b.
    bound : float
        B ≥ 1, the largest weight. With a large bound, a few source rows in the target's tail can
        get nearly all the weight. Raise it if the true ratio is known to be larger.
    eps : float or None
        ε. None is 1/√n for n distinct source rows, the size of the sampling error.
    bandwidths, smoothing : numbers or None
        Widths of k and of k_s to try, as multiples of the median distance between standardised
        rows and landmarks. None tries a default list.
    max_rows : int
        Largest number of source rows in the optimisation; if there are more, a random part of them
        is used. All target rows are used, block by block.
    tol : float
        Stop when the relative duality gap (see `kmm_weights`) is at most this value.
    max_iter : int
        Largest number of steps of the optimisation.
    seed : int
        Seeds the draws of landmarks, rows and held-out rows.

    Attributes
    ----------
    bandwidth_, smoothing_ : float
        The chosen widths of k and of k_s, in standardised units.
    rows_, mass_, beta_ : ndarray (n, d), (n,), (n,)
        Source rows of the optimisation, their weights w and the solution β.
    gap_ : float
        Relative duality gap of β.

    Warns
    -----
    NotConverged
        If `gap_` exceeds `tol`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> est = KMM().fit(source=rng.normal(size=1000), target=rng.normal(1, 1, size=1000))
    >>> bool(np.abs(est.log_ratio([[0.0], [1.0]]) - [-0.5, 0.5]).max() < 0.25)  # truth: x − ½
    True
    """

    def __init__(
        self,
        *,
        n_centers: int = 100,
        bound: float = 50.0,
        eps: float | None = None,
        bandwidths: Iterable[float] | float | None = None,
        smoothing: Iterable[float] | float | None = None,
        max_rows: int = 5000,
        tol: float = 1e-3,
        max_iter: int = 2000,
        seed: int = 0,
    ) -> None:
        self.n_centers = n_centers
        self.bound = bound
        self.eps = eps
        self.bandwidths = bandwidths
        self.smoothing = smoothing
        self.max_rows = max_rows
        self.tol = tol
        self.max_iter = max_iter
        self.seed = seed

    def _fit(self, source: Sample, target: Sample) -> None:
        n_centers = count(self.n_centers, "n_centers", least=2)
        max_rows = count(self.max_rows, "max_rows", least=2)
        count(self.max_iter, "max_iter")
        widths = np.asarray(grid(self.bandwidths, "bandwidths", MATCH_WIDTHS))
        smoothing = np.asarray(grid(self.smoothing, "smoothing", SMOOTH_WIDTHS))
        if not 1.0 <= self.bound < math.inf:
            raise InputError(
                f"bound must be finite and at least 1, as a ratio has mean 1; got {self.bound!r}"
            )
        if self.eps is not None and not 0.0 <= self.eps < math.inf:
            raise InputError(f"eps must be at least 0, or None for 1/√n; got {self.eps!r}")
        if not self.tol > 0.0:
            raise InputError(f"tol must be above 0; got {self.tol!r}")
        rng = np.random.default_rng(count(self.seed, "seed", least=0))
        self._units = Units.of(source, target)
        (zs, ws), (zt, wt) = self._units.read(source), self._units.read(target)
        half = n_centers // 2
        centres = np.concatenate([zs[draw(ws, n_centers - half, rng)], zt[draw(wt, half, rng)]])
        centres = np.unique(centres, axis=0)
        if len(zs) > max_rows:
            index = np.sort(rng.permutation(len(zs))[:max_rows])
            zs, ws = zs[index], ws[index] / ws[index].sum()
        unit = median_distance(centres, zs, zt)
        widths, smoothing = widths * unit, smoothing * unit

        best = (0, 0)
        if len(widths) * len(smoothing) > 1 and min(len(zs), len(zt)) >= 6:
            scores = self._score_widths(zs, ws, zt, wt, centres, widths, smoothing, rng)
            row, column = divmod(int(np.argmin(scores)), len(smoothing))
            best = (row, column)
        self.bandwidth_ = float(widths[best[0]])
        self.smoothing_ = float(smoothing[best[1]])
        beta, self.gap_ = self._match(zs, ws, zt, wt, centres, self.bandwidth_, self.tol)
        if self.gap_ > self.tol:
            warnings.warn(
                f"KMM: the relative duality gap must be at most tol={self.tol:g}; got "
                f"{self.gap_:.3g}; raise max_iter or tol",
                NotConverged,
                stacklevel=4,
            )
        self.rows_, self.mass_, self.beta_ = zs, ws, beta
        self._scale = float(ws @ smooth(zs, zs, ws, beta, self.smoothing_))

    def _match(
        self,
        zs: Float64Array,
        ws: Float64Array,
        zt: Float64Array,
        wt: Float64Array,
        centres: Float64Array,
        width: float,
        tol: float,
    ) -> tuple[Float64Array, float]:
        features, mean = nystroem(zs, zt, wt, centres, width)
        eps = 1.0 / math.sqrt(len(zs)) if self.eps is None else float(self.eps)
        return kmm_weights(
            features, ws, mean, bound=float(self.bound), eps=eps, tol=tol, max_iter=self.max_iter
        )

    def _score_widths(
        self,
        zs: Float64Array,
        ws: Float64Array,
        zt: Float64Array,
        wt: Float64Array,
        centres: Float64Array,
        widths: Float64Array,
        smoothing: Float64Array,
        rng: np.random.Generator,
    ) -> Float64Array:
        """Return the least-squares loss of each pair of widths on a held-out third of the rows."""
        s, t = (rng.permutation(len(z)) % 3 == 0 for z in (zs, zt))
        us, ut = ws[~s] / ws[~s].sum(), wt[~t] / wt[~t].sum()
        hs, ht = ws[s] / ws[s].sum(), wt[t] / wt[t].sum()
        scores = np.empty((len(widths), len(smoothing)))
        for k, width in enumerate(widths):
            beta, _ = self._match(zs[~s], us, zt[~t], ut, centres, width, self.tol)
            for j, h in enumerate(smoothing):
                rs = smooth(zs[s], zs[~s], us, beta, h)
                scores[k, j] = 0.5 * hs @ rs**2 - ht @ smooth(zt[t], zs[~s], us, beta, h)
        return scores

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        r = smooth(self._units(x), self.rows_, self.mass_, self.beta_, self.smoothing_)
        out: Float64Array = np.log(np.maximum(r / self._scale, FLOOR))
        return out


def nystroem(
    zs: Float64Array, zt: Float64Array, wt: Float64Array, centres: Float64Array, width: float
) -> tuple[Float64Array, Float64Array]:
    """Return Nyström features (n, b) of the source rows and their mean (b,) over the target."""
    b = len(centres)
    gram = gaussian(squared_distances(centres, centres), width)
    root = np.linalg.cholesky(gram + 1e-8 * np.eye(b))
    features = np.empty((len(zs), b))
    for rows in kernel_blocks(len(zs), b):
        k = gaussian(squared_distances(zs[rows], centres), width)
        features[rows] = solve_triangular(root, k.T, lower=True).T
    total = np.zeros(b)
    for rows in kernel_blocks(len(zt), b):
        total += wt[rows] @ gaussian(squared_distances(zt[rows], centres), width)
    return features, np.asarray(solve_triangular(root, total, lower=True), dtype=np.float64)
