r"""Label shift as plain functions: target label distributions from a classifier's predictions.

`bbse` and `rlls` estimate the class ratios w(y) = p_target(y) / p_source(y): they solve
confusion · w = predicted target shares. `mlls` maximises the likelihood of the target label
distribution by expectation maximisation (EM), on probabilities that `fedshift.core.scaling`
calibrates. The estimators of
`fedshift.ratio.label` use these functions. The rest of the module checks distributions and labels,
and looks up ratios by label.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import lsq_linear, minimize_scalar

from fedshift.core.samples import Float64Array, as_numbers
from fedshift.errors import InputError

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.intp]

#: Smallest ratio: keeps logarithms finite where a class is estimated absent from the target.
FLOOR = 1e-12


def bbse(confusion: npt.ArrayLike, mean_prediction: npt.ArrayLike) -> Float64Array:
    r"""Class ratios w that solve C w = μ (black-box shift estimation, BBSE).

    Parameters
    ----------
    confusion : array (k, k)
        C[i, j] = P_source(predicted i, label j): the joint distribution, which sums to one. Soft
        predictions (mean probabilities instead of counts) also work.
    mean_prediction : array (k,)
        μ[i] = P_target(predicted i).

    Returns
    -------
    ndarray (k,)
        w[j] = p_target(j) / p_source(j), scaled so that Σ_j p_source(j) w(j) = 1. Negative ratios
        are set to 0 first.

    Raises
    ------
    InputError
        If C is singular, because the classifier cannot separate some classes. Use `rlls` instead.

    Examples
    --------
    >>> bbse([[0.4, 0.1], [0.1, 0.4]], [0.74, 0.26])
    array([1.8, 0.2])
    """
    c, mu = _confusion(confusion, mean_prediction)
    if np.linalg.cond(c) > 1e12:
        raise InputError(
            "confusion must be invertible; got a condition number above 1e12: the classifier "
            "cannot separate some classes; use rlls, mlls or a better classifier"
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
        C and μ, as in `bbse`.
    penalty : float
        Δ ≥ 0; 0 is least-squares BBSE. Theory suggests a penalty as large as the errors in C, which
        is about n^(-1/2) for n rows.
    trust : float
        γ in [0, 1]; 0 returns w = 1.

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
        fit = lsq_linear(design, np.concatenate([b, np.zeros(k)]), (-1.0, np.inf), tol=1e-14)
        return np.asarray(fit.x, dtype=np.float64)

    def objective(theta: Float64Array) -> float:
        return float(np.linalg.norm(c @ theta - b) + penalty * np.linalg.norm(theta))

    # the minimiser lies on the ridge path, at strength Δ |Cθ − b| / |θ|: a search in one number
    candidates = [ridge(0.0), np.zeros(k)]
    if penalty > 0:
        grid = np.linspace(-30.0, 5.0, 36)
        near = grid[int(np.argmin([objective(ridge(float(np.exp(g)))) for g in grid]))]
        fit = minimize_scalar(
            lambda g: objective(ridge(float(np.exp(g)))),
            bounds=(near - 1.0, near + 1.0),
            method="bounded",
        )
        candidates.append(ridge(float(np.exp(fit.x))))
    theta = min(candidates, key=objective)
    return _unit(1.0 + trust * theta, c)


@dataclass(frozen=True)
class MLLSFit:
    """Result of `mlls`.

    Attributes
    ----------
    prior : ndarray (k,)
        Target label distribution.
    log_likelihood : ndarray (iterations,)
        Mean log likelihood before each step; it never decreases.
    converged : bool
        Whether the steps became smaller than the tolerance.
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
    r"""Maximum-likelihood target label distribution (Saerens, Latinne, Decaestecker).

    .. math:: \max_q \sum_i \log \sum_y \frac{q_y}{\pi_y}\, p_{source}(y \mid x_i)

    q is the target and π the source label distribution. The problem is concave, and expectation
    maximisation (EM) raises the likelihood at every step. Over-confident probabilities bias q, so
    calibrate them first (`fedshift.core.scaling`).

    Parameters
    ----------
    probabilities : array (m, k)
        p_source(y | x) at target rows.
    source_prior : array (k,)
        π, the source label distribution, all positive.
    weight : array (m,), optional
        Probability of each row.
    start : array (k,), optional
        Start of EM, for example an estimate from an earlier batch; by default π. It is mixed with
        0.1 % of π, because EM cannot change a share that starts at 0.
    max_iter, tol
        EM stops after `max_iter` steps, or once no share changes by more than `tol`.

    Examples
    --------
    >>> posterior = [[0.9, 0.1]] * 82 + [[0.1, 0.9]] * 18  # half and half in the source
    >>> mlls(posterior, [0.5, 0.5]).prior.round(6)
    array([0.9, 0.1])
    """
    p = read_probabilities(probabilities)
    prior = read_shares(source_prior, p.shape[1], "source_prior")
    if not (prior > 0).all():
        raise InputError(
            f"source_prior must be positive; got 0 for class number {int(np.argmin(prior))}; "
            "drop classes without source rows"
        )
    w = np.full(len(p), 1 / len(p)) if weight is None else read_shares(weight, len(p), "weight")
    lift = p / prior
    q = prior.copy()
    if start is not None:
        q = 0.999 * read_shares(start, len(prior), "start") + 0.001 * prior
    trace: list[float] = []
    for _ in range(max_iter):
        mixture = lift @ q
        trace.append(float(np.dot(w, np.log(np.maximum(mixture, 1e-300)))))
        new = q * (lift.T @ (w / np.maximum(mixture, 1e-300)))
        new /= new.sum()
        step = float(np.abs(new - q).max())
        q = new
        if step <= tol:
            return MLLSFit(q, np.array(trace), True)
    return MLLSFit(q, np.array(trace), False)


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
            "confusion and mean_prediction must be finite, and confusion non-negative with a "
            "positive sum; check the predictions for NaN"
        )
    return c / c.sum(), mu


def _unit(w: Float64Array, c: Float64Array) -> Float64Array:
    """Non-negative ratios with mean one under the source shares, which are C's column sums."""
    w = np.maximum(w, 0.0)
    mean = float(c.sum(axis=0) @ w)
    return w / mean if mean > 0 else np.ones_like(w)


def read_probabilities(p: npt.ArrayLike) -> Float64Array:
    """Return probabilities (n, k) as a checked array."""
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
    """`p` divided by its sum."""
    return np.asarray(p / p.sum(), dtype=np.float64)


def read_shares(values: npt.ArrayLike, n: int, name: str) -> Float64Array:
    """Return `n` counts or probabilities as shares that sum to one; errors use `name`."""
    p = as_numbers(values, name)
    if p.shape != (n,) or not np.isfinite(p).all() or (p < 0).any() or not p.sum() > 0:
        raise InputError(
            f"{name} must be {n} finite numbers ≥ 0 with a positive sum; got shape {p.shape}, "
            f"smallest {p.min(initial=np.inf):.4g}, sum {p.sum():.4g}; pass counts or probabilities"
        )
    return normalised(p)


def read_labels(y: npt.ArrayLike, name: str) -> Array:
    """Return labels as a checked 1-d array; errors use `name`."""
    a = np.asarray(y)
    if a.ndim != 1 or len(a) == 0:
        raise InputError(f"{name} must be a non-empty 1-d array of labels; got shape {a.shape}")
    if a.dtype.kind == "f" and not np.isfinite(a).all():
        raise InputError(f"{name} must have no missing labels; got NaN; drop unlabelled rows")
    if a.dtype == object:
        text = {isinstance(v, str) for v in a}
        if len(text) > 1 or None in a:
            raise InputError(f"{name} must be all text or all numbers, with no gap; got {y!r}")
        a = np.array([str(v) for v in a]) if text == {True} else a
    return a


def log_class_ratio(target: Float64Array, source: Float64Array, n_targets: int) -> Float64Array:
    """Log of the class ratios after these are summed over `n_targets` targets.

    `target` is the mean label distribution of the targets, `source` that of the source.
    """
    return np.asarray(np.log(np.maximum(target / source, FLOOR)) + np.log(n_targets))


def look_up(classes: Array, values: Float64Array, y: npt.ArrayLike) -> Float64Array:
    """Return the value of the class of each label in `y`, shape (n,). `classes` must be sorted."""
    labels = read_labels(y, "y")
    if (labels.dtype.kind in "US") != (classes.dtype.kind in "US"):
        raise InputError(
            f"y must hold labels of the same kind as the source's, {classes.dtype}; got "
            f"{labels.dtype}; convert the labels in y"
        )
    at = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    unknown = classes[at] != labels
    if np.any(unknown):
        names = listed(np.unique(labels[unknown]).tolist())
        raise InputError(
            f"y must only have classes of the source; got {names}; no ratio exists without "
            "source rows; drop these rows"
        )
    return np.asarray(values[at], dtype=np.float64)


def sort_key(value: Hashable) -> tuple[str, Any]:
    """Sort key: numbers by value, before text."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, str)
    return ("", value) if number else (type(value).__name__, value)


def listed(classes: Sequence[Any], most: int = 8) -> str:
    """List classes for a message, at most `most` of them."""
    return ", ".join(repr(c) for c in classes[:most]) + (", ..." if len(classes) > most else "")
