r"""Calibration of class probabilities on held-out rows, before estimating label distributions.

`bcts` fits a temperature and one bias per class. `matrix_scaling` adds a matrix of class-to-class
effects. `bcts_sums` and `newton` fit `bcts` in a federation: sites compute sums, and the server
takes Newton steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_softmax

from fedshift.core.label import FLOOR, listed, read_probabilities, read_shares
from fedshift.core.samples import Float64Array
from fedshift.errors import InputError

IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Calibration:
    """Bias-corrected temperature scaling: p' ∝ exp(log p / temperature + bias).

    Attributes
    ----------
    temperature : float
        Above one for an over-confident classifier.
    bias : ndarray (k,)
        Sums to zero.
    rounds : int
        Number of gradient evaluations of the fit. In a federation each would cost one round of
        communication.
    """

    temperature: float
    bias: Float64Array
    rounds: int = 0

    def __call__(self, probabilities: npt.ArrayLike) -> Float64Array:
        """Calibrated probabilities, shape (n, k)."""
        logits = np.log(np.maximum(read_probabilities(probabilities), FLOOR))
        return np.asarray(np.exp(log_softmax(logits / self.temperature + self.bias, axis=1)))

    def __repr__(self) -> str:
        return f"Calibration(temperature={self.temperature:.4g}, {len(self.bias)} classes)"


def bcts(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    weight: npt.ArrayLike | None = None,
    spread: float = math.inf,
) -> Calibration:
    """Fit bias-corrected temperature scaling by maximum likelihood.

    At the optimum the mean calibrated probability of each class equals its share among `labels`.
    Maximum-likelihood label shift (`mlls`) is unbiased only if that holds.

    Parameters
    ----------
    probabilities : array (n, k)
        Predictions for held-out rows.
    labels : int array (n,)
        Class numbers 0 to k − 1.
    weight : array (n,), optional
    spread : float
        Standard deviation of a normal prior on the log temperature. Without a prior, the
        maximum-likelihood temperature is zero if all rows are classified correctly, as may happen
        with few rows.

    Examples
    --------
    >>> sure = [[0.99, 0.01]] * 10 + [[0.01, 0.99]] * 10
    >>> right = [0] * 8 + [1] * 2 + [1] * 8 + [0] * 2  # right eight times in ten
    >>> bcts(sure, right)(sure)[0].round(3)
    array([0.8, 0.2])
    """
    logits = np.log(np.maximum(read_probabilities(probabilities), FLOOR))
    n, k = logits.shape
    y = np.asarray(labels, dtype=np.intp)
    if y.shape != (n,) or y.min() < 0 or y.max() >= k:
        raise InputError(
            f"labels must be {n} class numbers from 0 to {k - 1}, one per row of probabilities; "
            f"got {listed(np.unique(y).tolist())}, shape {y.shape}; number them like the columns"
        )
    if not spread > 0:
        raise InputError(f"spread must be a positive number or inf; got {spread}; 0.5 is usual")
    w = np.full(n, 1.0 / n) if weight is None else read_shares(weight, n, "weight")
    hit = np.eye(k)[y]
    prior = float(np.square(w).sum()) / spread**2  # Σ w² is one over the effective sample size

    def loss(theta: Float64Array) -> tuple[float, Float64Array]:
        scale = np.exp(theta[0])
        log_p = log_softmax(scale * logits + theta[1:], axis=1)
        value = -np.dot(w, log_p[np.arange(n), y])
        gap = w[:, None] * (np.exp(log_p) - hit)
        slope = scale * (gap * logits).sum() + prior * theta[0]
        total = float(value) + prior * float(theta[0]) ** 2 / 2
        return total, np.concatenate([[slope], gap.sum(axis=0)])

    fit = minimize(
        loss,
        np.zeros(k + 1),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-5.0, 3.0), *[(-50.0, 50.0)] * k],
        options={"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9},
    )
    bias = fit.x[1:] - fit.x[1:].mean()
    return Calibration(float(np.exp(-fit.x[0])), bias, int(fit.nfev))


@dataclass(frozen=True)
class MatrixCalibration:
    """Matrix scaling of calibrated probabilities: p' ∝ exp(log p + matrix · log p + bias).

    The scores are the entries of log p, one for each of k classes.

    Attributes
    ----------
    first : Calibration
        Temperature and biases, applied first.
    matrix : ndarray (k, k)
        Entry (i, j) is the effect of the score of class j on the score of class i. If all entries
        and biases are 0, the result is that of `first`.
    bias : ndarray (k,)
        Sums to zero.
    spread : float
        Standard deviation of the prior in the fit; 0 if held-out rows did not justify a matrix.
    rounds : int
        Number of gradient evaluations of all fits.
    """

    first: Calibration
    matrix: Float64Array
    bias: Float64Array
    spread: float = 0.0
    rounds: int = 0

    def __call__(self, probabilities: npt.ArrayLike) -> Float64Array:
        """Calibrated probabilities, shape (n, k)."""
        logits = np.log(np.maximum(self.first(probabilities), FLOOR))
        scores = logits + logits @ self.matrix.T + self.bias
        return np.asarray(np.exp(log_softmax(scores, axis=1)))

    def __repr__(self) -> str:
        far = float(np.abs(self.matrix).max())
        return f"MatrixCalibration({len(self.bias)} classes, entries up to {far:.2g}, {self.first})"


#: spreads that `matrix_scaling` chooses from; 0 is no matrix
SPREADS = (0.0, 0.5, 1.0)
#: folds of the cross-validation that chooses
PARTS = 3


def matrix_scaling(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    weight: npt.ArrayLike | None = None,
    spread: float | None = None,
) -> MatrixCalibration:
    r"""Fit matrix scaling (Guo et al. 2017) on top of `bcts`, if cross-validation supports it.

    .. math:: \min_{M, b} -\sum_i w_i \log \operatorname{softmax}(z_i + M z_i + b)_{y_i}
              + \frac{k \sum_i w_i^2}{2 s^2} \sum_{jl} (M_{jl} d_l)^2, \qquad z_i = \log p_i

    A temperature treats all errors alike. But a classifier trained on few rows of one class and
    many of a similar class mistakes the first for the second more often than the reverse. M
    corrects that, and with it the shares that `mlls` estimates. The problem is convex. As in
    `bcts`, the mean probability of each class equals its share among `labels`.

    p_i are the probabilities of row i, k is the number of classes, b are the biases, d_l is the
    standard deviation of score l, and s (`spread`) is the standard deviation of the prior. So s
    limits how far one score moves when all others move by one standard deviation. This meaning of s
    does not depend on the classifier's confidence or on the number of classes. The k² numbers of M
    can over-fit where a temperature is enough, so cross-validation chooses s: the smallest of 0,
    0.5 and 1 (`SPREADS`) whose held-out loss is within one standard error of the lowest.

    Parameters
    ----------
    probabilities, labels, weight
        As in `bcts`.
    spread : float, optional
        s, the standard deviation of the prior; 0 is `bcts`. By default cross-validation chooses it.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 3000)
    >>> guess = np.where((y == 0) & (rng.random(3000) < 0.5), 1, y)  # 1 for half of class 0
    >>> sure = np.full((3000, 3), 0.1)
    >>> sure[np.arange(3000), guess] = 0.8
    >>> matrix_scaling(sure, y)([[0.1, 0.8, 0.1]])[0].round(2)  # truth: 1/3, 2/3, 0
    array([0.34, 0.66, 0.  ])
    """
    if spread is not None and not 0 <= spread < math.inf:
        raise InputError(
            f"spread must be a number ≥ 0, or None to choose it; got {spread}; 1 is usual"
        )
    first = bcts(probabilities, labels, weight=weight)
    p, y = read_probabilities(probabilities), np.asarray(labels, dtype=np.intp)
    w = np.full(len(y), 1.0 / len(y)) if weight is None else read_shares(weight, len(y), "weight")
    rounds = 0
    if spread is None:
        spread, rounds = _worthwhile_spread(p, y, w)
    fit = _with_matrix(first, p, y, w, spread)
    return replace(fit, rounds=fit.rounds + rounds)


def _with_matrix(
    first: Calibration, p: Float64Array, y: IntArray, w: Float64Array, spread: float
) -> MatrixCalibration:
    """Fit the matrix and biases after a temperature, with a prior of a given spread."""
    n, k = p.shape
    if spread == 0:
        return MatrixCalibration(first, np.zeros((k, k)), np.zeros(k), 0.0, first.rounds)
    logits = np.log(np.maximum(first(p), FLOOR))
    hit = np.eye(k)[y]
    prior = k * float(np.square(w).sum()) / spread**2  # Σ w² is one over the effective sample size
    middle = w @ logits  # subtracted, so that matrix and biases do not overlap
    unit = np.sqrt(w @ np.square(logits - middle)) + 1e-6  # a score may be the same everywhere
    away = (logits - middle) / unit

    def loss(theta: Float64Array) -> tuple[float, Float64Array]:
        matrix, bias = theta[: k * k].reshape(k, k), theta[k * k :]
        log_p = log_softmax(logits + away @ matrix.T + bias, axis=1)
        gap = w[:, None] * (np.exp(log_p) - hit)
        value = -float(np.dot(w, log_p[np.arange(n), y])) + prior * float((matrix**2).sum()) / 2
        return value, np.concatenate([(gap.T @ away + prior * matrix).ravel(), gap.sum(axis=0)])

    fit = minimize(
        loss,
        np.zeros(k * k + k),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "maxfun": 2000, "ftol": 0.0, "gtol": 1e-7, "maxcor": 30},
    )
    matrix = np.asarray(fit.x[: k * k].reshape(k, k) / unit)
    bias = fit.x[k * k :] - matrix @ middle
    rounds = first.rounds + int(fit.nfev)
    return MatrixCalibration(first, matrix, bias - bias.mean(), spread, rounds)


def _worthwhile_spread(p: Float64Array, y: IntArray, w: Float64Array) -> tuple[float, int]:
    """The spread that cross-validation chooses, and the number of gradients that took."""
    n = len(y)
    order = np.lexsort((p[np.arange(n), y], y))  # by content, so the order of rows has no effect
    first_of = np.searchsorted(y[order], y[order])
    part = np.empty(n, dtype=np.intp)
    part[order] = (np.arange(n) - first_of) % PARTS
    part[(np.bincount(y, w > 0) < PARTS)[y]] = -1  # classes of few rows are always trained on
    losses, rounds = np.zeros((len(SPREADS), n)), 0
    for j in range(PARTS):
        train, out = part != j, part == j
        if not out.any() or not w[train].sum() > 0:
            continue
        share = w[train] / w[train].sum()
        first = bcts(p[train], y[train], weight=share)
        for i, spread in enumerate(SPREADS):
            fit = _with_matrix(first, p[train], y[train], share, spread)
            hit = fit(p[out])[np.arange(int(out.sum())), y[out]]
            losses[i, out] = -np.log(np.maximum(hit, FLOOR))
            rounds += fit.rounds - first.rounds
        rounds += first.rounds
    mean = losses @ w
    gap = losses - losses[mean.argmin()]
    error = np.sqrt((np.square(w) * np.square(gap - (gap @ w)[:, None])).sum(axis=1))
    return SPREADS[int(np.argmax(gap @ w <= error))], rounds


def bcts_sums(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    weight: npt.ArrayLike,
    theta: npt.ArrayLike,
) -> tuple[float, Float64Array, Float64Array]:
    r"""One site's sums for a federated calibration: loss, slope and curvature at θ = (a, b).

    .. math:: L(a, b) = -\sum_i w_i \log \operatorname{softmax}(a \log p_i + b)_{y_i}

    w_i, p_i and y_i are the weight, the predicted probabilities and the label of row i, and b are
    the biases. L is the loss of `bcts`. It is convex in a = 1 / temperature and b, but not in the
    log temperature. The server adds up the sums of all sites and calls `newton`. That gives the
    calibration of `bcts` in a few rounds.

    Parameters
    ----------
    probabilities : array (n, k)
    labels, weight : arrays (n,)
    theta : array (k + 1,)

    Returns
    -------
    float, ndarray (k + 1,), ndarray (k + 1, k + 1)
    """
    logits = np.log(np.maximum(read_probabilities(probabilities), FLOOR))
    y, w, t = np.asarray(labels, dtype=np.intp), np.asarray(weight, float), np.asarray(theta, float)
    log_p = log_softmax(t[0] * logits + t[1:], axis=1)
    p = np.exp(log_p)
    gap = w[:, None] * (p - np.eye(p.shape[1])[y])
    slope = np.concatenate([[(gap * logits).sum()], gap.sum(axis=0)])
    mean = (p * logits).sum(axis=1)
    cross = (w[:, None] * p * (logits - mean[:, None])).sum(axis=0)
    curve = np.empty((len(t), len(t)))
    curve[0, 0] = w @ ((p * logits**2).sum(axis=1) - mean**2)
    curve[0, 1:] = curve[1:, 0] = cross
    curve[1:, 1:] = np.diag(w @ p) - (p * w[:, None]).T @ p
    return -float(w @ log_p[np.arange(len(y)), y]), slope, curve


def newton(theta: Float64Array, slope: Float64Array, curve: Float64Array) -> Float64Array:
    """Next θ of a federated calibration. Biases sum to zero; 1 / temperature is in [e^−5, e^3].

    `slope` and `curve` are totals of `bcts_sums` over sites. A constant added to all biases changes
    no probability, so `curve` is singular. A rank-one term makes it invertible.
    """
    flat = np.concatenate([[0.0], np.ones(len(theta) - 1)])
    scale = np.trace(curve) / len(theta) + 1e-12
    full = curve + scale * (np.outer(flat, flat) / len(theta) + 1e-9 * np.eye(len(theta)))
    move = np.linalg.solve(full, slope)
    move *= min(1.0, 4.0 / max(np.abs(move).max(), 1e-300))  # far from the optimum, go carefully
    out = theta - move
    out[0] = np.clip(out[0], max(theta[0] / 4, math.exp(-5.0)), min(theta[0] * 4, math.exp(3.0)))
    out[1:] -= out[1:].mean()
    return np.asarray(out)


#: ways to calibrate a classifier, by name
CALIBRATIONS: dict[str, Callable[..., Calibration | MatrixCalibration]] = {
    "bcts": bcts,
    "matrix": matrix_scaling,
}
