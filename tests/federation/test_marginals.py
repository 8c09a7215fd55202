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


def test_posteriors_are_of_the_uniform_label_law(
    federation: fs.Federation, fitted: FederatedMLLS
) -> None:
    for c in federation:
        train, test = fitted.posteriors(c.name)
        assert (train.shape, test.shape) == ((len(c.x), 10), (len(c.test_x), 10))
        for p in (train, test):
            np.testing.assert_allclose(p.sum(axis=1), 1.0)
        # rows weighted to equal shares have each class as often as it is foretold
        own = np.bincount(c.y, minlength=10) / len(c.y)
        weight = 1 / own[c.y]
        np.testing.assert_allclose(weight @ train / weight.sum(), 0.1, atol=0.08)


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


def test_a_class_missing_at_a_client_biases_nothing() -> None:
    """Classes held by fewer clients have less weight in training; calibration gives it back."""
    rng = np.random.default_rng(0)

    def rows(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        y = np.repeat(np.arange(3), counts)
        x = rng.normal(size=(len(y), 2))
        x[:, 0] += 1.5 * y
        return x, y

    clients: dict[str, tuple[np.ndarray, ...]] = {}
    for k in range(6):
        x, y = rows((200, 800, 800) if k == 0 else (800, 0, 0))
        clients[f"c{k}"] = (x, y, rows((100, 400, 500))[0])
    plan = fs.FedSGD(iterations=400, lr=0.02)
    found = FederatedMLLS(model="linear", plan=plan).fit(fs.Federation.of(clients)).marginals_
    for law in found.values():
        np.testing.assert_allclose(law, [0.1, 0.4, 0.5], atol=0.12)


def test_a_client_with_one_row_takes_part() -> None:
    rng = np.random.default_rng(0)
    many = (rng.normal(size=(60, 2)), rng.integers(0, 2, 60), rng.normal(size=(30, 2)))
    one = (np.zeros((1, 2)), np.array([1]), rng.normal(size=(30, 2)))
    fed = fs.Federation.of({"many": many, "one": one})
    found = FederatedMLLS(model="linear", plan=fs.FedSGD(iterations=20)).fit(fed)
    assert found.source_log_ratio("one").shape == (1,)


def test_bfloat16_rounds_what_the_classifier_learns() -> None:
    federation = digits_federation(seed=1)
    plan = fs.FedSGD(iterations=60, lr=5e-3, batch_size=32)
    exact, rounded = (
        FederatedMLLS(model="lenet", plan=plan, folds=2, precision=p).fit(federation)
        for p in ("float32", "bfloat16")
    )
    off = [np.abs(exact.marginals_[c.name] - rounded.marginals_[c.name]).sum() for c in federation]
    assert 0 < max(off) < 0.3
    with pytest.raises(InputError, match=r"precision must be .*bfloat16"):
        FederatedMLLS(precision="bfloat").fit(federation)  # type: ignore[arg-type]
