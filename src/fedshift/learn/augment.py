"""Random crops, flips and blends, drawn by the caller and done where the rows lie."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import betaincinv
from torch import Tensor

from fedshift.core.samples import Float64Array
from fedshift.errors import InputError


def crops(random: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.int8]:
    """Vertical and horizontal shift and whether to flip, (…, 3), from random words (…).

    Shifts are uniform on −p … p with p an eighth of the width, the usual 4 of 32, at most 127.
    """
    p = min(width // 8, 127)
    span = np.uint64(2 * p + 1)
    down = (random & np.uint64(0xFFFFF)) % span
    right = ((random >> np.uint64(20)) & np.uint64(0xFFFFF)) % span
    flip = (random >> np.uint64(40)) & np.uint64(1)
    out = np.stack([down, right, flip], axis=-1).astype(np.int64)
    return (out - [p, p, 0]).astype(np.int8)


def take_cropped(images: Tensor, rows: Tensor, crop: Tensor) -> Tensor:
    """Images of `rows`, shifted (zeros come in at the border) and flipped; memory channels-last.

    Parameters
    ----------
    images : Tensor (N, C, H, W)
    rows : Tensor (n,)
    crop : Tensor (n, 3)
        As `crops` gives them.
    """
    if images.ndim != 4:
        raise InputError(
            f"crop-flip needs images (n, C, H, W); got rows of shape {tuple(images.shape[1:])}; "
            "set augment='none'"
        )
    h, w = images.shape[2:]
    crop = crop.long()
    down = torch.arange(h, device=images.device) + crop[:, 0:1]
    right = torch.arange(w, device=images.device)
    right = torch.where(crop[:, 2:3] > 0, w - 1 - right, right) + crop[:, 1:2]
    inside = ((down >= 0) & (down < h)).unsqueeze(2) & ((right >= 0) & (right < w)).unsqueeze(1)
    out = images[
        rows[:, None, None],
        :,
        down.clamp(0, h - 1).unsqueeze(2),
        right.clamp(0, w - 1).unsqueeze(1),
    ]
    return (out * inside.unsqueeze(3)).movedim(3, 1)


def shares(random: Float64Array, mixup: float) -> Float64Array:
    """What a row keeps of itself when it is blended, in [½, 1], from multiples of 2⁻⁵³ in [0, 1).

    A share and one minus it are the same pair of rows in another order, so the larger is taken.
    """
    drawn = betaincinv(mixup, mixup, random)
    return np.asarray(np.maximum(drawn, 1.0 - drawn))


def blend(rows: Tensor, keep: Tensor) -> Tensor:
    """Every row of a batch (n, B, …) with the row as far from the other end; `keep` is (n,)."""
    k = keep.to(rows.dtype).view(-1, *[1] * (rows.ndim - 1))
    return k * rows + (1 - k) * rows.flip(1)
