"""BatchNorm that keeps clients apart, against torch's own layers and against moments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedshift.errors import InputError
from fedshift.learn.models import MLP, ResNet18
from fedshift.learn.norm import (
    POLICIES,
    ClientNorm,
    convert,
    mix_moments,
    norm_layers,
    pool_moments,
    restore,
)

C = 3
LAYERS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "1d": (nn.BatchNorm1d, (12, C)),
    "1d with positions": (nn.BatchNorm1d, (12, C, 5)),
    "2d": (nn.BatchNorm2d, (12, C, 4, 5)),
    "3d": (nn.BatchNorm3d, (12, C, 2, 3, 2)),
    "sync": (nn.SyncBatchNorm, (12, C, 4, 5)),
}


@pytest.fixture(autouse=True)
def _own_generator() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def normal(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def scrambled(layer: Any) -> Any:
    """Parameters and statistics that are not the starting ones."""
    layer = layer.double()
    with torch.no_grad():
        if layer.weight is not None:
            layer.weight.copy_(normal(C, seed=1))
            layer.bias.copy_(normal(C, seed=2))
        layer.running_mean.copy_(normal(C, seed=3))
        layer.running_var.copy_(normal(C, seed=4).square() + 0.1)
    return layer


def outcome(layer: nn.Module, x: Tensor, toward: Tensor) -> list[Tensor]:
    """Output and all gradients of a weighted sum of it."""
    x = x.detach().clone().requires_grad_()
    out = layer(x)
    grads = torch.autograd.grad((out * toward).sum(), [x, *layer.parameters()])
    return [out.detach(), *grads]


def close(a: Any, b: Any, tol: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_one_group_is_torchs_layer(name: str, affine: bool, training: bool) -> None:
    kind, shape = LAYERS[name]
    plain = scrambled(kind(C, affine=affine, eps=1e-3, momentum=0.2)).train(training)  # type: ignore[call-arg]
    ours = ClientNorm.of(plain, name).train(training)
    x, toward = 2 * normal(*shape, seed=5) + 1, normal(*shape, seed=6)
    close(outcome(ours, x, toward), outcome(plain, x, toward))
    if training:
        by_channel = x.movedim(1, 0).flatten(1)
        close(ours.batch_mean[0], by_channel.mean(1))
        close(ours.batch_var[0], by_channel.var(1))
        old = normal(C, seed=3)  # torch's running mean is the mixture's, its variance is not
        close(mix_moments(old, old, ours.batch_mean[0], old, 0.2)[0], plain.running_mean)


@pytest.mark.parametrize("shape", [(12, C), (12, C, 4, 5)])
def test_groups_are_separate_calls(shape: tuple[int, ...]) -> None:
    plain = scrambled(nn.BatchNorm2d(C))
    ours, one = ClientNorm.of(plain, "a"), ClientNorm.of(plain, "a")
    ours.groups = 4
    x, toward = normal(*shape, seed=5), normal(*shape, seed=6)
    out, grad, *scales = outcome(ours, x, toward)
    parts = [
        [*outcome(one, a, b), one.batch_mean, one.batch_var]
        for a, b in zip(x.chunk(4), toward.chunk(4), strict=True)
    ]
    close(out, torch.cat([p[0] for p in parts]))
    close(grad, torch.cat([p[1] for p in parts]))
    close(scales, [sum(p[2] for p in parts), sum(p[3] for p in parts)])
    close(ours.batch_mean, torch.cat([p[4] for p in parts]))
    close(ours.batch_var, torch.cat([p[5] for p in parts]))


@pytest.mark.parametrize("rows", [None, 0, 2, 4])
@pytest.mark.parametrize("shape", [(12, C), (12, C, 7), (12, C, 4, 5)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_gpu_path_equals_the_loop(
    rows: int | None, shape: tuple[int, ...], channels_last: bool
) -> None:
    """Weights None, (C,), (2, C) for 4 groups, and (4, C)."""
    layer = ClientNorm(C, eps=1e-5, momentum=0.1, affine=rows is not None).double()
    layer.groups = 4
    if rows is not None:
        own = (rows, C) if rows else (C,)
        layer.weight = nn.Parameter(normal(*own, seed=1))
        layer.bias = nn.Parameter(normal(*own, seed=2))
    x, toward = normal(*shape, seed=5) * 3 - 1, normal(*shape, seed=6)
    if channels_last and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    loop = outcome(layer, x, toward)
    moments = layer.batch_mean, layer.batch_var
    layer.forward = layer._all_at_once  # type: ignore[method-assign]
    close(outcome(layer, x, toward), loop)
    close((layer.batch_mean, layer.batch_var), moments)
    assert not layer.batch_mean.requires_grad


def test_half_precision_keeps_wide_moments() -> None:
    layer = ClientNorm(C, eps=1e-5, momentum=0.1, affine=True)
    layer.groups = 2
    x = (normal(8, C, 4, 4) + 100).to(torch.bfloat16)
    out = layer._all_at_once(x)
    assert out.dtype == torch.bfloat16
    assert layer.batch_mean.dtype == layer.batch_var.dtype == torch.float32
    close(layer.batch_mean.double(), x.double().view(2, 4, C, 16).mean((1, 3)), 1e-4)
    loop = layer(x)  # on the CPU, group after group
    assert loop.dtype == torch.bfloat16
    assert layer.batch_mean.dtype == layer.batch_var.dtype == torch.float32
    close(loop.float(), out.float(), 2e-2)


def test_a_batch_of_one_value_a_channel_is_refused() -> None:
    layer = ClientNorm(C, eps=1e-5, momentum=0.1, affine=True)
    layer.groups = 4
    with pytest.raises(InputError, match=r"two values per channel.*\(1, 3\); raise batch_size"):
        layer(torch.zeros(4, C))
    layer(torch.zeros(4, C, 2))


shares = st.floats(0.0, 1.0)


@given(st.integers(0, 1000), st.lists(st.integers(1, 9), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_pooled_moments_are_those_of_all_samples(seed: int, sizes: list[int]) -> None:
    parts = [normal(n, C, seed=seed + i) * (i + 1) + 5 * i for i, n in enumerate(sizes)]
    counts = torch.tensor(sizes, dtype=torch.float64)
    mean, variance = pool_moments(
        torch.stack([p.mean(0) for p in parts]),
        torch.stack([p.var(0, correction=0) for p in parts]),
        counts / counts.sum(),
    )
    whole = torch.cat(parts)
    close(mean, whole.mean(0))
    close(variance, whole.var(0, correction=0), 1e-10)


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_mixed_moments_are_those_of_both_samples(seed: int, a: int, b: int) -> None:
    one, two = normal(a, C, seed=seed), 3 * normal(b, C, seed=seed + 1) - 4
    moments = [(p.mean(0), p.var(0, correction=0)) for p in (one, two)]
    mean, variance = mix_moments(*moments[0], *moments[1], b / (a + b))
    whole = torch.cat([one, two])
    close(mean, whole.mean(0))
    close(variance, whole.var(0, correction=0), 1e-10)


@given(st.integers(0, 1000), st.integers(1, 6), shares)
@settings(max_examples=40, deadline=None)
def test_mixing_and_pooling_commute(seed: int, clients: int, momentum: float) -> None:
    """Clients or the server may keep the running values: the same old ones, any batches."""
    mean, variance = normal(C, seed=seed), normal(C, seed=seed + 1).square()
    new_mean = 3 * normal(clients, C, seed=seed + 2)
    new_variance = normal(clients, C, seed=seed + 3).square()
    share = normal(clients, seed=seed + 4).square() + 0.01
    share = share / share.sum()
    at_clients = pool_moments(*mix_moments(mean, variance, new_mean, new_variance, momentum), share)
    at_server = mix_moments(mean, variance, *pool_moments(new_mean, new_variance, share), momentum)
    close(at_clients, at_server, 1e-10)


class Nested(nn.Module):
    """A layer of every kind, none recognisable by name."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.BatchNorm1d(C)
        self.b = nn.ModuleDict({"x": nn.Sequential(nn.BatchNorm2d(C), nn.ReLU())})
        self.c = nn.ModuleList([nn.BatchNorm3d(C, affine=False)])
        self.d = nn.SyncBatchNorm(C)

    def forward(self, x: Tensor) -> Tensor:
        x = self.d(self.b["x"](self.a(x.flatten(2)).view(x.shape)))
        return self.c[0](x.unsqueeze(2)).squeeze(2)


def test_layers_are_found_by_type() -> None:
    assert set(norm_layers(convert(Nested(), "averaged"))) == {"a", "b.x.0", "c.0", "d"}
    layers = norm_layers(convert(ResNet18(width=4), "local"))
    assert len(layers) == 1 + 8 * 2 + 3
    assert {f"blocks.{i}.shortcut.1" for i in (2, 4, 6)} <= set(layers)
    assert set(norm_layers(convert(nn.BatchNorm2d(C), "averaged"))) == {""}
    assert norm_layers(nn.Linear(2, 2)) == {}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_model_given_is_left_alone(policy: Any) -> None:
    model = Nested()
    before = {n: type(m) for n, m in model.named_modules()}
    new = convert(model, policy)
    assert {n: type(m) for n, m in model.named_modules()} == before
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in new.modules())
    shared = {p.data_ptr() for p in new.parameters()} & {p.data_ptr() for p in model.parameters()}
    assert not shared


def nested() -> Nested:
    model = Nested().double()
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            scrambled(layer)
    return model


@pytest.mark.parametrize("training", [True, False])
def test_restore_gives_the_layers_that_were(training: bool) -> None:
    model = nested().train(training)
    there = convert(model, "averaged")
    assert all(m.training is training for m in there.modules())
    back = restore(there)
    kinds = {n: type(m) for n, m in model.named_modules()}
    assert {n: type(m) for n, m in back.named_modules()} == kinds
    assert all(m.training is training for m in back.modules())
    x = normal(12, C, 4, 5)
    expected = model(x)
    close(there(x), expected)
    close(back(x), expected)


def test_restore_at_the_root_and_settings() -> None:
    layer = scrambled(nn.BatchNorm1d(C, eps=0.5, momentum=0.7)).eval()
    back = restore(convert(layer, "averaged"))
    assert isinstance(back, nn.BatchNorm1d)
    assert (back.eps, back.momentum, back.num_features) == (0.5, 0.7, C)
    close(back(normal(4, C)), layer(normal(4, C)))


def test_an_mlp_survives_there_and_back() -> None:
    model = MLP((2, 3), 4, (8,), batch_norm=True).double().eval()
    x = normal(5, 2, 3)
    close(restore(convert(model, "local"))(x), model(x))


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout])
def test_dropout_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(InputError, match=r"layer '1': dropout draws .* weight_decay or augment"):
        convert(nn.Sequential(nn.Linear(2, 2), kind(0.1)), "averaged")  # type: ignore[call-arg]
    convert(nn.Sequential(kind(0.0)), "averaged")  # type: ignore[call-arg]


@pytest.mark.parametrize("wrong", [{"momentum": None}, {"track_running_stats": False}])
def test_layers_without_running_statistics_are_refused(wrong: dict[str, Any]) -> None:
    model = nn.Sequential(nn.BatchNorm2d(C, **wrong))
    with pytest.raises(InputError, match="layer '0': BatchNorm needs running statistics"):
        convert(model, "averaged")
    convert(model, "group")  # has no statistics to share


@pytest.mark.parametrize(
    ("layer", "groups"),
    [
        (nn.BatchNorm2d(64), 32),
        (nn.BatchNorm2d(32), 16),  # two channels a group at least
        (nn.BatchNorm2d(6), 2),
        (nn.BatchNorm2d(7), 1),
        (nn.BatchNorm2d(1), 1),
        (nn.BatchNorm1d(64), 1),  # a row of a table has one value a channel
    ],
)
def test_groups_of_groupnorm(layer: Any, groups: int) -> None:
    new = convert(layer, "group")
    assert isinstance(new, nn.GroupNorm)
    assert (new.num_groups, new.num_channels, new.eps) == (groups, layer.num_features, layer.eps)


def test_groupnorm_keeps_the_scales_and_the_type() -> None:
    new = convert(scrambled(nn.BatchNorm2d(C)), "group")
    close([new.weight.detach(), new.bias.detach()], [normal(C, seed=1), normal(C, seed=2)])
    bare = convert(nn.BatchNorm2d(C, affine=False).double(), "group")
    assert list(bare.parameters()) == []


def test_groupnorm_after_a_linear_layer_lets_gradients_through() -> None:
    """In groups of two numbers every output is ±1 and all but the sign is lost."""
    net = convert(MLP((5,), 2, (64,), batch_norm=True).double(), "group")
    hidden: list[Tensor] = []
    net.layers[2].register_forward_hook(lambda *args: hidden.append(args[2]))  # type: ignore[union-attr]
    net(normal(7, 5))
    assert len(torch.unique(hidden[0].round(decimals=3))) > 100
