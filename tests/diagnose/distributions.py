"""Distributions with known shifts that the tests of this folder draw from."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedshift.diagnose.two_sample import Side

Array = np.ndarray[Any, np.dtype[Any]]


def two_classes(n: int, rng: np.random.Generator, share: float = 0.3, d: int = 6) -> Side:
    """Two Gaussian classes, two standard deviations apart in the first three columns."""
    y = (rng.random(n) < share).astype(np.intp)
    x = rng.standard_normal((n, d))
    x[:, :3] += 2.0 / np.sqrt(3.0) * y[:, None]
    return Side(x, y)


def moved(kind: str, n: int, rng: np.random.Generator) -> Side:
    """A distribution that differs from `two_classes` in one way."""
    if kind == "label":
        return two_classes(n, rng, share=0.65)
    if kind == "covariate":
        side = two_classes(12 * n, rng)
        kept = rng.random(len(side)) < np.exp(np.minimum(side.x[:, -1] - 2.5, 0.0))
        assert kept.sum() >= n
        return side.take(np.flatnonzero(kept)[:n])
    side = two_classes(n, rng)
    if kind == "concept":
        assert side.y is not None
        flip = (side.x[:, 4] > 0) & (rng.random(n) < 0.4)
        return Side(side.x, np.where(flip, 1 - side.y, side.y))
    return side


def hard_table(n: int, rng: np.random.Generator) -> Side:
    """Heavy tails, few values, a constant and two equal columns."""
    g = rng.standard_normal((n, 3))
    x = np.column_stack(
        [
            rng.standard_t(1.1, n),
            rng.integers(0, 3, n),
            g[:, 0] > 1,
            np.full(n, 7.0),
            g[:, 1],
            g[:, 1],
        ]
    )
    y = (g[:, 1] + rng.standard_normal(n) > 0).astype(np.intp)
    return Side(x, y)
