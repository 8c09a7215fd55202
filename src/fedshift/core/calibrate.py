r"""Calibrating and stacking log ratios on rows their models have not seen.

A model that is right about *which* rows are more target-like is often wrong about *how much*:
its log ratio runs off to infinity where the truth is bounded. `Saturation` mends that with four
numbers. Suppose the shift only changes the proportions of two groups; then

.. math:: r(x) = \frac{r_0 + r_1 e^{u}}{1 + e^{u}}, \qquad u = a\,s(x) + b,

with s the model's log ratio, u the log odds of the second group, and r between r0 and r1. With
r0 → 0 and r1 → ∞ it is the straight line a s + b, so nothing is lost where no bound exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from fedshift.core.samples import Float64Array

#: log odds, weights, sign of the loss
Side = tuple[Float64Array, Float64Array, float]


@dataclass(frozen=True)
class Evidence:
    """What held-out rows say of log ratios: the log loss of telling target from source.

    Every row counts once, so unequal samples are used as efficiently as they can be; the log
    ratio s enters as the log odds s + log(n_target/n_source).

    Attributes
    ----------
    source, target : ndarray (n,), (n',)
        Weights of the rows; together they sum to one.
    offset : float
        log(n_target / n_source).
    """

    source: Float64Array
    target: Float64Array
    offset: float

    @classmethod
    def of(cls, source: Float64Array, target: Float64Array) -> Evidence:
        """Evidence from two laws' row weights, each summing to one."""
        n_s, n_t = len(source), len(target)
        total = n_s + n_t
        return cls(source * (n_s / total), target * (n_t / total), math.log(n_t / n_s))

    @property
    def n(self) -> int:
        """Number of rows; times it, a difference of losses is in nats."""
        return len(self.source) + len(self.target)

    def sides(self, source: Float64Array, target: Float64Array) -> tuple[Side, Side]:
        """(log odds, weights, sign) of both laws; the loss is Σ w softplus(sign · log odds)."""
        return (
            (source + self.offset, self.source, 1.0),
            (target + self.offset, self.target, -1.0),
        )

    def loss(self, source: Float64Array, target: Float64Array) -> float:
        """Mean log loss of log ratios."""
        sides = self.sides(source, target)
        return sum(float(w @ np.logaddexp(0.0, sign * s)) for s, w, sign in sides)


@dataclass(frozen=True)
class Saturation:
    """A monotone map of log ratios onto the interval (low, high).

    Attributes
    ----------
    slope, shift : float
        a and b of u = a s + b.
    low, high : float
        log r0 < 0 < log r1: the bounds of the mapped log ratio.
    """

    slope: float
    shift: float
    low: float
    high: float

    #: no bound beyond e^±12 is ever learned from data
    LIMIT = 12.0

    def __call__(self, log_ratio: Float64Array) -> Float64Array:
        """Mapped log ratios."""
        u = self.slope * log_ratio + self.shift
        return np.asarray(np.logaddexp(self.low, self.high + u) - np.logaddexp(0.0, u))

    @classmethod
    def fit(cls, source: Float64Array, target: Float64Array, evidence: Evidence) -> Saturation:
        """The map with the lowest log loss on held-out log ratios."""

        def of(t: Float64Array) -> Saturation:
            return cls(float(np.exp(t[0])), float(t[1]), -float(np.exp(t[2])), float(np.exp(t[3])))

        def loss(t: Float64Array) -> tuple[float, Float64Array]:
            m = of(t)
            value, gradient = 1e-4 * t[0] ** 2, np.array([2e-4 * t[0], 0.0, 0.0, 0.0])
            for s, (_, w, sign) in zip(
                (source, target), evidence.sides(source, target), strict=True
            ):
                u = m.slope * s + m.shift
                out = np.logaddexp(m.low, m.high + u) - np.logaddexp(0.0, u) + evidence.offset
                value += float(w @ np.logaddexp(0.0, sign * out))
                d_out = sign * w * expit(sign * out)
                high_share = expit(m.high + u - m.low)
                d_u = d_out * (high_share - expit(u))
                gradient += [
                    m.slope * float(d_u @ s),
                    float(d_u.sum()),
                    m.low * float(d_out @ (1.0 - high_share)),
                    m.high * float(d_out @ high_share),
                ]
            return value, gradient

        edge = np.log([0.05, cls.LIMIT])
        bounds = [(-3.0, 3.0), (-15.0, 15.0), tuple(edge), tuple(edge)]
        starts = ([0.0, -0.5 * c, np.log(c), np.log(c)] for c in (1.5, 4.0))
        fits = [minimize(loss, x0, jac=True, method="L-BFGS-B", bounds=bounds) for x0 in starts]
        return of(min(fits, key=lambda f: f.fun).x)


def worthwhile_saturation(
    source: Float64Array, target: Float64Array, evidence: Evidence
) -> Saturation | None:
    """A saturation, if its gain on held-out rows outweighs its three extra numbers (BIC)."""
    fitted = Saturation.fit(source, target, evidence)
    gain = evidence.loss(source, target) - evidence.loss(fitted(source), fitted(target))
    return fitted if evidence.n * gain > 1.5 * math.log(evidence.n) else None


def stack(
    source: Float64Array, target: Float64Array, evidence: Evidence
) -> tuple[Float64Array, float]:
    """Non-negative coefficients and an intercept that combine held-out log ratios.

    Parameters
    ----------
    source, target : ndarray (n, m), (n', m)
        Held-out log ratios of m models.

    Returns
    -------
    coefficients : ndarray (m,)
    intercept : float
        Minimise the log loss of ``scores @ coefficients + intercept``.
    """
    m = source.shape[1]

    def loss(t: Float64Array) -> tuple[float, Float64Array]:
        value, gradient = 0.0, np.zeros(m + 1)
        for s, w, sign in (
            (source, evidence.source, 1.0),
            (target, evidence.target, -1.0),
        ):
            out = sign * (s @ t[:m] + t[m] + evidence.offset)
            value += float(w @ np.logaddexp(0.0, out))
            d = sign * w * expit(out)
            gradient[:m] += d @ s
            gradient[m] += d.sum()
        return value, gradient

    start = np.append(np.full(m, 1.0 / m), 0.0)
    bounds = [(0.0, None)] * m + [(None, None)]
    t = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    coefficients = np.where(t[:m] > 1e-3, t[:m], 0.0)
    return coefficients, float(t[m])
