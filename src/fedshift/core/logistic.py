r"""Ridge logistic regression along a path of ridges, by Newton's method over blocks of rows.

For every ridge λ of the path, these functions minimise

.. math:: \sum_i w_i\,[\mathrm{softplus}(\eta_i) - y_i \eta_i] + \tfrac{λ}{2} \sum_j v_j β_j^2,
          \qquad \eta_i = β_0 + φ(x_i)^\top β + o,

where w_i is the weight, y_i the label (0 or 1) and φ(x_i) the p features of row i of n. o is a
constant offset, and there is no penalty on the intercept β_0. `ridge_path` uses v_j = 1.
`sparse_path` solves again with v_j = 1/(β_j² + ε) for a small ε, which drives small coefficients to
zero and leaves large ones unchanged (adaptive ridge). Rows are read block by block, so memory does
not grow with their number. A step costs O(n p²).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from fedshift.core.samples import Float64Array

#: features (b, p), labels (b,), weights (b,)
Block = tuple[Float64Array, Float64Array, Float64Array]
Blocks = Callable[[], Iterable[Block]]


def ridge_path(
    blocks: Blocks,
    p: int,
    *,
    ridges: Sequence[float],
    offset: float = 0.0,
    tol: float = 1e-9,
) -> tuple[Float64Array, bool]:
    """Coefficients along a path of ridges; each fit starts from the previous fit.

    Parameters
    ----------
    blocks : callable
        Returns a new pass over the rows. Weights sum to one over a pass.
    p : int
        Number of features.
    ridges : sequence of float
        From strong to weak, so that warm starts help.
    offset : float
        Constant o of the linear predictor.

    Returns
    -------
    coefficients : ndarray (len(ridges), 1 + p)
        Intercept first.
    converged : bool
        Whether the fit met the tolerance for every λ.
    """
    beta = np.zeros(1 + p)
    path = np.empty((len(ridges), 1 + p))
    converged = True
    for i, ridge in enumerate(ridges):
        beta, ok = _newton(blocks, beta, np.full(p, ridge), offset, tol, 50)
        path[i] = beta
        converged &= ok
    return path, converged


def sparse_path(
    blocks: Blocks,
    p: int,
    *,
    ridges: Sequence[float],
    offset: float = 0.0,
    rounds: int = 6,
    tol: float = 1e-7,
) -> Float64Array:
    """Coefficients along a path of adaptive ridges.

    For n rows, a λ near log(n)/(2n) acts like the Bayesian information criterion (BIC). For
    each λ, Newton's method starts from a nearly unpenalised fit and is repeated with the penalty
    λ/(β² + ε), ε = 1e-6. For ε → 0 this penalises the *number* of non-zero coefficients.

    Returns
    -------
    coefficients : ndarray (len(ridges), 1 + p)
    """
    (full,), _ = ridge_path(blocks, p, ridges=[1e-3], offset=offset, tol=tol)
    path = np.empty((len(ridges), 1 + p))
    for i, ridge in enumerate(ridges):
        beta = full
        for _ in range(rounds):
            penalty = ridge / (np.square(beta[1:]) + 1e-6)
            beta, _ = _newton(blocks, beta, penalty, offset, tol, 10)
        path[i] = beta
    return path


def _newton(
    blocks: Blocks,
    beta: Float64Array,
    penalty: Float64Array,
    offset: float,
    tol: float,
    max_steps: int,
) -> tuple[Float64Array, bool]:
    loss, gradient, hessian = _derivatives(blocks, beta, penalty, offset)
    for _ in range(max_steps):
        # a floor on the diagonal keeps separable or collinear data solvable
        hessian[np.diag_indices_from(hessian)] += 1e-12 + 1e-10 * hessian.diagonal()
        step = cho_solve(cho_factor(hessian, check_finite=False), gradient, check_finite=False)
        slope = float(gradient @ step)
        if slope < tol:  # twice the decrease a quadratic model promises
            return beta, True
        size = 1.0
        while True:
            trial = beta - size * step
            new_loss, gradient, hessian = _derivatives(blocks, trial, penalty, offset)
            if new_loss <= loss - 1e-4 * size * slope or size < 1e-6:
                break
            size /= 2.0
        beta, loss = trial, new_loss
    return beta, False


def _derivatives(
    blocks: Blocks, beta: Float64Array, penalty: Float64Array, offset: float
) -> tuple[float, Float64Array, Float64Array]:
    loss = 0.5 * float(penalty @ np.square(beta[1:]))
    gradient = np.concatenate([[0.0], penalty * beta[1:]])
    hessian = np.diag(np.concatenate([[0.0], penalty]))
    for f, y, w in blocks():
        eta = f @ beta[1:] + (beta[0] + offset)
        mu = expit(eta)
        loss += float(w @ (np.logaddexp(0.0, eta) - y * eta))
        residual = w * (mu - y)
        gradient[0] += residual.sum()
        gradient[1:] += f.T @ residual
        curvature = w * mu * (1.0 - mu)
        scaled = f * curvature[:, None]
        hessian[0, 0] += curvature.sum()
        hessian[0, 1:] += scaled.sum(axis=0)
        hessian[1:, 1:] += f.T @ scaled
    hessian[1:, 0] = hessian[0, 1:]
    return loss, gradient, hessian
