"""One network for every ratio."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.errors import InputError
from fedshift.ratio import MultiSource

MEANS = {"a": (0.0, 1.0), "b": (0.5, -1.0)}


@pytest.fixture(scope="module")
def distributions() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    train = {k: rng.normal(m, 1, (1500, 1)) for k, (m, _) in MEANS.items()}
    test = {k: rng.normal(m, 1, (1500, 1)) for k, (_, m) in MEANS.items()}
    return train, test


@pytest.fixture(scope="module")
def fitted(distributions) -> MultiSource:
    return MultiSource(seed=0).fit(source=distributions[0], target=distributions[1])


def log_normal(x: np.ndarray, mean: float) -> np.ndarray:
    return -0.5 * (x - mean) ** 2


@pytest.mark.parametrize("client", ["a", "b"])
def test_every_ratio_from_one_model(fitted: MultiSource, client: str) -> None:
    x = np.linspace(-0.8, 1.2, 11)
    base = log_normal(x, MEANS[client][0])
    own = log_normal(x, MEANS[client][1]) - base
    every = np.logaddexp(*(log_normal(x, m) for _, m in MEANS.values())) - base
    rows = x[:, None]
    np.testing.assert_allclose(fitted.log_ratio(rows, source=client, target=client), own, atol=0.3)
    np.testing.assert_allclose(fitted.log_ratio(rows, source=client), every, atol=0.3)
    both = fitted.log_ratio(rows, source=client, target=["a", "b"])
    np.testing.assert_allclose(both, fitted.log_ratio(rows, source=client))
    np.testing.assert_allclose(np.exp(both), fitted.ratio(rows, source=client))


def test_sum_is_the_sum(fitted: MultiSource) -> None:
    x = np.linspace(-1, 1, 5)[:, None]
    parts = [fitted.ratio(x, source="a", target=t) for t in ("a", "b")]
    np.testing.assert_allclose(sum(parts), fitted.ratio(x, source="a"))


def test_order_of_distributions_is_irrelevant(fitted: MultiSource, distributions) -> None:
    turned = [{k: side[k] for k in ("b", "a")} for side in distributions]
    other = MultiSource(seed=0).fit(source=turned[0], target=turned[1])
    x = np.linspace(-1, 1, 5)[:, None]
    np.testing.assert_array_equal(other.log_ratio(x, source="b"), fitted.log_ratio(x, source="b"))


def test_tensors_and_score(fitted: MultiSource, distributions) -> None:
    out = fitted.log_ratio(torch.zeros(3, 1), source="a")
    assert isinstance(out, torch.Tensor)
    swapped = fitted.score(source=distributions[1], target=distributions[0])
    assert fitted.score(source=distributions[0], target=distributions[1]) > swapped


def test_cross_fitted_weights_are_calibrated() -> None:
    # two groups of images-like rows whose shares flip: log ratios are ±log 9
    rng = np.random.default_rng(1)

    def rows(share: float) -> tuple[np.ndarray, np.ndarray]:
        group = rng.random(400) < share
        return group[:, None] * 3.0 + rng.normal(size=(400, 4)), group

    (train, group), (test, _) = rows(0.1), rows(0.9)
    r = MultiSource(folds=3, seed=0).fit(source=train, target=test)
    log_ratio = r.source_log_ratio()
    truth = np.where(group, np.log(9), -np.log(9))
    assert np.corrcoef(log_ratio, truth)[0, 1] > 0.95
    assert np.abs(log_ratio).max() < 4.0
    assert r.log_ratio(train).shape == (400,)


def test_held_out_log_ratios_are_evidence(distributions) -> None:
    some = [{k: v[:200].copy() for k, v in side.items()} for side in distributions]
    some[1]["b"][:100] = some[1]["b"][100:]  # rows that come twice
    model = MultiSource(folds=3, max_epochs=10).fit(source=some[0], target=some[1])
    at_source, at_target = model.held_out_log_ratio(source="a", target="b")
    assert at_source.shape == at_target.shape == (200,)
    np.testing.assert_array_equal(at_target[:100], at_target[100:])
    for values, rows in ((at_source, some[0]["a"]), (at_target, some[1]["b"])):
        mean = model.log_ratio(rows, source="a", target="b")
        assert not np.array_equal(values, mean)  # by one network, not by the mean of all
        assert np.corrcoef(values, mean)[0, 1] > 0.9
        truth = (log_normal(rows, MEANS["b"][1]) - log_normal(rows, MEANS["a"][0]))[:, 0]
        assert np.abs(values - truth).mean() < 0.5
    with pytest.raises(InputError, match=r"target must be one of \['a', 'b'\]; got None"):
        model.held_out_log_ratio(source="a")
    with pytest.raises(InputError, match="source must be one of"):
        model.held_out_log_ratio(target="b")


def test_held_out_log_ratios_of_noise_claim_little() -> None:
    """The calibration is fitted to other rows: where nothing differs, nothing is gained."""
    rng = np.random.default_rng(0)
    model = MultiSource(folds=3, max_epochs=40, patience=40).fit(
        source=rng.normal(size=(150, 8)), target=rng.normal(size=(150, 8))
    )
    s, t = model.held_out_log_ratio()
    loss = (np.logaddexp(0, s).mean() + np.logaddexp(0, -t).mean()) / 2
    assert loss > np.log(2) - 0.01
    plain = MultiSource(max_epochs=1).fit(source=np.eye(150), target=-np.eye(150))
    with pytest.raises(InputError, match="needs folds ≥ 2"):
        plain.held_out_log_ratio()


def test_bad_input_is_named(fitted: MultiSource, distributions) -> None:
    x = np.zeros((2, 1))
    with pytest.raises(InputError, match=r"source must be one of \['a', 'b'\]"):
        fitted.log_ratio(x)
    with pytest.raises(InputError, match="target must name some"):
        fitted.log_ratio(x, source="a", target="z")
    with pytest.raises(InputError, match="rows of shape"):
        fitted.log_ratio(np.zeros((2, 3)), source="a")
    with pytest.raises(InputError, match="empty mapping"):
        MultiSource().fit(source={}, target=x)
    with pytest.raises(InputError, match=r"source\['b'\] must have at least 2 rows"):
        MultiSource().fit(source={"a": np.ones((3, 1)), "b": np.ones((1, 1))}, target=x)
    with pytest.raises(InputError, match="folds need"):
        MultiSource(folds=5).fit(source=np.arange(3.0), target=np.arange(9.0))
    with pytest.raises(InputError, match="same distributions"):
        fitted.score(source=distributions[0], target={"z": x})
