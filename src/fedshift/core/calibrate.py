r"""Calibrate and stack log ratios on held-out rows.

A model may rank rows correctly by how target-like they are and still return wrong ratios: its log
ratio tends to infinity where the true ratio is bounded. `Saturation` corrects that with four
numbers: slope a, shift b, and the bounds log r0 and log r1. If the shift only changes the
proportions of two groups, by the factors r0 and r1, then

.. math:: r(x) = \frac{r_0 + r_1 e^{u}}{1 + e^{u}}, \qquad u = a\,s(x) + b,

where s is the model's log ratio, u is the log odds of the second group, and r lies between r0 and
r1. For r0 → 0 and r1 → ∞ the map is the straight line a s + b, so unbounded ratios fit as well.
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
class RatioEvidence:
    """Log loss of log ratios on held-out rows: how well they separate target from source.

    The two samples are pooled in proportion to their numbers of rows, which is statistically
    efficient if they differ in size. The log ratio s enters as the log odds
    s + log(n_target/n_source).

    Attributes
    ----------
    source, target : ndarray (n,), (n',)
        Weights of the rows. Both together sum to one.
    offset : float
        log(n_target / n_source).
    """

    source: Float64Array
    target: Float64Array
    offset: float

    @classmethod
    def of(cls, source: Float64Array, target: Float64Array) -> RatioEvidence:
        """Create the evidence from the row weights of both samples, each summing to one."""
        n_s, n_t = len(source), len(target)
        total = n_s + n_t
        return cls(source * (n_s / total), target * (n_t / total), math.log(n_t / n_s))

    @property
    def n(self) -> int:
        """Number of rows. A mean loss times this number is a summed loss, in nats."""
        return len(self.source) + len(self.target)

    def sides(self, source: Float64Array, target: Float64Array) -> tuple[Side, Side]:
        """(log odds, weights, sign) of both samples.

        The loss is Σ w softplus(sign · log odds).
        """
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
        """Map log ratios."""
        u = self.slope * log_ratio + self.shift
        return np.asarray(np.logaddexp(self.low, self.high + u) - np.logaddexp(0.0, u))

    @classmethod
    def fit(cls, source: Float64Array, target: Float64Array, evidence: RatioEvidence) -> Saturation:
        """Find the map with the lowest log loss on held-out log ratios."""

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
    source: Float64Array, target: Float64Array, evidence: RatioEvidence
) -> Saturation | None:
    """Fit a saturation; return None unless it lowers the held-out loss enough.

    On n held-out rows, the summed loss must be lower than that of the unchanged log ratios by more
    than 1.5 log n. That is the penalty of the Bayesian information criterion (BIC) for three
    parameters. The saturation has four, so the rule is slightly milder than the criterion.
    """
    bend = Saturation.fit(source, target, evidence)
    gain = evidence.loss(source, target) - evidence.loss(bend(source), bend(target))
    return bend if evidence.n * gain > 1.5 * math.log(evidence.n) else None


def stack(
    source: Float64Array, target: Float64Array, evidence: RatioEvidence
) -> tuple[Float64Array, float]:
    """Stack held-out log ratios: minimise the log loss of ``scores @ coefficients + intercept``.

    Parameters
    ----------
    source, target : ndarray (n, m), (n', m)
        Held-out log ratios of m models.

    Returns
    -------
    coefficients : ndarray (m,)
        Non-negative.
    intercept : float
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
