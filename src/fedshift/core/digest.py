"""Hashes of text and numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch


def digest(text: str, numbers: Iterable[torch.Tensor] = ()) -> str:
    """Hash a text and the values of tensors, in order, on any device.

    Values are hashed in float64. Shapes are not part of the hash; if they matter, add them to
    `text`.

    >>> digest("a", [torch.ones(2)]) == digest("a", [torch.ones(2, dtype=torch.float64)])
    True
    """
    out = hashlib.blake2b(text.encode(), digest_size=16)
    for t in numbers:
        out.update(t.detach().cpu().double().numpy().tobytes())
    return out.hexdigest()
