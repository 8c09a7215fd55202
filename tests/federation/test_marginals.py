"""Test label distributions found without labels and without a row leaving its client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedshift as fs
from fedshift.core.scaling import MatrixCalibration
from fedshift.demo import digits_federation
from fedshift.errors import InputError
from fedshift.federation.client_weights import estimate_log_ratios
from fedshift.federation.ledger import Ledger
from fedshift.federation.marginals import FederatedMLLS
from fedshift.federation.task import Task
from fedshift.workflow import run


@pytest.fixture(scope="module")
def federation() -> fs.Federation:
    return digits_federation(seed=0)


@pytest.fixture(scope="module")
def fitted(federation: fs.Federation) -> FederatedMLLS:
    plan = fs.FedSGD(iterations=300, lr=5e-3, batch_size=32)
    return FederatedMLLS(model="linear", plan=plan).fit(federation)


def test_the_distributions_are_near_the_truth(
    federation: fs.Federation, fitted: FederatedMLLS
) -> None:
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


def test_posteriors_are_of_the_uniform_label_distribution(
    federation: fs.Federation, fitted: FederatedMLLS
) -> None:
    for c in federation:
        train, test = fitted.posteriors(c.name)
        assert (train.shape, test.shape) == ((len(c.x), 10), (len(c.test_x), 10))
        for p in (train, test):
            np.testing.assert_allclose(p.sum(axis=1), 1.0)
        # rows weighted to equal shares have each class as often as it is predicted
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
    for name, distribution in fitted.marginals_.items():
        np.testing.assert_array_equal(distribution, again.marginals_[name])


def test_a_class_nobody_has_is_named(federation: fs.Federation) -> None:
    gap = replace(federation[0], y=np.where(federation[0].y == 3, 4, federation[0].y))
    with pytest.raises(InputError, match="no row of class 3"):
        FederatedMLLS(model="linear").fit(fs.Federation((gap,)))
    one = replace(federation[0], y=np.zeros_like(federation[0].y))
    with pytest.raises(InputError, match="two classes; got rows of one"):
        FederatedMLLS(model="linear").fit(fs.Federation((one,)))


def test_a_class_of_single_rows_is_named(federation: fs.Federation) -> None:
    """The only row of a client teaches; none is left to find the bias of its class by."""
    a, b, c, *_ = federation
    alone = replace(b, x=b.x[:1], y=np.array([10]))
    with pytest.raises(InputError, match=r"class 10 only at clients with one row"):
        FederatedMLLS(model="linear").fit(fs.Federation((a, alone)))
    beside = replace(c, y=np.where(np.arange(len(c.y)) < 2, 10, c.y))
    plan = fs.FedSGD(iterations=2)
    FederatedMLLS(model="linear", plan=plan).fit(fs.Federation((a, alone, beside)))


def test_the_ledger_counts_every_sum(federation: fs.Federation, fitted: FederatedMLLS) -> None:
    plain = fitted.recalibrated("bcts")
    for c in federation:
        for found, size in ((plain, 11), (fitted, 110)):
            cost, steps = found.ledger_[c.name, "query.calibrate"], found.calibration_.rounds
            assert steps > 5
            assert cost == (8 * (10 + steps * (size + 1)), 8 * steps * size, 0)
        assert plain.ledger_[c.name, "train.ratio"] == fitted.ledger_[c.name, "train.ratio"]
        assert fitted.ledger_[c.name, "query.describe"] == (80, 80, 0)


@pytest.mark.parametrize("pooling", [0.0, 0.5, 1.0])
def test_a_class_missing_at_a_client_biases_nothing(pooling: float) -> None:
    """Classes held by fewer clients have less weight in training; calibration gives it back.

    With pooling, clients that have the class stand for the others at once.
    """
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
    found = FederatedMLLS(model="linear", plan=plan, pooling=pooling).fit(fs.Federation.of(clients))
    for distribution in found.marginals_.values():
        np.testing.assert_allclose(distribution, [0.1, 0.4, 0.5], atol=0.12)


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


@pytest.mark.parametrize("pooling", [0.0, 0.3, 1.0])
def test_what_leaning_clients_weigh(pooling: float, monkeypatch: pytest.MonkeyPatch) -> None:
    distributions = {"a": (0.6, 0.2, 0.2), "b": (0.1, 0.8, 0.1), "c": (0.5, 0.5, 0.0)}
    rng, clients = np.random.default_rng(0), {}
    for name, distribution in distributions.items():
        y = np.repeat(np.arange(3), np.round(np.multiply(100, distribution)).astype(int))
        clients[name] = (rng.normal(size=(100, 2)), y, rng.normal(size=(9, 2)))
    given: list[Any] = []
    made = Task.of

    def watched(*args: Any, weights: Any, **others: Any) -> Task:
        given.append(weights)
        return made(*args, weights=weights, **others)

    monkeypatch.setattr(Task, "of", watched)
    plan = fs.FedSGD(iterations=2)
    found = FederatedMLLS(model="linear", plan=plan, folds=2, pooling=pooling)
    found.fit(fs.Federation.of(clients))
    assert len(given) == 2  # a task for every fold
    total = np.zeros(3)
    for name, distribution in distributions.items():
        weight = np.zeros(3)
        for y in np.flatnonzero(distribution):
            beside = sum(p[y] ** pooling for p in distributions.values() if p[y] or not pooling)
            weight[y] = 3 * distribution[y] ** pooling / beside / (3 * distribution[y])
        half = np.round(np.multiply(50, distribution)).astype(int)
        for w in given:  # rows are in the order of their classes
            np.testing.assert_allclose(w[name], weight[np.repeat(np.arange(3), half)])
        total += distribution * weight
    # all classes alike, also where a client lacks one; without pooling it is missed
    np.testing.assert_allclose(total, [1, 1, 1 if pooling else 2 / 3])
    assert _told(found.ledger_) == dict.fromkeys("abc", 3 * 8 * (2 if pooling else 1))
    # pooling needs the training distributions too: once, not twice
    ratios = estimate_log_ratios(fs.Federation.of(clients), found, pooling=0.5)
    assert ratios is not None
    assert _told(ratios.ledger) == dict.fromkeys("abc", 3 * 8 * 2)


def _told(ledger: Ledger) -> dict[str, int]:
    """Bytes of distributions that left every client."""
    return {e["client"]: e["up"] for e in ledger.to_records() if "describe" in e["phase"]}


def test_how_far_clients_pooling_is_checked(federation: fs.Federation) -> None:
    for wrong in (-0.1, 1.5, "much", None):
        with pytest.raises(InputError, match=r"pooling must be an exponent in \[0, 1\]; got"):
            FederatedMLLS(pooling=wrong).fit(federation)  # type: ignore[arg-type]
    uneven = fs.FedSGD(iterations=2, client_weights={"client-1": 2.0})
    FederatedMLLS(model="linear", plan=uneven, folds=2).fit(federation)
    with pytest.raises(InputError, match="pooling needs clients that take part equally often"):
        FederatedMLLS(model="linear", plan=uneven, pooling=0.5).fit(federation)


def test_calibrations_by_name(federation: fs.Federation, fitted: FederatedMLLS) -> None:
    assert isinstance(fitted.calibration_, MatrixCalibration)  # the default
    plain = FederatedMLLS(model="linear", plan=fitted.plan, calibration="bcts").fit(federation)
    again = fitted.recalibrated("bcts")  # the same classifiers
    assert fitted.calibration_.spread == 0  # a few rows of a class give no reason for a matrix
    for c in federation:
        np.testing.assert_array_equal(again.marginals_[c.name], plain.marginals_[c.name])
        np.testing.assert_allclose(fitted.marginals_[c.name], plain.marginals_[c.name], atol=1e-12)
    assert isinstance(fitted.calibration_, MatrixCalibration)  # a copy was calibrated anew
    assert fitted.calibration == "matrix"
    wrong: Any = "matrx"
    with pytest.raises(InputError, match=r"calibration must be .*'matrix'"):
        FederatedMLLS(calibration=wrong).fit(federation)
    with pytest.raises(InputError, match=r"calibration must be .*'matrix'"):
        fitted.recalibrated(wrong)
