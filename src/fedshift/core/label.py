r"""Label shift as plain functions: target label laws from a classifier's predictions.

`bbse` and `rlls` solve confusion · w = predicted target shares for the class ratios w(y) =
p_target(y) / p_source(y); `mlls` maximises the likelihood of the target label law by EM, on
probabilities that `bcts` or `matrix_scaling` calibrates. The estimators of `fedshift.ratio.label`
do their work with these. Below them: how laws and labels are read, and how a ratio is looked up by
label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import lsq_linear, minimize, minimize_scalar
from scipy.special import log_softmax

from fedshift.core.samples import Float64Array
from fedshift.errors import InputError

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.intp]

#: Smallest ratio: keeps logarithms finite where a class is estimated absent from the target.
FLOOR = 1e-12


def bbse(confusion: npt.ArrayLike, mean_prediction: npt.ArrayLike) -> Float64Array:
    r"""Class ratios w that solve C w = μ (black-box shift estimation), negatives cut to 0.

    Parameters
    ----------
    confusion : array (k, k)
        C[i, j] = P_source(predicted i, label j): joint, so it sums to one. Soft predictions
        (mean probabilities instead of counts) serve as well.
    mean_prediction : array (k,)
        μ[i] = P_target(predicted i).

    Returns
    -------
    ndarray (k,)
        w[j] = p_target(j) / p_source(j), scaled so that Σ_j p_source(j) w(j) = 1.

    Raises
    ------
    InputError
        If C is singular: the classifier cannot tell some classes apart; take `rlls` instead.

    Examples
    --------
    >>> bbse([[0.4, 0.1], [0.1, 0.4]], [0.74, 0.26])
    array([1.8, 0.2])
    """
    c, mu = _confusion(confusion, mean_prediction)
    if np.linalg.cond(c) > 1e12:
        raise InputError(
            "confusion must be invertible; got a matrix of condition number above 1e12: the "
            "classifier never tells some classes apart; use rlls, mlls or a better classifier"
        )
    return _unit(np.asarray(np.linalg.solve(c, mu), dtype=np.float64), c)


def rlls(
    confusion: npt.ArrayLike,
    mean_prediction: npt.ArrayLike,
    *,
    penalty: float = 0.01,
    trust: float = 1.0,
) -> Float64Array:
    r"""Class ratios w = 1 + γ θ with a regularised θ (regularised learning under label shift).

    .. math:: \theta = \arg\min_{\theta \ge -1} \lVert C\theta - (\mu - C 1)\rVert_2
                       + \Delta \lVert\theta\rVert_2

    Parameters
    ----------
    confusion, mean_prediction
        As in `bbse`.
    penalty : float
        Δ ≥ 0; at 0 this is least-squares BBSE. In theory of the size of the errors in C, about
        n^(-1/2).
    trust : float
        γ in [0, 1]: 0 answers w = 1.

    Examples
    --------
    >>> rlls([[0.4, 0.1], [0.1, 0.4]], [0.74, 0.26], penalty=0.0).round(6)
    array([1.8, 0.2])
    """
    c, mu = _confusion(confusion, mean_prediction)
    if not penalty >= 0:
        raise InputError(f"penalty must be at least 0; got {penalty}; 0 is BBSE")
    if not 0 <= trust <= 1:
        raise InputError(f"trust must lie in [0, 1]; got {trust}; 1 trusts the estimate fully")
    b = mu - c.sum(axis=1)
    k = len(c)

    def ridge(strength: float) -> Float64Array:
        design = np.concatenate([c, np.sqrt(strength) * np.eye(k)])
        found = lsq_linear(design, np.concatenate([b, np.zeros(k)]), (-1.0, np.inf), tol=1e-14)
        return np.asarray(found.x, dtype=np.float64)

    def objective(theta: Float64Array) -> float:
        return float(np.linalg.norm(c @ theta - b) + penalty * np.linalg.norm(theta))

    # the minimiser lies on the ridge path, at strength Δ |Cθ − b| / |θ|: a search in one number
    tried = [ridge(0.0), np.zeros(k)]
    if penalty > 0:
        grid = np.linspace(-30.0, 5.0, 36)
        near = grid[int(np.argmin([objective(ridge(float(np.exp(g)))) for g in grid]))]
        found = minimize_scalar(
            lambda g: objective(ridge(float(np.exp(g)))),
            bounds=(near - 1.0, near + 1.0),
            method="bounded",
        )
        tried.append(ridge(float(np.exp(found.x))))
    theta = min(tried, key=objective)
    return _unit(1.0 + trust * theta, c)


@dataclass(frozen=True)
class MLLSFit:
    """Result of `mlls`.

    Attributes
    ----------
    prior : ndarray (k,)
        Target label law.
    log_likelihood : ndarray (iterations,)
        Mean log likelihood before each step, never falling.
    converged : bool
    """

    prior: Float64Array
    log_likelihood: Float64Array
    converged: bool

    def __repr__(self) -> str:
        how = "converged" if self.converged else "stopped"
        shares = ", ".join(f"{p:.3g}" for p in self.prior[:8]) + ", ..." * (len(self.prior) > 8)
        return f"MLLSFit({how} after {len(self.log_likelihood)} steps, prior [{shares}])"


def mlls(
    probabilities: npt.ArrayLike,
    source_prior: npt.ArrayLike,
    *,
    weight: npt.ArrayLike | None = None,
    start: npt.ArrayLike | None = None,
    max_iter: int = 10_000,
    tol: float = 1e-10,
) -> MLLSFit:
    r"""Target prior of highest likelihood, by EM (Saerens, Latinne, Decaestecker).

    .. math:: \max_q \sum_i \log \sum_y \frac{q_y}{\pi_y}\, p_{source}(y \mid x_i)

    The problem is concave; EM raises the likelihood at every step. It trusts the probabilities:
    over-confident ones bias q, so calibrate first (`bcts`).

    Parameters
    ----------
    probabilities : array (m, k)
        p_source(y | x) at target rows.
    source_prior : array (k,)
        π, the source label law, all positive.
    weight : array (m,), optional
        Probability of each row.
    start : array (k,), optional
        Where EM starts, as the law estimated from an earlier batch; by default the source law. A
        little of the source law is mixed in, as a share of 0 would stay 0 for ever.
    max_iter, tol
        Stop when no share moves by more than `tol`.

    Examples
    --------
    >>> posterior = [[0.9, 0.1]] * 82 + [[0.1, 0.9]] * 18  # half and half in the source
    >>> mlls(posterior, [0.5, 0.5]).prior.round(6)
    array([0.9, 0.1])
    """
    p = _probabilities(probabilities)
    prior = read_law(source_prior, p.shape[1], "source_prior")
    if not (prior > 0).all():
        raise InputError(
            f"source_prior must be positive; got 0 for class number {int(np.argmin(prior))}; "
            "drop classes that the source does not have"
        )
    w = np.full(len(p), 1.0 / len(p)) if weight is None else read_law(weight, len(p), "weight")
    lift = p / prior
    q = prior.copy()
    if start is not None:
        q = 0.999 * read_law(start, len(prior), "start") + 0.001 * prior
    trace: list[float] = []
    for _ in range(max_iter):
        mixture = lift @ q
        trace.append(float(np.dot(w, np.log(np.maximum(mixture, 1e-300)))))
        new = q * (lift.T @ (w / np.maximum(mixture, 1e-300)))
        new /= new.sum()
        moved = float(np.abs(new - q).max())
        q = new
        if moved <= tol:
            return MLLSFit(q, np.array(trace), True)
    return MLLSFit(q, np.array(trace), False)


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
        Gradients its fit took: what calibrating in a federation costs.
    """

    temperature: float
    bias: Float64Array
    rounds: int = 0

    def __call__(self, probabilities: npt.ArrayLike) -> Float64Array:
        """Calibrated probabilities, shape (n, k)."""
        logits = np.log(np.maximum(_probabilities(probabilities), FLOOR))
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

    At the optimum the mean calibrated probability of each class equals its share among `labels`:
    what MLLS needs to be unbiased.

    Parameters
    ----------
    probabilities : array (n, k)
        Predictions for rows that the classifier did not see.
    labels : int array (n,)
        Class numbers 0 to k − 1.
    weight : array (n,), optional
    spread : float
        Standard deviation of a normal belief about the log temperature. A few rows that happen to
        be all right would make the likeliest temperature zero.

    Examples
    --------
    >>> sure = [[0.99, 0.01]] * 10 + [[0.01, 0.99]] * 10
    >>> right = [0] * 8 + [1] * 2 + [1] * 8 + [0] * 2  # right eight times in ten
    >>> bcts(sure, right)(sure)[0].round(3)
    array([0.8, 0.2])
    """
    logits = np.log(np.maximum(_probabilities(probabilities), FLOOR))
    n, k = logits.shape
    y = np.asarray(labels, dtype=np.intp)
    if y.shape != (n,) or y.min() < 0 or y.max() >= k:
        raise InputError(
            f"labels must be {n} class numbers from 0 to {k - 1}, one a row of probabilities; got "
            f"shape {y.shape}; encode the classes in the order of the columns"
        )
    if not spread > 0:
        raise InputError(f"spread must be a positive number or inf; got {spread}; 0.5 is usual")
    w = np.full(n, 1.0 / n) if weight is None else read_law(weight, n, "weight")
    hit = np.zeros_like(logits)
    hit[np.arange(n), y] = 1.0
    belief = float(np.square(w).sum()) / spread**2  # one over the effective number of rows

    def loss(theta: Float64Array) -> tuple[float, Float64Array]:
        scale = np.exp(theta[0])
        log_p = log_softmax(scale * logits + theta[1:], axis=1)
        value = -np.dot(w, log_p[np.arange(n), y])
        gap = w[:, None] * (np.exp(log_p) - hit)
        slope = scale * (gap * logits).sum() + belief * theta[0]
        total = float(value) + belief * float(theta[0]) ** 2 / 2
        return total, np.concatenate([[slope], gap.sum(axis=0)])

    found = minimize(
        loss,
        np.zeros(k + 1),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-5.0, 3.0), *[(-50.0, 50.0)] * k],
        options={"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9},
    )
    bias = found.x[1:] - found.x[1:].mean()
    return Calibration(float(np.exp(-found.x[0])), bias, int(found.nfev))


@dataclass(frozen=True)
class MatrixCalibration:
    """Matrix scaling of calibrated probabilities: p' ∝ exp(log p + matrix · log p + bias).

    Attributes
    ----------
    first : Calibration
        What comes before: temperature and biases.
    matrix : ndarray (k, k)
        How much a class's score moves with every other's; 0 leaves `first` as it is.
    bias : ndarray (k,)
        Sums to zero.
    rounds : int
        Gradients both fits took.
    """

    first: Calibration
    matrix: Float64Array
    bias: Float64Array
    rounds: int = 0

    def __call__(self, probabilities: npt.ArrayLike) -> Float64Array:
        """Calibrated probabilities, shape (n, k)."""
        logits = np.log(np.maximum(self.first(probabilities), FLOOR))
        scores = logits + logits @ self.matrix.T + self.bias
        return np.asarray(np.exp(log_softmax(scores, axis=1)))

    def __repr__(self) -> str:
        far = float(np.abs(self.matrix).max())
        return f"MatrixCalibration({len(self.bias)} classes, entries up to {far:.2g}, {self.first})"


def matrix_scaling(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    weight: npt.ArrayLike | None = None,
    spread: float = 0.5,
) -> MatrixCalibration:
    r"""Fit matrix scaling (Guo et al. 2017) on top of `bcts`, with a belief that little is needed.

    .. math:: \min_{M, b} -\sum_i w_i \log \operatorname{softmax}(z_i + M z_i + b)_{y_i}
              + \frac{\sum_i w_i^2}{2 s^2} \lVert M \rVert^2, \qquad z_i = \log p_i

    A temperature treats all mistakes alike. A classifier that saw few rows of one class and many of
    another that looks like it gives the first away to the second more often than the other way
    round; M mends that, and with it the shares that `mlls` finds. Convex. As in `bcts`, the mean
    probability of each class equals its share among `labels`.

    Weak where held-out rows of a class are few: k² numbers are learned. `spread` holds them.

    Parameters
    ----------
    probabilities, labels, weight
        As in `bcts`.
    spread : float
        s, standard deviation of a normal belief about the entries of M.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 3000)
    >>> taken = np.where((y == 0) & (rng.random(3000) < 0.5), 1, y)  # half of class 0 for class 1
    >>> sure = np.full((3000, 3), 0.1)
    >>> sure[np.arange(3000), taken] = 0.8
    >>> matrix_scaling(sure, y)([[0.1, 0.8, 0.1]])[0].round(2)  # truth: 1/3, 2/3, 0
    array([0.34, 0.66, 0.  ])
    """
    if not 0 < spread < math.inf:
        raise InputError(f"spread must be a positive number; got {spread}; 0.5 is usual")
    first = bcts(probabilities, labels, weight=weight)
    logits = np.log(np.maximum(first(probabilities), FLOOR))
    n, k = logits.shape
    y = np.asarray(labels, dtype=np.intp)
    w = np.full(n, 1.0 / n) if weight is None else read_law(weight, n, "weight")
    hit = np.zeros_like(logits)
    hit[np.arange(n), y] = 1.0
    belief = float(np.square(w).sum()) / spread**2  # one over the effective number of rows
    middle = w @ logits  # taken off, so that matrix and biases do not pull at the same thing
    away = logits - middle

    def loss(theta: Float64Array) -> tuple[float, Float64Array]:
        matrix, bias = theta[: k * k].reshape(k, k), theta[k * k :]
        log_p = log_softmax(logits + away @ matrix.T + bias, axis=1)
        gap = w[:, None] * (np.exp(log_p) - hit)
        value = -float(np.dot(w, log_p[np.arange(n), y])) + belief * float((matrix**2).sum()) / 2
        return value, np.concatenate([(gap.T @ away + belief * matrix).ravel(), gap.sum(axis=0)])

    found = minimize(
        loss,
        np.zeros(k * k + k),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "maxfun": 2000, "ftol": 0.0, "gtol": 1e-7, "maxcor": 30},
    )
    matrix = np.asarray(found.x[: k * k].reshape(k, k))
    bias = found.x[k * k :] - matrix @ middle
    return MatrixCalibration(first, matrix, bias - bias.mean(), first.rounds + int(found.nfev))


def bcts_sums(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    weight: npt.ArrayLike,
    theta: npt.ArrayLike,
) -> tuple[float, Float64Array, Float64Array]:
    r"""What one site adds to a calibration by all: loss, slope and curvature at θ = (a, b).

    .. math:: L(a, b) = -\sum_i w_i \log \operatorname{softmax}(a \log p_i + b)_{y_i}

    L is convex in a = 1 / temperature and b. It is the loss of `bcts`, whose log temperature is
    not; sums over sites and `newton` lead to the same calibration in a few rounds.

    Parameters
    ----------
    probabilities : array (n, k)
    labels, weight : arrays (n,)
    theta : array (k + 1,)

    Returns
    -------
    float, ndarray (k + 1,), ndarray (k + 1, k + 1)
    """
    logits = np.log(np.maximum(_probabilities(probabilities), FLOOR))
    y, w, t = np.asarray(labels, dtype=np.intp), np.asarray(weight, float), np.asarray(theta, float)
    log_p = log_softmax(t[0] * logits + t[1:], axis=1)
    p = np.exp(log_p)
    hit = np.zeros_like(p)
    hit[np.arange(len(y)), y] = 1.0
    gap = w[:, None] * (p - hit)
    slope = np.concatenate([[(gap * logits).sum()], gap.sum(axis=0)])
    mean = (p * logits).sum(axis=1)
    cross = (w[:, None] * p * (logits - mean[:, None])).sum(axis=0)
    curve = np.empty((len(t), len(t)))
    curve[0, 0] = w @ ((p * logits**2).sum(axis=1) - mean**2)
    curve[0, 1:] = curve[1:, 0] = cross
    curve[1:, 1:] = np.diag(w @ p) - (p * w[:, None]).T @ p
    return -float(w @ log_p[np.arange(len(y)), y]), slope, curve


def newton(theta: Float64Array, slope: Float64Array, curve: Float64Array) -> Float64Array:
    """The next θ of a calibration by all; biases sum to zero, 1 / temperature stays in e^[−5, 3].

    Adding a constant to all biases changes nothing, so the curvature has a direction without
    any; a rank-one term fills it.
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


# --------------------------------------------------------------------------- helpers


def _confusion(
    confusion: npt.ArrayLike, mean_prediction: npt.ArrayLike
) -> tuple[Float64Array, Float64Array]:
    c = np.asarray(confusion, dtype=np.float64)
    mu = np.asarray(mean_prediction, dtype=np.float64)
    if c.ndim != 2 or c.shape[0] != c.shape[1] or mu.shape != c.shape[:1]:
        raise InputError(
            f"confusion must be (k, k) and mean_prediction (k,); got {c.shape} and {mu.shape}"
        )
    if not (np.isfinite(c).all() and np.isfinite(mu).all() and (c >= 0).all() and c.sum() > 0):
        raise InputError(
            "confusion and mean_prediction must be finite and confusion non-negative with a "
            "positive sum; check the predictions for NaN"
        )
    return c / c.sum(), mu


def _unit(w: Float64Array, c: Float64Array) -> Float64Array:
    """Non-negative ratios with mean one under the source label law, the column sums of C."""
    w = np.maximum(w, 0.0)
    mean = float(c.sum(axis=0) @ w)
    return w / mean if mean > 0 else np.ones_like(w)


def _probabilities(p: npt.ArrayLike) -> Float64Array:
    a = np.asarray(p, dtype=np.float64)
    if a.ndim != 2 or a.shape[0] < 1 or a.shape[1] < 2:
        raise InputError(f"probabilities must be (n, k) with k ≥ 2; got shape {a.shape}")
    if not np.isfinite(a).all() or (a < 0).any() or not np.allclose(a.sum(axis=1), 1.0, atol=1e-4):
        raise InputError(
            "probabilities must be finite, non-negative and sum to one in each row; "
            "pass the output of predict_proba, not scores"
        )
    return a


def normalised(p: Float64Array) -> Float64Array:
    """Return `p` divided by its sum."""
    return np.asarray(p / p.sum(), dtype=np.float64)


def read_law(values: npt.ArrayLike, n: int, name: str) -> Float64Array:
    """Counts or probabilities of `n` things as a law; `name` is for the error."""
    p = np.asarray(values, dtype=np.float64)
    if p.shape != (n,) or not np.isfinite(p).all() or (p < 0).any() or not p.sum() > 0:
        raise InputError(
            f"{name} must be {n} finite non-negative numbers with a positive sum; got shape "
            f"{p.shape}; pass counts or probabilities"
        )
    return normalised(p)


def read_labels(y: npt.ArrayLike, name: str) -> Array:
    """Labels as a checked 1-d array, text as text; `name` is for the error."""
    a = np.asarray(y)
    if a.ndim != 1 or len(a) == 0:
        raise InputError(f"{name} must be a non-empty 1-d array of labels; got shape {a.shape}")
    if a.dtype.kind == "f" and not np.isfinite(a).all():
        raise InputError(f"{name} must hold no missing label; got NaN; drop unlabelled rows")
    if a.dtype == object:
        a = np.array([str(v) for v in a]) if all(isinstance(v, str) for v in a) else a
    return a


def log_class_ratio(target: Float64Array, source: Float64Array, n_laws: int) -> Float64Array:
    """Log of the class ratios summed over `n_laws` laws of mean `target`."""
    return np.asarray(np.log(np.maximum(target / source, FLOOR)) + np.log(n_laws))


def look_up(classes: Array, values: Float64Array, y: npt.ArrayLike) -> Float64Array:
    """`values` of the classes that `y` names, shape (n,); `classes` is sorted."""
    labels = read_labels(y, "y")
    if (labels.dtype.kind in "US") != (classes.dtype.kind in "US"):
        raise InputError(
            f"y must hold labels of the same kind as the source's, {classes.dtype}; got "
            f"{labels.dtype}; convert them"
        )
    at = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    unknown = classes[at] != labels
    if np.any(unknown):
        names = listed(np.unique(labels[unknown]).tolist())
        raise InputError(
            f"y must hold classes of the source; got {names}; "
            "the source has no row of them, so no ratio exists; drop these rows"
        )
    return np.asarray(values[at], dtype=np.float64)


def sort_key(value: Hashable) -> tuple[str, Any]:
    """Sort numbers by value and before text."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, str)
    return ("", value) if number else (type(value).__name__, value)


def listed(classes: Sequence[Any], most: int = 8) -> str:
    """Classes for a message, at most `most` of them."""
    return ", ".join(repr(c) for c in classes[:most]) + (", ..." if len(classes) > most else "")


__all__ = [
    "Calibration",
    "MLLSFit",
    "MatrixCalibration",
    "bbse",
    "bcts",
    "matrix_scaling",
    "mlls",
    "rlls",
]
