"""Compression of the vectors that clients and server send, and their size in bytes."""

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
    """Return the vector that the receiver reads, and the compression error for the next round.

    The error is the part of the vector that compression left out. It is added to the client's
    vector of the next round (error feedback). With `QSGD` the error is None.

    Parameters
    ----------
    vector : Tensor (P,)
        Vector to compress, P numbers.
    error : Tensor (P,) or None
        Compression error of the client's last round.
    seed, client, number : int, str, int
        Seed of the plan, name of the client and number of the round. They determine the random
        rounding of `QSGD`.
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
    """± the mean size of a number's block; zero is positive."""
    size, count = len(whole), -(-len(whole) // scheme.block)
    padded = torch.nn.functional.pad(whole, (0, count * scheme.block - size))
    total = padded.view(count, -1).abs().sum(1)
    members = total.new_full((count,), scheme.block)
    members[-1] -= count * scheme.block - size
    each = (total / members).repeat_interleave(scheme.block)[:size]
    return torch.where(whole >= 0, each, -each)


def show(scheme: Compression, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the compressed change C(θ − θ̂) that clients receive, and add it to θ̂ in place.

    θ are the server's parameters (``tensors["params"]``), θ̂ the parameters that the clients hold
    (``tensors["shown"]``), and C is the compression.
    """
    sent, _ = compress(
        scheme, tensors["params"] - tensors["shown"], None, seed=0, client="", number=0
    )
    tensors["shown"].add_(sent)
    return sent


def unit(scheme: Compression, vector: Tensor) -> float:
    """Return the unit of QSGD: compressed entries are whole multiples of it; 0 without QSGD."""
    if not isinstance(scheme, QSGD):
        return 0.0
    return float(torch.linalg.vector_norm(vector) / scheme.levels)


def pack(scheme: Compression | None, sent: Tensor, unit: float) -> dict[str, Array]:
    """Return arrays that encode a compressed vector; `unpack` restores the vector bit for bit."""
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
    """Decode the vector (size,) that `pack` encoded.

    Raises
    ------
    ValueError
        If an array is missing, does not fit `size`, or has positions outside the vector.
    """
    update = torch.tensor(_vector(arrays, "update", "f"))
    if scheme is None:
        return update
    if isinstance(scheme, TopK):
        at = _vector(arrays, "at", "u").astype(np.int64)
        if len(at) != len(update) or len(at) > _count(scheme, size):
            raise ValueError(f"got {len(at)} positions, which do not fit {len(update)} numbers")
        if len(at) and (at.max() >= size or len(np.unique(at)) < len(at)):
            raise ValueError(f"positions must be different and below {size}")
        return torch.zeros(size, dtype=update.dtype).index_put((torch.as_tensor(at),), update)
    packed = _vector(arrays, "bits", "u")
    if isinstance(scheme, Sign):
        blocks, count = -(-size // scheme.block), math.ceil(size / 8)
        if len(update) != blocks or len(packed) != count or packed.itemsize != 1:
            raise ValueError(
                f"{len(update)} block means and {len(packed)} sign bytes do not fit {size} numbers"
            )
        each = update.repeat_interleave(scheme.block)[:size]
        positive = torch.as_tensor(np.unpackbits(packed, count=size).astype(bool))
        return torch.where(positive, each, -each)
    width = _bits(scheme)
    if len(update) != 1 or len(packed) != math.ceil(size * width / 8) or packed.itemsize != 1:
        raise ValueError(f"{len(packed)} bytes do not fit {size} numbers of {width} bits")
    bits = np.unpackbits(packed)[: size * width].reshape(size, width)
    whole = (bits.astype(np.int64) << np.arange(width)).sum(axis=1) - scheme.levels
    if np.abs(whole).max(initial=0) > scheme.levels:
        raise ValueError(f"a level must be at most {scheme.levels}; got a larger one")
    return torch.as_tensor(whole).to(update.dtype) * update


def _vector(arrays: Mapping[str, Array], name: str, kind: str) -> Array:
    """An array with one axis and numbers of a kind: "f" float, "u" unsigned."""
    if name not in arrays:
        raise ValueError(f"array {name!r} is missing")
    a = arrays[name]
    if a.ndim != 1 or a.dtype.kind != kind:
        raise ValueError(f"array {name!r} has wrong shape {a.shape} or type {a.dtype}")
    return a


def _bits(scheme: QSGD) -> int:
    return math.ceil(math.log2(2 * scheme.levels + 1))


def sent_bytes(scheme: Compression | None, size: int, itemsize: int) -> int:
    """Bytes of a vector of `size` numbers on the wire.

    `itemsize` is the number of bytes of a number. `TopK` sends pairs (index, number) with 4-byte
    indices. `QSGD` sends one number (the Euclidean norm divided by s = `levels`), and
    ⌈log₂(2s + 1)⌉ bits for every entry of the vector. `Sign` sends one bit for every entry, and one
    mean absolute value for every block of entries.
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
