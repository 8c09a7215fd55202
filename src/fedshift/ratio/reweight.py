"""Fit any scikit-learn estimator with ratio weights, and check that it uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar, cast

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedshift.core.samples import RowSets, as_rows, check_names, column_names
from fedshift.core.weights import Weighting, Weights
from fedshift.data.tables import Sites
from fedshift.errors import InputError, WeightsNotUsedError
from fedshift.ratio.auto import Auto
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.classifier import last_step, weight_keyword
from fedshift.ratio.label import LabelShift

#: what `verify_weights_used` fits a learner on, for an error
RANDOM = "two columns of random numbers (verify=False leaves this check out)"
Method = TypeVar("Method", bound=Callable[..., Any])


def _has(name: str) -> Callable[[Method], Method]:
    """Return a decorator: the method exists only if the learner has it."""

    def check(self: Reweighter) -> bool:
        return hasattr(getattr(self, "learner_", self._learner()), name)

    return cast("Callable[[Method], Method]", available_if(check))


class Reweighter(MetaEstimatorMixin, BaseEstimator):
    """Train a scikit-learn estimator as if its rows came from the target distribution.

    `fit(X, y, target=...)` estimates the density ratio of `target` to X, turns it into importance
    weights w = r / mean(r), and fits the learner with ``sample_weight``. Without a target it fits
    the learner unweighted. If rows hold text, dates or missing values, the ratio is estimated from
    rows encoded as numbers (`encode_rows`). The learner gets the rows as they are.

    When it fails: reweighting has no effect if the weights do not reach the learner, and no error
    shows it. So the learner must take ``sample_weight`` by name; in a pipeline, its last step
    must. With ``verify=True`` the learner is first fitted on an artificial task in which rows of
    weight zero have wrong labels. If these rows change its predictions, `fit` raises an error.

    Parameters
    ----------
    learner : estimator, optional
        Takes ``sample_weight`` in `fit`. Default: logistic regression.
    ratio : RatioEstimator, optional
        Default: `Auto()`. Out-of-fold ratios are used if the estimator has them.
    weighting : Weighting, optional
        Turns log ratios into weights. Default: weights with mean one, so the learner's
        regularisation keeps its scale.
    verify : bool
        Whether to check that the learner uses weights.

    Attributes
    ----------
    learner_ : estimator
        The fitted learner.
    ratio_ : RatioEstimator or None
        The fitted ratio; None without a target.
    weights_ : Weights or None
        Weights of the rows of X; None without a target.

    Examples
    --------
    >>> from fedshift.ratio import Gaussian
    >>> rng = np.random.default_rng(0)
    >>> X, target = rng.normal(size=(500, 1)), rng.normal(1, 1, (500, 1))
    >>> y = X[:, 0] > 0.5
    >>> model = Reweighter(ratio=Gaussian(shared=True)).fit(X, y, target=target)
    >>> model.predict(target).shape
    (500,)
    """

    def __init__(
        self,
        learner: Any = None,
        *,
        ratio: RatioEstimator | None = None,
        weighting: Weighting | None = None,
        verify: bool = True,
    ) -> None:
        self.learner = learner
        self.ratio = ratio
        self.weighting = weighting
        self.verify = verify

    def fit(self, X: Any, y: Any, *, target: RowSets | None = None) -> Self:
        """Fit the learner on weighted rows.

        Parameters
        ----------
        X : rows (n, d)
            Training rows.
        y : array (n,)
            Labels of the rows of X.
        target : rows (m, d) or mapping of name to rows, optional
            Unlabelled deployment rows. For several distributions, pass a mapping. None fits the
            learner unweighted.

        Returns
        -------
        self

        Raises
        ------
        WeightsNotUsedError
            If the learner takes no ``sample_weight``, or does not use it.
        """
        learner = self._learner()
        self.ratio_: RatioEstimator | None = None
        self.weights_: Weights | None = None
        if target is None:
            self.learner_ = _fitted(learner, X, y, {})
        else:
            keyword = weight_keyword(learner)
            if keyword is None:
                raise WeightsNotUsedError(
                    "learner must take sample_weight in fit; got "
                    f"{type(learner).__name__}, which takes no sample_weight; use another "
                    "learner, or resample the rows by weight"
                )
            if self.verify:
                verify_weights_used(learner)
            ratio: RatioEstimator = clone(self.ratio) if self.ratio is not None else Auto()
            weighting = self.weighting or Weighting(normalise="mean one")
            self.weights_ = weighting(
                _source_log_ratio(ratio, X, y, target), n_targets=ratio.n_targets_
            )
            self.ratio_ = ratio
            self.learner_ = _fitted(learner, X, y, {keyword: np.asarray(self.weights_)})
        for name in ("classes_", "n_features_in_", "feature_names_in_"):
            if hasattr(self.learner_, name):
                setattr(self, name, getattr(self.learner_, name))
        return self

    def _learner(self) -> Any:
        return clone(self.learner) if self.learner is not None else LogisticRegression()

    def predict(self, X: Any) -> Any:
        """Return the learner's predictions."""
        check_is_fitted(self, "learner_")
        return self.learner_.predict(X)

    @_has("predict_proba")
    def predict_proba(self, X: Any) -> Any:
        """Return the learner's class probabilities."""
        check_is_fitted(self, "learner_")
        return self.learner_.predict_proba(X)

    @_has("decision_function")
    def decision_function(self, X: Any) -> Any:
        """Return the learner's decision values."""
        check_is_fitted(self, "learner_")
        return self.learner_.decision_function(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the learner's own score."""
        check_is_fitted(self, "learner_")
        return float(self.learner_.score(X, y, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        """Return the learner's tags."""
        return get_tags(self._learner())


def _fitted(learner: Any, X: Any, y: Any, weights: Any, what: str = "X and y") -> Any:
    try:
        return learner.fit(X, y, **weights)
    except ValueError as error:
        name = type(learner).__name__
        raise InputError(f"learner {name} must be able to fit {what}; got: {error}") from error


def _source_log_ratio(ratio: RatioEstimator, x: Any, y: Any, target: RowSets) -> Any:
    """Fit the ratio and return log ratios of the source rows: by label, or out-of-fold if any."""
    x, target = encode_rows(x, target)
    if isinstance(ratio, LabelShift):
        return ratio.fit(source=x, source_labels=y, target=target).label_log_ratio(y)
    ratio.fit(source=x, target=target)
    held_out = getattr(ratio, "source_log_ratio_", None)
    return ratio.log_ratio(x) if held_out is None else held_out


def encode_rows(source: Any, target: RowSets) -> tuple[Any, RowSets]:
    """Return rows as numbers, encoded as `fs.train` does if they hold text, dates or gaps.

    Rows that are numbers already stay as they are. Columns that hardly vary in the source are left
    out.
    """
    several = isinstance(target, Mapping)
    named = target if isinstance(target, Mapping) else {"target": target}
    targets = {f"target[{n!r}]": x for n, x in named.items()} if several else named
    sets = {"source": source, **targets}
    try:
        for name, rows in sets.items():
            as_rows(rows, name=name)
        return source, target
    except InputError:
        if not named:
            raise InputError("target must map at least one name to its rows; got none") from None
        first, *others = [_columns(rows, source, name) for name, rows in sets.items()]
    label = "label" + "_" * max(map(len, first))  # no column has this name
    first[label] = np.arange(len(next(iter(first.values())))) % 2
    tables = {name: (first, x) for name, x in zip(targets, others, strict=True)}
    sites = Sites.of(tables, label=label)
    for note in (n for n in sites.notes if "with no usable" in n):  # text between numbers
        raise InputError(note.replace("treated as missing.", "write numbers, or None for a gap"))
    clients = sites.encode().federation
    encoded = {name: c.test_x for name, c in zip(named, clients, strict=True)}
    return clients[0].x, encoded if several else encoded["target"]


def _columns(rows: Any, source: Any, name: str) -> dict[str, Any]:
    """Return columns by name, or by number; they must be those of the source."""
    names = column_names(rows)
    check_names(column_names(source), rows, name)
    if names is not None:
        return {str(n): rows[n] for n in names}
    table = np.asarray(rows, dtype=object)
    if table.ndim != 2 or not table.size or np.ma.is_masked(rows):
        as_rows(rows, name=name)  # its error says what is wrong
    if table.shape[1:] != np.shape(source)[1:]:
        raise InputError(f"{name} must have rows of the same shape as source; got {table.shape}")
    return {str(i): column for i, column in enumerate(table.T)}


def verify_weights_used(learner: Any) -> None:
    """Raise `WeightsNotUsedError` unless `learner` ignores rows of weight zero.

    The learner is fitted twice on a small artificial task, with right and with wrong labels on half
    of the rows. Let a be the share of predictions that the wrong labels change if these rows have
    weight zero, and b the share if no weights are passed. The check passes if a ≤ b / 2 or a ≤ 2 %.
    Of a pipeline, the last step alone is fitted, as other steps may need columns by name.
    """
    learner = last_step(learner)[1]
    keyword = weight_keyword(learner)
    rng = np.random.default_rng(0)
    x = rng.random((160, 2))  # not negative: some learners need counts
    truth = (x[:, 0] > 0.5).astype(int)
    weight = np.where(np.arange(160) < 80, 1.0, 0.0)
    wrong = np.where(weight > 0, truth, 1 - truth)

    def poison(**weights: Any) -> float:
        a, b = (_fitted(clone(learner), x, y, weights, RANDOM).predict(x) for y in (truth, wrong))
        return float(np.mean(np.abs(a.astype(float) - b.astype(float))))

    with_weights = 1.0 if keyword is None else poison(**{keyword: weight})
    if with_weights > 0.02 and with_weights > 0.5 * poison():
        raise WeightsNotUsedError(
            f"learner must ignore rows of weight zero; got {type(learner).__name__}, whose "
            "predictions depend on the labels of such rows; use another learner; if "
            f"{type(learner).__name__} wraps a learner, make it pass sample_weight on"
        )
