"""Fit any scikit-learn learner with ratio weights, and prove that they reached it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar, cast

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedshift.core.samples import Laws
from fedshift.core.weights import Weighting, Weights
from fedshift.errors import WeightsNotUsedError
from fedshift.ratio.auto import Auto
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.classifier import weight_keyword
from fedshift.ratio.label import LabelShift

Method = TypeVar("Method", bound=Callable[..., Any])


def _has(name: str) -> Callable[[Method], Method]:
    """Offer a method only if the learner has it."""

    def check(self: Reweighter) -> bool:
        return hasattr(getattr(self, "learner_", self._learner()), name)

    return cast("Callable[[Method], Method]", available_if(check))


class Reweighter(MetaEstimatorMixin, BaseEstimator):
    """Any learner, trained as if its rows came from the target.

    `fit(X, y, target=...)` estimates the ratio of target to X, turns it into weights and fits
    the learner with ``sample_weight``. Without a target it fits the learner as it is.

    Weights that do not arrive are the commonest silent failure of reweighting; so the learner
    must take ``sample_weight`` by name (a pipeline's last step will do), and with ``verify=True``
    it is first fitted on a made-up task whose rows of weight zero are poisoned, to see that they
    are ignored.

    Parameters
    ----------
    learner : estimator, optional
        Takes ``sample_weight`` in `fit`. Default: logistic regression.
    ratio : RatioEstimator, optional
        Default: `Auto()`. Out-of-fold ratios are used where the estimator has them.
    weighting : Weighting, optional
        Default: mean one, so that the learner's own regularisation keeps its meaning.
    verify : bool
        Prove that weights reach the learner.

    Attributes
    ----------
    learner_ : the fitted learner
    ratio_ : the fitted ratio, or None
    weights_ : Weights of the rows of X, or None
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

    def fit(self, X: Any, y: Any, *, target: Laws | None = None) -> Self:
        """Fit the learner on weighted rows.

        Parameters
        ----------
        X, y : rows and labels one has
        target : rows, or a mapping of several laws' rows
            Unlabelled rows of what the learner will be used on.
        """
        learner = self._learner()
        self.ratio_: RatioEstimator | None = None
        self.weights_: Weights | None = None
        if target is None:
            self.learner_ = learner.fit(X, y)
        else:
            keyword = weight_keyword(learner)
            if keyword is None:
                raise WeightsNotUsedError(
                    f"{type(learner).__name__} takes no sample_weight in fit, so weights cannot "
                    "reach it; choose a learner that does, or resample the rows by weight"
                )
            if self.verify:
                verify_weights_used(learner)
            ratio: RatioEstimator = clone(self.ratio) if self.ratio is not None else Auto()
            how = self.weighting or Weighting(normalise="mean one")
            self.weights_ = how(_source_log_ratio(ratio, X, y, target), laws=ratio.n_laws_)
            self.ratio_ = ratio
            self.learner_ = learner.fit(X, y, **{keyword: np.asarray(self.weights_)})
        for name in ("classes_", "n_features_in_", "feature_names_in_"):
            if hasattr(self.learner_, name):
                setattr(self, name, getattr(self.learner_, name))
        return self

    def _learner(self) -> Any:
        return clone(self.learner) if self.learner is not None else LogisticRegression()

    def predict(self, X: Any) -> Any:
        """The learner's predictions."""
        check_is_fitted(self, "learner_")
        return self.learner_.predict(X)

    @_has("predict_proba")
    def predict_proba(self, X: Any) -> Any:
        """The learner's class probabilities."""
        check_is_fitted(self, "learner_")
        return self.learner_.predict_proba(X)

    @_has("decision_function")
    def decision_function(self, X: Any) -> Any:
        """The learner's decision values."""
        check_is_fitted(self, "learner_")
        return self.learner_.decision_function(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The learner's own score."""
        check_is_fitted(self, "learner_")
        return float(self.learner_.score(X, y, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        """The learner's tags: what it can do, this can."""
        return get_tags(self._learner())


def _source_log_ratio(ratio: RatioEstimator, x: Any, y: Any, target: Laws) -> Any:
    """Log ratios of the rows one has: by label, out of fold, or as the estimator gives them."""
    if isinstance(ratio, LabelShift):
        return ratio.fit(source=x, source_labels=y, target=target).label_log_ratio(y)
    ratio.fit(source=x, target=target)
    held_out = getattr(ratio, "source_log_ratio_", None)
    return ratio.log_ratio(x) if held_out is None else held_out


def verify_weights_used(learner: Any) -> None:
    """Raise unless rows of weight zero hardly matter to `learner`.

    The learner is fitted on a small made-up task with right and with poisoned labels on half of
    the rows. If those have weight zero, the poison must change its predictions less than half as
    much as it does without weights.
    """
    keyword = weight_keyword(learner)
    rng = np.random.default_rng(0)
    x = rng.random((160, 2))  # not negative: some learners want counts
    truth = (x[:, 0] > 0.5).astype(int)
    weight = np.where(np.arange(160) < 80, 1.0, 0.0)
    wrong = np.where(weight > 0, truth, 1 - truth)

    def poison(**weights: Any) -> float:
        clean, spoiled = (clone(learner).fit(x, y, **weights).predict(x) for y in (truth, wrong))
        return float(np.mean(np.abs(clean.astype(float) - spoiled.astype(float))))

    with_weights = 1.0 if keyword is None else poison(**{keyword: weight})
    if with_weights > 0.02 and with_weights > 0.5 * poison():
        raise WeightsNotUsedError(
            f"{type(learner).__name__} takes sample_weight but rows of weight zero change its "
            "predictions: the weights do not reach what it fits; if it is a meta-estimator, route "
            "sample_weight to the final learner"
        )
