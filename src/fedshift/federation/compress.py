"""What a client sends instead of a full vector, and how many bytes that is."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedshift.federation import draw
from fedshift.federation.plan import QSGD, Compression, TopK


def compress(
    scheme: Compression,
    vector: Tensor,
    error: Tensor | None,
    *,
    seed: int,
    client: str,
    number: int,
) -> tuple[Tensor, Tensor | None]:
    """The vector the server reads, and what is left for the next round (`TopK` only).

    Parameters
    ----------
    vector : Tensor (P,)
    error : Tensor (P,) or None
        Left over from the client's last round.
    number : int
        The round, for random rounding.
    """
    if isinstance(scheme, TopK):
        whole = vector if error is None else vector + error
        keep = torch.topk(whole.abs(), _count(scheme, len(whole))).indices
        sent = torch.zeros_like(whole)
        sent[keep] = whole[keep]
        return sent, whole - sent
    length = torch.linalg.vector_norm(vector)
    if not bool(length > 0):
        return vector, None
    u = draw.uniform(draw.key(seed, "qsgd", client), number, np.arange(len(vector)))
    scaled = vector.abs() / length * scheme.levels
    steps = torch.floor(scaled + torch.as_tensor(u, dtype=vector.dtype, device=vector.device))
    return vector.sign() * steps * (length / scheme.levels), None


def sent_bytes(scheme: Compression | None, size: int, itemsize: int) -> int:
    """Bytes of a vector of `size` numbers on the wire.

    Top-k sends pairs (index, number) with 4-byte indices; QSGD the length and ⌈log₂(2s + 1)⌉
    bits a number.
    """
    if scheme is None:
        return size * itemsize
    if isinstance(scheme, TopK):
        return _count(scheme, size) * (4 + itemsize)
    assert isinstance(scheme, QSGD)
    return itemsize + math.ceil(size * math.ceil(math.log2(2 * scheme.levels + 1)) / 8)


def _count(scheme: TopK, size: int) -> int:
    return max(1, math.ceil(scheme.share * size))
