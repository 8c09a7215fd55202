"""Convolution, 2 × 2 max pooling and rectifier as one operation, fast on a CPU.

For a k × k kernel, a pooling window covers a patch of (k + 1) × (k + 1) numbers, at a stride of 2.
The kernel fits into the patch at four positions. So with `out` output channels there are 4 · out
shifted kernels. Their inner products with one patch give, for each channel, the four values of
which pooling takes the maximum. For k = 5, the patches together hold about a third as many numbers
as those of an ordinary convolution. The matrix products are wide enough for vector units.

The n rows of a batch are the last axis, (copies, C, H, W, n), so a maximum runs along whole blocks
of memory. If clients have their own parameters, each set of parameters is a copy, and one batched
product computes the outputs of all copies.

Images (n, C, H, W) use torch's separate operations, which are faster on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def rows_last(x: Tensor, copies: int) -> Tensor:
    """Rearrange images (copies · n, C, H, W) to (copies, C, H, W, n)."""
    return x.reshape(copies, -1, *x.shape[1:]).movedim(1, 4).contiguous()


def rows_first(x: Tensor) -> Tensor:
    """Rearrange (copies, C, H, W, n) to flat features (copies · n, C · H · W)."""
    return x.movedim(4, 1).reshape(x.shape[0] * x.shape[4], -1)


class PooledConv(nn.Conv2d):
    """Layer relu(max_pool2d(conv(x), 2)) for images (n, C, H, W) or (1, C, H, W, n).

    Parameters
    ----------
    channels, out, kernel, padding : int
        Input channels, output channels, kernel size k and padding of the convolution.
    """

    #: number of copies of the parameters
    copies = 1

    def __init__(self, channels: int, out: int, kernel: int, *, padding: int = 0) -> None:
        super().__init__(channels, out, kernel, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        """Return features in the layout of `x`, with half the height and width."""
        if x.ndim == 4:
            return F.relu(F.max_pool2d(super().forward(x), 2))
        assert self.bias is not None
        pad = int(self.padding[0])
        return pooled_conv(x, self.weight.unsqueeze(0), self.bias.unsqueeze(0), padding=pad)


def pooled_conv(x: Tensor, weight: Tensor, bias: Tensor, *, padding: int) -> Tensor:
    """Return relu(max_pool2d(conv(x), 2)) for each copy of the parameters.

    The result has shape (copies, out, H', W', n), with H' and W' the pooled height and width.

    Parameters
    ----------
    x : Tensor (copies, C, H, W, n)
    weight, bias : Tensor (copies, out, C, k, k), (copies, out)
        Weights and biases of each copy.
    padding : int
        Zeros added to each border of the images.
    """
    x = F.pad(x, (0, 0, *[padding] * 4)) if padding else x
    if torch.is_autocast_enabled("cpu"):  # autocast does not reach the backward pass
        dtype = torch.get_autocast_dtype("cpu")
        x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    out: Tensor = _PooledConv.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


class _PooledConv(torch.autograd.Function):
    """The product and its gradient, which reuses the memory of the forward pass."""

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
        z[:, :, 1].sub_(z[:, :, 0])  # > 0 where the second is larger, for the gradient
        y = torch.maximum(pair[:, 0], pair[:, 1])
        pair[:, 1].sub_(pair[:, 0])
        y.add_(bias.unsqueeze(2)).relu_()
        ctx.save_for_backward(patches, kernel, z, pair, y)
        ctx.dims, ctx.done = (x.shape, o, k, high, wide), False
        return y.view(g, o, high, wide, n)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        if ctx.done:
            raise RuntimeError("a second backward pass through PooledConv; run forward again")
        ctx.done = True
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
            gx = _add_patches(gp.view(g, c, q, q, high, wide, -1), shape)
        return gx, gw, gy.sum(2)


def _add_patches(patches: Tensor, shape: torch.Size) -> Tensor:
    """Add the gradients of patches at their positions in the input."""
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
