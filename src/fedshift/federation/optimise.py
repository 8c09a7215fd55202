"""Optimisers that change vectors of parameters in place.

A vector is the last axis of a tensor; the axes before it are independent runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedshift.federation.plan import Optimizer


def memory(rule: Optimizer, like: Tensor) -> dict[str, Tensor]:
    """Return the initial memory of an optimiser, which is all zeros.

    "m" and "v" (means of the gradients and of their squares) have the shape of `like`. "t" (the
    number of steps) has this shape without the last axis. Rule "sgd" needs at most "m".
    """
    if rule.rule == "sgd":
        return {"m": torch.zeros_like(like)} if rule.momentum else {}
    count = torch.zeros(like.shape[:-1], dtype=like.dtype, device=like.device)
    return {"m": torch.zeros_like(like), "v": torch.zeros_like(like), "t": count}


def step(rule: Optimizer, flat: Tensor, grad: Tensor, memory: Mapping[str, Tensor]) -> None:
    r"""Change `flat` (…, P) in place by one step of an optimiser with gradient `grad` (…, P).

    P is the number of parameters, θ is `flat`, g is `grad`. The means m and v and the number of
    steps t are in `memory`, which is updated too. β₁ and β₂ are ``rule.betas``, μ is
    ``rule.momentum``, ε is ``rule.eps``, lr is ``rule.lr``.

    - Adam: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², θ ← θ − lr m̂ / (√v̂ + ε), with the
      bias-corrected means m̂ = m / (1−β₁ᵗ) and v̂ = v / (1−β₂ᵗ).
    - Yogi: as Adam, but v ← v − (1−β₂) sign(v − g²) g².
    - SGD: m ← μm + g, θ ← θ − lr m.
    """
    if rule.weight_decay and rule.rule == "adamw":
        flat.mul_(1 - rule.lr * rule.weight_decay)
    elif rule.weight_decay:
        grad = grad + rule.weight_decay * flat
    if rule.rule == "sgd":
        if rule.momentum:
            grad = memory["m"].mul_(rule.momentum).add_(grad)
        flat.add_(grad, alpha=-rule.lr)
        return
    b1, b2 = rule.betas
    m, v, t = memory["m"], memory["v"], memory["t"]
    t.add_(1)
    m.lerp_(grad, 1 - b1)
    if rule.rule == "yogi":
        square = grad * grad
        v.addcmul_(torch.sign(square - v), square, value=1 - b2)
    else:
        v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
    first = (rule.lr / (1 - b1**t)).unsqueeze(-1)
    second = torch.sqrt(1 - b2**t).unsqueeze(-1)
    flat.sub_(torch.div(m, (v.sqrt().div_(second)).add_(rule.eps)).mul_(first))
