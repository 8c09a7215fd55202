"""The scikit-learn faces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
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


@pytest.mark.parametrize("ratio", ["exact", "logistic", "multi-source"])
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
        ({"choose": "best"}, "set validation"),
        ({"model": "linaer"}, "did you mean 'linear'"),
    ],
)
def test_wrong_settings_name_the_nearest(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        fs.FederatedClassifier("linear", plan=PLAN).set_params(**change).fit(labelled())


def test_bad_input_is_named() -> None:
    fed = labelled()
    with pytest.raises(InputError, match=r"takes a fedshift.data.Federation; got ndarray"):
        fs.FederatedClassifier().fit(np.zeros((3, 2)))
    clf = fs.FederatedClassifier("linear", objective="erm", plan=PLAN).fit(fed)
    with pytest.raises(InputError, match=r"shape \(2,\)"):
        clf.predict(np.zeros((2, 3)))
    strange = replace(fed[0], test_y=np.full(len(fed[0].test_x), "perhaps"))
    with pytest.raises(InputError, match="'perhaps'"):
        clf.evaluate(fs.Federation((strange,)))
    one = replace(fed[0], y=np.full(len(fed[0].x), "no"))
    with pytest.raises(InputError, match="two classes"):
        fs.FederatedClassifier("linear").fit(fs.Federation((one,)))
