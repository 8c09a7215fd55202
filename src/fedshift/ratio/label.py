r"""Label shift: ratios when only the label law moved, `MLLS`, `BBSE` and `RLLS`.

If p(x | y) is the same in source and target, then p_target(x, y) / p_source(x, y) depends on the
label alone,

.. math:: w(y) = \frac{p_{target}(y)}{p_{source}(y)}, \qquad
          \frac{p_{target}(x)}{p_{source}(x)} = \sum_y w(y)\,p_{source}(y \mid x).

Training weights need w(y), because source rows have labels (`label_log_ratio`); comparing with
estimators that know no labels needs the second form (`log_ratio`). With known label counts w is
exact (`fedshift.ratio.exact_labels`). Without target labels it comes from a classifier's
predictions, by the functions of `fedshift.core.label`:

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
from collections.abc import Mapping, Sequence
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
from fedshift.core.params import one_of
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
from fedshift.core.scaling import CALIBRATIONS
from fedshift.errors import InputError, NotConverged
from fedshift.ratio.base import RatioEstimator


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
    calibration : {"bcts", "matrix", None}
        Of out-of-fold probabilities: bias-corrected temperature scaling, besides a matrix for
        classes that are taken for each other (`fedshift.core.scaling.matrix_scaling`), or none.
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
            None
            if self.calibration is None
            else CALIBRATIONS[self.calibration](held_out, label, weight=weight)
        )
        named = target if isinstance(target, Mapping) else {"target": target}
        self.target_priors_ = {}
        for name, rows in named.items():
            law = Sample.of(as_rows(rows, name="target"))
            judged = np.concatenate([_aligned(m, law.flat, k) for m in self.models_])
            law_weight = np.tile(law.weight, len(self.models_)) / len(self.models_)
            self.target_priors_[name] = self._prior(held_out, label, weight, judged, law_weight)
        self.target_prior_ = np.mean(list(self.target_priors_.values()), axis=0)
        self.class_log_ratio_ = log_class_ratio(self.target_prior_, self.source_prior_, n_laws)
        self._check_direction(s, pooled)
        return self

    def label_log_ratio(self, y: npt.ArrayLike) -> Float64Array:
        """Log w(y) of each label, shape (n,): what training weights of labelled rows use."""
        check_is_fitted(self, "class_log_ratio_")
        return look_up(self.classes_, self.class_log_ratio_, y)

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
        if self.calibration is not None:
            one_of(self, "calibration", tuple(CALIBRATIONS))
        if not (isinstance(self.n_folds, int | np.integer) and self.n_folds >= 2):
            raise InputError(
                f"{type(self).__name__}: n_folds must be an integer of at least 2; got "
                f"{self.n_folds!r}; 5 is usual"
            )

    def _read_labels(self, labels: npt.ArrayLike, n: int) -> IntArray:
        y = read_labels(labels, "source_labels")
        if len(y) != n:
            raise InputError(
                f"source_labels must have one label a source row, {n}; got {len(y)}; "
                "pass the labels of the same rows"
            )
        self.classes_, codes = np.unique(y, return_inverse=True)
        if self.classes is not None:
            gone = sorted(set(self.classes) - set(self.classes_.tolist()), key=sort_key)
            if gone:
                raise InputError(
                    f"source must hold rows of every class; got none of {listed(gone)}; their "
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
                f"got 1 of {listed(rare)}; collect more or merge classes"
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
        return normalised(bbse(confusion, mean) * self.source_prior_)


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
        return normalised(w * self.source_prior_)


def _aligned(model: Any, x: FloatArray, k: int) -> Float64Array:
    """Probabilities with a column for each of k classes, also those a fold did not hold."""
    out = np.zeros((len(x), k))
    out[:, np.asarray(model.classes_, dtype=np.intp)] = model.predict_proba(x)
    return out


__all__ = ["BBSE", "MLLS", "RLLS", "LabelShift"]
