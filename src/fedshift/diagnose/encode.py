"""Features that do not depend on whether a row is a source or a target row.

The tests of this package compare two sets of rows. Their p-values are exact because everything
fitted before the permutation uses the pooled rows: ranks, principal components, kernel centres.
Ranks also make heavy tails and units irrelevant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.utils.extmath import randomized_svd

from fedshift.core.features import feature_map, pooled_moments, standardise
from fedshift.core.samples import Float64Array, FloatArray, Sample

#: with more non-constant columns, principal components replace them
WIDE = 64
#: number of principal components
COMPONENTS = 32
#: rows that the components are fitted to
PCA_ROWS = 2000
#: standard deviations at which values are clipped before the components are fitted
CLIP = 5.0
#: most columns whose pairwise products are features
PAIRS = 16
#: centres of the Gaussian kernels
CENTRES = 100


def encode(rows: FloatArray, *, seed: int = 0) -> tuple[Float64Array, tuple[int, ...]]:
    """Replace every value of pooled rows (n, ...) by the Gaussian quantile of its rank.

    Constant columns are left out. With more than `WIDE` columns, as for images, the scores are
    those of `COMPONENTS` principal components. Before the components are computed, each
    column of a table is scaled on its own; pixels keep their common scale.

    Returns
    -------
    z : ndarray (n, q)
        Standardised normal scores of the non-constant columns, or of principal components.
    columns : tuple of int
        Index of the original column behind each column of z; empty if z holds components.

    Examples
    --------
    >>> encode(np.array([[1.0, 7.0], [10.0, 7.0], [1e9, 7.0]]))[0].round(2).ravel().tolist()
    [-1.22, 0.0, 1.22]
    """
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    vary = np.flatnonzero(flat.min(axis=0) < flat.max(axis=0))
    flat = flat[:, vary]
    if len(vary) <= WIDE:
        return normal_scores(flat), tuple(vary.tolist())
    return normal_scores(_components(flat, pixels=rows.ndim > 2, seed=seed)), ()


def normal_scores(x: Float64Array) -> Float64Array:
    """Return each column's ranks as standardised Gaussian quantiles; ties get their mean rank."""
    if x.size == 0:
        return x
    z = ndtri(rankdata(x, axis=0) / (len(x) + 1.0))
    z = z - z.mean(axis=0)
    return np.asarray(z / np.maximum(z.std(axis=0), 1e-12))


def _components(x: Float64Array, *, pixels: bool, seed: int) -> Float64Array:
    mean, sd = pooled_moments(distribution(x))
    if pixels:
        sd = np.full_like(sd, np.sqrt(np.mean(np.square(sd))))
    z = np.clip(standardise(x, mean, sd), -CLIP, CLIP)
    some = np.random.default_rng(seed).permutation(len(z))[:PCA_ROWS]
    centre = z[some].mean(axis=0)
    count = min(COMPONENTS, len(some) - 1)
    _, size, axes = randomized_svd(z[some] - centre, count, random_state=seed)
    return np.asarray((z - centre) @ axes[size > 1e-9 * max(size[0], 1e-300)].T)


def distribution(x: FloatArray) -> Sample:
    """Wrap rows as a sample in which every row has equal weight."""
    return Sample(x, np.full(len(x), 1.0 / len(x)), np.arange(len(x)))


@dataclass(frozen=True, eq=False)
class Features:
    """Centred columns of a linear model, grouped in feature sets.

    Attributes
    ----------
    values : ndarray (n, p)
    sets : dict of str to int arrays
        Column indices of each feature set.
    """

    values: Float64Array
    sets: dict[str, np.ndarray[tuple[int], np.dtype[np.intp]]]


def features(
    z: Float64Array, *, seed: int = 0, pairs: int = PAIRS, kernel: bool = True
) -> Features:
    """Compute feature sets of the columns of z (n, q).

    The sets are "linear" (z), "squares" (z and z²), "products" (z_i z_j for all pairs of columns)
    and "kernel" (Gaussian kernels).

    Parameters
    ----------
    z : ndarray (n, q)
    seed : int
        Seed of the kernel centres.
    pairs : int
        Products are left out if z has more columns than this.
    kernel : bool
        Whether to include Gaussian kernels.
    """
    n, q = z.shape
    blocks, names = [z, _unit(np.square(z))], ["linear", "squares"]
    if 2 <= q <= pairs:
        i, j = np.triu_indices(q, 1)
        blocks.append(_unit(z[:, i] * z[:, j]))
        names.append("products")
    if kernel and q and n >= 4:
        blocks.append(_kernel(z, seed=seed))
        names.append("kernel")
    ends = np.cumsum([b.shape[1] for b in blocks])
    sets = {
        name: np.arange(end - b.shape[1], end)
        for name, b, end in zip(names, blocks, ends, strict=True)
    }
    sets["squares"] = np.arange(2 * q)  # the columns and their squares
    return Features(np.concatenate(blocks, axis=1), {k: v for k, v in sets.items() if len(v)})


def _unit(x: Float64Array) -> Float64Array:
    """Standardise columns to mean zero and variance one; constant columns become zero."""
    x = x - x.mean(axis=0)
    sd = x.std(axis=0)
    return np.where(sd > 1e-6, x / np.maximum(sd, 1e-6), 0.0)


def _kernel(z: Float64Array, *, seed: int) -> Float64Array:
    """Gaussian kernels of half the median distance; centres are drawn from all rows alike."""
    order = np.random.default_rng(seed).permutation(len(z))
    halves = (distribution(z[np.sort(h)]) for h in np.array_split(order, 2))
    make, _ = feature_map("kernel", *halves, width=0.5, n_centers=CENTRES)
    k = make(z)
    k = k - k.mean(axis=0)
    size = np.sqrt(np.square(k).sum(axis=1).mean())
    return np.asarray(k / max(size, 1e-12))
