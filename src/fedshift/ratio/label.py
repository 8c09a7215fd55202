r"""Label shift: ratios if only the label distribution differs; `MLLS`, `BBSE` and `RLLS`.

If p(x | y) is the same in source and target, the ratio p_target(x, y) / p_source(x, y) depends on
the label alone:

.. math:: w(y) = \frac{p_{target}(y)}{p_{source}(y)}, \qquad
          \frac{p_{target}(x)}{p_{source}(x)} = \sum_y w(y)\,p_{source}(y \mid x).

Training rows have labels, so their weights use w(y): see `label_log_ratio`. The second formula
needs no labels: see `log_ratio`, which can be compared with other estimators. If the label
distributions are known, w is exact (`fedshift.ratio.known_label_shift`). If the target has no
labels, w is estimated from a classifier's predictions by the functions of `fedshift.core.label`.
MLLS stands for maximum-likelihood label shift, BBSE for black-box shift estimation, RLLS for
regularised learning under label shift, and EM for expectation-maximisation:

=======  =====================================================  ==================================
class    solves                                                 use it
=======  =====================================================  ==================================
`MLLS`   maximum likelihood of the target's label               first; it is usually the most
         distribution, by EM, on calibrated probabilities       accurate
`BBSE`   confusion matrix · w = predicted target shares         if probabilities are not reliable
`RLLS`   as `BBSE`, with w shrunk towards one                   if target rows are few
=======  =====================================================  ==================================

All three estimators fail if p(x | y) differs too, for example if the target has other breeds of
cats and not only more cats. The weights then look plausible and are wrong. Compare `score` with an
estimator that does not assume label shift.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from fedshift.core.label import (
    FLOOR,
    IntArray,
    bbse,
    listed,
    log_class_ratio,
    look_up,
    mlls,
    normalised,
    read_labels,
    rlls,
    sort_key,
)
from fedshift.core.params import one_of, whole
from fedshift.core.samples import (
    Float64Array,
    FloatArray,
    Rows,
    RowSets,
    Sample,
    as_rows,
    fold_of,
    read_pair,
)
from fedshift.core.scaling import CALIBRATIONS
from fedshift.errors import InputError, NotConverged
from fedshift.ratio.base import RatioEstimator


@dataclass(frozen=True)
class HeldOut:
    """Predictions of models at rows that they were not fitted on.

    Attributes
    ----------
    source, target : ndarray (n, k), (m, k)
        Class probabilities, not calibrated.
    label : int ndarray (n,)
        Classes of the source rows.
    weight, target_weight : ndarray (n,), (m,)
        Weights of the rows; each sums to one.
    """

    source: Float64Array
    label: IntArray
    weight: Float64Array
    target: Float64Array
    target_weight: Float64Array


class LabelShift(RatioEstimator):
    """Base class of the label-shift estimators: a cross-fitted classifier, then class ratios.

    A subclass defines `_prior`, which returns the label distribution of one target distribution.
    The model of each fold predicts only source rows it was not fitted on. Target rows get the
    mean of the predictions of all fold models. So no row is predicted by a model that was fitted on
    it, and the predictions are equally good for source and target.

    Parameters
    ----------
    classifier : scikit-learn classifier with ``predict_proba``, optional
        Learns p_source(y | x). Default: multinomial logistic regression on scaled columns.
    n_folds : int
        Folds of the source rows, at least 2.
    calibration : {"bcts", "matrix", None}
        Calibration of the out-of-fold probabilities. "bcts" is bias-corrected temperature scaling.
        "matrix" adds a matrix for classes that are confused with each other
        (`fedshift.core.scaling.matrix_scaling`). None is no calibration.
    classes : sequence, optional
        Classes that must occur in the source. If one does not, `fit` raises an error that names it.
    seed : int
        Seeds the folds.
    """

    takes_labels = True  #: whether `fit` takes `source_labels`
    classifier: Any
    n_folds: int
    calibration: str | None
    classes: Sequence[Any] | None
    seed: int

    def fit(  # type: ignore[override]
        self, *, source: Rows, source_labels: npt.ArrayLike, target: RowSets
    ) -> Self:
        """Fit the ratio of each class.

        Parameters
        ----------
        source : rows (n, ...)
            Training rows.
        source_labels : array (n,)
            Labels of the source rows, numbers or text.
        target : rows (m, ...) or mapping of name to rows
            Unlabelled rows. For several distributions, the label distribution of each is
            estimated separately, and the ratios are summed.

        Returns
        -------
        self
            It has these attributes for the k classes: `classes_`; `source_prior_` (k,);
            `target_priors_`, a mapping of name to (k,); `target_prior_` (k,), the mean of
            `target_priors_`; `class_log_ratio_` (k,); `calibration_`.
        """
        self.check_options()
        s, pooled, n_targets, shape = read_pair(source, target)
        codes = self._read_labels(source_labels, len(s.inverse))
        self.n_targets_, self.row_shape_ = n_targets, shape
        k = len(self.classes_)
        # distinct pairs of row and label, with their counts
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
            raw[fold == j] = _class_probabilities(model, x[fold == j], k)
        held_out = raw[row]
        self.calibration_ = (
            None
            if self.calibration is None
            else CALIBRATIONS[self.calibration](held_out, label, weight=weight)
        )
        targets = target if isinstance(target, Mapping) else {"target": target}
        self.target_priors_ = {}
        for name, rows in targets.items():
            distribution = Sample.of(as_rows(rows, name="target"))
            proba = np.concatenate(
                [_class_probabilities(m, distribution.flat, k) for m in self.models_]
            )
            share = np.tile(distribution.weight, len(self.models_)) / len(self.models_)
            self.target_priors_[name] = self._prior(HeldOut(held_out, label, weight, proba, share))
        self.target_prior_ = np.mean(list(self.target_priors_.values()), axis=0)
        self.class_log_ratio_ = log_class_ratio(self.target_prior_, self.source_prior_, n_targets)
        self._check_direction(s, pooled)
        return self

    def label_log_ratio(self, y: npt.ArrayLike) -> Float64Array:
        """Return log w(y) of each label, shape (n,): the log ratio of labelled training rows."""
        check_is_fitted(self, "class_log_ratio_")
        return look_up(self.classes_, self.class_log_ratio_, y)

    def predict_source_proba(self, X: Rows) -> Float64Array:
        """Return the mean over the fold models of the calibrated p_source(y | x), shape (n, k)."""
        check_is_fitted(self, "class_log_ratio_")
        x = as_rows(X, name="X")
        self._check_shape(x, "X")
        return self._posterior(x)

    def _posterior(self, x: FloatArray) -> Float64Array:
        flat = x.reshape(len(x), -1)
        parts = [_class_probabilities(m, flat, len(self.classes_)) for m in self.models_]
        if self.calibration_ is not None:
            parts = [self.calibration_(p) for p in parts]
        return np.asarray(np.mean(parts, axis=0))

    def _log_ratio(self, x: FloatArray) -> Float64Array:
        log_w = self.class_log_ratio_ - np.log(self.n_targets_)  # the base adds log K back
        log_p = np.log(np.maximum(self._posterior(x), FLOOR))
        return np.asarray(logsumexp(log_p + log_w, axis=1), dtype=np.float64)

    def _prior(self, held_out: HeldOut) -> Float64Array:
        raise TypeError(f"{type(self).__name__} must define _prior")

    def check_options(self) -> None:
        """Raise `InputError` if an option is not valid; `fit` calls this before any work."""
        super().check_options()
        if self.calibration is not None:
            one_of(self, "calibration", tuple(CALIBRATIONS))
        whole(self, "n_folds", least=2)

    def _read_labels(self, labels: npt.ArrayLike, n: int) -> IntArray:
        y = read_labels(labels, "source_labels")
        if len(y) != n:
            raise InputError(
                f"source_labels must have one label per source row, {n}; got {len(y)}; "
                "pass the labels of the same rows"
            )
        self.classes_, codes = np.unique(y, return_inverse=True)
        if self.classes is not None:
            missing = sorted(set(self.classes) - set(self.classes_.tolist()), key=sort_key)
            if missing:
                raise InputError(
                    f"source must have rows of every class in `classes`; got none of "
                    f"{listed(missing)}; collect such rows, or leave these out of `classes`"
                )
        if len(self.classes_) < 2:
            raise InputError(
                f"source_labels must have at least two classes; got {self.classes_.tolist()}; "
                "collect rows of another class"
            )
        count = np.bincount(codes)
        rare = [c for c, m in zip(self.classes_.tolist(), count, strict=True) if m < 2]
        if rare:
            raise InputError(
                "every class needs at least 2 source rows, one to fit and one to hold out; "
                f"got 1 of {listed(rare)}; collect more rows or merge classes"
            )
        return codes.reshape(-1)

    def _folds(self, row: IntArray, label: IntArray, n: int) -> IntArray:
        """Return the fold of each distinct row, balanced within classes."""
        first = np.empty(n, dtype=np.intp)
        first[row[::-1]] = label[::-1]
        fold = np.empty(n, dtype=np.intp)
        for c in range(int(label.max()) + 1):
            members = np.flatnonzero(first == c)
            fold[members] = fold_of(len(members), self.n_folds, seed=self.seed)
        return np.unique(fold, return_inverse=True)[1].reshape(-1)

    def _train(self, x: FloatArray, label: IntArray, count: IntArray) -> Any:
        if len(np.unique(label)) < 2:
            raise InputError(
                "the rows outside a fold must have at least two classes; got one; lower n_folds "
                "or collect more rows of the rare classes"
            )
        model = (
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
            if self.classifier is None
            else clone(self.classifier)
        )
        return model.fit(np.repeat(x, count, axis=0), np.repeat(label, count))


class MLLS(LabelShift):
    """Maximum likelihood label shift: ratios of classes, if only the label distribution differs.

    The target has no labels, so its label distribution q is estimated from a classifier's
    calibrated probabilities. EM maximises

        Σ_i log Σ_y q(y) p_source(y | x_i) / p_source(y)

    over q, the sum running over target rows (`fedshift.core.label.mlls`).

    When it fails: if the classifier is over-confident and not calibrated, or if p(x | y) differs
    between source and target. Use `BBSE` if only hard predictions are reliable.

    Parameters
    ----------
    classifier : scikit-learn classifier with ``predict_proba``, optional
        Learns p_source(y | x). Default: multinomial logistic regression on scaled columns.
    n_folds : int
        Folds of the source rows, at least 2.
    calibration : {"bcts", "matrix", None}
        Calibration of the out-of-fold probabilities. "bcts" is bias-corrected temperature scaling.
        "matrix" adds a matrix for classes that are confused with each other. None is no
        calibration.
    classes : sequence, optional
        Classes that must occur in the source. If one does not, `fit` raises an error that names it.
    max_iter : int
        Largest number of steps of EM (expectation-maximisation).
    tol : float
        EM stops when no class share changes by more than this value in a step.
    seed : int
        Seeds the folds.

    Attributes
    ----------
    classes_ : ndarray (k,)
    source_prior_, target_prior_ : ndarray (k,)
        Label distributions of the source, and of the target (with several target
        distributions, of their mean).
    target_priors_ : dict of name to ndarray (k,)
        Label distribution of each target distribution.
    class_log_ratio_ : ndarray (k,)
        Log ratio of each class.
    calibration_ : callable or None
        The fitted calibration.

    Warns
    -----
    NotConverged
        If EM does not reach `tol` within `max_iter` steps.

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

    def _prior(self, held_out: HeldOut) -> Float64Array:
        p = held_out.target
        p = p if self.calibration_ is None else self.calibration_(p)
        prior, weight = self.source_prior_, held_out.target_weight
        result = mlls(p, prior, weight=weight, max_iter=self.max_iter, tol=self.tol)
        if not result.converged:
            warnings.warn(
                f"MLLS: EM must reach changes in shares below {self.tol:g}; got a larger change "
                f"after {self.max_iter} steps; raise max_iter or tol",
                NotConverged,
                stacklevel=3,
            )
        return result.prior


class BBSE(LabelShift):
    """Black-box shift estimation: ratios of classes from a classifier's confusion matrix.

    The target has no labels. A classifier makes the same mistakes on source and target rows of a
    class, so the class ratios w solve C w = μ. Here C[i, j] = P_source(predicted i, label j), from
    out-of-fold predictions, and μ[i] is the share of target rows predicted as class i
    (`fedshift.core.label.bbse`). Negative ratios are set to zero.

    When it fails: if the classifier confuses classes, C is nearly singular and the ratios have a
    large error. Use `RLLS` or `MLLS` then. All three estimators fail if p(x | y) differs.

    Parameters
    ----------
    classifier, n_folds, calibration, classes, seed
        As in `MLLS`.
    soft : bool
        Whether C and μ use mean probabilities instead of counts of the likeliest class.

    Attributes
    ----------
    classes_, source_prior_, target_prior_, target_priors_, class_log_ratio_, calibration_
        As in `MLLS`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y, y_new = rng.random(2000) < 0.5, rng.random(2000) < 0.9
    >>> x, x_new = (rng.normal(size=(2000, 1)) + 2 * labels[:, None] for labels in (y, y_new))
    >>> shift = BBSE().fit(source=x, source_labels=y, target=x_new)
    >>> bool(abs(shift.target_prior_[1] - 0.9) < 0.05)
    True
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

    def _moments(self, held_out: HeldOut) -> tuple[Float64Array, Float64Array]:
        one = np.eye(held_out.source.shape[1])
        sides = held_out.source, held_out.target
        source, target = (p if self.soft else one[p.argmax(axis=1)] for p in sides)
        confusion = (source * held_out.weight[:, None]).T @ one[held_out.label]
        return confusion, held_out.target_weight @ target

    def _prior(self, held_out: HeldOut) -> Float64Array:
        confusion, mean = self._moments(held_out)
        return normalised(bbse(confusion, mean) * self.source_prior_)


class RLLS(BBSE):
    """Regularised learning under label shift: `BBSE` with class ratios shrunk towards one.

    With few target rows, or with classes that are confused, the ratios of `BBSE` have a large
    variance. RLLS minimises ‖C θ − (μ − C 1)‖ + Δ ‖θ‖ over θ = w − 1 ≥ −1, with the class ratios
    w, and with C and μ as in `BBSE` (`fedshift.core.label.rlls`). The variance is smaller, but the
    ratios are biased towards no shift. Use `MLLS` if the classifier's probabilities are good. All
    three estimators fail if p(x | y) differs.

    Parameters
    ----------
    classifier, n_folds, calibration, classes, seed
        As in `MLLS`.
    penalty : float, optional
        Δ. Default: 0.2 (n^(-1/2) + m^(-1/2)) for n source and m target rows.
    trust : float
        γ in [0, 1]: the ratios are w = 1 + γ θ.
    soft : bool
        Whether C and μ use mean probabilities instead of counts of the likeliest class.

    Attributes
    ----------
    classes_, source_prior_, target_prior_, target_priors_, class_log_ratio_, calibration_
        As in `MLLS`.
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

    def _prior(self, held_out: HeldOut) -> Float64Array:
        confusion, mean = self._moments(held_out)
        penalty = self.penalty
        if penalty is None:
            rows = len(held_out.target) / len(self.models_)
            penalty = 0.2 * (len(held_out.source) ** -0.5 + rows**-0.5)
        w = rlls(confusion, mean, penalty=penalty, trust=self.trust)
        return normalised(w * self.source_prior_)


def _class_probabilities(model: Any, x: FloatArray, k: int) -> Float64Array:
    """Return probabilities (n, k); the columns of classes that the model does not know are 0."""
    out = np.zeros((len(x), k))
    out[:, np.asarray(model.classes_, dtype=np.intp)] = model.predict_proba(x)
    return out
