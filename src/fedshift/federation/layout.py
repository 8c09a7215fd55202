"""Named tensors in one flat vector, so that a step of an optimiser is a few operations."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Layout:
    """Where each tensor lies in a vector of `size` numbers.

    Parameters
    ----------
    like : mapping of name to Tensor
        Names and shapes.
    channels_last : bool
        Four-dimensional tensors lie with their second axis last.
    """

    def __init__(self, like: Mapping[str, Tensor], *, channels_last: bool = False) -> None:
        self.shapes = {name: t.shape for name, t in like.items()}
        self.channels_last = channels_last
        self.size = sum(shape.numel() for shape in self.shapes.values())

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Parts of a vector (…, size) with their shapes, (…, *shape), sharing its memory."""
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
        """The vector (…, size) of tensors (…, *shape)."""
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
        """Where each number of this layout lies in the plain one of the same tensors."""
        plain = torch.arange(self.size)
        like = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        return self.flatten(Layout(like).views(plain)) if self.size else plain

    def _turned(self, shape: torch.Size) -> bool:
        return self.channels_last and len(shape) == 4
