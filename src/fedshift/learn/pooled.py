"""Convolution, 2 × 2 max pooling and rectifier in one, for processors.

A pooling window sees (k + 1) × (k + 1) numbers at a stride of 2. With the kernel put at the four
places of the window, 4 · out products with one patch give the four values the maximum is taken
over: patches are a third of a convolution's, and the products are wide enough for vector units.
With rows as the last axis, (copies, C, H, W, n), maxima run along whole blocks of memory and
copies of the parameters are one batch of products.

Images (n, C, H, W) take the usual operations instead, which is what a GPU wants.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def rows_last(x: Tensor, copies: int) -> Tensor:
    """Images (copies · n, C, H, W) as (copies, C, H, W, n)."""
    return x.reshape(copies, -1, *x.shape[1:]).movedim(1, 4).contiguous()


def rows_first(x: Tensor) -> Tensor:
    """Flat features (copies · n, C · H · W) of (copies, C, H, W, n)."""
    return x.movedim(4, 1).reshape(x.shape[0] * x.shape[4], -1)


class PooledConv(nn.Conv2d):
    """relu(max_pool2d(conv(x), 2)) of images (n, C, H, W) or rows-last (1, C, H, W, n).

    Parameters
    ----------
    channels, out, kernel, padding : int
    """

    #: copies of the parameters
    copies = 1

    def __init__(self, channels: int, out: int, kernel: int, *, padding: int = 0) -> None:
        super().__init__(channels, out, kernel, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        """As `x`, with half the height and width."""
        if x.ndim == 4:
            return F.relu(F.max_pool2d(super().forward(x), 2))
        assert self.bias is not None
        pad = int(self.padding[0])
        return pooled_conv(x, self.weight.unsqueeze(0), self.bias.unsqueeze(0), padding=pad)


def pooled_conv(x: Tensor, weight: Tensor, bias: Tensor, *, padding: int) -> Tensor:
    """Rows-last (copies, out, H', W', n) of (copies, C, H, W, n), each copy with its own weights.

    Parameters
    ----------
    weight, bias : Tensor (copies, out, C, k, k), (copies, out)
    """
    x = F.pad(x, (0, 0, *[padding] * 4)) if padding else x
    if torch.is_autocast_enabled("cpu"):  # here, as autocast knows nothing of the backward pass
        kind = torch.get_autocast_dtype("cpu")
        x, weight, bias = x.to(kind), weight.to(kind), bias.to(kind)
    out: Tensor = _PooledConv.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _PooledConv(torch.autograd.Function):
    """The product and its gradient; the latter works in the memory the former has left."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        g, c, h, w, n = x.shape
        o, k = weight.shape[1], weight.shape[3]
        high, wide, q = (h - k + 1) // 2, (w - k + 1) // 2, k + 1
        s = x.stride()
        patches = x.as_strided(
            (g, c, q, q, high, wide, n),
            (s[0], s[1], s[2], s[3], 2 * s[2], 2 * s[3], s[4]),
            x.storage_offset(),
        ).reshape(g, c * q * q, high * wide * n)
        kernel = weight.new_zeros(g, 2, 2, o, c, q, q)
        for a in (0, 1):
            for b in (0, 1):
                kernel[:, a, b, :, :, a : a + k, b : b + k] = weight
        kernel = kernel.view(g, 4 * o, -1)
        z = torch.bmm(kernel, patches).view(g, 2, 2, o, -1)
        pair = torch.maximum(z[:, :, 0], z[:, :, 1])
        z[:, :, 1].sub_(z[:, :, 0])  # > 0 where the second won: all that the gradient needs
        y = torch.maximum(pair[:, 0], pair[:, 1])
        pair[:, 1].sub_(pair[:, 0])
        y.add_(bias.unsqueeze(2)).relu_()
        ctx.save_for_backward(patches, kernel, z, pair, y)
        ctx.dims, ctx.spent = (x.shape, o, k, high, wide), False
        return y.view(g, o, high, wide, n)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        if ctx.spent:
            raise RuntimeError("a second backward pass through PooledConv; run forward again")
        ctx.spent = True
        patches, kernel, z, pair, y = ctx.saved_tensors
        shape, o, k, high, wide = ctx.dims
        g, c = shape[:2]
        q = k + 1
        where = torch.ops.aten.threshold_backward  # its first argument where the second is > 0
        gy = where(gy.reshape(y.shape), y, 0)
        where.grad_input(gy, pair[:, 1], 0, grad_input=pair[:, 1])
        torch.sub(gy, pair[:, 1], out=pair[:, 0])
        where.grad_input(pair, z[:, :, 1], 0, grad_input=z[:, :, 1])
        torch.sub(pair, z[:, :, 1], out=z[:, :, 0])
        gz = z.view(g, 4 * o, -1)
        gk = torch.bmm(gz, patches.transpose(1, 2)).view(g, 2, 2, o, c, q, q)
        gw = gk[:, 0, 0, ..., :k, :k] + gk[:, 0, 1, ..., :k, 1:]
        gw = gw + gk[:, 1, 0, ..., 1:, :k] + gk[:, 1, 1, ..., 1:, 1:]
        gx = None
        if ctx.needs_input_grad[0]:
            gp = torch.bmm(kernel.transpose(1, 2), gz)
            gx = _summed(gp.view(g, c, q, q, high, wide, -1), shape)
        return gx, gw, gy.sum(2)


def _summed(patches: Tensor, shape: torch.Size) -> Tensor:
    """Gradients of patches added up where they came from."""
    g, c, q, _, high, wide, n = patches.shape
    h, w = shape[2:4]
    if q % 2 or h % 2 or w % 2:
        out = patches.new_zeros(shape)
        for i in range(q):
            for j in range(q):
                rows, columns = slice(i, i + 2 * high - 1, 2), slice(j, j + 2 * wide - 1, 2)
                out[:, :, rows, columns].add_(patches[:, :, i, j])
        return out
    # all even: four neighbours at a time, a quarter of the passes over memory
    four = patches.view(g, c, q // 2, 2, q // 2, 2, high, wide, n)
    even = patches.new_zeros(g, c, h // 2, 2, w // 2, 2, n)
    for i in range(q // 2):
        for j in range(q // 2):
            part = four[:, :, i, :, j].permute(0, 1, 4, 2, 5, 3, 6)
            even[:, :, i : i + high, :, j : j + wide].add_(part)
    return even.view(shape)
