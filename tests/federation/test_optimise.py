"""Server optimisers against torch's own and against a slow twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedshift.federation.optimise import memory, step
from fedshift.federation.plan import Optimizer

STEPS, SIZE = 50, 30


def gradients(seed: int, *lead: int) -> Tensor:
    """With zeros, tiny and huge entries."""
    g = torch.Generator().manual_seed(seed)
    grads = torch.randn(STEPS, *lead, SIZE, generator=g, dtype=torch.float64)
    grads[..., 0] = 0
    grads[..., 1] *= 1e-9
    grads[..., 2] *= 1e6
    return grads


def start(*lead: int) -> Tensor:
    return torch.linspace(-2, 2, SIZE, dtype=torch.float64).expand(*lead, SIZE).clone()


def run(rule: Optimizer, theta: Tensor, grads: Tensor) -> dict[str, Tensor]:
    own = memory(rule, theta)
    for g in grads:
        before = g.clone()
        step(rule, theta, g, own)
        assert torch.equal(g, before)  # the caller's gradient is left alone
    return own


CASES: list[tuple[Optimizer, Any]] = [
    (Optimizer("sgd", 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    (Optimizer("sgd", 0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, 0.9)),
    (
        Optimizer("sgd", 0.01, 0.5, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.01, 0.5, weight_decay=0.1),
    ),
    (Optimizer("adam", 0.01), lambda p: torch.optim.Adam(p, 0.01)),
    (
        Optimizer("adam", 0.1, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.2),
        lambda p: torch.optim.Adam(p, 0.1, (0.5, 0.9), 1e-3, 0.2),
    ),
    (
        Optimizer("adamw", 0.01, weight_decay=0.3),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.3),
    ),
    (Optimizer("adamw", 0.01), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.0)),
]


@pytest.mark.parametrize(("rule", "other"), CASES, ids=lambda v: getattr(v, "rule", ""))
def test_steps_are_those_of_torch(rule: Optimizer, other: Any) -> None:
    theta, twin, grads = start(), start().requires_grad_(), gradients(0)
    run(rule, theta, grads)
    optimizer = other([twin])
    for g in grads:
        twin.grad = g.clone()
        optimizer.step()
    torch.testing.assert_close(theta, twin.detach(), rtol=1e-12, atol=1e-12)


def slow_yogi(theta: np.ndarray, grads: np.ndarray, rule: Optimizer) -> np.ndarray:
    """Zaheer et al. 2018, number by number."""
    b1, b2 = rule.betas
    out = theta.copy()
    for i in range(len(theta)):
        m = v = 0.0
        for t, g in enumerate(grads[:, i], start=1):
            g = g + rule.weight_decay * out[i]
            m = b1 * m + (1 - b1) * g
            v = v - (1 - b2) * np.sign(v - g * g) * g * g
            unbiased = m / (1 - b1**t), v / (1 - b2**t)
            out[i] -= rule.lr * unbiased[0] / (np.sqrt(unbiased[1]) + rule.eps)
    return out


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_yogi_equals_its_slow_twin(decay: float) -> None:
    rule = Optimizer("yogi", 0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=decay)
    theta, grads = start(), gradients(1)
    expected = slow_yogi(theta.numpy(), grads.numpy(), rule)
    run(rule, theta, grads)
    np.testing.assert_allclose(theta.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw", "yogi"])
def test_leading_axes_are_independent_copies(rule: Any) -> None:
    how = Optimizer(rule, 0.05, 0.7, weight_decay=0.01)
    together, grads = start(2, 3), gradients(2, 2, 3)
    own = run(how, together, grads)
    for i in range(2):
        for j in range(3):
            alone = start()
            mine = run(how, alone, grads[:, i, j])
            assert torch.equal(alone, together[i, j])
            for name, t in mine.items():
                assert torch.equal(t, own[name][i, j])


def test_copies_may_have_taken_different_numbers_of_steps() -> None:
    rule, grads = Optimizer("adam", 0.1), gradients(3, 2)
    both, alone = start(2), start()
    own = memory(rule, both)
    first = {n: t[:1] for n, t in own.items()}
    step(rule, both[:1], grads[0, :1], first)  # views: copy 0 is a step ahead
    step(rule, both, grads[1], own)
    run(rule, alone, grads[1:2, 1])
    assert torch.equal(both[1], alone)
    assert own["t"].tolist() == [2, 1]


def test_what_is_remembered() -> None:
    like = start(4)
    assert memory(Optimizer("sgd"), like) == {}
    assert memory(Optimizer("sgd", momentum=0.5), like).keys() == {"m"}
    for rule in ("adam", "adamw", "yogi"):
        own = memory(Optimizer(rule), like)  # type: ignore[arg-type]
        assert {n: tuple(t.shape) for n, t in own.items()} == {
            "m": (4, SIZE),
            "v": (4, SIZE),
            "t": (4,),
        }
        assert all(t.dtype == torch.float64 and not t.any() for t in own.values())
