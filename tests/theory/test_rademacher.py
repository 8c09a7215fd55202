"""Rademacher complexities against enumeration, exact classes and the bound for perceptrons."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedshift.errors import InputError
from fedshift.learn.models import MLP
from fedshift.theory import MLPClass, rademacher_complexity
from fedshift.theory.rademacher import ENUMERATE


def by_hand(values: np.ndarray) -> float:
    n = values.shape[1]
    signs = product((-1, 1), repeat=n)
    return float(np.mean([max(abs(float(np.dot(s, h))) for h in values) / n for s in signs]))


@given(st.integers(1, 7), st.integers(1, 5), st.integers(0, 99))
def test_enumeration_is_the_definition(n: int, functions: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(functions, n))
    result = rademacher_complexity(values)
    assert result.exact
    assert result.value == pytest.approx(by_hand(values))
    # Massart's lemma for the class and its negatives
    massart = np.linalg.norm(values, axis=1).max() * math.sqrt(2 * math.log(2 * functions)) / n
    assert result.value <= massart


def test_more_rows_than_a_block_of_patterns() -> None:
    values = np.random.default_rng(0).normal(size=(3, 14))  # 2¹³ patterns, two blocks
    assert rademacher_complexity(values).value == pytest.approx(by_hand(values))


def test_random_signs_agree_with_the_exact_value() -> None:
    n = ENUMERATE + 8
    ones = rademacher_complexity(np.ones((1, n)), seed=3)
    k = np.arange(n + 1)
    exact = sum(math.comb(n, int(i)) * abs(n - 2 * int(i)) for i in k) / (n * 2**n)
    assert not ones.exact
    assert 0 < ones.error < 0.01
    assert abs(ones.value - exact) < 4 * ones.error
    assert ones == rademacher_complexity(np.ones((1, n)), seed=3)
    assert ones != rademacher_complexity(np.ones((1, n)), seed=4)
    assert "±" in repr(ones)


def test_the_linear_class_is_below_its_bound_and_not_far() -> None:
    """The supremum over ‖w‖ ≤ M of |Σ σ w·x| is M ‖Σ σ x‖: exact by enumeration."""
    x = np.random.default_rng(1).normal(size=(9, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    signs = np.array(list(product((-1, 1), repeat=9)))
    exact = 2.0 * np.linalg.norm(signs @ x, axis=1).mean() / 9
    bound = MLPClass(norms=(2.0,)).complexity(n=9, radius=1.0)
    assert exact <= bound <= 3 * exact
    assert bound == pytest.approx((math.sqrt(2 * math.log(2)) + 1) * 2.0 / 3.0)


@pytest.mark.parametrize("depth", [2, 3])
def test_networks_of_the_class_are_below_its_bound(depth: int) -> None:
    """Networks trained to follow each sign pattern reach part of the bound, never more."""
    g = torch.Generator().manual_seed(0)
    n, d, width = 5, 2, 6
    x = torch.randn(n, d, dtype=torch.float64, generator=g)
    signs = torch.tensor(list(product((-1.0, 1.0), repeat=n)), dtype=torch.float64)
    shapes = [(d, width), *[(width, width)] * (depth - 2), (width, 1)]
    raw = [
        torch.randn(len(signs), *s, dtype=torch.float64, generator=g).requires_grad_()
        for s in shapes
    ]

    def outputs() -> torch.Tensor:
        """One network for each sign pattern, every matrix of Frobenius norm one."""
        h = x.expand(len(signs), n, d)
        for i, w in enumerate(raw):
            h = h @ (w / w.square().sum(dim=(1, 2), keepdim=True).sqrt())
            h = h.relu() if i < depth - 1 else h
        return h[..., 0]

    optimiser = torch.optim.Adam(raw, lr=0.1)
    for _ in range(60):
        optimiser.zero_grad()
        (-(signs * outputs()).sum()).backward()
        optimiser.step()
    reached = rademacher_complexity(outputs().detach().numpy()).value
    bound = MLPClass(norms=(1.0,) * depth).complexity(n=n, radius=float(x.norm(dim=1).max()))
    assert bound / 10 < reached <= bound


@pytest.mark.parametrize("hidden", [(4,), (5, 3)])
def test_biases_are_weights_of_a_constant_input(hidden: tuple[int, ...]) -> None:
    sizes = (2, *hidden, 1)
    parts: list[nn.Module] = []
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), nn.ReLU()]
    net = nn.Sequential(*parts[:-1]).double()
    result = MLPClass.of(net)
    h = torch.cat([torch.randn(7, 2, dtype=torch.float64), torch.ones(7, 1)], dim=1)
    plain = net(h[:, :2])
    layers = [m for m in net if isinstance(m, nn.Linear)]
    norms = []
    for layer in layers:
        w = torch.cat([layer.weight, layer.bias[:, None]], dim=1)
        if layer is not layers[-1]:
            w = torch.cat([w, torch.eye(w.shape[1], dtype=torch.float64)[-1:]])
        norms.append(float(w.detach().norm()))
        h = h @ w.T if layer is layers[-1] else (h @ w.T).relu()
    torch.testing.assert_close(h, plain)
    assert result.norms == pytest.approx(norms)
    with_bias = result.complexity(n=4, radius=2.0)
    assert with_bias == pytest.approx(
        MLPClass(norms=result.norms).complexity(n=4, radius=math.sqrt(5))
    )


def test_the_librarys_own_perceptron_is_read() -> None:
    net = MLP((1, 2, 2), 1, hidden=(3,))
    weights = [p.detach().numpy() for p in net.parameters() if p.ndim == 2]
    result = MLPClass.of(net)
    assert result.depth == len(weights) == 2
    assert result.biased
    assert result.product > float(np.linalg.norm(weights[0]) * np.linalg.norm(weights[1]))
    assert "biases counted" in repr(result)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), "got Tanh"),
        (nn.Sequential(nn.Linear(2, 1), nn.Softplus()), "no activation after the last layer"),
        (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), "BatchNorm1d"),
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(2, 1)), "chain of linear layers"),
        (nn.Sequential(nn.Linear(2, 3)), "one output; got 3"),
        (nn.Sequential(nn.ReLU()), "no linear layer"),
    ],
)
def test_networks_outside_the_class(net: nn.Module, words: str) -> None:
    with pytest.raises(InputError, match=words):
        MLPClass.of(net)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="shape"):
        rademacher_complexity(np.ones((2, 3, 4)))
    with pytest.raises(InputError, match="norms must be of at least 0; got -1"):
        MLPClass(norms=(-1.0,))
    with pytest.raises(InputError, match="draws"):
        rademacher_complexity(np.ones((1, 40)), draws=0)
