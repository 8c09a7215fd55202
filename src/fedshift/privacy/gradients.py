r"""Private gradients: each row's gradient is clipped, and noise is added to the sum.

.. math:: g = \frac{1}{B} \Big( \sum_i \min\Big(1, \frac{c}{\lVert g_i \rVert}\Big) g_i
              + \sigma c\, z \Big), \qquad z \sim N(0, I),

where g_i is the gradient of row i's loss times its coefficient in the batch, B is the batch size, c
the largest norm (`clip`) and σ the `noise`. A row changes the sum by at most c, so this is the
Gaussian mechanism with noise multiplier σ. `fedshift.privacy.Accountant` adds up the cost of
many such gradients.

Nothing else that depends on the rows may leave with the gradient: no losses, no BatchNorm
statistics. The coefficient of a row may depend only on that row and on public numbers (such as
the numbers of rows). A batch must be drawn independently of the rows' content, not in proportion to
weights. Mixing rows (mixup) is not supported.

All bits of the noise come from the operating system. A generator with a seed would not be safe: if
the gradients of all rows are 0 for some parameters, the server sees the noise alone and could infer
the seed. The noise consists of floating-point numbers, whose last digits an attack could use. Only
whole-number noise (`fedshift.privacy.counts`) resists such an attack.
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

#: maps parameters by name, and the inputs, label and coefficient of one row, to its scalar loss
RowLoss = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor], Tensor]


def row_loss(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> RowLoss:
    """Return a function that computes the loss of one row, times the row's coefficient.

    `model` and `loss` take a batch of rows; the function passes them a batch of one row.

    Parameters
    ----------
    model : Module
        The output of a row must not depend on other rows.
    loss : callable
        Maps scores (n, …) and labels (n,) to losses (n,).

    Raises
    ------
    InputError
        If the model has BatchNorm; the message names the layer.
    """
    separate_rows(model)
    buffers = dict(model.named_buffers())

    def functional(params: dict[str, Tensor], x: Tensor, y: Tensor, coefficient: Tensor) -> Tensor:
        scores = functional_call(model, (params, buffers), (x[None],))
        return (coefficient * loss(scores, y[None])).sum()

    return functional


def separate_rows(model: nn.Module) -> None:
    """Raise InputError if a row's output depends on the other rows of its batch."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) or getattr(layer, "running_mean", None) is not None:
            raise InputError(
                "private gradients need a model that treats rows independently; got a "
                f"{type(layer).__name__} at {name or 'its top'!r}, which mixes the rows of a "
                'batch; use GroupNorm instead (norm="group" in the plan)'
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
    """Return the gradient of a batch, with each row's gradient clipped and noise added.

    Parameters
    ----------
    functional : callable
        Loss of one row; see `row_loss`.
    params : mapping of name to Tensor
        The model's parameters, for example views of a flat vector; then flatten the result in the
        same way.
    x, y, coefficient : Tensor (B, …), (B, …), (B,)
        Inputs, labels and coefficients of the rows.
    rows : int Tensor (B,)
        Index of each row at the client. A row that occurs twice is clipped as one.
    clip : float
        Largest norm of a row's gradient, over all parameters together.
    noise : float
        σ, in units of `clip`; with 0, gradients are clipped and no noise is added.
    batch_size : int, optional
        Divisor of the sum, a public number; by default B.
    generator : torch.Generator, optional
        Generator on the CPU, for tests only: its seed has 32 bits and can be guessed. By default
        the noise comes from the operating system.
    chunk : int
        Number of row gradients in memory at a time.

    Returns
    -------
    dict of name to Tensor
        The gradient, with the shapes of `params`. A row whose gradient is not finite adds 0.
    """
    if not (clip > 0 and noise >= 0):
        raise InputError(f"clip must be > 0 and noise ≥ 0; got clip {clip!r}, noise {noise!r}")
    if not len(x) == len(y) == len(coefficient) == len(rows) > 0:
        raise InputError(
            "x, y, coefficient and rows must have one entry per row of the batch; got "
            f"{len(x)}, {len(y)}, {len(coefficient)} and {len(rows)}"
        )
    fixed = {n: t.detach() for n, t in params.items()}
    distinct, place = torch.unique(rows.to(x.device), return_inverse=True)
    total = {n: torch.zeros_like(t) for n, t in fixed.items()}
    for first in range(0, len(distinct), chunk):
        at = torch.nonzero((place >= first) & (place < first + chunk))[:, 0]
        gradients = row_gradients(functional, fixed, x[at], y[at], coefficient[at])
        if len(at) > min(chunk, len(distinct) - first):
            gradients = _merge(gradients, place[at] - first)
        for name, part in _clipped_sum(gradients, clip).items():
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
    """Return the gradient of every row, (B, *shape) for each name in `params`.

    Rows are computed in a loop if torch cannot batch the model.
    """
    try:
        together = vmap(grad(functional), in_dims=(None, 0, 0, 0))
        return dict(together(params, x, y, coefficient))
    except RuntimeError:  # an operation without a batching rule, as in LeNet on CPUs
        rows = [_gradient(functional, params, *row) for row in zip(x, y, coefficient, strict=True)]
        return {n: torch.stack([g[i] for g in rows]) for i, n in enumerate(params)}


def _gradient(functional: RowLoss, params: dict[str, Tensor], *row: Tensor) -> tuple[Tensor, ...]:
    leaves = {n: t.clone().requires_grad_() for n, t in params.items()}
    with torch.enable_grad():
        loss = functional(leaves, *row)
    return torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)


def _merge(gradients: dict[str, Tensor], place: Tensor) -> dict[str, Tensor]:
    """Add up gradients of the same row."""
    count = int(place.max()) + 1
    return {
        n: g.new_zeros(count, *g.shape[1:]).index_add_(0, place, g) for n, g in gradients.items()
    }


def _clipped_sum(gradients: dict[str, Tensor], clip: float) -> dict[str, Tensor]:
    """Sum of rows (n, *shape), each clipped to norm `clip`; rows that are not finite count as 0."""
    flat = {n: g.flatten(1) for n, g in gradients.items()}
    norms = [torch.linalg.vector_norm(g, dim=1, dtype=torch.float64) for g in flat.values()]
    length = torch.stack(norms).norm(dim=0)
    scale = (clip / length.clamp_min(1e-300)).clamp_max(1.0)
    bad = ~length.isfinite()
    if bad.any():  # 0 · ∞ would be no number
        scale, flat = scale.masked_fill(bad, 0), {n: g.nan_to_num(0, 0, 0) for n, g in flat.items()}
    return {n: (scale.to(g.dtype) @ g).reshape(gradients[n].shape[1:]) for n, g in flat.items()}


def _normal(size: int, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers, from a generator or the operating system's bits (Box–Muller)."""
    if generator is not None:
        return torch.randn(size, generator=generator, dtype=torch.float64)
    pairs = (size + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64)
    u = ((bits >> np.uint64(11)) + np.uint64(1)) * 2.0**-53  # in (0, 1]
    length, angle = np.sqrt(-2 * np.log(u[:pairs])), 2 * np.pi * u[pairs:]
    z = np.concatenate([length * np.cos(angle), length * np.sin(angle)])
    return torch.from_numpy(z[:size])
