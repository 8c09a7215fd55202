"""Calibration of class probabilities: known truth and distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.label import mlls
from fedshift.core.scaling import Calibration, bcts, bcts_sums, matrix_scaling, newton
from fedshift.errors import InputError


def test_a_belief_about_the_temperature_keeps_few_rows_from_certainty() -> None:
    rows, labels = [[0.9, 0.1]] * 5 + [[0.1, 0.9]] * 5, [0] * 5 + [1] * 5  # all right, by luck
    assert bcts(rows, labels).temperature < 0.2
    believed = bcts(rows, labels, spread=0.5)
    assert 0.4 < believed.temperature < 1.0
    # the belief is worth the same number of rows however many there are
    many = bcts(rows * 1000, labels * 1000, spread=0.5)
    assert many.temperature < believed.temperature
    assert believed.rounds > 0


def test_bcts_undoes_temperature_and_bias() -> None:
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.ones(3), 20_000)
    y = np.array([rng.choice(3, p=p) for p in true])
    distorted = true**3 * [4.0, 1.0, 0.5]
    distorted /= distorted.sum(axis=1, keepdims=True)
    calibration = bcts(distorted, y)
    assert calibration.temperature == pytest.approx(3.0, rel=0.1)
    repaired = calibration(distorted)
    assert np.abs(repaired - true).mean() < 0.02
    np.testing.assert_allclose(repaired.mean(axis=0), np.bincount(y) / len(y), atol=1e-4)
    assert "temperature=" in repr(calibration)


def one_sided(seed: int, counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a classifier that takes half of the rows of class 0 for class 1, and labels."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(3), counts)
    guess = np.where((y == 0) & (rng.random(len(y)) < 0.5), 1, y)
    scores = 3.0 * np.eye(3)[guess] + rng.normal(0, 0.7, (len(y), 3))
    return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True), y


def test_matrix_scaling_finds_shares_of_classes_given_away() -> None:
    uniform, truth, off = np.full(3, 1 / 3), np.array([0.9, 0.05, 0.05]), []
    for seed in range(10):
        p, y = one_sided(seed, (400, 400, 400))
        used, _ = one_sided(seed + 100, (1800, 100, 100))
        assert matrix_scaling(p, y).spread > 0
        distributions = [mlls(fit(p, y)(used), uniform).prior for fit in (bcts, matrix_scaling)]
        off.append([np.abs(distribution - truth).sum() for distribution in distributions])
        assert off[-1][1] < 0.6 * off[-1][0]
    plain, matrix = np.mean(off, axis=0)
    assert matrix < 0.15 < 0.4 < plain


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_distributions_of_matrix_scaling(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(4), 200)
    y = (rng.random((200, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(max=3)
    w = rng.random(200)
    w /= w.sum()
    first, result = bcts(p, y, weight=w), matrix_scaling(p, y, weight=w)
    # every class is foretold as often as it is there, and rows are explained no worse
    np.testing.assert_allclose(w @ result(p), np.bincount(y, w, minlength=4), atol=1e-5)
    at = np.arange(200), y
    assert w @ np.log(result(p)[at]) >= w @ np.log(first(p)[at]) - 1e-9
    # a narrow prior leaves the temperature unchanged
    firm = matrix_scaling(p, y, weight=w, spread=1e-4)
    np.testing.assert_allclose(firm(p), first(p), atol=1e-4)
    # names of classes mean nothing
    order = rng.permutation(4)
    renamed = matrix_scaling(p[:, order], np.argsort(order)[y], weight=w)
    np.testing.assert_allclose(renamed(p[:, order]), result(p)[:, order], atol=1e-3)


@pytest.mark.parametrize(("classes", "rows"), [(3, 30), (10, 50), (30, 20), (60, 40)])
def test_a_matrix_does_no_harm_where_a_temperature_is_all_that_is_needed(
    classes: int, rows: int
) -> None:
    """True posteriors squared: k² numbers can only fit noise, and held-out rows show it."""
    off: dict[float | None, list[float]] = {0.0: [], 1.0: [], None: []}
    for seed in range(5):
        rng = np.random.default_rng(seed)
        middle = rng.normal(size=(classes, 10))

        def judged(y: np.ndarray, rng: np.random.Generator = rng, m: np.ndarray = middle) -> Any:
            x = m[y] + rng.normal(size=(len(y), 10))
            scores = -np.square(x[:, None] - m).sum(axis=2)  # half of it were the truth
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            return p / p.sum(axis=1, keepdims=True)

        y = np.repeat(np.arange(classes), rows)
        use = rng.choice(classes, 2000, p=rng.dirichlet(np.full(classes, 0.5)))
        p, q = judged(y), judged(use)
        truth = np.bincount(use, minlength=classes) / len(use)
        for spread, result in off.items():
            distribution = mlls(
                matrix_scaling(p, y, spread=spread)(q), np.full(classes, 1 / classes)
            ).prior
            result.append(float(np.abs(distribution - truth).sum()))
    plain, always, chosen = (np.mean(result) for result in off.values())
    assert chosen < plain + 0.002
    assert classes < 10 or always > plain + 0.003  # so there is something to choose


def test_matrix_scaling_of_odd_rows() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 40)
    y = np.array([0] * 20 + [1] * 18 + [2] * 2)  # a class of two rows is never held out
    result = matrix_scaling(p, y)
    np.testing.assert_allclose(result(p).mean(axis=0), [0.5, 0.45, 0.05], atol=1e-5)
    order = rng.permutation(40)  # the order of rows means nothing
    again = matrix_scaling(p[order], y[order])
    assert again.spread == result.spread
    np.testing.assert_allclose(again(p), result(p), atol=1e-6)
    none = matrix_scaling(p, y, spread=0.0)
    np.testing.assert_allclose(none(p), bcts(p, y)(p), atol=1e-12)
    assert matrix_scaling([[0.5, 0.5]], [1]).spread == 0  # one row speaks for nothing


def test_matrix_scaling_leaves_true_posteriors_alone() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 20_000)
    x = rng.normal(size=(20_000, 2)) + np.array([[0, 0], [1.5, 0], [0, 1.5]])[y]
    at = -np.square(x[:, None] - np.array([[0, 0], [1.5, 0], [0, 1.5]])).sum(axis=2) / 2
    p = np.exp(at) / np.exp(at).sum(axis=1, keepdims=True)
    result = matrix_scaling(p, y)
    assert float(np.abs(result(p) - p).max()) < 0.05
    assert float(np.abs(result(p) - p).mean()) < 0.01
    assert "3 classes" in repr(result)
    assert result.rounds > result.first.rounds


def test_bad_labels_and_beliefs() -> None:
    with pytest.raises(InputError, match="class numbers from 0 to 1"):
        bcts([[0.5, 0.5]], [2])
    with pytest.raises(InputError, match="spread"):
        bcts([[0.5, 0.5]], [1], spread=0.0)
    for spread in (-1.0, np.inf):
        with pytest.raises(InputError, match="spread must be a number ≥ 0, or None"):
            matrix_scaling([[0.5, 0.5]], [1], spread=spread)


# -- a calibration by all -----------------------------------------------------------------------


def sites(seed: int, n: int = 60, k: int = 4) -> tuple[Any, Any, Any]:
    """Over-confident probabilities, labels and weights."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    logits = rng.normal(size=(n, k)) * 2
    logits[np.arange(n), y] += 2.0
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    w = rng.random(n)
    return p / p.sum(axis=1, keepdims=True), y, w / w.sum()


@pytest.mark.parametrize("seed", range(3))
def test_sums_are_derivatives_of_the_loss(seed: int) -> None:
    p, y, w = sites(seed)
    rng = np.random.default_rng(seed)
    theta = np.concatenate([[0.7], rng.normal(0, 0.3, 4)])
    loss, slope, curve = bcts_sums(p, y, w, theta)
    calibrated = Calibration(1 / theta[0], theta[1:])(p)
    assert loss == pytest.approx(-np.dot(w, np.log(calibrated[np.arange(len(y)), y])))
    step = 1e-5
    for i in range(5):
        ahead, behind = theta.copy(), theta.copy()
        ahead[i] += step
        behind[i] -= step
        (a, da, _), (b, db, _) = (bcts_sums(p, y, w, t) for t in (ahead, behind))
        assert slope[i] == pytest.approx((a - b) / (2 * step), abs=1e-7)
        np.testing.assert_allclose(curve[i], (da - db) / (2 * step), atol=1e-7)
    assert np.linalg.eigvalsh(curve).min() > -1e-12  # convex


def test_sums_over_sites_are_those_of_all_rows() -> None:
    parts = [sites(s) for s in range(3)]
    theta = np.array([1.2, 0.1, -0.3, 0.0, 0.2])
    each = [bcts_sums(p, y, w, theta) for p, y, w in parts]
    whole = bcts_sums(*(np.concatenate(a) for a in zip(*parts, strict=True)), theta)
    for i in range(3):
        np.testing.assert_allclose(sum(e[i] for e in each), whole[i], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_newton_finds_the_calibration_in_a_few_rounds(seed: int) -> None:
    p, y, w = sites(seed, n=200)
    alone = bcts(p, y, weight=w)
    theta = np.concatenate([[1.0], np.zeros(4)])
    losses = []
    for _ in range(8):
        loss, slope, curve = bcts_sums(p, y, w, theta)
        losses.append(loss)
        theta = newton(theta, slope, curve)
    assert 1 / theta[0] == pytest.approx(alone.temperature, rel=1e-4)
    np.testing.assert_allclose(theta[1:], alone.bias, atol=1e-4)
    assert theta[1:].sum() == pytest.approx(0.0, abs=1e-12)
    assert losses[-1] <= min(losses) + 1e-12


def test_newton_stays_within_reason() -> None:
    """All right and sure: the likeliest temperature is zero; none right: infinite."""
    k = 3
    sure = np.full((30, k), 1e-6)
    y = np.arange(30) % k
    sure[np.arange(30), y] = 1.0
    sure /= sure.sum(axis=1, keepdims=True)
    for labels in (y, (y + 1) % k):
        theta = np.concatenate([[1.0], np.zeros(k)])
        for _ in range(30):
            _, slope, curve = bcts_sums(sure, labels, np.full(30, 1 / 30), theta)
            new = newton(theta, slope, curve)
            assert np.isfinite(new).all()
            assert theta[0] / 4 - 1e-12 <= new[0] <= theta[0] * 4 + 1e-12
            theta = new
        assert np.exp(-5) <= theta[0] <= np.exp(3)
    flat = newton(np.ones(4), np.zeros(4), np.zeros((4, 4)))  # empty sums
    assert np.isfinite(flat).all()
