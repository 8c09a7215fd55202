"""Write tensors to safetensors files atomically, and read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedshift.core.files import atomic_path
from fedshift.errors import InputError


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None = None
) -> Path:
    """Write named tensors of any layout and device, and a text header.

    The ``save_file`` of safetensors is not used: its temporary file has a random name and stays
    behind when the process is killed, and it hides disk errors from `atomic_path`.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(save(separate(tensors), header))
    return path


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors on the CPU, sorted by name; no two of them share memory."""
    out, places = {}, set()
    for name, tensor in sorted(tensors.items()):
        tensor = tensor.detach().cpu().contiguous()
        where = tensor.untyped_storage().data_ptr()
        out[name] = tensor.clone() if where in places else tensor
        places.add(where)
    return out


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the named tensors of a safetensors file.

    Raises
    ------
    InputError
        If the file is absent, cut off or damaged.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} must be a complete safetensors file; {error}; restore it from a copy, or run "
            "the command that wrote its folder again"
        ) from None
