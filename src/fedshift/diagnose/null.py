r"""How surprising is a fit, if nothing but chance were at work?

The statistic is the fit of a ridge classifier that tells two sides apart: with centred features F,
responses r (side minus its expectation) and the eigenvectors u_k of FFᵀ,

.. math:: T = \sum_k \frac{e_k}{e_k + λ} (u_k^\top r)^2 .

Several feature sets are tried and the most surprising one counts. The p-value compares the
observed T with those of responses drawn as they would be without shift; the fitting and the
choosing are done anew for every draw, so over-fitting costs power but never validity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedshift.core.samples import Float64Array
from fedshift.diagnose.encode import Features

#: ridge as a share of the largest eigenvalue
RIDGE = 0.1
#: draws at a time
BLOCK = 100
#: draws as extreme as the data after which no more are made (Besag and Clifford 1991)
ENOUGH = 20

#: number of draws to responses (n, count) without shift
Draw = Callable[[int], Float64Array]


@dataclass(frozen=True, eq=False)
class _Model:
    """One feature set: which columns, their eigenvectors, the shrinkage, and T's null moments."""

    columns: np.ndarray[tuple[int], np.dtype[np.intp]]
    rotate: Float64Array
    shrink: Float64Array

    def surprise(self, moments: Float64Array) -> Float64Array:
        """T as a normal deviate, by Wilson and Hilferty's cube root of a matched χ²."""
        t = self.shrink @ np.square(self.rotate.T @ moments[self.columns])
        mean, square = self.shrink.sum(), np.square(self.shrink).sum()
        freedom = mean**2 / square
        part = 2.0 / (9.0 * freedom)
        return np.asarray((np.cbrt(t / mean) - (1.0 - part)) / math.sqrt(part))


@dataclass(frozen=True, eq=False)
class Fit:
    """Feature sets ready to be fitted to many responses at once.

    The largest single column (a shift of one column among many) is one more candidate.
    """

    features: Features
    models: dict[str, _Model]

    @classmethod
    def of(cls, features: Features) -> Fit:
        """Eigenvectors of every feature set, from one matrix product."""
        gram = features.values.T @ features.values
        models = {}
        for name, columns in features.sets.items():
            size, axes = np.linalg.eigh(gram[np.ix_(columns, columns)])
            keep = size > 1e-8 * max(size[-1], 1e-300)
            if keep.any() and size[-1] > 1e-12:
                rotate = axes[:, keep] / np.sqrt(size[keep])
                shrink = size[keep] / (size[keep] + RIDGE * size[-1])
                models[name] = _Model(columns, rotate, shrink)
        return cls(features, models)

    def surprise(self, responses: Float64Array, variance: float) -> dict[str, Float64Array]:
        """Normal deviate of every candidate for responses (n, b) of this variance."""
        moments = self.features.values.T @ responses / math.sqrt(variance)
        out = {name: m.surprise(moments) for name, m in self.models.items()}
        single = self.features.sets.get("squares")
        if single is not None and len(single):
            norm = np.square(self.features.values[:, single]).sum(axis=0)
            top = (np.square(moments[single]) / np.maximum(norm, 1e-12)[:, None]).max(axis=0)
            # p ≈ 2 p Φ(−√top): a normal deviate of the same tail
            out["columns"] = np.sqrt(np.maximum(top - 2.0 * math.log(2 * len(single)), 0.0))
        return out


@dataclass(frozen=True)
class Surprise:
    """A p-value, the feature set that showed most, and how many draws it took."""

    p: float
    best: str
    draws: int


def surprise(
    fit: Fit, observed: Float64Array, draw: Draw, *, draws: int, variance: float
) -> Surprise:
    """P-value of the observed responses (n,) against at most `draws` draws without shift.

    Stops early once `ENOUGH` draws were as extreme; the p-value ENOUGH / (draws made) stays valid.
    """
    if not fit.models or variance <= 0:
        return Surprise(1.0, "none", 0)
    seen = fit.surprise(observed[:, None], variance)
    best = max(seen, key=lambda name: float(seen[name][0]))
    limit = float(seen[best][0])
    limit -= 1e-7 * max(1.0, abs(limit))  # a tie but for rounding is a tie
    made = extreme = 0
    while made < draws:
        count = min(BLOCK, draws - made)
        found = fit.surprise(draw(count), variance)
        hit = np.max(list(found.values()), axis=0) >= limit
        if extreme + hit.sum() >= ENOUGH:
            last = int(np.flatnonzero(hit)[ENOUGH - extreme - 1])
            return Surprise(ENOUGH / (made + last + 1), best, made + last + 1)
        extreme += int(hit.sum())
        made += count
    return Surprise((1 + extreme) / (1 + draws), best, draws)


def draws_for(tests: int, level: float) -> int:
    """Draws that let each of so many tests be significant after Holm's correction, with room."""
    return max(199, math.ceil(2.0 * tests / level) - 1)
