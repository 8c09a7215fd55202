r"""P-values by permutation or conditional randomisation.

The statistic measures how well a ridge classifier separates source from target. With centred
features F, responses r (1 for target and 0 for source rows, minus its expectation without shift),
eigenvalues e_k and eigenvectors u_k of FFᵀ, and the ridge penalty λ,

.. math:: T = \sum_k \frac{e_k}{e_k + λ} (u_k^\top r)^2 .

Several feature sets are tried, and the most significant one decides. The p-value compares the
observed T with those of responses drawn as they would be without shift. Every draw repeats the fit
and the choice of the feature set, so over-fitting costs power but never validity.
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
#: draws per batch
BLOCK = 100
#: stop after this many draws as extreme as the data (Besag and Clifford 1991)
ENOUGH = 20

#: function from a number of draws to responses (n, count) without shift
NullDraw = Callable[[int], Float64Array]


@dataclass(frozen=True, eq=False)
class _Model:
    """One feature set: its columns, their scaled eigenvectors, and the shrinkage."""

    columns: np.ndarray[tuple[int], np.dtype[np.intp]]
    rotate: Float64Array
    shrink: Float64Array

    def deviate(self, moments: Float64Array) -> Float64Array:
        """Convert T to a normal deviate, by Wilson and Hilferty's cube root of a matched χ²."""
        t = self.shrink @ np.square(self.rotate.T @ moments[self.columns])
        mean, square = self.shrink.sum(), np.square(self.shrink).sum()
        freedom = mean**2 / square
        part = 2.0 / (9.0 * freedom)
        return np.asarray((np.cbrt(t / mean) - (1.0 - part)) / math.sqrt(part))


@dataclass(frozen=True, eq=False)
class FitStatistic:
    """The statistics of all feature sets, computed for many responses at once.

    The largest statistic of a single column is one more candidate besides the feature sets. It
    detects a shift of one column among many.
    """

    features: Features
    models: dict[str, _Model]

    @classmethod
    def of(cls, features: Features) -> FitStatistic:
        """Compute the eigenvectors of every feature set from one matrix product."""
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

    def deviate(self, responses: Float64Array, variance: float) -> dict[str, Float64Array]:
        """Convert the statistics to normal deviates: an array (b,) for each feature set.

        The array has one deviate for each of the b response vectors in `responses` (n, b). The
        entries of these vectors have the given variance.
        """
        moments = self.features.values.T @ responses / math.sqrt(variance)
        out = {name: m.deviate(moments) for name, m in self.models.items()}
        single = self.features.sets.get("squares")
        if single is not None and len(single):
            norm = np.square(self.features.values[:, single]).sum(axis=0)
            top = (np.square(moments[single]) / np.maximum(norm, 1e-12)[:, None]).max(axis=0)
            # p ≈ 2 p Φ(−√top): a normal deviate of the same tail
            out["columns"] = np.sqrt(np.maximum(top - 2.0 * math.log(2 * len(single)), 0.0))
        return out


@dataclass(frozen=True)
class Significance:
    """A p-value, the most significant feature set, and the number of draws."""

    p: float
    best: str
    draws: int


def significance(
    fit: FitStatistic, observed: Float64Array, draw: NullDraw, *, draws: int, variance: float
) -> Significance:
    """Compute the p-value of the observed responses (n,) from at most `draws` null draws.

    A null draw is one without shift. Drawing stops early once 20 draws (`ENOUGH`) are as extreme as
    the observed responses. The p-value, 20 / (number of draws), is still valid.
    """
    if not fit.models or variance <= 0:
        return Significance(1.0, "none", 0)
    observations = fit.deviate(observed[:, None], variance)
    best = max(observations, key=lambda name: float(observations[name][0]))
    limit = float(observations[best][0])
    limit -= 1e-7 * max(1.0, abs(limit))  # values equal up to rounding count as ties
    done = extreme = 0
    while done < draws:
        count = min(BLOCK, draws - done)
        values = fit.deviate(draw(count), variance)
        hit = np.max(list(values.values()), axis=0) >= limit
        if extreme + hit.sum() >= ENOUGH:
            last = int(np.flatnonzero(hit)[ENOUGH - extreme - 1])
            return Significance(ENOUGH / (done + last + 1), best, done + last + 1)
        extreme += int(hit.sum())
        done += count
    return Significance((1 + extreme) / (1 + draws), best, draws)


def draws_for(tests: int, level: float) -> int:
    """Return how many draws make p-values small enough for Holm's correction of `tests` tests."""
    return max(199, math.ceil(2.0 * tests / level) - 1)
