"""Kullback-Leibler importance estimation, `KLIEP`: a mixture of kernels by maximum likelihood.

References
----------
Sugiyama, Suzuki, Nakajima, Kashima, von Bünau, Kawanabe: Direct importance estimation for
covariate shift adaptation. Annals of the Institute of Statistical Mathematics 2008.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

from fedshift.core.kernel import (
    FLOOR,
    WIDTHS,
    Index,
    Units,
    count,
    draw,
    gaussian,
    grid,
    kernel_blocks,
    median_distance,
    squared_distances,
)
from fedshift.core.samples import Float64Array, FloatArray, Sample, fold_of
from fedshift.errors import InputError, NotConverged
from fedshift.ratio.base import RatioEstimator

#: A kernel that covers less source mass than this number of rows is left out (at most 5 %).
ROWS_PER_BUMP = 10


def kliep_mixture(
    density: Float64Array,
    weight: Float64Array,
    *,
    start: Float64Array | None = None,
    tol: float = 1e-6,
    max_iter: int = 200,
) -> tuple[Float64Array, float]:
    r"""Return the mixture weights of known densities that maximise the likelihood of some rows.

    .. math:: \max_{\beta \ge 0,\ \sum_l \beta_l = 1}\ L(\beta) = \sum_j w_j \log f_j, \qquad
              f_j = \sum_l \beta_l D_{jl},

    is a concave problem. First come expectation-maximisation (EM) steps, :math:`\beta_l \leftarrow
    \beta_l G_l` with :math:`G_l = \sum_j w_j D_{jl} / f_j`. Each EM step raises L. Then come Newton
    steps on :math:`\sum_l \beta_l - L(\beta)` over β ≥ 0, whose minimiser sums to one. Each Newton
    step solves a non-negative least-squares problem, followed by a line search. At the optimum G ≤
    1, with equality where β > 0. At any other β, the gap :math:`\max_l G_l - 1` is an upper bound
    on how far L is below its maximum. The iteration stops when the gap is small.

    Parameters
    ----------
    density : ndarray (m, b)
        Values D ≥ 0 of b densities at m rows; each row needs one above zero.
    weight : ndarray (m,)
        Row weights w, which sum to one.
    start : ndarray (b,), optional
        Initial value of β; uniform by default.
    tol : float
        Stop when the gap is at most this value.
    max_iter : int
        Largest number of Newton steps.

    Returns
    -------
    beta : ndarray (b,)
        The mixture weights β.
    gap : float
        :math:`\max_l G_l - 1`; above `tol` if the iteration did not converge.

    Examples
    --------
    >>> import numpy as np
    >>> beta, gap = kliep_mixture(np.eye(2), np.array([0.25, 0.75]))
    >>> beta.round(6), bool(gap <= 1e-6)
    (array([0.25, 0.75]), True)
    """
    b = density.shape[1]
    beta = np.full(b, 1.0 / b) if start is None else (start + 1e-4 / b) / (start.sum() + 1e-4)
    for _ in range(20):
        beta = beta * (density.T @ (weight / (density @ beta)))
    gap = np.inf
    for _ in range(max_iter):
        beta = beta / beta.sum()
        f = density @ beta
        score = density.T @ (weight / f)
        gap = float(score.max()) - 1.0
        if gap <= tol:
            break
        scaled = density * (np.sqrt(weight) / f)[:, None]
        goal = _newton_point(scaled.T @ scaled, score, beta)
        beta = _search(density, weight, beta, goal, score, f)
    return beta, gap


def _newton_point(
    hessian: Float64Array, score: Float64Array, beta: Float64Array
) -> Float64Array | None:
    """Minimise ½(x−β)ᵀH(x−β) + (1−G)ᵀ(x−β) over x ≥ 0, with a small ridge added to H around β."""
    ridge = 1e-9 * float(hessian.diagonal().max())
    # Hβ = G, so the linear term at x is 1 − 2G − ridge β
    linear = 2.0 * score - 1.0 + ridge * beta
    hessian[np.diag_indices(len(beta))] += ridge
    try:
        root = np.linalg.cholesky(hessian)
        goal, _ = nnls(root.T, solve_triangular(root, linear, lower=True))
    except (np.linalg.LinAlgError, RuntimeError):  # not regular after all, or too many steps
        return None
    return np.asarray(goal, dtype=np.float64)


def _search(
    density: Float64Array,
    weight: Float64Array,
    beta: Float64Array,
    goal: Float64Array | None,
    score: Float64Array,
    f: Float64Array,
) -> Float64Array:
    """Return the first β + t (goal − β), t = 1, ½, ¼, ..., that gains enough; else an EM step."""
    if goal is not None:
        slope = float((1.0 - score) @ (goal - beta))
        move = density @ (goal - beta)
        growth = float((goal - beta).sum())
        for t in 0.5 ** np.arange(20):
            gain = 1.0 + t * move / f
            if gain.min() > 0.0 and t * growth - float(weight @ np.log(gain)) <= 1e-4 * t * slope:
                step: Float64Array = beta + t * (goal - beta)
                return step
    em: Float64Array = beta * score
    return em


class KLIEP(RatioEstimator):
    r"""Ratio as a mixture of Gaussian kernels, fitted by the likelihood of target rows.

    Kullback-Leibler importance estimation solves

    .. math:: \max_r\ E_{target} \log r(x) \quad\text{with}\quad E_{source}\, r(x) = 1, \qquad
              r(x) = \beta_0 + \sum_l \beta_l \frac{k_l(x)}{E_{source} k_l}, \quad \beta \ge 0,

    with Gaussian kernels k_l. In this form the constraint is Σ β = 1, so β are mixture weights
    (`kliep_mixture`). The centres are target rows. The constant β₀ keeps the likelihood of held-out
    rows finite. A kernel is left out if the source mass under it is less than that of ten rows (or
    than 5 % of the source, if that is smaller), because its height would depend on too few rows.
    The width is chosen by the cross-validated likelihood of target rows. With several target
    distributions, r is the ratio of their mean, and `log_ratio` adds the log of their number.

    When it fails: a non-negative sum of kernels cannot follow a ratio that keeps rising away from
    the centres. In many dimensions the estimate is therefore close to one everywhere. Use
    `Classifier` if the log ratio is smooth over the whole space, and `ULSIF` for speed. The ratio
    is at least 1e-3 everywhere.

    Parameters
    ----------
    n_centers : int
        Largest number of centres. They are drawn from the target rows.
    bandwidths : numbers or None
        Kernel widths σ to try, as multiples of the median distance between standardised rows and
        centres. None tries a default list.
    folds : int
        Folds of target rows in the cross-validation.
    max_rows : int
        Largest number of target rows in the likelihood; if there are more, a random part of them
        is used. Memory is O(max_rows × n_centers). All source rows are used, block by block.
    tol : float
        Stop when the log-likelihood is at most this far below its maximum.
    max_iter : int
        Largest number of Newton steps.
    seed : int
        Seeds the draw of centres and rows, and the folds.

    Attributes
    ----------
    bandwidth_ : float
        The chosen width, in standardised units.
    cv_scores_ : ndarray (widths,)
        Held-out mean log ratio of the target; higher is better.
    centers_, coef_ : ndarray (b, d), (b,)
        Centres of the b kernels in use, and β_l / E_source k_l.
    constant_ : float
        β₀.
    gap_ : float
        Upper bound on how far the log-likelihood is below its maximum.

    Warns
    -----
    NotConverged
        If `gap_` exceeds `tol`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> est = KLIEP().fit(source=rng.normal(size=2000), target=rng.normal(1, 1, size=2000))
    >>> bool(np.abs(est.log_ratio([[0.0], [1.0]]) - [-0.5, 0.5]).max() < 0.2)  # truth: x − ½
    True
    """

    def __init__(
        self,
        *,
        n_centers: int = 100,
        bandwidths: Iterable[float] | float | None = None,
        folds: int = 5,
        max_rows: int = 20_000,
        tol: float = 1e-6,
        max_iter: int = 200,
        seed: int = 0,
    ) -> None:
        self.n_centers = n_centers
        self.bandwidths = bandwidths
        self.folds = folds
        self.max_rows = max_rows
        self.tol = tol
        self.max_iter = max_iter
        self.seed = seed

    def _fit(self, source: Sample, target: Sample) -> None:
        n_centers = count(self.n_centers, "n_centers")
        folds = count(self.folds, "folds", least=2)
        max_rows = count(self.max_rows, "max_rows", least=2)
        max_iter = count(self.max_iter, "max_iter")
        multiples = grid(self.bandwidths, "bandwidths", WIDTHS)
        if not self.tol > 0.0:
            raise InputError(f"tol must be above 0; got {self.tol!r}")
        seed = count(self.seed, "seed", least=0)
        rng = np.random.default_rng(seed)
        self._units = Units.of(source, target)
        (zs, ws), (zt, wt) = self._units.read(source), self._units.read(target)
        centres = zt[draw(wt, n_centers, rng)]
        if len(zt) > max_rows:
            index = np.sort(rng.permutation(len(zt))[:max_rows])
            zt, wt = zt[index], wt[index] / wt[index].sum()
        widths = np.asarray(multiples) * median_distance(centres, zs, zt)
        cover = np.zeros((len(widths), len(centres)))
        for rows in kernel_blocks(len(zs), len(centres)):
            d2 = squared_distances(zs[rows], centres)
            for k, width in enumerate(widths):
                cover[k] += ws[rows] @ gaussian(d2, width)

        d2 = squared_distances(zt, centres)
        least = min(ROWS_PER_BUMP / len(zs), 0.05)

        def basis(k: int) -> tuple[Index, Float64Array]:
            bumps = np.flatnonzero(cover[k] >= least)
            density = np.ones((len(zt), len(bumps) + 1))
            density[:, 1:] = gaussian(d2[:, bumps], widths[k]) / cover[k, bumps]
            return bumps, density

        fold = fold_of(len(zt), min(folds, len(zt)), seed=seed)
        scores = np.zeros(len(widths))
        for k in range(len(widths)) if len(widths) > 1 else ():
            scores[k] = _cross_validate(basis(k)[1], wt, fold, max_iter)
        best = int(np.argmax(scores))
        bumps, density = basis(best)
        beta, self.gap_ = kliep_mixture(density, wt, tol=float(self.tol), max_iter=max_iter)
        if self.gap_ > self.tol:
            warnings.warn(
                f"KLIEP: the log-likelihood must be within tol={self.tol:g} of its maximum; got "
                f"{self.gap_:.3g}; raise max_iter or tol",
                NotConverged,
                stacklevel=4,
            )
        self.cv_scores_ = scores
        self.bandwidth_ = float(widths[best])
        self.constant_ = float(beta[0])
        self.centers_ = centres[bumps]
        self.coef_ = beta[1:] / cover[best, bumps]

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        z, out = self._units(x), np.full(len(x), self.constant_)
        if len(self.centers_):
            for rows in kernel_blocks(len(z), len(self.centers_)):
                d2 = squared_distances(z[rows], self.centers_)
                out[rows] += gaussian(d2, self.bandwidth_) @ self.coef_
        log: Float64Array = np.log(np.maximum(out, FLOOR))
        return log


def _cross_validate(
    density: Float64Array,
    weight: Float64Array,
    fold: Index,
    max_iter: int,
) -> float:
    """Return the cross-validated mean log ratio of the target; each fold starts from one fit."""
    start, _ = kliep_mixture(density, weight, tol=1e-3, max_iter=max_iter)
    total = 0.0
    for j in range(int(fold.max()) + 1):
        inside, outside = fold != j, fold == j
        if not inside.any():
            return 0.0
        w = weight[inside] / weight[inside].sum()
        beta, _ = kliep_mixture(density[inside], w, start=start, tol=1e-3, max_iter=max_iter)
        total += float(weight[outside] @ np.log(np.maximum(density[outside] @ beta, FLOOR)))
    return total
