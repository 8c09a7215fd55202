"""Losses: known values, the seam of the polynomial tail, and what it is for."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fedshift.learn.losses import Loss, Polynomial, cross_entropy

TAILS = (0.5, 1.0, 3.0)


def of_margin(loss: Loss, z: Tensor) -> Tensor:
    """Loss of rows whose right class has margin z: two classes, one score 0."""
    return loss(torch.stack([z, torch.zeros_like(z)], 1), torch.zeros(len(z), dtype=torch.long))


@pytest.mark.parametrize("tail", TAILS)
def test_values_by_hand(tail: float) -> None:
    z = torch.tensor([-50.0, -1.0, 0.0, 1.0, 100.0], dtype=torch.float64)
    losses = of_margin(Polynomial(tail), z).tolist()
    for margin, value in zip(z.tolist(), losses, strict=True):
        if margin < 0:
            expected = math.log1p(math.exp(margin)) - margin
        else:
            expected = math.log(2) * (1 + margin / (2 * tail * math.log(2))) ** -tail
        assert value == pytest.approx(expected, rel=1e-12)


def test_rows_that_are_wrong_have_their_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    scores = torch.as_tensor(rng.normal(0, 3, (200, 5)))
    y = torch.as_tensor(rng.integers(0, 5, 200))
    chance = torch.softmax(scores, 1).gather(1, y.unsqueeze(1)).squeeze(1)
    wrong = chance < 0.5  # the margin against all others together is below zero
    ours, usual = Polynomial(2.0)(scores, y), cross_entropy(scores, y)
    assert 20 < int(wrong.sum()) < 190
    torch.testing.assert_close(ours[wrong], usual[wrong])
    assert bool((ours[~wrong] > usual[~wrong]).all())  # the tail is heavier


@pytest.mark.parametrize("tail", TAILS)
def test_the_gradient_is_that_of_finite_differences_and_has_no_jump(tail: float) -> None:
    rng = np.random.default_rng(1)
    scores = torch.as_tensor(rng.normal(0, 3, (30, 4))).requires_grad_()
    y = torch.as_tensor(rng.integers(0, 4, 30))
    assert torch.autograd.gradcheck(lambda s: Polynomial(tail)(s, y), (scores,))
    z = torch.tensor([-1e-9, 0.0, 1e-9], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(of_margin(Polynomial(tail), z).sum(), z)
    torch.testing.assert_close(slope, torch.full((3,), -0.5, dtype=torch.float64))


@hypothesis.given(st.floats(0.2, 20), st.floats(-60, 60), st.floats(-60, 60))
def test_it_falls_and_is_convex_in_the_margin(tail: float, a: float, b: float) -> None:
    z = torch.tensor([a, (a + b) / 2, b], dtype=torch.float64)
    left, middle, right = of_margin(Polynomial(tail), z).tolist()
    assert middle <= (left + right) / 2 + 1e-12
    if a < b:
        assert left >= right


@pytest.mark.parametrize("tail", TAILS)
def test_extreme_scores_have_finite_gradients(tail: float) -> None:
    scores = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], requires_grad=True)
    loss = Polynomial(tail)(scores, torch.tensor([0, 0]))
    (slope,) = torch.autograd.grad(loss.sum(), scores)
    assert bool(torch.isfinite(loss).all())
    assert bool(torch.isfinite(slope).all())
    torch.testing.assert_close(slope[1], torch.tensor([-1.0, 1.0, 0.0]))


def test_equal_exponents_are_one_loss() -> None:
    assert Polynomial(1.5) == Polynomial(1.5) != Polynomial(1.0)
    assert pickle.dumps(Polynomial(1.5))  # fitted estimators hold it


def test_a_large_exponent_is_an_exponential_tail() -> None:
    z = torch.tensor([0.0, 3.0, 9.0])
    expected = math.log(2) * torch.exp(-z / (2 * math.log(2)))
    torch.testing.assert_close(of_margin(Polynomial(1e8), z), expected)


@pytest.mark.parametrize("tail", TAILS)
def test_weights_decide_where_a_network_that_fits_every_row_ends(tail: float) -> None:
    """Two separable rows along the axes, weights 27 and 1, parameters of length R.

    Minimising Σ w_i θ_i^-a on the circle gives θ_1 / θ_2 = (w_1 / w_2)^(1 / (a + 2)) for large R;
    with cross entropy the direction forgets the weights.
    """
    angle = torch.linspace(0.02, math.pi / 2 - 0.02, 20_001, dtype=torch.float64)

    def best(loss: Callable[[Tensor], Tensor], length: float) -> float:
        risk = 27 * loss(length * angle.cos()) + loss(length * angle.sin())
        return 1 / math.tan(float(angle[risk.argmin()]))

    end = best(lambda z: of_margin(Polynomial(tail), z), 1e6)
    assert end == pytest.approx(27 ** (1 / (tail + 2)), rel=2e-3)
    entropy = best(lambda z: torch.nn.functional.softplus(-z), 400.0)  # exact far out, too
    assert entropy == pytest.approx(1.0, abs=0.02)
