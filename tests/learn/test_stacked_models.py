"""Stacked models against one call a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.learn.models import MLP, LeNet, Linear, ResNet18
from fedshift.learn.norm import ClientNorm, convert, norm_layers
from fedshift.learn.stacked_models import (
    GroupedAffine,
    GroupedConv2d,
    GroupedLinear,
    Looped,
    stack_copies,
)

G, B = 3, 4


@pytest.fixture(autouse=True)
def _own_generator() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def normal(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def close(a: Any, b: Any, tol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


class Odd(nn.Module):
    """A parameter outside any layer, a scalar and a name with the separator in it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.the__shift = nn.Parameter(torch.zeros(3))
        self.fc = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.fc(torch.tanh(self.net(x)).flatten(1)) + self.the__shift


class Tied(nn.Module):
    """The same weights in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6)
        self.rest = nn.Sequential(nn.Tanh(), nn.Linear(6, 6))
        self.rest[1].weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.one(x))


class Cosine(nn.Linear):
    """A subclass with an idea of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x), F.normalize(self.weight), self.bias)


class Mixed(nn.Module):
    """Strides, a rectangular kernel, no bias, GroupNorm with and without scales."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), bias=False),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Conv2d(4, 6, 1),
            nn.GroupNorm(3, 6, affine=False),
            nn.Flatten(2),
            nn.Linear(15, 5, bias=False),  # rows with an axis more
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).mean(1)


MODELS: dict[str, tuple[Any, tuple[int, ...], str, bool]] = {
    "lenet": (lambda: LeNet((1, 12, 12), 4), (1, 12, 12), "averaged", True),
    "lenet, grey": (lambda: LeNet((8, 8), 4), (8, 8), "averaged", True),
    "mlp": (lambda: MLP((6,), 3, (7, 5), batch_norm=True), (6,), "averaged", True),
    "linear": (lambda: Linear((2, 3), 4), (2, 3), "averaged", True),
    "resnet": (lambda: ResNet18((2, 8, 8), 3, width=4), (2, 8, 8), "averaged", True),
    "resnet, group": (lambda: ResNet18((2, 8, 8), 3, width=4), (2, 8, 8), "group", True),
    "mlp, group": (lambda: MLP((6,), 3, (7, 5), batch_norm=True), (6,), "group", True),
    "mixed": (Mixed, (2, 6, 6), "averaged", True),
    "a layer": (lambda: nn.Linear(6, 3), (6,), "averaged", True),
    "parameters elsewhere": (Odd, (2, 6, 6), "averaged", False),
    "tied": (Tied, (6,), "averaged", False),
    "a subclass": (lambda: Cosine(6, 3), (6,), "averaged", False),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)), (6,), "local", False),
    "dilated": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, 2, dilation=2), nn.Flatten()),
        (2, 6, 6),
        "averaged",
        False,
    ),
    "reflecting": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten()),
        (2, 6, 6),
        "averaged",
        False,
    ),
    "same": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding="same"), nn.Flatten()),
        (2, 6, 6),
        "averaged",
        False,
    ),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten()),
        (2, 6, 6),
        "averaged",
        False,
    ),
}


def owners(model: nn.Module) -> dict[str, Any]:
    return model.owners() if isinstance(model, Looped) else dict(model.named_parameters())


@pytest.mark.parametrize("name", MODELS)
def test_stacked_equals_one_call_a_copy(name: str) -> None:
    make, shape, policy, fast = MODELS[name]
    one = convert(make().double(), policy)
    many = stack_copies(one, G)
    assert isinstance(many, Looped) is not fast
    own = {n: 0.5 * normal(G, *p.shape, seed=i) for i, (n, p) in enumerate(one.named_parameters())}
    assert owners(many).keys() == own.keys()
    with torch.no_grad():
        for n, p in owners(many).items():
            p.copy_(own[n])
    x = normal(G * B, *shape, seed=99).requires_grad_()
    out = many(x)
    toward = normal(*out.shape, seed=98)
    grads = torch.autograd.grad((out * toward).sum(), [x, *owners(many).values()])
    norms = many.norms if isinstance(many, Looped) else norm_layers(many)
    moments = {n: (m.batch_mean, m.batch_var) for n, m in norms.items()}

    for g, (rows, direction) in enumerate(zip(x.chunk(G), toward.chunk(G), strict=True)):
        mine = {n: t[g].clone().requires_grad_() for n, t in own.items()}
        rows = rows.detach().requires_grad_()
        alone = torch.func.functional_call(one, mine, (rows,))
        close(out[g * B : (g + 1) * B], alone)
        expected = torch.autograd.grad((alone * direction).sum(), [rows, *mine.values()])
        close(grads[0][g * B : (g + 1) * B], expected[0])
        for stack, single in zip(grads[1:], expected[1:], strict=True):
            close(stack[g], single)
        for n, layer in norm_layers(one).items():
            close(moments[n][0][g], layer.batch_mean[0])
            close(moments[n][1][g], layer.batch_var[0])


def test_layers_that_have_a_stacked_twin() -> None:
    net = stack_copies(Mixed(), G)
    kinds = [type(m) for m in net.net]  # type: ignore[union-attr]
    assert kinds[:2] == [GroupedConv2d, GroupedAffine]
    assert kinds[4] is nn.GroupNorm  # has no parameters
    assert kinds[6] is GroupedLinear


def test_the_model_given_is_left_alone() -> None:
    for model in (MLP((6,), 3, batch_norm=True), Odd()):
        one = convert(model, "averaged")
        before = {n: p.shape for n, p in one.named_parameters()}
        stack_copies(one, G)
        assert {n: p.shape for n, p in one.named_parameters()} == before
        assert all(m.groups == 1 for m in norm_layers(one).values())


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 5), (3, 2)])
@pytest.mark.parametrize("stride", [1, 2, (2, 1), 3])
@pytest.mark.parametrize("padding", [0, 1, (2, 0)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_gpu_path_equals_conv2d(kernel: Any, stride: Any, padding: Any, bias: bool) -> None:
    layer = nn.Conv2d(2, 3, kernel, stride=stride, padding=padding, bias=bias).double()
    grouped = GroupedConv2d(layer, G)
    with torch.no_grad():
        for i, p in enumerate(grouped.parameters()):
            p.copy_(normal(*p.shape, seed=i))
    x = normal(G * B, 2, 8, 7, seed=9).requires_grad_()
    inputs = [x, *grouped.parameters()]
    expected = torch.cat(
        [
            F.conv2d(
                part,
                grouped.weight[g],
                None if grouped.bias is None else grouped.bias[g],
                stride=stride,
                padding=padding,
            )
            for g, part in enumerate(x.chunk(G))
        ]
    )
    toward = normal(*expected.shape, seed=8)
    gradients = torch.autograd.grad((expected * toward).sum(), inputs, retain_graph=True)
    for out in (grouped._banded(x), grouped(x)):
        close(out, expected)
        close(torch.autograd.grad((out * toward).sum(), inputs), gradients)


def test_a_looped_model_may_hold_several_clients_a_group() -> None:
    """Runs side by side: a copy a run, and in it BatchNorm with scales of every client."""
    one = convert(Odd().double(), "local")
    many = stack_copies(one, 2)
    assert isinstance(many, Looped)
    clients = 3
    (layer,) = many.norms.values()
    layer.groups = clients
    scales = {n: normal(2 * clients, 4, seed=i) for i, n in enumerate(("weight", "bias"))}
    for n, t in scales.items():
        many.bind_local(f"net.1.{n}", t)
    x = normal(2 * clients * B, 2, 6, 6)
    out = many(x)
    assert layer.batch_mean.shape == (2 * clients, 4)
    (single,) = norm_layers(one).values()
    for k, part in enumerate(x.chunk(2 * clients)):
        own = {f"net.1.{n}": t[k] for n, t in scales.items()}
        close(out[k * B : (k + 1) * B], torch.func.functional_call(one, own, (part,)))
        close(layer.batch_mean[k], single.batch_mean[0])


def test_normalising_layers_know_their_groups() -> None:
    net = stack_copies(convert(MLP((6,), 3, (8,), batch_norm=True), "averaged"), G)
    layers = [m for m in net.modules() if isinstance(m, ClientNorm)]
    assert [m.groups for m in layers] == [G]
    assert layers[0].weight is not None
    assert layers[0].weight.shape == (G, 8)
