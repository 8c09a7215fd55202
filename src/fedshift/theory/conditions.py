r"""The paper's conditions on weights in the one-hot case: as printed, and as the proofs give them.

All measure the weighted estimate on test rows and ERM on *training* rows, as the paper does. With
s = √(λ'/λ) and ξ = ρ/(ρ + μ), compared term by term (θ_i, σ² and μ_i not zero),

.. math:: B_i(w) \le B_i^{ERM} \iff w \ge s + \frac{ρ}{μ}(s - 1), \qquad
          V_i(w) \le V_i^{ERM} \iff w \Big(\frac{s - 1}{ξ} + 1\Big) \le 1.

Where ERM too is measured on test rows, s = 1, and both hold for w = 1 only. So these conditions
are about the change of law more than about the weights; `fedshift.theory.weighting_helps` answers
the question.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array
from fedshift.theory.one_hot import OneHot


@dataclass(frozen=True, eq=False, kw_only=True)
class Condition:
    """An interval for every coordinate's weight, and whether the weight lies in it.

    Attributes
    ----------
    lower, upper : ndarray (d,)
        lower ≤ w ≤ upper.
    holds : bool ndarray (d,)
    """

    lower: Float64Array
    upper: Float64Array
    holds: npt.NDArray[np.bool_]

    @property
    def everywhere(self) -> bool:
        """It holds in every coordinate."""
        return bool(self.holds.all())

    @property
    def where_not(self) -> tuple[int, ...]:
        """Coordinates in which it does not hold."""
        return tuple(int(i) for i in np.flatnonzero(~self.holds))

    def __repr__(self) -> str:
        return f"Condition(holds in {int(self.holds.sum())} of {len(self.holds)} coordinates)"


def printed_condition(problem: OneHot) -> Condition:
    r"""The condition of theorem 2 as printed, said to make the weighted risk no larger than ERM's.

    .. math:: \sqrt{λ'_i/λ_i} - 1 \le w_i \le ξ_i \sqrt{λ_i/λ'_i}

    It is not sufficient: see `small_weights_example`. The lower limit is necessary for the bias
    to fall, the proof takes it for sufficient. And with w = λ'/λ it cannot hold everywhere.

    Examples
    --------
    >>> from fedshift.theory import small_weights_example, weighting_helps
    >>> printed_condition(small_weights_example()).everywhere
    True
    >>> weighting_helps(small_weights_example()).helps
    False
    """
    s, xi = _shift(problem)
    with np.errstate(divide="ignore"):
        return _condition(problem, s - 1.0, xi / s)


def corrected_condition(problem: OneHot) -> Condition:
    """Theorem 2 as its proof can give it: neither B nor V is above ERM's on training rows.

    Never met where λ' > λ; where λ' ≤ λ, always met by w = 1.
    """
    s, xi = _shift(problem)
    lower = _bias_limit(problem, s, equal=0.0)
    return _condition(problem, lower, _variance_limit(problem, s, xi, equal=np.inf))


def printed_counterexample(problem: OneHot) -> Condition:
    r"""The proposition of the appendix as printed, said to make weighting no better than ERM.

    .. math:: s \ge \max(ξ, 1 - ξ), \qquad
              w \le \min\Big\{\Big(\frac{s - 1}{ξ} + 1\Big)^{-1}, s + \frac{ρ}{μ}(s - 1)\Big\}

    The first of the two limits is turned around: small weights make the variance fall. So weights
    may well be better where it holds; `appendix_example` with much noise is such a case.
    """
    s, xi = _shift(problem)
    limits = (
        _variance_limit(problem, s, xi, equal=np.inf),
        _bias_limit(problem, s, equal=np.inf),
    )
    premise = s >= np.maximum(xi, 1.0 - xi)
    return _condition(problem, np.zeros_like(s), np.where(premise, np.minimum(*limits), -np.inf))


def corrected_counterexample(problem: OneHot) -> Condition:
    """The proposition as its proof can give it: neither B nor V is below ERM's on training rows.

    Never met where λ' < λ; where λ' ≥ λ, always met by w = 1.
    """
    s, xi = _shift(problem)
    upper = _bias_limit(problem, s, equal=np.inf)
    return _condition(problem, _variance_limit(problem, s, xi, equal=0.0), upper)


def appendix_example(*, noise: float = 0.01) -> OneHot:
    """A problem that meets the appendix's printed condition, with more or less noise.

    With little noise weighting is worse, as claimed. With much (10, say) it is better, as weights
    of one half are twice the ridge, and that is what noise asks for.
    """
    return OneHot.of(
        train=[0.6, 0.4],
        test=[0.4, 0.6],
        counts=[6.0, 4.0],
        theta=1.0,
        noise=noise,
        ridge=6.0,
        weight=0.5,
    )


def _shift(problem: OneHot) -> tuple[Float64Array, Float64Array]:
    """√(λ'/λ) and ξ."""
    xi = problem.ridge / (problem.ridge + problem.fixed_counts())
    return np.sqrt(problem.test / problem.train), xi


def _bias_limit(problem: OneHot, s: Float64Array, *, equal: float) -> Float64Array:
    """The weight at which both biases are equal; `equal` where they are so for every weight."""
    mu = problem.fixed_counts()
    with np.errstate(divide="ignore", invalid="ignore"):
        limit: Float64Array = s + problem.ridge / mu * (s - 1.0)
    return np.where((mu == 0) & (s == 1), equal, limit)


def _variance_limit(
    problem: OneHot, s: Float64Array, xi: Float64Array, *, equal: float
) -> Float64Array:
    """The weight at which both variances are equal, infinite where no weight is large enough.

    `equal` where there are no rows, as there is no variance then.
    """
    slope = (s - 1.0) / xi + 1.0
    with np.errstate(divide="ignore"):
        limit = np.where(slope > 0, 1.0 / slope, np.inf)
    return np.where(problem.fixed_counts() == 0, equal, limit)


def _condition(problem: OneHot, lower: Float64Array, upper: Float64Array) -> Condition:
    w = problem.weight
    return Condition(lower=lower, upper=upper, holds=(lower <= w) & (w <= upper))
