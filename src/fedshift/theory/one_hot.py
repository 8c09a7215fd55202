r"""Exact test of whether weighting helps ridge regression on one-hot rows, by coordinate.

"The paper" is Ramezani-Kebrya et al. (TMLR 2023). Rows are unit vectors e_i, with probability λ_i
in training and λ'_i in test data. μ_i training rows equal e_i, all with weight w_i. θ* are the true
coefficients and σ² is the variance of the noise. With ridge ρ, the bias and variance of coordinate
i are (lemma 1 of the paper, fixed design)

.. math:: B_i = \frac{ρ^2 θ_i^2 λ'_i}{(μ_i w_i + ρ)^2}, \qquad
          V_i = \frac{σ^2 λ'_i μ_i w_i^2}{(μ_i w_i + ρ)^2},

and empirical risk minimisation (ERM) is w = 1. Dividing numerator and denominator by w_i² shows
that weight w_i has the same effect as ridge ρ/w_i in coordinate i. The best ridge is σ²/θ_i², so
the best weight is ρ θ_i²/σ², for any λ'. A weight helps in a coordinate exactly if it lies between
1 and the other weight that has the same risk as w = 1 (`helpful_weights`). B decreases in w and V
increases, so only w = 1 makes neither larger.

The paper's theorem 2 and the proposition of its appendix are available as printed, under names that
start with ``printed_``. Their proofs compare the weighted estimate on test rows with ERM on
*training* rows (λ_i in place of λ'_i), and each has an error:

* The proof of theorem 2 needs (μw + ρ)/(μ + ρ) ≥ √(λ'/λ). The printed theorem only asks for
  w + 1 ≥ √(λ'/λ), which is weaker.
* With ξ = ρ/(ρ + μ), the proof of the proposition needs w ≥ 1/((√(λ'/λ) − 1)/ξ + 1). The paper
  prints ≤ instead of ≥.

Also, w = λ'/λ meets theorem 2's condition only where λ'/λ ≤ ξ^(2/3) < 1, which is impossible for
all coordinates at once. Use `weighting_helps` for the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from fedshift.core.params import whole_number
from fedshift.core.samples import Float64Array
from fedshift.errors import InputError
from fedshift.theory.checks import distribution, number, vector


@dataclass(frozen=True, eq=False, kw_only=True)
class OneHot:
    """A one-hot ridge regression problem of d coordinates. Create it with `of`, which checks it.

    Attributes
    ----------
    train, test : ndarray (d,)
        λ and λ': probability of each coordinate.
    theta : ndarray (d,)
        θ*, the true coefficients.
    noise : float
        σ², the variance of the noise.
    ridge : float
        ρ (the paper's λ).
    weight : ndarray (d,)
        w, the weight of the training rows of each coordinate.
    counts : ndarray (d,) or None
        μ, number of training rows per coordinate: a fixed design.
    n : int or None
        Number of training rows drawn from λ: a random design.
    """

    train: Float64Array
    test: Float64Array
    theta: Float64Array
    noise: float
    ridge: float
    weight: Float64Array
    counts: Float64Array | None = None
    n: int | None = None

    @classmethod
    def of(
        cls,
        *,
        train: npt.ArrayLike,
        test: npt.ArrayLike,
        theta: npt.ArrayLike,
        noise: float,
        ridge: float,
        weight: npt.ArrayLike | None = None,
        counts: npt.ArrayLike | None = None,
        n: int | None = None,
    ) -> OneHot:
        """Create a checked problem.

        Parameters
        ----------
        train, test : distributions (d,)
            Every coordinate needs a training probability above 0.
        theta, weight, counts : (d,) or one number for all
            The default weight is the density ratio λ'/λ.
        noise, ridge : float
            σ² ≥ 0 and ρ > 0.
        counts, n
            Exactly one of the two is required.
        """
        p = vector(distribution(train, "train"), "train", above=0.0)
        d = len(p)
        q = distribution(test, "test", length=d)
        if (counts is None) == (n is None):
            raise InputError("OneHot needs either counts (fixed design) or n (random), not both")
        return cls(
            train=p,
            test=q,
            theta=vector(theta, "theta", length=d),
            noise=number(noise, "noise", least=0.0),
            ridge=number(ridge, "ridge", above=0.0),
            weight=vector(q / p if weight is None else weight, "weight", length=d, least=0.0),
            counts=None if counts is None else vector(counts, "counts", length=d, least=0.0),
            n=None if n is None else whole_number(n, "n"),
        )

    def fixed_counts(self) -> Float64Array:
        """μ of a fixed design; raise InputError for a random design."""
        if self.counts is None:
            raise InputError("this condition needs a fixed design; got n; give counts instead")
        return self.counts

    def __repr__(self) -> str:
        rows = f"n={self.n}" if self.counts is None else f"counts {self.counts}"
        return f"OneHot({len(self.train)} coordinates, {rows}, weights {self.weight})"


@dataclass(frozen=True, eq=False, kw_only=True)
class OneHotComparison:
    """Bias and variance by coordinate, with and without weights.

    Attributes
    ----------
    bias, variance : ndarray (d,)
        B_i and V_i with the weights, on test rows.
    plain_bias, plain_variance : ndarray (d,)
        B_i and V_i with weights of one (ERM), on test rows.
    printed_plain_bias, printed_plain_variance : ndarray (d,)
        B_i and V_i of ERM on *training* rows, as in the paper's proof: λ_i in place of λ'_i.
    """

    bias: Float64Array
    variance: Float64Array
    plain_bias: Float64Array
    plain_variance: Float64Array
    printed_plain_bias: Float64Array
    printed_plain_variance: Float64Array

    @property
    def excess(self) -> float:
        """B + V with the weights."""
        return float(self.bias.sum() + self.variance.sum())

    @property
    def plain_excess(self) -> float:
        """B + V without weights."""
        return float(self.plain_bias.sum() + self.plain_variance.sum())

    @property
    def gain(self) -> Float64Array:
        """Decrease of each coordinate's excess risk by the weights; negative where it increases."""
        change: Float64Array = self.plain_bias + self.plain_variance - self.bias - self.variance
        return change

    @property
    def helps(self) -> bool:
        """Whether the weighted estimate has the smaller excess risk."""
        return self.excess < self.plain_excess

    @property
    def where_not(self) -> tuple[int, ...]:
        """Coordinates in which the weights do harm."""
        return tuple(int(i) for i in np.flatnonzero(self.gain < 0))

    @property
    def status(self) -> str:
        """The result in one sentence."""
        word = "helps" if self.helps else "does not help"
        bad = ", ".join(str(i) for i in self.where_not[:5])
        more = f" and {len(self.where_not) - 5} more" if len(self.where_not) > 5 else ""
        where = f"; it does harm in coordinates {bad}{more}" if bad else ""
        return (
            f"weighting {word}: excess risk {self.excess:.3g} with weights, "
            f"{self.plain_excess:.3g} without{where}"
        )

    def __repr__(self) -> str:
        return f"OneHotComparison({self.status})"


def weighting_helps(problem: OneHot) -> OneHotComparison:
    """Compare weighted and plain ridge regression exactly, both on test rows.

    In a random design each term is the exact mean over the counts, which are binomial.

    Examples
    --------
    >>> result = weighting_helps(small_weights_example())
    >>> result.helps, result.where_not
    (False, (0, 1))
    >>> print(f"{result.excess:.3f} with weights, {result.plain_excess:.4f} without")
    0.445 with weights, 0.0091 without
    """
    one = np.ones_like(problem.weight)
    with_weights = _terms(problem, problem.weight, problem.test)
    plain = _terms(problem, one, problem.test)
    printed = _terms(problem, one, problem.train)
    return OneHotComparison(
        bias=with_weights[0],
        variance=with_weights[1],
        plain_bias=plain[0],
        plain_variance=plain[1],
        printed_plain_bias=printed[0],
        printed_plain_variance=printed[1],
    )


def _terms(p: OneHot, w: Float64Array, mass: Float64Array) -> tuple[Float64Array, Float64Array]:
    """B_i and V_i of weights `w` on rows with distribution `mass`."""
    size = p.ridge**2 * p.theta**2
    if p.counts is not None:
        shrink = mass / (p.counts * w + p.ridge) ** 2
        return size * shrink, p.noise * p.counts * w**2 * shrink
    assert p.n is not None
    counts = np.arange(p.n + 1.0)
    bias, variance = np.empty_like(w), np.empty_like(w)
    for i in range(len(w)):
        often = binom.pmf(counts, p.n, p.train[i]) * mass[i] / (counts * w[i] + p.ridge) ** 2
        bias[i], variance[i] = size[i] * often.sum(), p.noise * w[i] ** 2 * (often @ counts)
    return bias, variance


@dataclass(frozen=True, eq=False, kw_only=True)
class HelpfulWeights:
    """Interval of weights for which a coordinate's excess risk on test rows is at most ERM's.

    Attributes
    ----------
    low, high : ndarray (d,)
        low ≤ w ≤ high. One of them is 1, or both if 1 is the best weight.
    best : ndarray (d,)
        ρ θ²/σ², the weight with the smallest excess risk. It is infinite without noise, and NaN
        where every weight has the same risk.
    """

    low: Float64Array
    high: Float64Array
    best: Float64Array

    def __repr__(self) -> str:
        each = ", ".join(f"[{a:.3g}, {b:.3g}]" for a, b in zip(self.low, self.high, strict=True))
        return f"HelpfulWeights({each})"


def helpful_weights(problem: OneHot) -> HelpfulWeights:
    r"""All weights that do no harm, by coordinate (fixed design).

    With a = ρ²θ² and b = σ²μ the risk of a coordinate is λ'(a + bw²)/(μw + ρ)². It decreases until
    w = ρθ²/σ² and then increases. The risk is at most the risk at w = 1 for all w between 1 and the
    other root of a quadratic,

    .. math:: \frac{a (μ + ρ)^2 - (a + b) ρ^2}{b (μ + ρ)^2 - (a + b) μ^2}.

    If the denominator is not positive, every w ≥ 1 does no harm; even w = ∞ (no ridge) is better.

    Examples
    --------
    >>> helpful_weights(small_weights_example())  # the weight of the example is 0.05
    HelpfulWeights([1, inf], [1, inf])
    """
    mu, rho = problem.fixed_counts(), problem.ridge
    a, b = rho**2 * problem.theta**2, problem.noise * mu
    above = a * (mu + rho) ** 2 - (a + b) * rho**2
    below = b * (mu + rho) ** 2 - (a + b) * mu**2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        other = np.where(below > 0, np.maximum(0.0, above / below), np.inf)
        best = rho * problem.theta**2 / np.float64(problem.noise)
    any_weight = (mu == 0) | (a + b == 0)  # no row, or θ = 0 without noise
    low = np.where(any_weight, 0.0, np.minimum(1.0, other))
    high = np.where(any_weight, np.inf, np.maximum(1.0, other))
    return HelpfulWeights(low=low, high=high, best=np.where(any_weight, np.nan, best))


def small_weights_example() -> OneHot:
    """No shift and weights of .05: theorem 2's condition holds, but the risk is 49 times higher.

    The condition is 0 ≤ .05 ≤ 1/11 in both coordinates. B + V is .445 with the weights and .0091
    without, because so small a weight acts as a ridge of 20 instead of 1.
    """
    return OneHot.of(
        train=[0.5, 0.5],
        test=[0.5, 0.5],
        counts=10.0,
        theta=1.0,
        noise=0.01,
        ridge=1.0,
        weight=0.05,
    )
