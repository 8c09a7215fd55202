r"""Gradients in which no single row can be seen: each row's is cut short, and noise is added.

.. math:: g = \frac{1}{B} \Big( \sum_i \min\Big(1, \frac{c}{\lVert g_i \rVert}\Big) g_i
              + \sigma c\, z \Big), \qquad z \sim N(0, I),

where g_i is the gradient of coefficient · loss of row i. A row changes the sum by at most c, so
that this is the Gaussian mechanism with multiplier σ; `fedshift.privacy.Accountant` adds up what
many of them cost.

What else depends on the rows must not leave beside it: no losses, no BatchNorm statistics. The
coefficient of a row may depend on that row and on public numbers (sizes of laws) alone, and a
batch must be drawn without a look at the rows, not in proportion to weights. Mixing rows (mixup)
does not fit.

The noise is made of floating-point numbers by a generator that is no cipher. Against someone who
studies last digits, only whole-number noise (`fedshift.privacy.counts`) is proof.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.errors import InputError

#: parameters by name, inputs, label and coefficient of one row to its loss, a scalar
RowLoss = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor], Tensor]


def row_loss(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> RowLoss:
    """The weighted loss of one row, from a model and a loss of many rows.

    Parameters
    ----------
    model : Module
        Its rows must not see one another.
    loss : callable
        Scores (n, …) and labels (n,) to losses (n,).

    Raises
    ------
    InputError
        If the model has BatchNorm, naming the layer.
    """
    separate_rows(model)
    buffers = dict(model.named_buffers())

    def functional(params: dict[str, Tensor], x: Tensor, y: Tensor, coefficient: Tensor) -> Tensor:
        scores = functional_call(model, (params, buffers), (x[None],))
        return (coefficient * loss(scores, y[None])).sum()

    return functional


def separate_rows(model: nn.Module) -> None:
    """Raise if a row's output depends on the other rows of its batch."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) or getattr(layer, "running_mean", None) is not None:
            raise InputError(
                "private gradients need a model whose rows do not see one another; got a "
                f"{type(layer).__name__} at {name or 'its top'!r}, which mixes the rows of a "
                'batch; take GroupNorm instead (norm="group" in the plan)'
            )


def private_gradient(
    functional: RowLoss,
    params: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
    coefficient: Tensor,
    *,
    rows: Tensor,
    clip: float,
    noise: float,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    chunk: int = 64,
) -> dict[str, Tensor]:
    """The gradient of a batch, clipped by row and with noise.

    Parameters
    ----------
    functional : callable
        Loss of one row; see `row_loss`.
    params : mapping of name to Tensor
        For example the views of a flat vector; flatten the answer the same way.
    x, y, coefficient : Tensor (B, …), (B, …), (B,)
    rows : int Tensor (B,)
        Which row each is. A row that occurs twice is clipped as one.
    clip : float
        Longest gradient of a row, over all parameters together.
    noise : float
        σ; 0 clips only.
    batch_size : int, optional
        What the sum is divided by; by default B. A public number.
    generator : torch.Generator, optional
        On the CPU. Leave it out in real use: then it is new, and its seed the operating
        system's entropy.
    chunk : int
        Rows whose gradients are held at a time.

    Returns
    -------
    dict of name to Tensor
        As `params`. A row whose gradient is not finite adds nothing.
    """
    if not (clip > 0 and noise >= 0):
        raise InputError(f"clip must be > 0 and noise ≥ 0; got clip {clip!r}, noise {noise!r}")
    if not len(x) == len(y) == len(coefficient) == len(rows) > 0:
        raise InputError(
            "x, y, coefficient and rows must have one entry a row of the batch; got "
            f"{len(x)}, {len(y)}, {len(coefficient)} and {len(rows)}"
        )
    fixed = {n: t.detach() for n, t in params.items()}
    gradients = vmap(grad(functional), in_dims=(None, 0, 0, 0))
    distinct, place = torch.unique(rows.to(x.device), return_inverse=True)
    total = torch.zeros(sum(t.numel() for t in fixed.values()), dtype=torch.float64)
    total = total.to(x.device)
    for first in range(0, len(distinct), chunk):
        at = torch.nonzero((place >= first) & (place < first + chunk))[:, 0]
        found = gradients(fixed, x[at], y[at], coefficient[at])
        flat = torch.cat([found[n].reshape(len(at), -1) for n in fixed], dim=1).double()
        own = flat.new_zeros(min(chunk, len(distinct) - first), flat.shape[1])
        total += _clipped(own.index_add_(0, place[at] - first, flat), clip)
    if noise:
        total += noise * clip * _normal(len(total), generator).to(total.device)
    return _named(total / (batch_size or len(x)), fixed)


def _clipped(gradients: Tensor, clip: float) -> Tensor:
    """Sum of rows (n, P), each made at most `clip` long."""
    length = gradients.norm(dim=1, keepdim=True)
    scale = (clip / length.clamp_min(1e-300)).clamp_max(1.0)
    return torch.where(length.isfinite(), gradients * scale, 0.0).sum(dim=0)


def _normal(size: int, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        generator = torch.Generator().manual_seed(secrets.randbits(63))
    return torch.randn(size, generator=generator, dtype=torch.float64)


def _named(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = torch.split(flat, [t.numel() for t in like.values()])
    return {
        n: part.reshape(t.shape).to(t.dtype)
        for part, (n, t) in zip(parts, like.items(), strict=True)
    }


__all__ = ["RowLoss", "private_gradient", "row_loss", "separate_rows"]
