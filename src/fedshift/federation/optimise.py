"""Server optimisers on flat vectors, in place; leading axes are independent copies."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedshift.federation.plan import Optimizer


def memory(rule: Optimizer, like: Tensor) -> dict[str, Tensor]:
    """What a rule remembers, at its start: "m", "v" shaped as `like`, "t" without the last axis."""
    if rule.rule == "sgd":
        return {"m": torch.zeros_like(like)} if rule.momentum else {}
    count = torch.zeros(like.shape[:-1], dtype=like.dtype, device=like.device)
    return {"m": torch.zeros_like(like), "v": torch.zeros_like(like), "t": count}


def step(rule: Optimizer, flat: Tensor, grad: Tensor, memory: Mapping[str, Tensor]) -> None:
    r"""One step of `flat` (…, P) along `grad` (…, P), updating it and `memory`.

    Adam: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², θ ← θ − lr m̂ / (√v̂ + ε) with bias-corrected
    m̂, v̂; Yogi: v ← v − (1−β₂) sign(v − g²) g²; SGD: m ← μm + g, θ ← θ − lr m.
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
