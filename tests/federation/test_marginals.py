"""Test label laws found without labels and without a row leaving its client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedshift as fs
from fedshift.demo import digits_federation
from fedshift.errors import InputError
from fedshift.federation.marginals import FederatedMLLS
from fedshift.workflow import run


@pytest.fixture(scope="module")
def federation() -> fs.Federation:
    return digits_federation(seed=0)


@pytest.fixture(scope="module")
def fitted(federation: fs.Federation) -> FederatedMLLS:
    plan = fs.FedSGD(iterations=300, lr=5e-3, batch_size=32)
    return FederatedMLLS(model="linear", plan=plan).fit(federation)


def test_the_laws_are_near_the_truth(federation: fs.Federation, fitted: FederatedMLLS) -> None:
    for c in federation:
        assert c.test_y is not None
        truth = np.bincount(c.test_y, minlength=10) / len(c.test_y)
        assert fitted.marginals_[c.name].sum() == pytest.approx(1.0)
        assert np.abs(fitted.marginals_[c.name] - truth).sum() < 0.5


def test_ratios_are_looked_up_by_label(federation: fs.Federation, fitted: FederatedMLLS) -> None:
    c = federation[1]
    own = np.bincount(c.y, minlength=10) / len(c.y)
    found = np.exp(fitted.source_log_ratio(c.name, target="client-4"))
    np.testing.assert_allclose(found, fitted.marginals_["client-4"][c.y] / own[c.y])
    every = sum(np.exp(fitted.source_log_ratio(c.name, target=o.name)) for o in federation)
    np.testing.assert_allclose(np.exp(fitted.source_log_ratio(c.name)), every)


def test_training_with_it_gains(federation: fs.Federation, fitted: FederatedMLLS) -> None:
    plan = fs.FedSGD(iterations=300, lr=0.01, batch_size=32)
    scores = {}
    for name, ratio in (("erm", "exact"), ("ftw", fitted)):
        out = run(federation, fs.Settings(objective=name, ratio=ratio, model="linear", plan=plan))
        assert out.evaluation is not None
        assert out.ledger.total.rows == 0
        scores[name] = out.evaluation.mean
    assert scores["ftw"] > scores["erm"] + 0.03


def test_test_labels_are_not_looked_at(federation: fs.Federation, fitted: FederatedMLLS) -> None:
    blind = replace(federation, clients=tuple(replace(c, test_y=None) for c in federation))
    again = FederatedMLLS(model="linear", plan=fitted.plan).fit(blind)
    for name, law in fitted.marginals_.items():
        np.testing.assert_array_equal(law, again.marginals_[name])


def test_a_class_nobody_has_is_named(federation: fs.Federation) -> None:
    gap = replace(federation[0], y=np.where(federation[0].y == 3, 4, federation[0].y))
    with pytest.raises(InputError, match="no row of class 3"):
        FederatedMLLS(model="linear").fit(fs.Federation((gap,)))


def test_a_ratio_fitted_on_another_federation_is_refused(
    federation: fs.Federation, fitted: FederatedMLLS
) -> None:
    c = federation[0]
    fewer = replace(c, x=c.x[:-1], y=c.y[:-1])
    other = replace(federation, clients=(fewer, *federation.clients[1:]))
    with pytest.raises(InputError, match="fitted on"):
        run(other, fs.Settings(ratio=fitted, model="linear", plan=fs.FedSGD(iterations=1)))
