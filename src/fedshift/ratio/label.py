r"""Label shift: ratios when only the label law moved.

If p(x | y) is the same in source and target, then p_target(x, y) / p_source(x, y) depends on the
label alone,

.. math:: w(y) = \frac{p_{target}(y)}{p_{source}(y)}, \qquad
          \frac{p_{target}(x)}{p_{source}(x)} = \sum_y w(y)\,p_{source}(y \mid x).

Training weights need w(y), because source rows have labels (`label_log_ratio`); comparing with
estimators that know no labels needs the second form (`log_ratio`). With known label counts w is
exact (`ExactLabels`). Without target labels it comes from a classifier's predictions:

=======  =====================================================  ==================================
class    solves                                                 take it
=======  =====================================================  ==================================
`MLLS`   the likelihood of the target prior, by EM, on          first: hard to beat
         calibrated probabilities
`BBSE`   confusion matrix · w = predicted target shares         if probabilities cannot be trusted
`RLLS`   the same, with w drawn towards one                     if target rows are few
=======  =====================================================  ==================================

All fail when p(x | y) moved too (new kinds of cats, not more cats): their weights are then
plausible and wrong. Compare `score` with an estimator that makes no such assumption.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
from scipy.optimize import lsq_linear, minimize, minimize_scalar
from scipy.special import log_softmax, logsumexp
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from fedshift.core.bregman import Divergence, bregman_risk
from fedshift.core.samples import (
    Float64Array,
    FloatArray,
    Laws,
    Rows,
    Sample,
    as_rows,
    fold_of,
    read_pair,
)
from fedshift.errors import InputError, LowCoverage, NotConverged
from fedshift.ratio.base import RatioEstimator

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.intp]
Shares = Mapping[Any, float] | npt.ArrayLike

#: Smallest ratio: keeps logarithms finite where a class is estimated absent from the target.
FLOOR = 1e-12


# --------------------------------------------------------------------------- functions


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
    max_iter, tol
        Stop when no share moves by more than `tol`.

    Examples
    --------
    >>> posterior = [[0.9, 0.1]] * 82 + [[0.1, 0.9]] * 18  # half and half in the source
    >>> mlls(posterior, [0.5, 0.5]).prior.round(6)
    array([0.9, 0.1])
    """
    p = _probabilities(probabilities)
    prior = _law(source_prior, p.shape[1], "source_prior")
    if not (prior > 0).all():
        raise InputError(
            f"source_prior must be positive; got 0 for class number {int(np.argmin(prior))}; "
            "drop classes that the source does not have"
        )
    w = np.full(len(p), 1.0 / len(p)) if weight is None else _law(weight, len(p), "weight")
    lift = p / prior
    q = prior.copy()
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
    """

    temperature: float
    bias: Float64Array

    def __call__(self, probabilities: npt.ArrayLike) -> Float64Array:
        """Calibrated probabilities, shape (n, k)."""
        logits = np.log(np.maximum(_probabilities(probabilities), FLOOR))
        return np.asarray(np.exp(log_softmax(logits / self.temperature + self.bias, axis=1)))

    def __repr__(self) -> str:
        return f"Calibration(temperature={self.temperature:.4g}, {len(self.bias)} classes)"


def bcts(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, weight: npt.ArrayLike | None = None
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
    w = np.full(n, 1.0 / n) if weight is None else _law(weight, n, "weight")
    hit = np.zeros_like(logits)
    hit[np.arange(n), y] = 1.0

    def loss(theta: Float64Array) -> tuple[float, Float64Array]:
        scale = np.exp(theta[0])
        log_p = log_softmax(scale * logits + theta[1:], axis=1)
        value = -np.dot(w, log_p[np.arange(n), y])
        gap = w[:, None] * (np.exp(log_p) - hit)
        return float(value), np.concatenate([[scale * (gap * logits).sum()], gap.sum(axis=0)])

    found = minimize(
        loss,
        np.zeros(k + 1),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-5.0, 3.0), *[(-50.0, 50.0)] * k],
        options={"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9},
    )
    bias = found.x[1:] - found.x[1:].mean()
    return Calibration(float(np.exp(-found.x[0])), bias)


# --------------------------------------------------------------------------- known counts


class ExactLabels(BaseEstimator):
    r"""Ratios looked up by label, from known label laws: w(y) = Σ_l p_l(y) / p_source(y).

    It answers for labels, not for rows: ``log_ratio(y)``. When it fails: where p(x | y) differs
    between source and target, no table of labels can repair it.

    Attributes
    ----------
    classes_ : ndarray (k,)
        Classes of the source.
    source_prior_, target_prior_ : ndarray (k,)
        Label laws, `target_prior_` the mean over target laws. Target mass of classes that the
        source does not have is missing from it.
    class_log_ratio_ : ndarray (k,)
        log w(y) of the sum over laws.

    Examples
    --------
    >>> exact = ExactLabels().fit(source={"cat": 50, "dog": 50}, target={"cat": 90, "dog": 10})
    >>> exact.ratio(["dog", "cat"])
    array([0.2, 1.8])
    """

    def fit(self, *, source: Shares, target: Shares | Mapping[Any, Shares]) -> Self:
        """Read label laws.

        Parameters
        ----------
        source : mapping of class to count or probability, or array (k,)
            An array stands for classes 0 to k − 1.
        target : the same, or a mapping of name to such a law
            Several laws give the sum of their ratios, each counting once.
        """
        s = _shares(source, "source")
        laws = _several(target)
        self.n_laws_ = len(laws)
        named = {name: _shares(law, name) for name, law in laws.items()}
        have = sorted((c for c, p in s.items() if p > 0), key=_sort_key)
        self.classes_ = _class_array(have)
        self.source_prior_ = np.array([s[c] for c in have])
        for name, law in named.items():
            gone = [c for c, p in law.items() if p > 0 and s.get(c, 0.0) <= 0]
            if gone:
                share = sum(law[c] for c in gone)
                warnings.warn(
                    f"{name} has classes {_listed(gone)} that the source has no row of: "
                    f"{share:.1%} of that law cannot be reached by weighting; collect source "
                    "rows of them",
                    LowCoverage,
                    stacklevel=2,
                )
        self.target_priors_ = {
            name: np.array([law.get(c, 0.0) for c in have]) for name, law in named.items()
        }
        self.target_prior_ = np.mean(list(self.target_priors_.values()), axis=0)
        self.class_log_ratio_ = _log_ratio_of(self.target_prior_, self.source_prior_, self.n_laws_)
        return self

    def label_log_ratio(self, y: npt.ArrayLike) -> Float64Array:
        """Log w(y) of each label, shape (n,)."""
        check_is_fitted(self, "classes_")
        return _look_up(self.classes_, self.class_log_ratio_, y)

    def log_ratio(self, X: npt.ArrayLike) -> Float64Array:
        """The same as `label_log_ratio`: `X` are labels."""
        return self.label_log_ratio(X)

    def ratio(self, X: npt.ArrayLike) -> Float64Array:
        """w(y) of each label, shape (n,)."""
        return np.asarray(np.exp(self.log_ratio(X)))

    def score(
        self,
        *,
        source: npt.ArrayLike,
        target: npt.ArrayLike | Mapping[Any, npt.ArrayLike],
        divergence: str | Divergence = "lr",
    ) -> float:
        """Minus the empirical Bregman risk on labels held out; as `RatioEstimator.score`."""
        check_is_fitted(self, "classes_")
        parts = list(target.values()) if isinstance(target, Mapping) else [target]
        shift = np.log(self.n_laws_)
        values = [self.log_ratio(part) - shift for part in parts]
        weight = np.concatenate([np.full(len(v), 1.0 / (len(v) * len(values))) for v in values])
        s = self.log_ratio(source) - shift
        return -bregman_risk(s, np.concatenate(values), divergence, None, weight)


# --------------------------------------------------------------------------- estimated


class LabelShift(RatioEstimator):
    """Base of the label-shift estimators: a cross-fitted classifier, then class ratios.

    A subclass writes `_prior`: the label law of one target law. Fold models never judge rows they
    were fitted on; target rows are judged by every fold model, so that predictions of source and
    target have the same quality.

    Parameters
    ----------
    classifier : scikit-learn classifier with ``predict_proba``, optional
        Learns p_source(y | x); by default multinomial logistic regression on scaled columns.
    n_folds : int
    calibration : {"bcts", None}
        Bias-corrected temperature scaling of out-of-fold probabilities, or none.
    classes : sequence, optional
        Classes that must occur in the source; an error names those that do not.
    seed : int
    """

    classifier: Any
    n_folds: int
    calibration: str | None
    classes: Sequence[Any] | None
    seed: int

    def fit(  # type: ignore[override]
        self, *, source: Rows, source_labels: npt.ArrayLike, target: Laws
    ) -> Self:
        """Learn class ratios.

        Parameters
        ----------
        source : rows (n, ...)
        source_labels : array (n,)
            Their labels, numbers or text.
        target : rows (m, ...) or mapping of name to rows
            Unlabelled. Each law's prior is estimated on its own; ratios are summed.

        Returns
        -------
        self
            With `classes_`, `source_prior_` (k,), `target_prior_` (k,) (mean over laws),
            `target_priors_` (by law), `class_log_ratio_` (k,), `calibration_`.
        """
        self._check()
        s, pooled, n_laws, shape = read_pair(source, target)
        codes = self._read_labels(source_labels, len(s.inverse))
        self.n_laws_, self.row_shape_ = n_laws, shape
        k = len(self.classes_)
        # distinct pairs of row and label, each as often as it occurs
        pair, count = np.unique(s.inverse * k + codes, return_counts=True)
        row, label = pair // k, pair % k
        count = count // np.gcd.reduce(count)
        weight = count / count.sum()
        self.source_prior_ = np.bincount(label, weights=weight, minlength=k).astype(np.float64)
        fold = self._folds(row, label, len(s))
        x = s.flat
        self.models_ = [
            self._train(x[row[keep]], label[keep], count[keep])
            for keep in (fold[row] != j for j in range(int(fold.max()) + 1))
        ]
        raw = np.empty((len(s), k))
        for j, model in enumerate(self.models_):
            raw[fold == j] = _aligned(model, x[fold == j], k)
        held_out = raw[row]
        self.calibration_ = (
            bcts(held_out, label, weight=weight) if self.calibration == "bcts" else None
        )
        named = target if isinstance(target, Mapping) else {"target": target}
        self.target_priors_ = {}
        for name, rows in named.items():
            law = Sample.of(as_rows(rows, name="target"))
            judged = np.concatenate([_aligned(m, law.flat, k) for m in self.models_])
            law_weight = np.tile(law.weight, len(self.models_)) / len(self.models_)
            self.target_priors_[name] = self._prior(held_out, label, weight, judged, law_weight)
        self.target_prior_ = np.mean(list(self.target_priors_.values()), axis=0)
        self.class_log_ratio_ = _log_ratio_of(self.target_prior_, self.source_prior_, n_laws)
        self._check_direction(s, pooled)
        return self

    def label_log_ratio(self, y: npt.ArrayLike) -> Float64Array:
        """Log w(y) of each label, shape (n,): what training weights of labelled rows use."""
        check_is_fitted(self, "class_log_ratio_")
        return _look_up(self.classes_, self.class_log_ratio_, y)

    def predict_source_proba(self, X: Rows) -> Float64Array:
        """p_source(y | x), calibrated, mean over the fold models, shape (n, k)."""
        check_is_fitted(self, "class_log_ratio_")
        return self._posterior(as_rows(X, name="X"))

    def _posterior(self, x: FloatArray) -> Float64Array:
        flat = x.reshape(len(x), -1)
        parts = [_aligned(m, flat, len(self.classes_)) for m in self.models_]
        if self.calibration_ is not None:
            parts = [self.calibration_(p) for p in parts]
        return np.asarray(np.mean(parts, axis=0))

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        log_w = self.class_log_ratio_ - np.log(self.n_laws_)  # the base adds log K back
        log_p = np.log(np.maximum(self._posterior(x), FLOOR))
        return np.asarray(logsumexp(log_p + log_w, axis=1), dtype=np.float64)

    def _prior(
        self,
        held_out: Float64Array,
        label: IntArray,
        weight: Float64Array,
        target: Float64Array,
        target_weight: Float64Array,
    ) -> Float64Array:
        raise TypeError(f"{type(self).__name__} must define _prior")

    def _check(self) -> None:
        if self.calibration not in ("bcts", None):
            raise InputError(
                f"{type(self).__name__}: calibration must be 'bcts' or None; got "
                f"{self.calibration!r}; 'bcts' is bias-corrected temperature scaling"
            )
        if not (isinstance(self.n_folds, int | np.integer) and self.n_folds >= 2):
            raise InputError(
                f"{type(self).__name__}: n_folds must be an integer of at least 2; got "
                f"{self.n_folds!r}; 5 is usual"
            )

    def _read_labels(self, labels: npt.ArrayLike, n: int) -> IntArray:
        y = _labels(labels, "source_labels")
        if len(y) != n:
            raise InputError(
                f"source_labels must have one label a source row, {n}; got {len(y)}; "
                "pass the labels of the same rows"
            )
        self.classes_, codes = np.unique(y, return_inverse=True)
        if self.classes is not None:
            gone = sorted(set(self.classes) - set(self.classes_.tolist()), key=_sort_key)
            if gone:
                raise InputError(
                    f"source must hold rows of every class; got none of {_listed(gone)}; their "
                    "target share cannot be estimated; collect rows or leave them out of classes"
                )
        if len(self.classes_) < 2:
            raise InputError(
                f"source_labels must hold at least two classes; got {self.classes_.tolist()} only; "
                "with one class there is no label shift"
            )
        count = np.bincount(codes)
        rare = [c for c, m in zip(self.classes_.tolist(), count, strict=True) if m < 2]
        if rare:
            raise InputError(
                "every class needs at least 2 source rows, one to learn from and one to check on; "
                f"got 1 of {_listed(rare)}; collect more or merge classes"
            )
        return codes.reshape(-1)

    def _folds(self, row: IntArray, label: IntArray, n: int) -> IntArray:
        """Fold of each distinct row, balanced within classes; twins stay together."""
        first = np.empty(n, dtype=np.intp)
        first[row[::-1]] = label[::-1]
        fold = np.empty(n, dtype=np.intp)
        for c in range(int(label.max()) + 1):
            mine = np.flatnonzero(first == c)
            fold[mine] = fold_of(len(mine), self.n_folds, seed=self.seed)
        return np.unique(fold, return_inverse=True)[1].reshape(-1)

    def _train(self, x: FloatArray, label: IntArray, count: IntArray) -> Any:
        if len(np.unique(label)) < 2:
            raise InputError(
                "every fold must leave two classes to learn from; got one; lower n_folds or "
                "collect more rows of the rare classes"
            )
        model = (
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
            if self.classifier is None
            else clone(self.classifier)
        )
        return model.fit(np.repeat(x, count, axis=0), np.repeat(label, count))


class MLLS(LabelShift):
    """Maximum likelihood label shift: EM on calibrated probabilities.

    Maximises Σ_i log Σ_y q(y) p_source(y | x_i) / p_source(y) over target label laws q (`mlls`).
    When it fails: an over-confident classifier without calibration; p(x | y) that moved.
    Take `BBSE` where only hard predictions can be trusted.

    Parameters
    ----------
    classifier, n_folds, calibration, classes, seed
        See `LabelShift`.
    max_iter, tol
        Of EM; a `NotConverged` warning tells when they did not suffice.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y, y_new = rng.random(2000) < 0.5, rng.random(2000) < 0.9
    >>> x, x_new = (rng.normal(size=(2000, 1)) + 2 * labels[:, None] for labels in (y, y_new))
    >>> shift = MLLS().fit(source=x, source_labels=y, target=x_new)
    >>> bool(abs(shift.target_prior_[1] - 0.9) < 0.03)
    True
    """

    def __init__(
        self,
        classifier: Any = None,
        *,
        n_folds: int = 5,
        calibration: str | None = "bcts",
        classes: Sequence[Any] | None = None,
        max_iter: int = 10_000,
        tol: float = 1e-8,
        seed: int = 0,
    ) -> None:
        self.classifier = classifier
        self.n_folds = n_folds
        self.calibration = calibration
        self.classes = classes
        self.max_iter = max_iter
        self.tol = tol
        self.seed = seed

    def _prior(
        self,
        held_out: Float64Array,
        label: IntArray,
        weight: Float64Array,
        target: Float64Array,
        target_weight: Float64Array,
    ) -> Float64Array:
        p = target if self.calibration_ is None else self.calibration_(target)
        result = mlls(
            p, self.source_prior_, weight=target_weight, max_iter=self.max_iter, tol=self.tol
        )
        if not result.converged:
            warnings.warn(
                f"MLLS: EM must move shares by less than {self.tol:g} to stop; it did not within "
                f"{self.max_iter} steps; raise max_iter or tol",
                NotConverged,
                stacklevel=3,
            )
        return result.prior


class BBSE(LabelShift):
    """Black-box shift estimation: solves confusion · w = predicted target shares.

    C[i, j] = P_source(predicted i, label j) from out-of-fold predictions (`bbse`); negative
    ratios become zero. When it fails: a classifier that confuses classes makes C nearly
    singular and w wild; take `RLLS` or `MLLS`.

    Parameters
    ----------
    classifier, n_folds, calibration, classes, seed
        See `LabelShift`.
    soft : bool
        Mean probabilities instead of counts of the likeliest class.
    """

    def __init__(
        self,
        classifier: Any = None,
        *,
        soft: bool = False,
        n_folds: int = 5,
        calibration: str | None = "bcts",
        classes: Sequence[Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.classifier = classifier
        self.soft = soft
        self.n_folds = n_folds
        self.calibration = calibration
        self.classes = classes
        self.seed = seed

    def _moments(
        self,
        held_out: Float64Array,
        label: IntArray,
        weight: Float64Array,
        target: Float64Array,
        target_weight: Float64Array,
    ) -> tuple[Float64Array, Float64Array]:
        k = held_out.shape[1]
        votes = [p if self.soft else np.eye(k)[p.argmax(axis=1)] for p in (held_out, target)]
        hit = np.eye(k)[label]
        return (votes[0] * weight[:, None]).T @ hit, target_weight @ votes[1]

    def _prior(
        self,
        held_out: Float64Array,
        label: IntArray,
        weight: Float64Array,
        target: Float64Array,
        target_weight: Float64Array,
    ) -> Float64Array:
        confusion, mean = self._moments(held_out, label, weight, target, target_weight)
        return _normal(bbse(confusion, mean) * self.source_prior_)


class RLLS(BBSE):
    """Regularised learning under label shift: BBSE with ratios drawn towards one.

    Minimises |C θ − (μ − C 1)| + Δ |θ| over θ = w − 1 ≥ −1 (`rlls`): less variance than
    `BBSE` where target rows are few or classes are confused, at the price of a bias towards no
    shift. Take `MLLS` where the probabilities are good.

    Parameters
    ----------
    classifier, n_folds, calibration, classes, seed
        See `LabelShift`.
    penalty : float, optional
        Δ; by default 0.2 (n^(-1/2) + m^(-1/2)) for n source and m target rows.
    trust : float
        γ in [0, 1]: w = 1 + γ θ.
    soft : bool
        Mean probabilities instead of counts of the likeliest class.
    """

    def __init__(
        self,
        classifier: Any = None,
        *,
        penalty: float | None = None,
        trust: float = 1.0,
        soft: bool = False,
        n_folds: int = 5,
        calibration: str | None = "bcts",
        classes: Sequence[Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            classifier,
            soft=soft,
            n_folds=n_folds,
            calibration=calibration,
            classes=classes,
            seed=seed,
        )
        self.penalty = penalty
        self.trust = trust

    def _prior(
        self,
        held_out: Float64Array,
        label: IntArray,
        weight: Float64Array,
        target: Float64Array,
        target_weight: Float64Array,
    ) -> Float64Array:
        confusion, mean = self._moments(held_out, label, weight, target, target_weight)
        rows = len(target) / len(self.models_)
        penalty = (
            0.2 * (len(held_out) ** -0.5 + rows**-0.5) if self.penalty is None else self.penalty
        )
        w = rlls(confusion, mean, penalty=penalty, trust=self.trust)
        return _normal(w * self.source_prior_)


# --------------------------------------------------------------------------- helpers


def _aligned(model: Any, x: FloatArray, k: int) -> Float64Array:
    """Probabilities with a column for each of k classes, also those a fold did not hold."""
    out = np.zeros((len(x), k))
    out[:, np.asarray(model.classes_, dtype=np.intp)] = model.predict_proba(x)
    return out


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


def _normal(p: Float64Array) -> Float64Array:
    return np.asarray(p / p.sum(), dtype=np.float64)


def _law(values: npt.ArrayLike, n: int, name: str) -> Float64Array:
    p = np.asarray(values, dtype=np.float64)
    if p.shape != (n,) or not np.isfinite(p).all() or (p < 0).any() or not p.sum() > 0:
        raise InputError(
            f"{name} must be {n} finite non-negative numbers with a positive sum; got shape "
            f"{p.shape}; pass counts or probabilities"
        )
    return _normal(p)


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


def _labels(y: npt.ArrayLike, name: str) -> Array:
    a = np.asarray(y)
    if a.ndim != 1 or len(a) == 0:
        raise InputError(f"{name} must be a non-empty 1-d array of labels; got shape {a.shape}")
    if a.dtype.kind == "f" and not np.isfinite(a).all():
        raise InputError(f"{name} must hold no missing label; got NaN; drop unlabelled rows")
    if a.dtype == object:
        a = np.array([str(v) for v in a]) if all(isinstance(v, str) for v in a) else a
    return a


def _shares(law: Shares, name: str) -> dict[Any, float]:
    keys: list[Any]
    if isinstance(law, Mapping):
        keys, values = list(law), np.array([float(v) for v in law.values()])
    else:
        values = np.asarray(law, dtype=np.float64).reshape(-1)
        keys = list(range(len(values)))
    shares = _law(values, len(keys), name)
    return dict(zip(keys, shares.tolist(), strict=True))


def _several(target: Shares | Mapping[Any, Shares]) -> dict[str, Shares]:
    if isinstance(target, Mapping):
        if not target:
            raise InputError("target must hold at least one law; got an empty mapping")
        if all(np.ndim(cast(Any, v)) > 0 or isinstance(v, Mapping) for v in target.values()):
            return {f"target[{key!r}]": cast(Shares, law) for key, law in target.items()}
    return {"target": cast(Shares, target)}


def _sort_key(value: Hashable) -> tuple[str, Any]:
    number = isinstance(value, int | float | np.number) and not isinstance(value, str)
    return ("", value) if number else (type(value).__name__, value)


def _class_array(classes: list[Any]) -> Array:
    kinds = {isinstance(c, str) for c in classes}
    if len(kinds) == 2:
        raise InputError("classes must be all text or all numbers; got both; rename them")
    return np.asarray(classes)


def _listed(classes: Sequence[Any], most: int = 8) -> str:
    return ", ".join(repr(c) for c in classes[:most]) + (", ..." if len(classes) > most else "")


def _log_ratio_of(target: Float64Array, source: Float64Array, n_laws: int) -> Float64Array:
    return np.asarray(np.log(np.maximum(target / source, FLOOR)) + np.log(n_laws))


def _look_up(classes: Array, values: Float64Array, y: npt.ArrayLike) -> Float64Array:
    labels = _labels(y, "y")
    if (labels.dtype.kind in "US") != (classes.dtype.kind in "US"):
        raise InputError(
            f"y must hold labels of the same kind as the source's, {classes.dtype}; got "
            f"{labels.dtype}; convert them"
        )
    at = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    unknown = classes[at] != labels
    if np.any(unknown):
        names = _listed(np.unique(labels[unknown]).tolist())
        raise InputError(
            f"y must hold classes of the source; got {names}; "
            "the source has no row of them, so no ratio exists; drop these rows"
        )
    return np.asarray(values[at], dtype=np.float64)


__all__ = [
    "BBSE",
    "MLLS",
    "RLLS",
    "Calibration",
    "ExactLabels",
    "LabelShift",
    "MLLSFit",
    "bbse",
    "bcts",
    "mlls",
    "rlls",
]
