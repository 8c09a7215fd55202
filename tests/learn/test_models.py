"""Models: sizes, shapes and starting parameters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fedshift.errors import InputError
from fedshift.learn.models import MLP, MODELS, LeNet, Linear, ResNet18, Scaled, build


@pytest.fixture(autouse=True)
def _own_generator() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts() -> None:
    assert count(LeNet((1, 28, 28))) == count(LeNet((28, 28))) == count(LeNet()) == 61_706
    assert count(LeNet((3, 32, 32))) == 62_006  # the same net, 2 · 150 weights more
    assert count(MLP((8, 8), 10)) == 65 * 128 + 129 * 64 + 65 * 10
    assert count(MLP((8, 8), 10, batch_norm=True)) - count(MLP((8, 8), 10)) == 2 * (128 + 64)
    assert count(Linear((1, 28, 28))) == 7850
    with torch.device("meta"):
        assert count(ResNet18()) == 11_173_962
        assert count(ResNet18(classes=100)) == 11_173_962 + 90 * 513


SHAPES = [(8, 8), (1, 8, 8), (28, 28), (2, 28, 28), (3, 32, 32), (1, 40, 9), (1, 9, 40)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_rows_in_scores_out(name: str, shape: tuple[int, ...]) -> None:
    model = ResNet18(shape, 7, width=4) if name == "resnet18" else MODELS[name](shape, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = model(torch.zeros(3, *shape))
    assert out.shape == (3, 7)
    assert out.isfinite().all()
    assert all(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["mlp", "linear"])
def test_tables(name: str) -> None:
    assert MODELS[name]((5,), 1)(torch.zeros(4, 5)).shape == (4, 1)


@pytest.mark.parametrize("kind", [LeNet, ResNet18])
@pytest.mark.parametrize("shape", [(5,), (7, 7), (3, 32, 4), (1, 2, 28, 28)])
def test_shapes_that_are_no_images(kind: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"at least 8 × 8; got rows of shape .* take model='mlp'"):
        kind(shape)


def test_linear_starts_at_zero() -> None:
    assert not any(p.any() for p in Linear((5,), 3).parameters())


def test_lenet_pools_before_the_rectifier_without_a_difference() -> None:
    net = LeNet((8, 8), 3)
    x = torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(0))
    y = x.unsqueeze(1)
    for layer in (net.conv1, net.conv2):  # the textbook's order
        y = torch.conv2d(y, layer.weight, layer.bias, padding=layer.padding)
        y = torch.max_pool2d(torch.relu(y), 2)
    y = y.flatten(1)
    y = net.fc3(torch.relu(net.fc2(torch.relu(net.fc1(y)))))
    torch.testing.assert_close(net(x), y)


@pytest.mark.parametrize("name", ["lenet", "mlp"])
def test_build_repeats_itself_and_leaves_the_generator_alone(name: str) -> None:
    before = torch.random.get_rng_state()
    a, b, c = (build(name, (8, 8), 3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert any(not torch.equal(p, q) for p, q in zip(a.parameters(), c.parameters(), strict=True))


def test_build_does_not_depend_on_the_generator() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        a = build("mlp", (4,), 2, seed=0)
        torch.manual_seed(6)
        b = build("mlp", (4,), 2, seed=0)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_a_scaled_model_takes_columns_as_they_come() -> None:
    inner = nn.Linear(3, 2)
    mean, scale = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 0.5, 1.0])
    x = torch.randn(5, 3)
    assert torch.allclose(Scaled(inner, mean, scale)(mean + scale * x), inner(x), atol=1e-6)
    out = Scaled(inner, mean, scale, (10.0, 4.0))(mean + scale * x)
    assert torch.allclose(out, 10 + 4 * inner(x), atol=1e-5)
    again = Scaled(nn.Linear(3, 2), torch.zeros(3), torch.ones(3))
    again.load_state_dict(Scaled(inner, mean, scale).state_dict())  # the scale is saved with it
    assert torch.allclose(again(mean + scale * x), inner(x), atol=1e-6)


def test_build_takes_modules_and_callables() -> None:
    module = nn.Linear(3, 2)
    assert build(module, (3,), 2, seed=0) is module
    model = build(lambda shape, classes: nn.Linear(shape[0], classes), (3,), 2, seed=0)
    assert model.weight.shape == (2, 3)


def test_an_unknown_name_meets_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"model must be one of lenet, .*got 'lenot'; did you mean 'lenet'\?"
    ):
        build("lenot", (8, 8), 2, seed=0)
