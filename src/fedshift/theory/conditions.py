r"""Printed and corrected conditions on weights in the one-hot case.

The conditions are from Ramezani-Kebrya et al. (TMLR 2023), called "the paper" from here on. Each is
given as printed and as its proof implies it. All conditions evaluate the weighted estimate on test
rows and ERM (empirical risk minimisation, w = 1) on *training* rows, as the paper does. The symbols
are those of `fedshift.theory.one_hot`: in coordinate i, λ and λ' are the probabilities in training
and test data, μ is the number of training rows, w their weight, θ the true coefficient, and B and V
are bias and variance; ρ is the ridge and σ² the noise. Let s = √(λ'/λ) and ξ = ρ/(ρ + μ). Term by
term (θ_i, σ² and μ_i not zero),

.. math:: B_i(w) \le B_i^{ERM} \iff w \ge s + \frac{ρ}{μ}(s - 1), \qquad
          V_i(w) \le V_i^{ERM} \iff w \Big(\frac{s - 1}{ξ} + 1\Big) \le 1.

If ERM is also evaluated on test rows, λ' takes the place of λ. Then s is 1, and both inequalities
hold for w = 1 only. So whether the paper's conditions hold depends more on the rows that ERM is
evaluated on than on the weights. To find out whether weights help, use
`fedshift.theory.weighting_helps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array
from fedshift.theory.one_hot import OneHot


@dataclass(frozen=True, eq=False, kw_only=True)
class Condition:
    """An interval for the weight of every coordinate, and whether the weight lies in it.

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
        """Whether the condition holds in every coordinate."""
        return bool(self.holds.all())

    @property
    def where_not(self) -> tuple[int, ...]:
        """Coordinates in which the condition does not hold."""
        return tuple(int(i) for i in np.flatnonzero(~self.holds))

    def __repr__(self) -> str:
        return f"Condition(holds in {int(self.holds.sum())} of {len(self.holds)} coordinates)"


def printed_condition(problem: OneHot) -> Condition:
    r"""Theorem 2's printed condition for a weighted risk that is no larger than the risk of ERM.

    .. math:: \sqrt{λ'_i/λ_i} - 1 \le w_i \le ξ_i \sqrt{λ_i/λ'_i}

    The condition is not sufficient: see `small_weights_example`. Its lower limit is necessary for a
    smaller bias, but the proof treats it as sufficient. For w = λ'/λ the condition cannot hold in
    all coordinates.

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
    """The condition that theorem 2's proof implies.

    The condition is that both B and V of the weighted estimate are at most those of ERM on training
    rows. No weight meets the condition where λ' > λ. Where λ' ≤ λ, w = 1 always meets it.
    """
    s, xi = _shift(problem)
    lower = _bias_limit(problem, s, equal=0.0)
    return _condition(problem, lower, _variance_limit(problem, s, xi, equal=np.inf))


def printed_counterexample(problem: OneHot) -> Condition:
    r"""The appendix's printed condition for weighting to be no better than ERM.

    .. math:: s \ge \max(ξ, 1 - ξ), \qquad
              w \le \min\Big\{\Big(\frac{s - 1}{ξ} + 1\Big)^{-1}, s + \frac{ρ}{μ}(s - 1)\Big\}

    The first of the two limits has the wrong direction: small weights lower the variance. So
    weighting may be better than ERM although the condition holds; `appendix_example` with much
    noise is such a case.
    """
    s, xi = _shift(problem)
    limits = (
        _variance_limit(problem, s, xi, equal=np.inf),
        _bias_limit(problem, s, equal=np.inf),
    )
    premise = s >= np.maximum(xi, 1.0 - xi)
    return _condition(problem, np.zeros_like(s), np.where(premise, np.minimum(*limits), -np.inf))


def corrected_counterexample(problem: OneHot) -> Condition:
    """The appendix's condition as its proof implies it.

    The condition is that both B and V of the weighted estimate are at least those of ERM on
    training rows. No weight meets the condition where λ' < λ. Where λ' ≥ λ, w = 1 always meets it.
    """
    s, xi = _shift(problem)
    upper = _bias_limit(problem, s, equal=np.inf)
    return _condition(problem, _variance_limit(problem, s, xi, equal=0.0), upper)


def appendix_example(*, noise: float = 0.01) -> OneHot:
    """A problem that meets the appendix's printed condition, for any noise.

    With little noise, weighting is worse, as the paper claims. With much noise (10, say) it is
    better: weights of one half act as twice the ridge, and much noise needs a larger ridge.
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
    """The weight at which both biases are equal; `equal` where every weight makes them equal."""
    mu = problem.fixed_counts()
    with np.errstate(divide="ignore", invalid="ignore"):
        limit: Float64Array = s + problem.ridge / mu * (s - 1.0)
    return np.where((mu == 0) & (s == 1), equal, limit)


def _variance_limit(
    problem: OneHot, s: Float64Array, xi: Float64Array, *, equal: float
) -> Float64Array:
    """The weight at which both variances are equal, infinite where no weight is large enough.

    `equal` where there are no rows, because both variances are then 0.
    """
    slope = (s - 1.0) / xi + 1.0
    with np.errstate(divide="ignore"):
        limit = np.where(slope > 0, 1.0 / slope, np.inf)
    return np.where(problem.fixed_counts() == 0, equal, limit)


def _condition(problem: OneHot, lower: Float64Array, upper: Float64Array) -> Condition:
    w = problem.weight
    return Condition(lower=lower, upper=upper, holds=(lower <= w) & (w <= upper))
