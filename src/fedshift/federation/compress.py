"""What travels instead of a full vector, and how many bytes that is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedshift.federation import draw
from fedshift.federation.plan import QSGD, Compression, Sign, TopK

Array = npt.NDArray[Any]


def compress(
    scheme: Compression,
    vector: Tensor,
    error: Tensor | None,
    *,
    seed: int,
    client: str,
    number: int,
) -> tuple[Tensor, Tensor | None]:
    """The vector the other side reads, and what is left for the next round (not with `QSGD`).

    Parameters
    ----------
    vector : Tensor (P,)
    error : Tensor (P,) or None
        Left over from the client's last round.
    number : int
        The round, for random rounding.
    """
    if not isinstance(scheme, QSGD):
        whole = vector if error is None else vector + error
        sent = _largest(scheme, whole) if isinstance(scheme, TopK) else _signs(scheme, whole)
        return sent, whole - sent
    length = torch.linalg.vector_norm(vector)
    if not bool(length > 0):
        return vector, None
    u = draw.uniform(draw.key(seed, "qsgd", client), number, np.arange(len(vector)))
    scaled = vector.abs() / length * scheme.levels
    steps = torch.floor(scaled + torch.as_tensor(u, dtype=vector.dtype, device=vector.device))
    steps = steps.clamp(max=scheme.levels)  # in short numbers u may round up to one
    return vector.sign() * steps * (length / scheme.levels), None


def _largest(scheme: TopK, whole: Tensor) -> Tensor:
    keep = torch.topk(whole.abs(), _count(scheme, len(whole))).indices
    sent = torch.zeros_like(whole)
    sent[keep] = whole[keep]
    return sent


def _signs(scheme: Sign, whole: Tensor) -> Tensor:
    """± the mean size of a number's block; zero counts as positive."""
    size, count = len(whole), -(-len(whole) // scheme.block)
    padded = torch.nn.functional.pad(whole, (0, count * scheme.block - size))
    total = padded.view(count, -1).abs().sum(1)
    members = total.new_full((count,), scheme.block)
    members[-1] -= count * scheme.block - size
    each = (total / members).repeat_interleave(scheme.block)[:size]
    return torch.where(whole >= 0, each, -each)


def show(scheme: Compression, tensors: Mapping[str, Tensor]) -> Tensor:
    """What clients are told of how far the server moved, C(θ − θ̂); θ̂ moves on by it, in place."""
    sent, _ = compress(
        scheme, tensors["params"] - tensors["shown"], None, seed=0, client="", number=0
    )
    tensors["shown"].add_(sent)
    return sent


def unit(scheme: Compression, vector: Tensor) -> float:
    """What the numbers that stand for a vector are multiples of (QSGD); 0 otherwise."""
    if not isinstance(scheme, QSGD):
        return 0.0
    return float(torch.linalg.vector_norm(vector) / scheme.levels)


def pack(scheme: Compression | None, sent: Tensor, unit: float) -> dict[str, Array]:
    """The arrays in which a compressed vector travels; `unpack` gives it back bit for bit."""
    if scheme is None:
        return {"update": sent.cpu().numpy()}
    if isinstance(scheme, TopK):
        at = torch.nonzero(sent).flatten()
        return {"at": at.cpu().numpy().astype(np.uint32), "update": sent[at].cpu().numpy()}
    if isinstance(scheme, Sign):
        numbers = sent.cpu().numpy()
        return {
            "update": np.abs(numbers[:: scheme.block]),
            "bits": np.packbits(~np.signbit(numbers)),
        }
    steps = torch.round(sent / unit) if unit else torch.zeros_like(sent)
    whole = (steps.cpu().numpy() + scheme.levels).astype(np.uint32)
    shifts = np.arange(_bits(scheme), dtype=np.uint32)
    bits = (whole[:, None] >> shifts & 1).astype(np.uint8)
    kind = np.float64 if sent.dtype == torch.float64 else np.float32
    return {"update": np.array([unit], dtype=kind), "bits": np.packbits(bits.reshape(-1))}


def unpack(scheme: Compression | None, arrays: Mapping[str, Array], size: int) -> Tensor:
    """The vector (size,) of `pack`.

    Raises
    ------
    ValueError
        If arrays are missing, of another shape, or point outside the vector.
    """
    update = torch.tensor(_vector(arrays, "update", "f"))
    if scheme is None:
        return update
    if isinstance(scheme, TopK):
        at = _vector(arrays, "at", "u").astype(np.int64)
        if len(at) != len(update) or len(at) > _count(scheme, size):
            raise ValueError(f"{len(at)} places for {len(update)} numbers")
        if len(at) and (at.max() >= size or len(np.unique(at)) < len(at)):
            raise ValueError(f"places must be different and below {size}")
        out = torch.zeros(size, dtype=update.dtype)
        out[torch.as_tensor(at)] = update
        return out
    packed = _vector(arrays, "bits", "u")
    if isinstance(scheme, Sign):
        blocks, count = -(-size // scheme.block), math.ceil(size / 8)
        if len(update) != blocks or len(packed) != count or packed.itemsize != 1:
            raise ValueError(f"{len(update)} sizes and {len(packed)} bytes for {size} numbers")
        each = update.repeat_interleave(scheme.block)[:size]
        positive = torch.as_tensor(np.unpackbits(packed, count=size).astype(bool))
        return torch.where(positive, each, -each)
    width = _bits(scheme)
    if len(update) != 1 or len(packed) != math.ceil(size * width / 8) or packed.itemsize != 1:
        raise ValueError(f"{len(packed)} bytes for {size} numbers of {width} bits")
    bits = np.unpackbits(packed)[: size * width].reshape(size, width)
    whole = (bits.astype(np.int64) << np.arange(width)).sum(axis=1) - scheme.levels
    if np.abs(whole).max(initial=0) > scheme.levels:
        raise ValueError(f"levels above {scheme.levels}")
    return torch.as_tensor(whole).to(update.dtype) * update


def _vector(arrays: Mapping[str, Array], name: str, kind: str) -> Array:
    """An array with one axis, of a kind of number: "f" float, "u" unsigned."""
    if name not in arrays:
        raise ValueError(f"array {name!r} is missing")
    a = arrays[name]
    if a.ndim != 1 or a.dtype.kind != kind:
        raise ValueError(f"array {name!r} has shape {a.shape} and type {a.dtype}")
    return a


def _bits(scheme: QSGD) -> int:
    return math.ceil(math.log2(2 * scheme.levels + 1))


def sent_bytes(scheme: Compression | None, size: int, itemsize: int) -> int:
    """Bytes of a vector of `size` numbers on the wire.

    Top-k sends pairs (index, number) with 4-byte indices; QSGD the length and ⌈log₂(2s + 1)⌉
    bits a number; signs one bit a number and a number a block.
    """
    if scheme is None:
        return size * itemsize
    if isinstance(scheme, TopK):
        return _count(scheme, size) * (4 + itemsize)
    if isinstance(scheme, Sign):
        return -(-size // scheme.block) * itemsize + math.ceil(size / 8)
    return itemsize + math.ceil(size * _bits(scheme) / 8)


def _count(scheme: TopK, size: int) -> int:
    return max(1, math.ceil(scheme.share * size))
