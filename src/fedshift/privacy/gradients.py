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

Every bit of the noise is the operating system's: where no row has a gradient the noise stands bare,
and a generator with a seed of its own could be found out from it. It is made of floating-point
numbers all the same. Against someone who studies last digits, only whole-number noise
(`fedshift.privacy.counts`) is proof.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np
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
        On the CPU, for tests: its seed has 32 bits. Leave it out in real use: then the noise is
        the operating system's.
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
    distinct, place = torch.unique(rows.to(x.device), return_inverse=True)
    total = {n: torch.zeros_like(t) for n, t in fixed.items()}
    for first in range(0, len(distinct), chunk):
        at = torch.nonzero((place >= first) & (place < first + chunk))[:, 0]
        found = row_gradients(functional, fixed, x[at], y[at], coefficient[at])
        if len(at) > min(chunk, len(distinct) - first):
            found = _merged(found, place[at] - first)
        for name, part in _clipped_sum(found, clip).items():
            total[name] += part
    if noise:
        size = sum(t.numel() for t in fixed.values())
        z = torch.split(_normal(size, generator), [t.numel() for t in fixed.values()])
        for part, t in zip(z, total.values(), strict=True):
            t += (noise * clip * part).reshape(t.shape).to(t)
    return {n: t / (batch_size or len(x)) for n, t in total.items()}


def row_gradients(
    functional: RowLoss, params: dict[str, Tensor], x: Tensor, y: Tensor, coefficient: Tensor
) -> dict[str, Tensor]:
    """Gradients of every row, (B, *shape) by name; all at once, or in turn where torch cannot."""
    try:
        together = vmap(grad(functional), in_dims=(None, 0, 0, 0))
        return dict(together(params, x, y, coefficient))
    except RuntimeError:  # an operation without a rule for batches, as LeNet's on processors
        rows = [_gradient(functional, params, *row) for row in zip(x, y, coefficient, strict=True)]
        return {n: torch.stack([g[i] for g in rows]) for i, n in enumerate(params)}


def _gradient(functional: RowLoss, params: dict[str, Tensor], *row: Tensor) -> tuple[Tensor, ...]:
    leaves = {n: t.clone().requires_grad_() for n, t in params.items()}
    with torch.enable_grad():
        loss = functional(leaves, *row)
    return torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)


def _merged(gradients: dict[str, Tensor], place: Tensor) -> dict[str, Tensor]:
    """Gradients of the same row added up."""
    count = int(place.max()) + 1
    return {
        n: g.new_zeros(count, *g.shape[1:]).index_add_(0, place, g) for n, g in gradients.items()
    }


def _clipped_sum(gradients: dict[str, Tensor], clip: float) -> dict[str, Tensor]:
    """Sum of rows (n, *shape), each made at most `clip` long; one that is not finite is nothing."""
    flat = {n: g.flatten(1) for n, g in gradients.items()}
    norms = [torch.linalg.vector_norm(g, dim=1, dtype=torch.float64) for g in flat.values()]
    length = torch.stack(norms).norm(dim=0)
    scale = (clip / length.clamp_min(1e-300)).clamp_max(1.0)
    bad = ~length.isfinite()
    if bad.any():  # 0 · ∞ would be no number
        scale, flat = scale.masked_fill(bad, 0), {n: g.nan_to_num(0, 0, 0) for n, g in flat.items()}
    return {n: (scale.to(g.dtype) @ g).reshape(gradients[n].shape[1:]) for n, g in flat.items()}


def _normal(size: int, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers, of a generator or of the operating system's bits (Box–Muller)."""
    if generator is not None:
        return torch.randn(size, generator=generator, dtype=torch.float64)
    pairs = (size + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64)
    u = ((bits >> np.uint64(11)) + np.uint64(1)) * 2.0**-53  # in (0, 1]
    length, angle = np.sqrt(-2 * np.log(u[:pairs])), 2 * np.pi * u[pairs:]
    z = np.concatenate([length * np.cos(angle), length * np.sin(angle)])
    return torch.from_numpy(z[:size])


__all__ = ["RowLoss", "private_gradient", "row_gradients", "row_loss", "separate_rows"]
