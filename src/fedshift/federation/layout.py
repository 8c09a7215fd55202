"""Named tensors in one flat vector, so that an optimiser's step is a few operations."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class ParameterLayout:
    """Positions of named tensors in a flat vector of `size` numbers.

    Parameters
    ----------
    like : mapping of name to Tensor
        Names and shapes.
    channels_last : bool
        Store four-dimensional tensors with their second axis (channels) last.
    """

    def __init__(self, like: Mapping[str, Tensor], *, channels_last: bool = False) -> None:
        self.shapes = {name: t.shape for name, t in like.items()}
        self.channels_last = channels_last
        self.size = sum(shape.numel() for shape in self.shapes.values())

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of a vector (…, size) as named tensors (…, *shape); memory is shared."""
        out, start, lead = {}, 0, flat.shape[:-1]
        for name, shape in self.shapes.items():
            part = flat[..., start : start + shape.numel()]
            if self._turned(shape):
                o, i, h, w = shape
                out[name] = part.view(*lead, o, h, w, i).movedim(-1, -3)
            else:
                out[name] = part.view((*lead, *shape))
            start += shape.numel()
        return out

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Concatenate named tensors (…, *shape) into one vector (…, size)."""
        parts = []
        for name, shape in self.shapes.items():
            t = tensors[name]
            lead = t.shape[: t.ndim - len(shape)]
            t = t.movedim(-3, -1) if self._turned(shape) else t
            parts.append(t.reshape(*lead, shape.numel()))
        if not parts:
            return torch.empty(0)
        return torch.cat(parts, dim=-1)

    def order(self) -> Tensor:
        """Return the position that each entry would have with ``channels_last=False``, (size,)."""
        plain = torch.arange(self.size)
        like = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        return self.flatten(ParameterLayout(like).views(plain)) if self.size else plain

    def _turned(self, shape: torch.Size) -> bool:
        return self.channels_last and len(shape) == 4
