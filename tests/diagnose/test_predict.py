"""The forecast against what happens on labelled test rows."""

from __future__ import annotations

import numpy as np
import pytest
from laws import two_classes
from sklearn.linear_model import LogisticRegression

from fedshift.diagnose.predict import NOTHING, PredictedEffect, Weighted, predicted_effect
from fedshift.diagnose.two_sample import Side


def curved(n: int, rng: np.random.Generator, tilt: float = 0.0) -> Side:
    """A boundary that no straight line fits, seen where x is large if tilted."""
    x = rng.standard_normal((20 * n if tilt else n, 3))
    x = x[rng.random(len(x)) < 1 / (1 + np.exp(-tilt * (x[:, 0] - 1)))][:n] if tilt else x
    score = 2 * (np.square(x[:, 0]) - 1) + x[:, 1]
    return Side(x, (rng.random(len(x)) < 1 / (1 + np.exp(-score))).astype(np.intp))


def true_gain(site: Weighted, new: Side) -> float:
    assert new.y is not None
    losses = []
    for weight in (None, site.weight):
        model = LogisticRegression().fit(site.x, site.y, sample_weight=weight)
        p = model.predict_proba(new.x)[np.arange(len(new)), new.y]
        losses.append(-np.log(p).mean())
    return float(losses[0] - losses[1])


def test_weights_that_help_are_forecast_to_help():
    rng = np.random.default_rng(0)
    side = curved(1500, rng)
    assert side.y is not None
    weight = 1 / (1 + np.exp(-2 * (side.x[:, 0] - 1)))
    site = Weighted(side.x, side.y, weight / weight.mean())
    total, (own,) = predicted_effect([site])
    gain = true_gain(site, curved(20_000, rng, tilt=2.0))
    assert gain > 0.05
    assert own.verdict == total.verdict == "helps"
    assert own.low < gain < own.high


def test_weights_that_harm_are_forecast_to_harm():
    """Pure noise as weights: a well-specified model only loses rows."""
    rng = np.random.default_rng(1)
    side = two_classes(300, rng)
    assert side.y is not None
    noise = np.exp(1.7 * rng.standard_normal(300))
    site = Weighted(side.x, side.y, noise)
    total, _ = predicted_effect([site])
    assert total.gain < 0
    assert total.verdict in ("hurts", "cannot tell")


def test_weights_of_one_change_nothing():
    rng = np.random.default_rng(2)
    side = two_classes(200, rng)
    assert side.y is not None
    total, _ = predicted_effect([Weighted(side.x, side.y, np.ones(200))])
    assert total.gain == 0
    assert total.verdict == NOTHING.verdict == "does not matter"


def test_sites_count_the_same_and_those_without_ratio_are_told():
    rng = np.random.default_rng(3)
    sites = []
    for n, known in ((100, True), (400, True), (60, False)):
        side = two_classes(n, rng)
        assert side.y is not None
        sites.append(Weighted(side.x, side.y, rng.uniform(0.5, 1.5, n) if known else None))
    total, (a, b, c) = predicted_effect(sites)
    assert total.gain == pytest.approx((a.gain + b.gain) / 2)
    assert c.verdict == "cannot tell"
    assert c.reason


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.05, "helps"), (-0.05, -0.01, "hurts"), (-0.001, 0.001, "does not matter")],
)
def test_verdicts(low, high, verdict):
    effect = PredictedEffect(gain=(low + high) / 2, low=low, high=high, accuracy=0.0, ess=100.0)
    assert effect.verdict == verdict
    assert verdict in repr(effect)


def test_an_interval_around_zero_tells_nothing():
    assert PredictedEffect(gain=0, low=-0.1, high=0.1).verdict == "cannot tell"


def test_few_effective_rows_and_one_class_tell_nothing():
    rng = np.random.default_rng(4)
    side = two_classes(100, rng)
    assert side.y is not None
    spike = np.where(np.arange(100) == 0, 1e6, 1e-6)
    total, _ = predicted_effect([Weighted(side.x, side.y, spike)])
    assert total.verdict == "cannot tell"
    assert "few" in total.reason
    total, _ = predicted_effect([Weighted(side.x, np.zeros(100, dtype=np.intp), np.ones(100))])
    assert "one class" in total.reason
