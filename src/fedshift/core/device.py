"""Where to compute."""

from __future__ import annotations

import torch

from fedshift.errors import InputError


def check_device(name: str) -> None:
    """Raise unless torch can compute there."""
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise InputError(f"device must be 'cpu' or 'cuda'; got {name!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device {name!r} needs a GPU and a torch that can use it; there is none here; take "
            "'cpu', or leave it out"
        )


def pick_device(name: str | None) -> str:
    """The one named, checked, or a GPU if there is one."""
    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    return device


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 numbers; without, they are slower than float32."""
    # torch keeps the names to itself and may drop them
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in asked)
