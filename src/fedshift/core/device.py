"""Choice of the device, and what it can do."""

from __future__ import annotations

import torch

from fedshift.errors import InputError


def check_device(name: str) -> None:
    """Raise InputError unless torch can compute on this device."""
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise InputError(f"device must be 'cpu' or 'cuda'; got {name!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device {name!r} needs a GPU and a torch that can use it; there is none; set "
            "device to 'cpu' or leave device out"
        )


def pick_device(name: str | None) -> str:
    """Check and return the named device; without a name, a GPU if there is one, else the CPU."""
    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    return device


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 numbers; else bfloat16 is slower than float32."""
    # private functions of torch, which a release may drop
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in checks)
