"""One contract over every ratio estimator: truth, direction, distributions, inputs, manners."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from known_distributions import Exact
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

from fedshift import ratio
from fedshift.errors import DisjointSupport, InputError
from fedshift.ratio import RatioEstimator


def log_normal(mean: float):
    return lambda x: -0.5 * (x[:, 0] - mean) ** 2


#: estimator, and the largest median error of the log ratio on [−½, 1½] over three draws of 2000
ESTIMATORS: dict[str, tuple[RatioEstimator, float]] = {
    "Exact": (Exact(log_normal(0.0), (log_normal(1.0),)), 1e-12),
    "Gaussian shared": (ratio.Gaussian(shared=True), 0.12),
    "Gaussian": (ratio.Gaussian(), 0.15),
    "Logistic": (ratio.Logistic(), 0.12),
    "Logistic squares": (ratio.Logistic("squares"), 0.15),
    "Logistic sparse": (ratio.Logistic("squares", sparse=True), 0.15),
    "Logistic quadratic": (ratio.Logistic("quadratic"), 0.15),
    "Logistic kernel": (ratio.Logistic("kernel", n_centers=50), 0.25),
    "Classifier": (ratio.Classifier(), 0.45),
    "Classifier naive Bayes": (ratio.Classifier(GaussianNB()), 0.15),
    "Classifier pipeline": (
        ratio.Classifier(make_pipeline(StandardScaler(), LogisticRegression())),
        0.15,
    ),
    "CrossFit": (ratio.CrossFit(ratio.Gaussian(shared=True), repeats=1), 0.12),
    "ULSIF": (ratio.ULSIF(), 0.4),
    "RULSIF": (ratio.RULSIF(), 0.3),
    "KLIEP": (ratio.KLIEP(), 0.3),
    "KMM": (ratio.KMM(), 0.4),
    "Neural lr": (ratio.Neural("lr", bound=20.0), 0.25),
    "Neural ukl": (ratio.Neural("ukl", bound=20.0), 0.35),
    "Neural lsif": (ratio.Neural("lsif", bound=20.0), 0.6),
    "Neural robust": (ratio.Neural("robust", bound=20.0), 0.4),
    "Neural pu": (ratio.Neural("pu", bound=30.0), 0.35),
    "Neural softplus": (ratio.Neural("lsif", link="softplus", bound=20.0), 0.6),
    "Auto": (ratio.Auto(folds=3), 0.15),
}
#: exchanging source and target negates these exactly
SYMMETRIC = (
    "Gaussian shared",
    "Gaussian",
    "Logistic",
    "Logistic squares",
    "Logistic quadratic",
    "Logistic kernel",
    "Logistic sparse",
)
FAST = [name for name in ESTIMATORS if not name.startswith(("Auto", "Neural", "KMM", "Classifier"))]
everything = pytest.mark.parametrize("name", list(ESTIMATORS))
fast = pytest.mark.parametrize("name", [*FAST, "Classifier naive Bayes"])
GRID = np.linspace(-0.5, 1.5, 21)[:, None]


def make(name: str) -> RatioEstimator:
    return clone(ESTIMATORS[name][0])


def draws(seed: int, n: int = 2000, m: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, (n, 1)), rng.normal(1, 1, (m or n, 1))


@everything
def test_truth_x_minus_half(name: str) -> None:
    errors = []
    for seed in range(3):
        source, target = draws(seed)
        found = make(name).fit(source=source, target=target).log_ratio(GRID)
        errors.append(np.abs(found - (GRID[:, 0] - 0.5)).max())
    assert np.median(errors) <= ESTIMATORS[name][1]


@fast
def test_target_scores_higher_and_truth_beats_swapped(name: str) -> None:
    source, target = draws(0, 500)
    fitted = make(name).fit(source=source, target=target)
    assert fitted.log_ratio(target).mean() > fitted.log_ratio(source).mean()
    new_source, new_target = draws(7, 500)
    assert fitted.score(source=new_source, target=new_target) > fitted.score(
        source=new_target, target=new_source
    )


@pytest.mark.parametrize("name", SYMMETRIC)
def test_exchange_negates(name: str) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(300, 2)), rng.normal(0.7, 1.2, size=(200, 2))
    x = rng.normal(size=(50, 2))
    there = make(name).fit(source=a, target=b).log_ratio(x)
    back = make(name).fit(source=b, target=a).log_ratio(x)
    np.testing.assert_allclose(there, -back, atol=2e-4)


def test_exact_exchange_negates() -> None:
    a, b = draws(0, 200)
    there = Exact(log_normal(0.0), (log_normal(1.0),)).fit(source=a, target=b).log_ratio(GRID)
    back = Exact(log_normal(1.0), (log_normal(0.0),)).fit(source=b, target=a).log_ratio(GRID)
    np.testing.assert_allclose(there, -back)


@fast
def test_duplicating_a_sample_set_changes_nothing(name: str) -> None:
    source, target = draws(1, 200, 150)
    once = make(name).fit(source=source, target=target).log_ratio(GRID)
    twice = make(name).fit(
        source=np.concatenate([source, source]), target=np.concatenate([target] * 3)
    )
    np.testing.assert_allclose(twice.log_ratio(GRID), once, atol=1e-7)


@fast
def test_row_order_changes_nothing(name: str) -> None:
    source, target = draws(2, 200)
    order = np.random.default_rng(0).permutation(200)
    a = make(name).fit(source=source, target=target).log_ratio(GRID)
    b = make(name).fit(source=source[order], target=target[order]).log_ratio(GRID)
    np.testing.assert_allclose(a, b, atol=1e-9)


@fast
def test_distributions_count_once_and_in_any_order(name: str) -> None:
    rng = np.random.default_rng(4)
    source = rng.normal(size=(300, 1))
    distributions = {"a": rng.normal(1, 1, (60, 1)), "b": rng.normal(-1, 1, (240, 1))}
    there = make(name).fit(source=source, target=distributions)
    back = make(name).fit(source=source, target={k: distributions[k] for k in ("b", "a")})
    np.testing.assert_allclose(there.log_ratio(GRID), back.log_ratio(GRID), atol=1e-9)
    # the same distribution twice is twice the ratio
    single = make(name).fit(source=source, target=distributions["a"]).log_ratio(GRID)
    double = make(name).fit(
        source=source, target={"x": distributions["a"], "y": distributions["a"]}
    )
    np.testing.assert_allclose(double.log_ratio(GRID), single + np.log(2), atol=1e-7)


@fast
def test_tensors_in_tensors_out(name: str) -> None:
    source, target = draws(5, 200)
    fitted = make(name).fit(source=torch.tensor(source), target=torch.tensor(target))
    out = fitted.log_ratio(torch.tensor(GRID))
    assert isinstance(out, torch.Tensor)
    assert out.shape == (21,)
    assert out.dtype == torch.float64
    np.testing.assert_allclose(out.numpy(), fitted.log_ratio(GRID))
    np.testing.assert_allclose(fitted.ratio(torch.tensor(GRID)).numpy(), np.exp(out.numpy()))


@everything
def test_arguments_are_keyword_only(name: str) -> None:
    with pytest.raises(TypeError):
        make(name).fit(*draws(0, 20))


@everything
def test_manners_of_scikit_learn(name: str) -> None:
    estimator = make(name)
    kind = type(estimator).__name__
    estimator_checks.check_get_params_invariance(kind, estimator)
    estimator_checks.check_estimator_repr(kind, estimator)
    before = str(estimator.get_params())
    assert str(clone(estimator).get_params()) == before
    assert [a for a in vars(estimator) if a.endswith("_") and not a.startswith("_")] == []


@everything
def test_fit_before_use(name: str) -> None:
    with pytest.raises(ValueError, match="not fitted"):
        make(name).log_ratio(GRID)


@fast
def test_wrong_columns_after_fit(name: str) -> None:
    source, target = draws(0, 100)
    with pytest.raises(InputError, match=r"rows of shape \(1,\), as in fit; got \(2,\)"):
        make(name).fit(source=source, target=target).log_ratio(np.zeros((3, 2)))


@pytest.mark.parametrize("name", [n for n in FAST if n != "Exact"])
def test_hostile_scales_give_finite_weights(name: str) -> None:
    rng = np.random.default_rng(6)
    scale = np.array([1e-6, 1.0, 1e6])
    source = rng.normal(size=(200, 3)) * scale + 1e3 * scale
    target = rng.normal((1.0, 0.0, 0.0), 1, (200, 3)) * scale + 1e3 * scale
    fitted = make(name).fit(source=source, target=target)
    plain = make(name).fit(source=source / scale - 1e3, target=target / scale - 1e3)
    found = fitted.log_ratio(source)
    assert np.isfinite(found).all()
    # folds and centres are drawn by content, so units may change the draw but not the answer
    assert np.corrcoef(found, plain.log_ratio(source / scale - 1e3))[0, 1] > 0.95


@fast
def test_separable_distributions_warn_and_stay_finite(name: str) -> None:
    if name == "Exact":
        pytest.skip("knows its distributions")
    rng = np.random.default_rng(8)
    source, target = rng.normal(size=(60, 2)), rng.normal((40.0, 0.0), 1, (60, 2))
    with pytest.warns(DisjointSupport, match="columns 0"):
        fitted = make(name).fit(source=source, target=target)
    assert np.isfinite(fitted.log_ratio(np.concatenate([source, target]))).all()


@everything
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (np.full((30, 1), np.nan), "finite"),
        (np.zeros((0, 1)), "at least one row"),
        (np.array([["a"]] * 30), "encode text"),
        (np.zeros((1, 1)), "at least 2 rows"),
        (np.ones((30, 2)), "same shape as source"),
    ],
)
def test_bad_input_never_becomes_a_weight(name: str, bad: np.ndarray, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make(name).fit(source=draws(0, 30)[0], target=bad)
