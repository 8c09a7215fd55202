"""Bregman divergences: exact minimisers, gradients, the ascent step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedshift.core import bregman
from fedshift.core.bregman import Divergence, nonnegative_parts, training_loss
from fedshift.errors import InputError

SOURCE = torch.tensor([0.5, 0.5], dtype=torch.float64)
TARGET = torch.tensor([0.9, 0.1], dtype=torch.float64)
TRUTH = np.array([1.8, 0.2])
C = 0.5  # below 1/sup r = 1/1.8


def named(name: str, c: float = C) -> Divergence:
    return bregman.divergence(name, c=c)


def minimiser(which: Divergence, c: float, start: list[float], n_targets: int = 1) -> np.ndarray:
    """Exact minimiser of max(0, A) + B on the two-state problem, by repeated quasi-Newton."""

    def risk(log_r: np.ndarray) -> tuple[float, np.ndarray]:
        s = torch.tensor(log_r, dtype=torch.float64, requires_grad=True)
        a, b = nonnegative_parts(
            s, s, which, c=c, n_targets=n_targets, source_weight=SOURCE, target_weight=TARGET
        )
        value = a.clamp(min=0) + b
        (gradient,) = torch.autograd.grad(value, s)
        return value.item(), gradient.numpy()

    top = which.log_bound - 1e-9
    x = np.array(start)
    for _ in range(5):
        options = {"ftol": 1e-16, "gtol": 1e-13, "maxiter": 2000}
        bounds = [(-8.0, min(8.0, top))] * 2
        x = minimize(risk, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return np.exp(x)


@pytest.mark.parametrize("name", bregman.NAMES)
@pytest.mark.parametrize("start", [[0.0, 0.0], [-0.5, -0.4], [0.3, -2.0]])
def test_exact_minimiser_is_the_true_ratio(name: str, start: list[float]) -> None:
    np.testing.assert_allclose(minimiser(named(name), C, start), TRUTH, rtol=1e-6)


@pytest.mark.parametrize("name", ["lsif", "ukl", "lr", "robust"])
def test_exact_minimiser_for_a_sum_of_distributions(name: str) -> None:
    # three copies of the target distribution: the ratio is three times as large, C a third
    result = minimiser(named(name), C / 3, [0.0, 0.0], n_targets=3)
    np.testing.assert_allclose(result, 3 * TRUTH, rtol=1e-6)


def test_too_large_c_moves_the_minimiser() -> None:
    # min B on the kink A = 0, where r2/r1 = sqrt(.22/.42): solved by hand
    ratio = np.sqrt(0.22 / 0.42)
    first = (0.9 + 0.1 * ratio) / (2 * 0.4 * (0.9 + 0.1 * ratio**2))
    result = minimiser(named("lsif"), 0.8, [0.1, -0.1])
    np.testing.assert_allclose(result, [first, ratio * first], atol=2e-3)
    np.testing.assert_allclose([first, ratio * first], [1.285, 0.93], atol=1e-2)


def test_literal_lsif_has_the_wrong_minimiser() -> None:
    # the printed ℓ1 = (z² − 1)/2 may be negative, so the clamp bites where it must not
    literal = Divergence("literal", lambda s: ((2 * s).exp() - 1) / 2, torch.exp)
    result = minimiser(literal, 1 / 1.8, [0.2, -0.2])
    np.testing.assert_allclose(result, [1.8, 1.0], atol=2e-2)


@pytest.mark.parametrize(
    ("name", "f", "df"),
    [
        ("lsif", lambda z: (z - 1) ** 2 / 2, lambda z: z - 1),
        ("ukl", lambda z: torch.xlogy(z, z) - z, torch.log),
        (
            "lr",
            lambda z: torch.xlogy(z, z) - (z + 1) * torch.log1p(z),
            lambda z: z.log() - torch.log1p(z),
        ),
        ("robust", lambda z: (z**1.5 - z) / 0.5, lambda z: (1.5 * z**0.5 - 1) / 0.5),
    ],
)
def test_closed_forms_follow_from_f(name: str, f, df) -> None:
    s = torch.linspace(-4, 3, 50, dtype=torch.float64)
    generic, closed = bregman.from_convex(f, df), named(name)
    torch.testing.assert_close(generic.l1(s), closed.l1(s), rtol=1e-9, atol=1e-9)
    difference = generic.df(s) - closed.df(s)  # equal up to a constant
    torch.testing.assert_close(difference, difference[:1].expand_as(difference))


def test_robust_meets_its_neighbours() -> None:
    s = torch.linspace(-2, 2, 9, dtype=torch.float64)
    torch.testing.assert_close(bregman.robust(1.0).l1(s), 2 * bregman.lsif().l1(s))
    near_ukl = bregman.robust(1e-6)
    torch.testing.assert_close(near_ukl.l1(s), bregman.ukl().l1(s), rtol=1e-4, atol=1e-4)
    shift = near_ukl.df(s) - bregman.ukl().df(s)
    torch.testing.assert_close(shift, shift[:1].expand_as(s), rtol=1e-4, atol=1e-4)


@given(st.sampled_from(bregman.NAMES), st.floats(-20, 20))
def test_l1_is_never_negative(name: str, s: float) -> None:
    which = named(name)
    s = min(s, which.log_bound - 1e-6)
    assert float(which.l1(torch.tensor(s, dtype=torch.float64))) >= 0


@pytest.mark.parametrize("name", bregman.NAMES)
def test_gradients_by_finite_differences(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    s, t = (
        torch.randn(6, generator=generator, dtype=torch.float64).mul(0.3).sub(0.5).requires_grad_()
        for _ in range(2)
    )

    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return training_loss(*nonnegative_parts(a, b, named(name), c=C, n_targets=2))

    assert torch.autograd.gradcheck(loss, (s, t), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["lsif", "ukl", "lr", "robust"])
def test_ascent_step_raises_a(name: str) -> None:
    # source rows with tiny ratios, target rows with huge ones: over-fitting, A < 0
    s = torch.full((4,), -3.0, dtype=torch.float64, requires_grad=True)
    t = torch.full((4,), 2.0, dtype=torch.float64, requires_grad=True)
    a, b = nonnegative_parts(s, t, named(name), c=C)
    assert a.item() < 0
    gs, gt = torch.autograd.grad(training_loss(a, b), (s, t))
    after, _ = nonnegative_parts(s - 0.01 * gs, t - 0.01 * gt, named(name), c=C)
    assert after.item() > a.item()


def test_descent_where_a_is_positive() -> None:
    s = torch.zeros(4, dtype=torch.float64)
    a, b = nonnegative_parts(s, s, named("lr"), c=C)
    assert float(a) > 0
    assert float(training_loss(a, b)) == pytest.approx(float(a + b))


def test_risk_is_lowest_at_the_truth() -> None:
    w = {"source_weight": SOURCE.numpy(), "target_weight": TARGET.numpy()}
    for name in ("lsif", "ukl", "lr", "robust"):
        best = bregman.bregman_risk(np.log(TRUTH), np.log(TRUTH), name, **w)
        for shift in ([0.1, 0.0], [0.0, -0.2], [-0.3, 0.3]):
            other = np.log(TRUTH) + shift
            assert bregman.bregman_risk(other, other, name, **w) > best


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bregman.divergence("kl"), "one of lsif, ukl"),
        (lambda: bregman.divergence("pu"), "needs C"),
        (lambda: bregman.pu(0.0), "C > 0"),
        (lambda: bregman.robust(0.0), "alpha > 0"),
        (lambda: bregman.from_convex(lambda z: -torch.log(z), lambda z: -1 / z), "finite f(0)"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(").replace(")", r"\)")):
        call()


def test_pu_log_bound_is_minus_log_c() -> None:
    assert bregman.pu(0.25).log_bound == pytest.approx(math.log(4.0))
