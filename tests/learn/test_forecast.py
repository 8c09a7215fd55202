"""Forecasts without labels, against what happens."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import softmax

from fedshift.errors import InputError
from fedshift.learn.forecast import FEW, forecast_accuracy, forecast_error


def scores(rng: np.random.Generator, y: np.ndarray, heat: float = 1.0) -> np.ndarray:
    """Scores of the right posterior under equal classes, times `heat`."""
    return heat * (rng.normal(size=(len(y), 3)) + 1.5 * np.eye(3)[y]) * 1.5


def draw(rng: np.random.Generator, n: int, distribution: list[float] | None = None) -> np.ndarray:
    return rng.choice(3, size=n, p=distribution)


@pytest.mark.parametrize("heat", [1.0, 5.0, 0.2])
def test_accuracy_is_forecast_however_sure_the_model_is_of_itself(heat: float) -> None:
    rng = np.random.default_rng(0)
    y = {"a": draw(rng, 3000), "b": draw(rng, 2000)}
    held_out = {n: scores(rng, v, heat) for n, v in y.items()}
    t = draw(rng, 5000)
    s = scores(rng, t, heat)
    row = forecast_accuracy(held_out, y, {"a": s})["a"]
    truth = float((s.argmax(axis=1) == t).mean())
    assert row.value == pytest.approx(truth, abs=0.015)
    assert row.low <= truth <= row.high
    chances = softmax(1.0 * s, axis=1)[np.arange(len(t)), t]
    assert row.loss == pytest.approx(float(-np.log(chances).mean()), rel=0.05)


def test_label_distributions_change_it() -> None:
    """A model that is good at class 0 only is used where class 0 is all there is."""
    rng = np.random.default_rng(1)

    def lopsided(y: np.ndarray) -> np.ndarray:
        signal = np.array([6.0, 0.7, 0.7])
        return rng.normal(size=(len(y), 3)) + np.eye(3)[y] * signal[y][:, None]

    y = {"a": draw(rng, 4000)}
    held_out = {"a": lopsided(y["a"])}
    distribution = np.array([0.9, 0.05, 0.05])
    t = draw(rng, 4000, distribution.tolist())
    s = lopsided(t)
    truth = float((s.argmax(axis=1) == t).mean())
    row = forecast_accuracy(held_out, y, {"a": s}, lift={"a": distribution * 3})["a"]
    assert row.value == pytest.approx(truth, abs=0.02)
    assert row.ess < 4000


def test_intervals_hold_the_share_of_small_samples() -> None:
    hits = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        y = {"a": draw(rng, 60)}
        t = draw(rng, 20)
        s = scores(rng, t)
        row = forecast_accuracy({"a": scores(rng, y["a"])}, y, {"a": s})["a"]
        hits.append(row.low <= (s.argmax(axis=1) == t).mean() <= row.high)
        assert 0 <= row.low <= row.value <= row.high <= 1
    assert np.mean(hits) > 0.92


def test_too_few_rows_are_a_doubt() -> None:
    rng = np.random.default_rng(0)
    y = {"a": np.array([0, 1, 2, 0, 1, 2])}
    forecast = forecast_accuracy({"a": scores(rng, y["a"])}, y, {"a": scores(rng, y["a"])})
    assert not forecast["a"].reliable
    assert "effective sample size of held-out rows" in forecast.status
    other = forecast_accuracy(
        {"a": scores(rng, y["a"])}, y, {"a": scores(rng, y["a"])}, doubts={"a": "they look strange"}
    )
    assert other.status == "a: no forecast, they look strange"
    assert len(y["a"]) < FEW


def test_squared_errors_are_forecast_with_weights() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=20_000)
    errors = x**2  # E = 1; towards N(.5, .5): weights ∝ exp(−x² + 2·.5·x…) known below
    w = np.exp(0.5 * x - 0.125)  # N(0, 1) → N(.5, 1): E x² = 1.25
    forecast = forecast_error({"a": errors}, {"a": 500, "b": 50}, weights={"a": w})
    assert forecast.figure == "mse"
    assert forecast["a"].value == pytest.approx(1.25, abs=0.05)
    assert forecast["a"].low < 1.25 < forecast["a"].high
    assert forecast["b"].high > forecast["a"].high  # fewer rows, more luck
    assert forecast_error({"a": errors}, {"a": 5})["a"].value == pytest.approx(1.0, abs=0.05)


def test_repr_and_json() -> None:
    rng = np.random.default_rng(0)
    y = {"a": draw(rng, 100)}
    forecast = forecast_accuracy({"a": scores(rng, y["a"])}, y, {"a": scores(rng, y["a"])})
    assert repr(forecast).startswith("Forecast(forecast mean accuracy .")
    assert json.loads(json.dumps(forecast.to_records()))[0]["client"] == "a"
    with pytest.raises(InputError, match=r"the client must be .*'b'"):
        forecast["b"]
