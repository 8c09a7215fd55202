"""Kullback-Leibler importance estimation, `KLIEP`: a mixture of bumps by maximum likelihood.

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

#: Source rows' worth of mass below which a bump is left out (at most 5 % of the source).
ROWS_PER_BUMP = 10


def kliep_mixture(
    density: Float64Array,
    weight: Float64Array,
    *,
    start: Float64Array | None = None,
    tol: float = 1e-6,
    max_iter: int = 200,
) -> tuple[Float64Array, float]:
    r"""The mixture of given densities that makes some rows likeliest.

    .. math:: \max_{\beta \ge 0,\ \sum_l \beta_l = 1}\ L(\beta) = \sum_j w_j \log f_j, \qquad
              f_j = \sum_l \beta_l D_{jl},

    is concave. A few EM steps, :math:`\beta_l \leftarrow \beta_l G_l` with
    :math:`G_l = \sum_j w_j D_{jl} / f_j`, come first: each raises L. Then Newton steps on
    :math:`\sum_l \beta_l - L(\beta)` over β ≥ 0, whose minimiser sums to one by itself: a
    non-negative least-squares problem each, with a line search. At the optimum G ≤ 1, with
    equality where β > 0; elsewhere :math:`\max_l G_l - 1` bounds how much likelihood is still
    missing, which is the stopping rule.

    Parameters
    ----------
    density : ndarray (m, b)
        Values D ≥ 0; every row needs one above zero.
    weight : ndarray (m,)
        Masses w, summing to one.
    start : ndarray (b,), optional
        Where to begin.
    tol : float
        Missing log-likelihood at which to stop.
    max_iter : int
        Most Newton steps.

    Returns
    -------
    beta : ndarray (b,)
    gap : float
        :math:`\max_l G_l - 1`; not converged if above `tol`.

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
    """Minimiser over x ≥ 0 of ½(x−β)ᵀH(x−β) + (1−G)ᵀ(x−β), H made regular around β."""
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
    """The first point β + t (goal − β), t = 1, ½, ¼, ..., that gains enough; else an EM step."""
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
    r"""Kullback-Leibler importance estimation: a mixture of bumps by maximum likelihood.

    .. math:: \max_r\ E_{target} \log r(x) \quad\text{with}\quad E_{source}\, r(x) = 1, \qquad
              r(x) = \beta_0 + \sum_l \beta_l \frac{k_l(x)}{E_{source} k_l}, \quad \beta \ge 0 .

    In this form the constraint is Σ β = 1 and the problem is the fit of mixture weights
    (`kliep_mixture`). Centres come from the target; the constant β₀, "no shift here", keeps the
    likelihood of held-out rows finite. A bump that covers less than ten source rows' worth of
    mass (or 5 % of the source, if less) is left out: its height would rest on next to nothing.
    The width is chosen by the
    cross-validated likelihood of target rows. With several target laws r is the ratio of their
    mean and `log_ratio` adds the log of their number.

    Parameters
    ----------
    n_centers : int
        Most centres, drawn from the target rows.
    bandwidths : numbers or None
        Kernel widths σ to try, as multiples of the median distance between standardised rows and
        centres.
    folds : int
        Folds of target rows in the cross-validation.
    max_rows : int
        Most target rows in the likelihood; more are drawn from. Memory is O(max_rows × n_centers);
        source rows are streamed and all used.
    tol, max_iter : float, int
        Missing log-likelihood at which to stop, and most Newton steps.
    seed : int
        Seeds the draw of centres and rows, and the folds.

    Attributes
    ----------
    bandwidth_ : float
        Width chosen, in standardised units.
    cv_scores_ : ndarray (widths,)
        Held-out mean log ratio of the target; higher is better.
    centers_, coef_ : ndarray (b, d), (b,)
        Centres kept and β_l / E_source k_l.
    constant_ : float
        β₀.
    gap_ : float
        What is missing to the highest likelihood, at most.

    Warns
    -----
    NotConverged
        If `gap_` exceeds `tol`.

    Notes
    -----
    A non-negative sum of bumps is flat where the truth rises, so in many dimensions it tends to
    one; the ratio is floored at 1e-3. Take `Classifier` where the log ratio is smooth over the
    whole space and `ULSIF` for speed.

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
            kept = np.sort(rng.permutation(len(zt))[:max_rows])
            zt, wt = zt[kept], wt[kept] / wt[kept].sum()
        widths = np.asarray(multiples) * median_distance(centres, zs, zt)
        cover = np.zeros((len(widths), len(centres)))
        for rows in kernel_blocks(len(zs), len(centres)):
            d2 = squared_distances(zs[rows], centres)
            for k, width in enumerate(widths):
                cover[k] += ws[rows] @ gaussian(d2, width)

        d2 = squared_distances(zt, centres)
        least = min(ROWS_PER_BUMP / len(zs), 0.05)

        def basis(k: int) -> tuple[Index, Float64Array]:
            used = np.flatnonzero(cover[k] >= least)
            density = np.ones((len(zt), len(used) + 1))
            density[:, 1:] = gaussian(d2[:, used], widths[k]) / cover[k, used]
            return used, density

        fold = fold_of(len(zt), min(folds, len(zt)), seed=seed)
        scores = np.zeros(len(widths))
        for k in range(len(widths)) if len(widths) > 1 else ():
            scores[k] = _held_out(basis(k)[1], wt, fold, max_iter)
        best = int(np.argmax(scores))
        used, density = basis(best)
        beta, self.gap_ = kliep_mixture(density, wt, tol=float(self.tol), max_iter=max_iter)
        if self.gap_ > self.tol:
            warnings.warn(
                f"KLIEP must come within tol={self.tol:g} of the highest likelihood; got to "
                f"{self.gap_:.3g}; raise max_iter or tol",
                NotConverged,
                stacklevel=4,
            )
        self.cv_scores_ = scores
        self.bandwidth_ = float(widths[best])
        self.constant_ = float(beta[0])
        self.centers_ = centres[used]
        self.coef_ = beta[1:] / cover[best, used]

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        z, out = self._units(x), np.full(len(x), self.constant_)
        if len(self.centers_):
            for rows in kernel_blocks(len(z), len(self.centers_)):
                d2 = squared_distances(z[rows], self.centers_)
                out[rows] += gaussian(d2, self.bandwidth_) @ self.coef_
        log: Float64Array = np.log(np.maximum(out, FLOOR))
        return log


def _held_out(
    density: Float64Array,
    weight: Float64Array,
    fold: Index,
    max_iter: int,
) -> float:
    """Cross-validated mean of log r over the target; every fold starts from the full fit."""
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
