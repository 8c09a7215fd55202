"""The ratio of two Gaussians with shrunk covariances."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from fedshift.core.features import pooled_moments, standardise
from fedshift.core.samples import Float64Array, FloatArray, Sample, blocks
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator


def shrunk_covariance(x: Float64Array, weight: Float64Array) -> Float64Array:
    """Ledoit-Wolf covariance of centred, weighted rows (n, d).

    The sample covariance S is pulled towards m I, m the mean eigenvalue, by the share that
    minimises the expected squared error: min(1, Σ_i w_i² ‖x_i x_iᵀ − S‖² / ‖S − m I‖²).
    """
    d = x.shape[1]
    covariance = np.zeros((d, d))
    fourth = 0.0  # Σ w² ‖x‖⁴
    for b in blocks(len(x)):
        xb, wb = x[b], weight[b]
        covariance += (xb * wb[:, None]).T @ xb
        fourth += float(np.square(wb) @ np.square(np.square(xb).sum(axis=1)))
    level = float(np.trace(covariance)) / d
    norm = float(np.square(covariance).sum())
    distance = norm - d * level**2
    noise = max(0.0, fourth - float(np.square(weight).sum()) * norm)
    share = 1.0 if distance <= 0 else min(1.0, noise / distance)
    return np.asarray((1.0 - share) * covariance + share * level * np.eye(d))


class Gaussian(RatioEstimator):
    """log N(x; μ_t, Σ_t) − log N(x; μ_s, Σ_s), covariances shrunk as Ledoit and Wolf do.

    Fast, closed form, hard to beat where both laws are near Gaussian; wrong without bound on
    heavy tails and clusters.

    Parameters
    ----------
    shared : bool
        One covariance for both laws: the ratio is then linear in x (discriminant analysis).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> r = Gaussian(shared=True).fit(source=rng.normal(size=4000), target=rng.normal(1, 1, 4000))
    >>> x = np.array([0.5, 1.5])
    >>> bool(np.abs(r.log_ratio(x) - (x - 0.5)).max() < 0.1)
    True
    """

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared

    def _fit(self, source: Sample, target: Sample) -> None:
        for name, law in (("source", source), ("target", target)):
            if not np.ptp(law.flat, axis=0).any():
                raise InputError(
                    f"Gaussian needs rows that differ; every row of {name} is the same; use Auto, "
                    "or check the file"
                )
        self._mean, self._sd = pooled_moments(source, target)
        parts = [(self._z(s.x), s.weight) for s in (source, target)]
        self._centres = [w @ z for z, w in parts]
        centred = [(z - m, w) for (z, w), m in zip(parts, self._centres, strict=True)]
        if self.shared:
            n = [len(source), len(target)]
            x = np.concatenate([z for z, _ in centred])
            w = np.concatenate([w * c / sum(n) for (_, w), c in zip(centred, n, strict=True)])
            covariances = [shrunk_covariance(x, w)] * 2
        else:
            covariances = [shrunk_covariance(z, w) for z, w in centred]
        # a jitter below any real variance lets collinear columns pass
        self._roots = [cholesky(c + 1e-8 * np.eye(len(c)), lower=True) for c in covariances]

    def _z(self, x: FloatArray) -> Float64Array:
        return standardise(x, self._mean, self._sd)

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        z = self._z(x)
        densities = []
        for centre, root in zip(self._centres, self._roots, strict=True):
            u = solve_triangular(root, (z - centre).T, lower=True)
            densities.append(-0.5 * np.square(u).sum(axis=0) - np.log(root.diagonal()).sum())
        return np.asarray(densities[1] - densities[0])
