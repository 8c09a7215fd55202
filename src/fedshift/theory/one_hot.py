r"""Does weighting help ridge regression on one-hot rows? The exact answer, by coordinate.

Training rows are unit vectors e_i with probability λ_i, test rows with λ'_i; μ_i rows of the
training set equal e_i, all with weight w_i. With ridge ρ (lemma 1 of the paper, fixed design)

.. math:: B_i = \frac{ρ^2 θ_i^2 λ'_i}{(μ_i w_i + ρ)^2}, \qquad
          V_i = \frac{σ^2 λ'_i μ_i w_i^2}{(μ_i w_i + ρ)^2},

and ERM is w = 1. Dividing by w_i² shows what a weight is here: a ridge of ρ/w_i in coordinate i.
Its best value is σ²/θ_i², so the best weight is ρ θ_i²/σ², whatever λ' is. A weight helps in a
coordinate exactly when it lies between 1 and the second weight of the same risk
(`helpful_weights`). B falls in w and V rises: no weight but 1 makes both no larger.

The paper's theorem 2 and the proposition of its appendix are here as printed, under names that say
so. Their proofs compare the weighted estimate on test rows with ERM on *training* rows (λ_i in
place of λ'_i), and each has a slip:

* theorem 2 needs (μw + ρ)/(μ + ρ) ≥ √(λ'/λ) and asks w + 1 ≥ √(λ'/λ), which is weaker;
* the proposition turns w ≥ 1/((√(λ'/λ) − 1)/ξ + 1) around.

Besides, w = λ'/λ meets theorem 2's condition only where λ'/λ ≤ ξ^(2/3) < 1, which no two laws do
everywhere. `weighting_helps` is the comparison to use.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from fedshift.core.samples import Float64Array
from fedshift.errors import InputError
from fedshift.theory.checks import count, law, number, vector


@dataclass(frozen=True, eq=False, kw_only=True)
class OneHot:
    """A one-hot ridge regression problem of d coordinates; made by `of`, which checks it.

    Attributes
    ----------
    train, test : ndarray (d,)
        λ and λ'.
    theta : ndarray (d,)
        θ*.
    noise : float
        σ².
    ridge : float
        ρ (the paper's λ).
    weight : ndarray (d,)
        w.
    counts : ndarray (d,) or None
        μ, training rows of each kind: a fixed design.
    n : int or None
        Training rows drawn from λ: a random design.
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
        """A checked problem.

        Parameters
        ----------
        train, test : laws (d,)
            Every coordinate must have training probability.
        theta, weight, counts : (d,) or one number for all
            The weight is the density ratio λ'/λ unless given.
        noise, ridge : float
            σ² ≥ 0 and ρ > 0.
        counts, n
            Give one of the two.
        """
        p = vector(law(train, "train"), "train", above=0.0)
        d = len(p)
        q = law(test, "test", length=d)
        if (counts is None) == (n is None):
            raise InputError("give counts (a fixed design) or n (a random design), one of the two")
        return cls(
            train=p,
            test=q,
            theta=vector(theta, "theta", length=d),
            noise=number(noise, "noise", least=0.0),
            ridge=number(ridge, "ridge", above=0.0),
            weight=vector(q / p if weight is None else weight, "weight", length=d, least=0.0),
            counts=None if counts is None else vector(counts, "counts", length=d, least=0.0),
            n=None if n is None else count(n, "n"),
        )

    def fixed_counts(self) -> Float64Array:
        """μ; conditions on it have no meaning in a random design."""
        if self.counts is None:
            raise InputError("this condition is about a fixed design; give counts in place of n")
        return self.counts

    def __repr__(self) -> str:
        rows = f"n={self.n}" if self.counts is None else f"counts {self.counts}"
        return f"OneHot({len(self.train)} coordinates, {rows}, weights {self.weight})"


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Bias and variance by coordinate, with the weights and without.

    Attributes
    ----------
    bias, variance : ndarray (d,)
        B_i and V_i with the weights, on test rows.
    plain_bias, plain_variance : ndarray (d,)
        With weights of one (ERM), on test rows too.
    printed_plain_bias, printed_plain_variance : ndarray (d,)
        ERM as the paper's proof measures it, on *training* rows: λ_i in place of λ'_i.
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
        """B + V without."""
        return float(self.plain_bias.sum() + self.plain_variance.sum())

    @property
    def gain(self) -> Float64Array:
        """What the weights take off each coordinate's excess risk; negative where they add."""
        change: Float64Array = self.plain_bias + self.plain_variance - self.bias - self.variance
        return change

    @property
    def helps(self) -> bool:
        """The weighted estimate has the smaller excess risk."""
        return self.excess < self.plain_excess

    @property
    def where_not(self) -> tuple[int, ...]:
        """Coordinates in which the weights do harm."""
        return tuple(int(i) for i in np.flatnonzero(self.gain < 0))

    @property
    def status(self) -> str:
        """One sentence."""
        word = "helps" if self.helps else "does not help"
        bad = ", ".join(str(i) for i in self.where_not[:5])
        more = f" and {len(self.where_not) - 5} more" if len(self.where_not) > 5 else ""
        where = f"; it does harm in coordinates {bad}{more}" if bad else ""
        return (
            f"weighting {word}: excess risk {self.excess:.3g} with weights, "
            f"{self.plain_excess:.3g} without{where}"
        )

    def to_dict(self) -> dict[str, Float64Array]:
        """Columns by name; ``pandas.DataFrame(comparison.to_dict())`` makes a frame of it."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "gain": self.gain,
        }

    def __repr__(self) -> str:
        return f"Comparison({self.status})"


def weighting_helps(problem: OneHot) -> Comparison:
    """The exact comparison of weighted and plain ridge regression, both on test rows.

    In a random design each term is its mean over the counts, which are binomial; a sum, no draws.

    Examples
    --------
    >>> found = weighting_helps(small_weights_example())
    >>> found.helps, found.where_not
    (False, (0, 1))
    >>> print(f"{found.excess:.3f} with weights, {found.plain_excess:.4f} without")
    0.445 with weights, 0.0091 without
    """
    one = np.ones_like(problem.weight)
    with_weights = _terms(problem, problem.weight, problem.test)
    plain = _terms(problem, one, problem.test)
    printed = _terms(problem, one, problem.train)
    return Comparison(
        bias=with_weights[0],
        variance=with_weights[1],
        plain_bias=plain[0],
        plain_variance=plain[1],
        printed_plain_bias=printed[0],
        printed_plain_variance=printed[1],
    )


def _terms(p: OneHot, w: Float64Array, mass: Float64Array) -> tuple[Float64Array, Float64Array]:
    """B_i and V_i of weights `w` on rows of the law `mass`."""
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
    """Weights with which a coordinate's excess risk on test rows is no larger than ERM's.

    Attributes
    ----------
    low, high : ndarray (d,)
        low ≤ w ≤ high; one of them is 1, or both if 1 is the best.
    best : ndarray (d,)
        ρ θ²/σ²; infinite without noise, NaN where every weight gives the same.
    """

    low: Float64Array
    high: Float64Array
    best: Float64Array

    def __repr__(self) -> str:
        each = ", ".join(f"[{a:.3g}, {b:.3g}]" for a, b in zip(self.low, self.high, strict=True))
        return f"HelpfulWeights({each})"


def helpful_weights(problem: OneHot) -> HelpfulWeights:
    r"""All weights that do no harm, coordinate by coordinate (fixed design).

    With a = ρ²θ² and b = σ²μ the risk of a coordinate is λ'(a + bw²)/(μw + ρ)², which falls until
    w = ρθ²/σ² and rises after. It is at most that of w = 1 between 1 and the other root of a
    quadratic,

    .. math:: \frac{a (μ + ρ)^2 - (a + b) ρ^2}{b (μ + ρ)^2 - (a + b) μ^2},

    or for every w ≥ 1 where the denominator is not positive: there even w = ∞ (no ridge) is better.

    Examples
    --------
    >>> helpful_weights(small_weights_example())  # the weight in the example is 0.05
    HelpfulWeights([1, inf], [1, inf])
    """
    mu, rho = problem.fixed_counts(), problem.ridge
    a, b = rho**2 * problem.theta**2, problem.noise * mu
    above = a * (mu + rho) ** 2 - (a + b) * rho**2
    below = b * (mu + rho) ** 2 - (a + b) * mu**2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        other = np.where(below > 0, np.maximum(0.0, above / below), np.inf)
        best = rho * problem.theta**2 / np.float64(problem.noise)
    any_weight = (mu == 0) | (a + b == 0)  # no row, or nothing to learn and no noise
    low = np.where(any_weight, 0.0, np.minimum(1.0, other))
    high = np.where(any_weight, np.inf, np.maximum(1.0, other))
    return HelpfulWeights(low=low, high=high, best=np.where(any_weight, np.nan, best))


def small_weights_example() -> OneHot:
    """No shift and weights of .05: theorem 2's condition holds, the risk is 49 times higher.

    The condition reads 0 ≤ .05 ≤ 1/11 in both coordinates. B + V is .445 with the weights and
    .0091 without: so small a weight is a ridge of 20 in place of 1.
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
