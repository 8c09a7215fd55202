"""The one-pass layer against the usual three operations."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedshift.learn.fused_convolution import PooledConv, pooled_conv, rows_first, rows_last


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("kernel", [3, 4, 5])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("side", [(8, 8), (9, 12), (11, 7)])
def test_values_and_gradients(
    copies: int, kernel: int, padding: int, side: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    x = normal(copies * 4, 2, *side)
    weight, bias = normal(copies, 3, 2, kernel, kernel), normal(copies, 3)
    expected = torch.cat(
        [
            F.relu(F.max_pool2d(F.conv2d(part, w, b, padding=padding), 2))
            for part, w, b in zip(x.chunk(copies), weight, bias, strict=True)
        ]
    ).flatten(1)
    out = rows_first(pooled_conv(rows_last(x, copies), weight, bias, padding=padding))
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    toward = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    inputs = (x, weight, bias)
    torch.testing.assert_close(
        torch.autograd.grad((out * toward).sum(), inputs),
        torch.autograd.grad((expected * toward).sum(), inputs),
        rtol=1e-11,
        atol=1e-11,
    )


def test_images_and_rows_last_agree() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = PooledConv(2, 3, 5, padding=2)
    x = torch.randn(6, 2, 12, 12, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(rows_first(layer(rows_last(x, 1))), layer(x).flatten(1))


def test_a_second_backward_pass_is_refused() -> None:
    layer = PooledConv(1, 2, 3)
    x = torch.ones(1, 1, 8, 8, 4)
    y = layer(x).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward"):
        y.backward()


@pytest.mark.parametrize("copies", [1, 3])
def test_autocast_rounds_values_and_gradients_and_nothing_else(copies: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    x, weight, bias = normal(copies * 4, 2, 12, 12), normal(copies, 3, 2, 5, 5), normal(copies, 3)
    inputs = (x, weight, bias)
    exact = rows_first(pooled_conv(rows_last(x, copies), weight, bias, padding=2))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = rows_first(pooled_conv(rows_last(x, copies), weight, bias, padding=2))
    assert rounded.dtype == torch.bfloat16
    pairs = [
        (exact.detach(), rounded.detach().float()),
        *zip(
            torch.autograd.grad(exact.square().sum(), inputs),
            torch.autograd.grad(rounded.float().square().sum(), inputs),
            strict=True,
        ),
    ]
    for a, b in pairs:
        assert a.dtype == b.dtype == torch.float32
        off = float((a - b).norm() / a.norm())
        assert 0 < off < 0.02
