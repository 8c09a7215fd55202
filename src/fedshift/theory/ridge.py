r"""Excess risk of weighted ridge regression: bias and variance.

Bias and variance are those of lemma 1 of Ramezani-Kebrya et al. (TMLR 2023), called "the paper"
from here on. Let X be the training rows x_i, W the diagonal matrix of their weights w_i, λ the
ridge, σ² the variance of the noise ε, and Σ^te = E[x xᵀ] over test rows. Then

.. math:: \hat θ = \arg\min_θ \sum_i w_i (θ^\top x_i - y_i)^2 + λ \|θ\|^2,
          \qquad y_i = θ_*^\top x_i + ε_i

.. math:: B = λ^2\, θ_*^\top S^{-1} Σ^{te} S^{-1} θ_*, \quad
          V = σ^2 \mathrm{tr}(S^{-1} X^\top W^2 X S^{-1} Σ^{te}), \quad S = X^\top W X + λ I

B + V is the excess of the *squared* error, E[(θ̂ᵀx − θ*ᵀx)²] on test rows, as in the paper's proof.
The risk L of the paper's text has a factor ½; with this factor, the excess is (B + V)/2.

The noise must have mean zero given x: the linear model is correct on training and test rows, and
only p(x) shifts. Then bias comes from the ridge alone. Without a ridge, weights cannot help: equal
weights have the least variance (Gauss and Markov).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.params import whole_number
from fedshift.core.samples import Float64Array, Rows
from fedshift.errors import InputError
from fedshift.theory.checks import matrix, number, vector

#: draws training rows (n, d) and their weights (n,), or None for equal weights
DesignSampler = Callable[[np.random.Generator], tuple[npt.ArrayLike, npt.ArrayLike | None]]


@dataclass(frozen=True, kw_only=True)
class RidgeRisk:
    """Bias and variance of a ridge estimate on test rows.

    Attributes
    ----------
    bias, variance : float
        B and V.
    bias_error, variance_error : float
        Standard errors of bias and variance over random designs; 0 for a fixed design.
    designs : int
        Number of training sets in the average; 1 for a fixed design.
    """

    bias: float
    variance: float
    bias_error: float = 0.0
    variance_error: float = 0.0
    designs: int = 1

    @property
    def excess(self) -> float:
        """B + V."""
        return self.bias + self.variance

    def __repr__(self) -> str:
        over = "" if self.designs == 1 else f" over {self.designs} designs"
        parts = f"bias {self.bias:.4g} + variance {self.variance:.4g}"
        return f"RidgeRisk({self.excess:.4g} = {parts}{over})"


def second_moment(rows: Rows, *, weight: npt.ArrayLike | None = None) -> Float64Array:
    """E[x xᵀ] of rows (n, d), not centred. For test rows this is Σ_te.

    Examples
    --------
    >>> second_moment([[1.0, 0.0], [0.0, 2.0]])
    array([[0.5, 0. ],
           [0. , 2. ]])
    """
    x = matrix(rows, "rows")
    w = np.ones(len(x)) if weight is None else vector(weight, "weight", length=len(x), least=0.0)
    if not w.any():
        raise InputError("weight must be above zero for at least one row; got zeros only")
    moment: Float64Array = (x * (w / w.sum())[:, None]).T @ x
    return moment


def fixed_design(
    *,
    x: Rows,
    weight: npt.ArrayLike | None = None,
    theta: npt.ArrayLike,
    noise: float,
    ridge: float,
    moment: npt.ArrayLike,
) -> RidgeRisk:
    """Bias and variance for fixed training rows, over the noise of their labels.

    Parameters
    ----------
    x : rows (n, d)
    weight : (n,), optional
        Density ratios; None means weights of one (ERM).
    theta : (d,)
        θ*, the true coefficients.
    noise : float
        σ², the variance of the labels' noise.
    ridge : float
        λ ≥ 0. The loss is a sum over rows, not a mean, so the same λ has less effect with more
        rows.
    moment : (d, d)
        Σ_te; see `second_moment`.

    Raises
    ------
    InputError
        If S is singular, because the ridge is zero and too few rows have a weight above zero.

    Examples
    --------
    >>> fixed_design(x=[[1.0], [1.0]], theta=[1.0], noise=0.5, ridge=2.0, moment=[[1.0]])
    RidgeRisk(0.3125 = bias 0.25 + variance 0.0625)
    """
    rows = matrix(x, "x")
    n, d = rows.shape
    w = np.ones(n) if weight is None else vector(weight, "weight", length=n, least=0.0)
    sigma = matrix(moment, "moment")
    if sigma.shape != (d, d):
        raise InputError(
            f"moment must have shape ({d}, {d}) as x has {d} columns; got {sigma.shape}"
        )
    t = vector(theta, "theta", length=d)
    size = number(ridge, "ridge", least=0.0)
    values, basis = np.linalg.eigh((rows * w[:, None]).T @ rows + size * np.eye(d))
    if values[0] <= values[-1] * d * np.finfo(np.float64).eps:
        raise InputError(
            f"XᵀWX + ridge·I must be invertible; got rank below {d} with ridge {size:g}; "
            "set a ridge above zero, or add rows with weights above zero"
        )
    inverse = (basis / values) @ basis.T
    shrunk = size * (inverse @ t)
    answers = inverse @ (rows * w[:, None]).T  # θ̂ = answers · y
    variance = number(noise, "noise", least=0.0) * float(np.sum(answers * (sigma @ answers)))
    return RidgeRisk(bias=float(shrunk @ sigma @ shrunk), variance=variance)


def random_design(
    *,
    draw: DesignSampler,
    theta: npt.ArrayLike,
    noise: float,
    ridge: float,
    moment: npt.ArrayLike,
    designs: int = 1000,
    seed: int = 0,
) -> RidgeRisk:
    """Mean bias and variance over random training sets, with standard errors.

    Parameters
    ----------
    draw : callable
        Generator ↦ (training rows (n, d), weights (n,) or None).
    designs : int
        Number of training sets to draw. For each set, the mean over the label noise is computed
        exactly, not simulated.
    theta, noise, ridge, moment
        See `fixed_design`.

    Examples
    --------
    >>> def draw(rng):
    ...     return rng.normal(size=(20, 2)), None
    >>> random_design(draw=draw, theta=[1, 1], noise=1.0, ridge=1.0, moment=np.eye(2)).designs
    1000
    """
    rng = np.random.default_rng(whole_number(seed, "seed", least=0))
    each = []
    for _ in range(whole_number(designs, "designs")):
        x, weight = draw(rng)
        each.append(
            fixed_design(x=x, weight=weight, theta=theta, noise=noise, ridge=ridge, moment=moment)
        )
    table = np.array([(risk.bias, risk.variance) for risk in each])
    bias, variance = table.mean(axis=0)
    errors = table.std(axis=0, ddof=1) / math.sqrt(designs) if designs > 1 else np.zeros(2)
    return RidgeRisk(
        bias=float(bias),
        variance=float(variance),
        bias_error=float(errors[0]),
        variance_error=float(errors[1]),
        designs=designs,
    )
