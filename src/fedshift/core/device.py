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
