"""Ratio of two Gaussian densities with shrunk covariances."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from fedshift.core.features import pooled_moments, standardise
from fedshift.core.samples import Float64Array, FloatArray, Sample, blocks
from fedshift.errors import InputError
from fedshift.ratio.base import RatioEstimator


def shrunk_covariance(x: Float64Array, weight: Float64Array) -> Float64Array:
    """Return the Ledoit-Wolf covariance (d, d) of centred rows (n, d) with weights (n,).

    It is (1 − a) S + a m I, with S the sample covariance, m its mean eigenvalue, I the identity.
    The share a = min(1, Σ_i w_i² ‖x_i x_iᵀ − S‖² / ‖S − m I‖²) minimises the expected squared
    error.
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
    r"""Ratio of two Gaussian densities, in closed form.

    Both distributions are modelled as Gaussian,

    .. math:: \log r(x) = \log N(x; \mu_t, \Sigma_t) - \log N(x; \mu_s, \Sigma_s),

    with N(x; μ, Σ) the Gaussian density with mean μ and covariance Σ, t the target and s the
    source. The covariances are Ledoit-Wolf estimates. The fit is fast, and few estimators are more
    accurate if both distributions are close to Gaussian.

    When it fails: with heavy tails or clusters the error has no bound. Use `Auto` if unsure.

    Parameters
    ----------
    shared : bool
        Whether both distributions share one covariance. The log ratio is then linear in x, as in
        linear discriminant analysis.

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
        for name, distribution in (("source", source), ("target", target)):
            if not np.ptp(distribution.flat, axis=0).any():
                raise InputError(
                    f"Gaussian needs rows that differ; got {name} rows that are all equal; use "
                    "Auto, or check the file"
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
        # a constant below any real variance makes collinear columns acceptable
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
