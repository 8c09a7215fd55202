"""Feature maps for linear models.

A map is fitted on the pooled rows of source and target. It does not change when source and target
are exchanged, so the exchange changes only the sign of log ratios that are fitted on the map.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist, pdist

from fedshift.core.samples import Array, Float64Array, FloatArray, Sample, blocks
from fedshift.errors import InputError

FeatureMap = Callable[[FloatArray], Float64Array]
FeatureName = Literal["linear", "squares", "quadratic", "kernel"]
NAMES: tuple[FeatureName, ...] = ("linear", "squares", "quadratic", "kernel")


def pooled_moments(*samples: Sample) -> tuple[Float64Array, Float64Array]:
    """Mean and standard deviation of each column over several samples, weighted by their size.

    Constant columns get standard deviation one.
    """
    total = float(sum(len(s) for s in samples))
    shift = samples[0].flat[0].astype(np.float64)
    with np.errstate(over="ignore"):
        spread = np.max([_largest(s, shift) for s in samples], axis=0)
        # what is left of rounding is not variation
        spread[spread <= 8.0 * np.finfo(samples[0].x.dtype).eps * np.abs(shift)] = 0.0
        unit = np.where(spread > 0, np.minimum(spread, 1e300), 1.0)
        first, second = np.zeros_like(shift), np.zeros_like(shift)
        for s in samples:  # in units of the spread, so that no square over- or underflows
            for b in blocks(len(s)):
                x = (s.flat[b].astype(np.float64) - shift) / unit
                w = s.weight[b] * (len(s) / total)
                first += w @ x
                second += w @ np.square(x)
    deviation = np.sqrt(np.maximum(second - np.square(first), 0.0))
    sd = np.where((spread > 0) & (deviation > 0), deviation * unit, 1.0)
    return shift + first * unit, sd


def _largest(sample: Sample, shift: Float64Array) -> Float64Array:
    parts = [np.abs(sample.flat[b] - shift).max(axis=0) for b in blocks(len(sample))]
    return np.asarray(np.max(parts, axis=0), dtype=np.float64)


#: values are clipped at this many standard deviations, to prevent overflow
FAR = 1e6


def standardise(x: FloatArray, mean: Float64Array, sd: Float64Array) -> Float64Array:
    """Return rows as standardised vectors, clipped at ± 10⁶ standard deviations (`FAR`)."""
    with np.errstate(over="ignore"):
        z = (x.reshape(len(x), -1).astype(np.float64) - mean) / sd
    return np.asarray(np.clip(z, -FAR, FAR))


def feature_map(
    name: FeatureName,
    source: Sample,
    target: Sample,
    *,
    width: float = 1.0,
    n_centers: int = 250,
    shared_scale: bool = False,
) -> tuple[FeatureMap, int]:
    """Fit a feature map on pooled rows; return it with its number of features.

    Parameters
    ----------
    name : {"linear", "squares", "quadratic", "kernel"}
        "linear": standardised columns z. "squares": z and z². "quadratic": z and all products
        z_i z_j. "kernel": Gaussian kernels exp(−d²/(2 (width·m)²)), where d is the distance of a
        row to one of `n_centers` rows, and m is the median distance between these rows. The kernels
        are rotated and scaled (Nyström), so that the ridge penalty on the coefficients is the
        squared norm of the function in the kernel's space.
    shared_scale : bool
        Divide all columns by one common scale, as is usual for pixels. By default each column is
        divided by its own standard deviation.
    """
    if name not in NAMES:
        raise InputError(f"features must be one of {', '.join(NAMES)}; got {name!r}")
    mean, sd = pooled_moments(source, target)
    if shared_scale:
        sd = np.full_like(sd, np.sqrt(np.mean(np.square(sd))))
    d = len(mean)
    z = partial(standardise, mean=mean, sd=sd)  # no closure: fitted maps must pickle
    if name == "linear":
        return z, d
    if name == "kernel":
        return _kernel(z, source, target, width, n_centers)
    i, j = (np.arange(d),) * 2 if name == "squares" else np.triu_indices(d)
    m_z, s_z = np.zeros(len(i)), np.ones(len(i))
    # standardise the products too, so that one ridge fits all
    head = [s.some(20_000) for s in (source, target)]
    sizes = np.array([len(s) for s in head]) / sum(len(s) for s in head)
    values = [_with_products(s.x, z, i, j, m_z, s_z)[:, d:] for s in head]
    m_z = sum(c * (s.weight @ v) for c, s, v in zip(sizes, head, values, strict=True))
    var = sum(
        c * (s.weight @ np.square(v - m_z)) for c, s, v in zip(sizes, head, values, strict=True)
    )
    s_z = np.sqrt(np.where(var > 1e-12, var, 1.0))
    return partial(_with_products, z=z, i=i, j=j, mean=m_z, sd=s_z), d + len(i)


def _with_products(
    x: FloatArray, z: FeatureMap, i: Array, j: Array, mean: Float64Array, sd: Float64Array
) -> Float64Array:
    """Standardised columns, then their standardised products z_i z_j."""
    q = z(x)
    return np.concatenate([q, (q[:, i] * q[:, j] - mean) / sd], axis=1)


def _kernel(
    z: FeatureMap, source: Sample, target: Sample, width: float, n_centers: int
) -> tuple[FeatureMap, int]:
    half = n_centers // 2
    take_s = min(len(source), max(half, n_centers - len(target)))
    take_t = min(len(target), n_centers - take_s)
    centers = np.concatenate([z(source.some(take_s).x), z(target.some(take_t).x)])
    distances = pdist(centers)
    positive = distances[distances > 0]
    median = float(np.median(positive)) if len(positive) else 1.0
    gamma = 0.5 / (width * median) ** 2
    values, vectors = np.linalg.eigh(np.exp(-gamma * cdist(centers, centers, "sqeuclidean")))
    keep = values > 1e-6 * values[-1]
    whiten = vectors[:, keep] / np.sqrt(values[keep])
    return partial(_kernels, z=z, centers=centers, gamma=gamma, whiten=whiten), int(keep.sum())


def _kernels(
    x: FloatArray, z: FeatureMap, centers: Float64Array, gamma: float, whiten: Float64Array
) -> Float64Array:
    """Rotated and scaled Gaussian kernels at the centres."""
    q, norms = z(x), np.square(centers).sum(axis=1)
    squared = np.square(q).sum(axis=1)[:, None] + norms - 2.0 * (q @ centers.T)
    return np.asarray(np.exp(-gamma * np.maximum(squared, 0.0)) @ whiten)
