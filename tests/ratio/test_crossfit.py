"""Cross-fitting: each row gets its ratio from models fitted without it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from fedshift.core.samples import Sample
from fedshift.errors import InputError
from fedshift.ratio import Classifier, CrossFit, Gaussian, Logistic
from fedshift.ratio.base import RatioEstimator
from fedshift.ratio.crossfit import out_of_fold


def draws(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 2)), rng.normal(0.7, 1, (n, 2))


def test_memorising_model_is_useless_in_sample_and_useful_out_of_fold() -> None:
    source, target = draws()
    tree = Classifier(DecisionTreeClassifier(min_samples_leaf=1, random_state=0), folds=0)
    inside = tree.fit(source=source, target=target).log_ratio(source)
    assert np.ptp(inside) < 1e-6  # every source row is "surely source"
    outside = CrossFit(
        Classifier(DecisionTreeClassifier(min_samples_leaf=20, random_state=0), folds=0)
    ).fit(source=source, target=target)
    truth = 0.7 * source.sum(axis=1) - 0.49
    assert np.corrcoef(outside.source_log_ratio_, truth)[0, 1] > 0.5


def test_no_model_judges_its_own_rows() -> None:
    overlaps: list[set[float]] = []

    class Spy(RatioEstimator):
        def _fit(self, source: Sample, target: Sample) -> None:
            self.rows = set(source.flat[:, 0]) | set(target.flat[:, 0])

        def _log_ratio(self, x: np.ndarray) -> np.ndarray:
            overlaps.append(self.rows & set(x.reshape(len(x), -1)[:, 0]))
            return np.zeros(len(x))

    s, t = (Sample.of(x) for x in draws(40))
    out_of_fold(Spy()._path, s, t, folds=4, seed=0)
    assert len(overlaps) == 8
    assert not any(overlaps)


class Wild(RatioEstimator):
    """Right, but for one model in fifteen, which explodes."""

    count = 0

    def _fit(self, source: Sample, target: Sample) -> None:
        Wild.count += 1
        self.explodes = Wild.count == 3

    def _log_ratio(self, x: np.ndarray) -> np.ndarray:
        return np.full(len(x), 300.0 if self.explodes else 0.5)


def test_one_exploding_model_changes_no_weight() -> None:
    source, target = draws(60)
    Wild.count = 0
    r = CrossFit(Wild(), folds=5, repeats=3).fit(source=source, target=target)
    np.testing.assert_array_equal(r.source_log_ratio_, 0.5)
    np.testing.assert_array_equal(r.log_ratio(source), 0.5)


def test_cap_stops_extrapolation() -> None:
    source, target = draws()
    source[0] = 50.0  # an outlier far beyond every target row
    free = CrossFit(Gaussian(shared=True), cap=False).fit(source=source, target=target)
    capped = CrossFit(Gaussian(shared=True)).fit(source=source, target=target)
    assert free.source_log_ratio_[0] > capped.source_log_ratio_[0]
    assert capped.source_log_ratio_.max() <= capped.cap_


def test_ratios_follow_the_order_of_rows() -> None:
    source, target = draws(100)
    r = CrossFit(Logistic(), repeats=1).fit(source=source, target={"a": target, "b": target})
    assert np.corrcoef(r.source_log_ratio_, source.sum(axis=1))[0, 1] > 0.95
    assert r.log_ratio(source).mean() > np.log(2) - 1.5


def test_bad_options() -> None:
    source, target = draws(10)
    with pytest.raises(InputError, match="wrap a scikit-learn classifier"):
        CrossFit(KNeighborsClassifier()).fit(source=source, target=target)
    with pytest.raises(InputError, match="folds must be a whole number of at least 2"):
        CrossFit(Gaussian(), folds=1).fit(source=source, target=target)
    with pytest.raises(InputError, match="20 distinct rows"):
        CrossFit(Gaussian(), folds=20).fit(source=source, target=target)
