"""Reweighter: scikit-learn's own checks, gains under shift, weights that must arrive."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedshift import Reweighter, Weighting
from fedshift.errors import InputError, WeightsNotUsedError
from fedshift.ratio import MLLS, Gaussian, Logistic


@parametrize_with_checks([Reweighter(), Reweighter(LinearRegression())])
def test_scikit_learn_checks(estimator, check) -> None:
    check(estimator)


def curve(rng: np.random.Generator, mean: float, n: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(mean, 0.5, (n, 1))
    return x, x[:, 0] ** 2 + 0.1 * rng.normal(size=n)


def test_a_wrong_model_fits_the_target_better_with_weights() -> None:
    rng = np.random.default_rng(0)
    (x, y), (new_x, new_y) = curve(rng, 0.0), curve(rng, 0.7)
    plain = LinearRegression().fit(x, y)
    weighted = Reweighter(LinearRegression(), ratio=Gaussian(shared=True)).fit(x, y, target=new_x)
    errors = [np.mean((m.predict(new_x) - new_y) ** 2) for m in (plain, weighted)]
    assert errors[1] < 0.4 * errors[0]
    assert weighted.weights_ is not None
    assert weighted.weights_.mean == pytest.approx(1.0)


def test_without_target_it_is_the_learner() -> None:
    rng = np.random.default_rng(1)
    x, y = curve(rng, 0.0, 100)
    a, b = Reweighter(LinearRegression()).fit(x, y), LinearRegression().fit(x, y)
    np.testing.assert_array_equal(a.predict(x), b.predict(x))
    assert a.weights_ is None


def test_out_of_fold_ratios_and_distributions_are_used() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(120, 1))
    y = (x[:, 0] > 0).astype(int)
    distributions = {"a": rng.normal(1, 1, (80, 1)), "b": rng.normal(0, 1, (80, 1))}
    model = Reweighter(weighting=Weighting()).fit(x, y, target=distributions)
    assert model.ratio_ is not None
    np.testing.assert_allclose(model.weights_.values, np.exp(model.ratio_.source_log_ratio_))
    assert model.weights_.mean == pytest.approx(2.0, abs=0.5)  # two distributions
    assert model.predict_proba(x).shape == (120, 2)
    assert model.decision_function(x).shape == (120,)
    assert model.score(x, y) > 0.8


class Deaf(ClassifierMixin, BaseEstimator):
    """Takes weights and ignores them."""

    def fit(self, X, y, sample_weight=None):
        self.inner_ = LogisticRegression().fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def predict(self, X):
        return self.inner_.predict(X)


def test_weights_that_do_not_arrive_are_an_error() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 1))
    y = (x[:, 0] > 0).astype(int)
    with pytest.raises(WeightsNotUsedError, match="takes no sample_weight"):
        Reweighter(KNeighborsClassifier()).fit(x, y, target=x + 1)
    with pytest.raises(WeightsNotUsedError, match="weight zero"):
        Reweighter(Deaf(), ratio=Logistic()).fit(x, y, target=x + 1)
    forest = RandomForestClassifier(n_estimators=10, random_state=0)
    Reweighter(forest, ratio=Logistic()).fit(x, y, target=x + 0.3)
    assert not hasattr(Reweighter(Deaf()), "predict_proba")


@pytest.mark.parametrize(
    "learner",
    [
        SGDClassifier(random_state=0),
        MultinomialNB(),
        make_pipeline(MinMaxScaler(), LogisticRegression()),
        DecisionTreeRegressor(random_state=0),
    ],
)
def test_learners_that_listen_are_let_through(learner) -> None:
    rng = np.random.default_rng(4)
    x = rng.random((80, 2))
    y = (x[:, 0] > 0.5).astype(int)
    model = Reweighter(learner, ratio=Logistic()).fit(x, y, target=x[::2] ** 0.8)
    assert model.weights_ is not None


def test_label_shift_gets_its_labels() -> None:
    rng = np.random.default_rng(5)
    y, shifted = rng.random(400) < 0.2, rng.random(400) < 0.8
    x, use = (g[:, None] * 2.0 + rng.normal(size=(400, 2)) for g in (y, shifted))
    model = Reweighter(ratio=MLLS(), weighting=Weighting()).fit(x, y.astype(int), target=use)
    assert model.weights_ is not None
    by_label = [model.weights_.values[y == c].mean() for c in (False, True)]
    np.testing.assert_allclose(by_label, [0.25, 4.0], rtol=0.3)


def table(n: int, shift: float, seed: int) -> pd.DataFrame:
    """Rows with text, dates and gaps. Age, ward and day depend on `shift`."""
    rng = np.random.default_rng(seed)
    age = rng.normal(shift, 1, n)
    ward = rng.choice(["day", "ICU", None], n, p=[0.6 - 0.4 * shift, 0.3 + 0.4 * shift, 0.1])
    day = np.datetime64("2020-01-01") + rng.integers(0, 90, n)
    gaps = np.where(rng.random(n) < 0.1, np.nan, age)
    return pd.DataFrame({"age": gaps, "ward": pd.Series(ward), "day": pd.Series(day)})


def test_ratios_read_a_copy_and_the_learner_reads_the_rows_as_they_are() -> None:
    source, target = table(400, 0.0, 0), table(300, 1.0, 1)
    y = (source["age"].fillna(0) > 0.3).astype(int)
    trees = HistGradientBoostingClassifier(random_state=0)
    for x, new in ((source[["age"]], target[["age"]]), (source[["age"]].to_numpy(),) * 2):
        Reweighter(trees, ratio=Logistic()).fit(x, y, target=new)
    model = Reweighter(trees, ratio=Logistic()).fit(source[["age"]], y, target=target[["age"]])
    weights = model.weights_
    assert weights is not None
    observed = ~np.isnan(source["age"].to_numpy())
    exact = source["age"].to_numpy() - 0.5
    assert np.corrcoef(np.log(weights.values[observed]), exact[observed])[0, 1] > 0.95
    alone = clone(trees).fit(source[["age"]], y, sample_weight=weights.values)  # NaN included
    new = target[["age"]]
    np.testing.assert_array_equal(model.predict_proba(new), alone.predict_proba(new))


def test_text_reaches_the_pipeline_of_the_learner() -> None:
    source, target = table(400, 0.0, 0), table(300, 1.0, 1)
    y = (source["ward"] == "ICU").astype(int)
    words = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["ward"]))
    learner = make_pipeline(words, LogisticRegression())
    model = Reweighter(learner, ratio=Logistic()).fit(source, y, target={"a": target, "b": target})
    assert model.weights_ is not None
    icu = (source["ward"] == "ICU").to_numpy()
    assert model.weights_.values[icu].mean() > 1.5 * model.weights_.values[~icu].mean()
    assert model.predict(target).shape == (300,)
    with pytest.raises(InputError, match="target must have the same columns as source"):
        Reweighter(learner, ratio=Logistic()).fit(source, y, target=target[["age"]])
    with pytest.raises(InputError, match=r"'age': 300 of 300 .* no usable number \('many'"):
        Reweighter(learner, ratio=Logistic()).fit(source, y, target=target.assign(age="many"))
    with pytest.raises(InputError, match=r"LogisticRegression must be able to fit X and y.*NaN"):
        Reweighter(ratio=Logistic()).fit(source[["age"]], y, target=target[["age"]])
