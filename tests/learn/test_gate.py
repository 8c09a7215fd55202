"""The gate against brute force, and its distributions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.errors import InputError
from fedshift.learn.gate import Difference, GateRule, difference, gate

Values = dict[str, np.ndarray]


def rows(seed: int = 0, sizes: tuple[int, ...] = (60, 25, 140), shift: float = 0.0) -> list[Values]:
    """Losses of a candidate and a baseline, and weights; losses depend on the weights."""
    rng = np.random.default_rng(seed)
    w = {f"site {k}": rng.gamma(1.5, size=n) for k, n in enumerate(sizes)}
    common = {n: rng.exponential(size=len(v)) for n, v in w.items()}
    a = {n: c + rng.normal(shift, 0.3, len(c)) + 0.1 * w[n] for n, c in common.items()}
    return [a, common, w]


def naive(a: Values, b: Values, w: Values) -> float:
    top = sum(float((w[n] * (a[n] - b[n])).mean()) for n in w)
    return top / sum(float(w[n].mean()) for n in w)


def test_the_difference_is_that_of_the_weighted_risks() -> None:
    a, b, w = rows()
    d = difference(a, b, w)
    assert d.value == pytest.approx(naive(a, b, w), rel=1e-12)
    bottom = sum(float(w[n].mean()) for n in w)
    assert d.risk == pytest.approx(sum(float((w[n] * b[n]).mean()) for n in w) / bottom)
    v = np.concatenate([w[n] / len(w[n]) for n in w])
    assert d.ess == pytest.approx(v.sum() ** 2 / (v**2).sum())


def test_the_error_is_that_of_rows_drawn_anew_within_every_client() -> None:
    a, b, w = rows(3)
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(4000):
        at = {n: rng.integers(0, len(v), len(v)) for n, v in w.items()}
        drawn.append(naive(*({n: part[n][i] for n, i in at.items()} for part in (a, b, w))))
    assert difference(a, b, w).error == pytest.approx(np.std(drawn), rel=0.06)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    # E w d / E w with w ~ gamma(1.5), d = N(0, .09) + .1 w: .1 E w² / E w = .25
    hits = [
        low <= 0.25 <= high
        for s in range(600)
        for low, high in [difference(*rows(s, (120, 80, 60))).interval]
    ]
    assert np.mean(hits) == pytest.approx(0.9, abs=0.04)


def test_a_difference_of_clients_means_is_no_noise() -> None:
    """Clients stay: only what varies within them is uncertain."""
    a = {"x": np.full(20, 1.0), "y": np.full(30, 3.0)}
    zero = {n: np.zeros(len(v)) for n, v in a.items()}
    one = {n: np.ones(len(v)) for n, v in a.items()}
    d = difference(a, zero, one)
    assert d.value == pytest.approx(2.0)
    assert d.error == pytest.approx(0.0, abs=1e-7)  # the root of rounding


class TestLaws:
    def test_identical_candidates_differ_by_exactly_nothing(self) -> None:
        _, b, w = rows()
        found = gate({"erm": b, "ftw": {n: v.copy() for n, v in b.items()}}, {"ftw": w})
        assert found.choice == "erm"
        assert found.differences["ftw"].value == 0.0
        assert found.differences["ftw"].error == 0.0

    @settings(max_examples=40, deadline=None)
    @given(st.floats(1e-6, 1e6), st.integers(0, 50))
    def test_scaling_all_weights_changes_nothing(self, factor: float, seed: int) -> None:
        a, b, w = rows(seed)
        one = difference(a, b, w)
        other = difference(a, b, {n: factor * v for n, v in w.items()})
        for name in ("value", "error", "ess", "risk"):
            assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-9)

    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 50), st.randoms(use_true_random=False))
    def test_neither_clients_nor_rows_have_an_order(self, seed: int, random: object) -> None:
        a, b, w = rows(seed)
        rng = np.random.default_rng(seed)
        names = list(w)
        random.shuffle(names)  # type: ignore[attr-defined]
        order = {n: rng.permutation(len(w[n])) for n in names}
        turned = [{n: part[n][order[n]] for n in names} for part in (a, b, w)]
        one, other = difference(a, b, w), difference(*turned)
        assert list(one.clients) == list(other.clients)
        assert other.value == pytest.approx(one.value, rel=1e-9, abs=1e-15)
        assert other.error == pytest.approx(one.error, rel=1e-9)

    def test_swapping_the_models_turns_the_sign(self) -> None:
        a, b, w = rows()
        one, other = difference(a, b, w), difference(b, a, w)
        assert other.value == pytest.approx(-one.value)
        assert other.error == pytest.approx(one.error)

    def test_a_row_of_weight_two_counts_as_two_rows(self) -> None:
        a, b = {"x": np.array([0.1, 0.5, 0.2])}, {"x": np.array([0.3, 0.1, 0.4])}
        twice = difference(a, b, {"x": np.array([1.0, 1.0, 2.0])})
        longer = [{"x": np.append(part["x"], part["x"][2])} for part in (a, b)]
        assert twice.value == pytest.approx(difference(*longer, {"x": np.ones(4)}).value)


class TestDecision:
    def test_a_harmful_weighting_is_refused(self) -> None:
        a, b, w = rows(shift=0.5)
        found = gate({"erm": b, "ftw": a}, {"ftw": w})
        assert found.choice == "erm"
        assert "would change the held-out risk of" in found.reasons["ftw"]

    def test_a_helpful_one_is_kept(self) -> None:
        a, b, w = rows(shift=-0.8)
        found = gate({"erm": b, "ftw": a}, {"ftw": w})
        assert found.choice == "ftw"
        assert found.differences["ftw"].interval[1] < 0

    def test_the_largest_gain_wins(self) -> None:
        a, b, w = rows(shift=-0.8)
        better = {n: v - 0.1 for n, v in a.items()}
        found = gate({"erm": b, "one": a, "two": better}, {"one": w, "two": w})
        assert found.choice == "two"

    def test_a_gain_below_noise_is_no_gain(self) -> None:
        rng = np.random.default_rng(0)
        b = {"x": np.ones(50)}
        d = rng.normal(0, 1, 50)
        a = {"x": 1 + d - d.mean() - 0.01}
        assert gate({"erm": b, "ftw": a}, {"ftw": {"x": np.ones(50)}}).choice == "erm"

    def test_an_interval_that_reaches_zero_is_refused(self) -> None:
        rng = np.random.default_rng(0)
        d = rng.normal(0, 1, 40)
        d = (d - d.mean()) / d.std(ddof=1)  # error 1 / √40 = .158
        b, w = {"x": np.full(40, 0.3)}, {"x": np.ones(40)}
        losses = {"erm": b, "ftw": {"x": 0.3 + d - 0.2}}  # the 80 % interval ends at .0026
        refused = gate(losses, {"ftw": w})
        assert refused.choice == "erm"
        assert "harm cannot be ruled out" in refused.status
        assert gate(losses, {"ftw": w}, rule=GateRule(level=0.78)).choice == "ftw"

    def test_nothing_can_be_told_from_two_rows_that_count(self) -> None:
        a, b, w = rows(shift=-0.8)
        spiky = {n: np.where(np.arange(len(v)) == 0, 1e6, 1e-6) for n, v in w.items()}
        found = gate({"erm": b, "ftw": a}, {"ftw": spiky})
        assert found.choice == "erm"
        assert "effective sample size" in found.reasons["ftw"]

    def test_a_row_that_decides_all_alone_is_not_trusted(self) -> None:
        b = {"x": np.ones(100)}
        a = {"x": np.where(np.arange(100) == 0, -500.0, 1.02)}
        assert gate({"erm": b, "ftw": a}, {"ftw": {"x": np.ones(100)}}).choice == "erm"

    def test_what_was_refused_before_is_told(self) -> None:
        _, b, _ = rows()
        found = gate({"erm": b}, {}, refused={"label": "no such shift"})
        assert found.choice == "erm"
        assert found.status == "kept erm; label: no such shift"
        assert "no weighted model was trained" in gate({"erm": b}, {}).status


def test_the_evidence_is_json_and_speaks() -> None:
    a, b, w = rows(shift=-0.8)
    found = gate({"erm": b, "ftw": a}, {"ftw": w})
    record = json.loads(json.dumps(found.to_dict()))
    assert record["choice"] == "ftw"
    assert record["differences"][0]["low"] < record["differences"][0]["value"] < 0
    assert set(record["differences"][0]["clients"]) == set(w)
    assert repr(found).startswith("Gate(took ftw: it changes the held-out risk of")
    assert "ESS" in repr(found.differences["ftw"])
    assert isinstance(found.differences["ftw"], Difference)
    assert replace(found, choice="erm").status.startswith("kept erm")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"a": {"x": [1.0]}}, "one value per row"),
        ({"w": {"x": [1.0, -1.0]}}, "at least 0"),
        ({"w": {"x": [0.0, 0.0]}}, "some held-out row must have a weight above 0"),
        ({"b": {}}, "client 'x' has none"),
        ({"b": {"x": [1.0, np.nan]}}, "finite"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Values], match: str) -> None:
    parts: dict[str, object] = {"a": {"x": [1, 2]}, "b": {"x": [1, 2]}, "w": {"x": [1, 1]}}
    a, b, w = {**parts, **changes}.values()
    with pytest.raises(InputError, match=match):
        difference(a, b, w)  # type: ignore[arg-type]


def test_bad_rules_and_candidates_are_named() -> None:
    with pytest.raises(InputError, match="level"):
        GateRule(level=1.0)
    with pytest.raises(InputError, match="min_ess"):
        GateRule(min_ess=-1.0)
    with pytest.raises(InputError, match="baseline"):
        gate({"erm": {"x": [1.0]}}, {}, baseline="ermm")
    with pytest.raises(InputError, match="candidate 'ftw'"):
        gate({"erm": {"x": [1.0]}, "ftw": {"x": [1.0]}}, {})
