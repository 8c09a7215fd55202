"""The scikit-learn faces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import fedshift as fs
from fedshift.data import GaussianShift
from fedshift.errors import InputError

PLAN = fs.FedSGD(iterations=150, lr=0.05, batch_size=32)


def labelled() -> fs.Federation:
    """Two clients whose classes are words."""
    fed = GaussianShift.mean_shift(d=2, clients=2).draw(seed=0)
    words = np.array(["no", "yes"])
    return replace(
        fed,
        clients=tuple(
            replace(c, y=words[c.y.astype(int)], test_y=words[c.test_y.astype(int)])
            for c in fed
            if c.test_y is not None
        ),
    )


@pytest.mark.parametrize("ratio", ["exact", "logistic", "multi-source", "federated-auto"])
def test_a_classifier_learns_and_keeps_the_labels(ratio: str) -> None:
    fed = labelled()
    clf = fs.FederatedClassifier("linear", ratio=ratio, plan=PLAN).fit(fed)
    assert list(clf.classes_) == ["no", "yes"]
    c = fed[0]
    proba = clf.predict_proba(c.test_x)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(clf.predict(c.test_x), clf.classes_[proba.argmax(axis=1)])
    accuracy = float(np.mean(clf.predict(c.test_x) == c.test_y))
    scores = clf.evaluate(fed)
    assert scores[c.name].value == pytest.approx(accuracy)
    assert scores.mean > 0.6


def test_log_ratios_may_be_given_by_client() -> None:
    fed = labelled()
    given = {c.name: fed.exact_log_ratio(c.name) for c in fed}
    exact = fs.FederatedClassifier("linear", ratio="exact", plan=PLAN).fit(fed)
    same = fs.FederatedClassifier("linear", ratio=given, plan=PLAN).fit(fed)
    np.testing.assert_array_equal(
        exact.predict_proba(fed[0].test_x), same.predict_proba(fed[0].test_x)
    )


def test_a_regressor_learns_a_line() -> None:
    rng = np.random.default_rng(0)

    def client(mean: float) -> tuple[Any, ...]:
        x = rng.normal(mean, 1, (400, 2))
        z = rng.normal(-mean, 1, (200, 2))
        line = np.array([1.0, -2.0])
        return x, x @ line + 0.1 * rng.normal(size=400), z, z @ line

    fed = fs.Federation.of({"a": client(0.5), "b": client(-0.5)})
    reg = fs.FederatedRegressor(
        "linear", objective="fitw", ratio="logistic", plan=replace(PLAN, iterations=400)
    ).fit(fed)
    assert reg.evaluate(fed).mean < 0.05
    assert reg.predict(fed[0].x).shape == (400,)


def test_parameters_are_sklearns() -> None:
    clf = fs.FederatedClassifier("linear", objective="erm", plan=PLAN, seed=3)
    assert clone(clf).get_params()["plan"] == PLAN
    clf.set_params(objective="fitw")
    assert clf.objective == "fitw"


def test_the_seed_seeds_a_plan_without_one() -> None:
    fed = labelled()
    plan = fs.FedSGD(iterations=60, lr=0.05)

    def fit(seed: int, plan: Any) -> Any:
        clf = fs.FederatedClassifier("linear", ratio="exact", seed=seed, plan=plan).fit(fed)
        return clf.outcome_.state.tensors["params"].numpy()

    first, second = fit(0, plan), fit(1, plan)
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(fit(1, plan), second)
    np.testing.assert_array_equal(fit(1, replace(plan, seed=1)), second)
    assert plan.seed is None
    own = [fit(s, replace(plan, seed=0)) for s in (0, 1)]  # a linear model starts at zero
    np.testing.assert_array_equal(own[0], first)
    with pytest.raises(InputError, match="seed must be a whole number of at least 0; got -1"):
        fs.FedSGD(seed=-1)


def test_a_folder_makes_a_second_fit_short(tmp_path: Any) -> None:
    fed = labelled()
    first = fs.FederatedClassifier("linear", ratio="exact", plan=PLAN, folder=tmp_path).fit(fed)
    second = fs.FederatedClassifier("linear", ratio="exact", plan=PLAN, folder=tmp_path).fit(fed)
    np.testing.assert_array_equal(
        first.predict_proba(fed[0].test_x), second.predict_proba(fed[0].test_x)
    )
    assert second.history_ == first.history_


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objective": "ftv"}, "did you mean 'ftw'"),
        ({"ratio": "mutli-source"}, "did you mean 'multi-source'"),
        ({"engine": "fuzed"}, "did you mean 'fused'"),
        ({"choose": "best"}, "need validation rows"),
        ({"model": "linaer"}, "did you mean 'linear'"),
    ],
)
def test_wrong_settings_name_the_nearest(change: dict[str, Any], said: str) -> None:
    clf = fs.FederatedClassifier("linear", ratio="exact", plan=PLAN)
    with pytest.raises(InputError, match=said):
        clf.set_params(**change).fit(labelled())


def test_bad_input_is_named() -> None:
    fed = labelled()
    with pytest.raises(InputError, match=r"needs a fedshift.Federation; got ndarray"):
        fs.FederatedClassifier().fit(np.zeros((3, 2)))
    clf = fs.FederatedClassifier("linear", objective="erm", plan=PLAN).fit(fed)
    with pytest.raises(InputError, match=r"shape \(2,\)"):
        clf.predict(np.zeros((2, 3)))
    strange = replace(fed[0], test_y=np.full(len(fed[0].test_x), "perhaps"))
    with pytest.raises(InputError, match="'perhaps'"):
        clf.evaluate(fs.Federation((strange,)))
    with pytest.raises(InputError, match=r"fit needs a fedshift.Federation; got ndarray"):
        clf.fit(fed[0].x, fed[0].y)
    with pytest.raises(InputError, match=r"holds the labels; got y; drop y"):
        clf.fit(fed, fed[0].y)
    with pytest.raises(InputError, match=r"evaluate needs a fedshift.Federation; got ndarray"):
        clf.evaluate(fed[0].x)
    one = replace(fed[0], y=np.full(len(fed[0].x), "no"))
    with pytest.raises(InputError, match="two classes"):
        fs.FederatedClassifier("linear").fit(fs.Federation((one,)))


def test_bad_labels_are_named() -> None:
    fed = labelled()
    gaps = replace(fed[0], y=np.where(np.arange(len(fed[0].y)) == 4, None, fed[0].y))
    with pytest.raises(InputError, match=r"'client-1': y must have a label .* missing.* row 4"):
        fs.FederatedClassifier("linear").fit(fs.Federation((gaps,)))
    mixed = replace(fed[0], y=np.where(np.arange(len(fed[0].y)) == 4, 7, fed[0].y.astype(object)))
    with pytest.raises(InputError, match="labels of all clients must be all text or all numbers"):
        fs.FederatedClassifier("linear").fit(fs.Federation((mixed,)))
    for words in (fed[0].y, fed[0].y.astype(object)):
        said = r"'client-1': y must hold numbers; got .*(no|yes).*; convert them"
        with pytest.raises(InputError, match=said):
            fs.FederatedRegressor("linear").fit(fs.Federation((replace(fed[0], y=words),)))


def frames(*orders: list[str]) -> fs.Federation:
    """A client for every order of columns, each with the class in its first named column."""
    rng = np.random.default_rng(0)

    def client(order: list[str]) -> tuple[Any, ...]:
        rows = pd.DataFrame(rng.normal(size=(60, 3)), columns=["age", "lab", "bmi"])[order]
        return rows, (rows["age"] > 0).astype(int), rows, (rows["age"] > 0).astype(int)

    return fs.Federation.of({f"site-{k}": client(order) for k, order in enumerate(orders)})


def test_columns_of_frames_are_remembered() -> None:
    order = ["age", "lab", "bmi"]
    fed = frames(order, order)
    quick = fs.FedSGD(iterations=3)
    clf = fs.FederatedClassifier("linear", objective="erm", plan=quick).fit(fed)
    assert list(clf.feature_names_in_) == order
    frame = pd.DataFrame(fed[0].x, columns=order)
    np.testing.assert_array_equal(clf.predict(frame), clf.predict(fed[0].x))
    for call in (clf.predict, clf.predict_proba):
        with pytest.raises(InputError, match=r"X must have the same columns as .* \['age'.*use df"):
            call(frame[["lab", "age", "bmi"]])
    with pytest.raises(InputError, match="client 'site-0' must have the same columns"):
        clf.evaluate(frames(["lab", "age", "bmi"]))
    assert len(clf.evaluate(frames(order))) == 1
    clf.fit(labelled())  # of arrays: there are no names any more
    assert not hasattr(clf, "feature_names_in_")


def test_reversed_columns_are_taken() -> None:
    fed = labelled()
    clf = fs.FederatedClassifier("linear", objective="erm", plan=fs.FedSGD(iterations=3)).fit(fed)
    turned = fed[0].test_x[:, ::-1]
    np.testing.assert_array_equal(clf.predict(turned), clf.predict(turned.copy()))
    frame = pd.DataFrame(fed[0].test_x, columns=["b", "a"])
    np.testing.assert_array_equal(clf.predict(frame[["a", "b"]]), clf.predict(turned))


def test_a_site_that_was_not_trained_on_can_be_evaluated() -> None:
    fed = labelled()
    plan = fs.FedSGD(iterations=3)
    clf = fs.FederatedClassifier("linear", objective="ftw", ratio="exact", plan=plan).fit(fed)
    scores = clf.evaluate(fs.Federation((fed[0], replace(fed[1], name="new"))))
    assert scores["client-1"].ess is not None
    assert scores["new"].ess is None
