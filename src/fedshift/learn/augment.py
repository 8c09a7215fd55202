"""Random crops, flips and blends of rows, from random numbers that the caller draws."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import betaincinv
from torch import Tensor

from fedshift.core.samples import Float64Array
from fedshift.errors import InputError


def crops(random: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.int8]:
    """Return shifts and flips, shape (…, 3), from random integers of shape (…).

    The last axis holds the vertical shift, the horizontal shift and the flip (0 or 1). Shifts are
    uniform on −p … p, where p is an eighth of the width, and at most 127. Images 32 pixels wide
    are shifted by up to 4 pixels, as is usual.
    """
    p = min(width // 8, 127)
    span = np.uint64(2 * p + 1)
    down = (random & np.uint64(0xFFFFF)) % span
    right = ((random >> np.uint64(20)) & np.uint64(0xFFFFF)) % span
    flip = (random >> np.uint64(40)) & np.uint64(1)
    out = np.stack([down, right, flip], axis=-1).astype(np.int64)
    return (out - [p, p, 0]).astype(np.int8)


def take_cropped(images: Tensor, rows: Tensor, crop: Tensor) -> Tensor:
    """Return the images of `rows`, (n, C, H, W), shifted and flipped, in channels-last memory.

    A shift fills the border with zeros.

    Parameters
    ----------
    images : Tensor (N, C, H, W)
    rows : Tensor (n,)
        Indices of images.
    crop : Tensor (n, 3)
        Shifts and flips, from `crops`.
    """
    if images.ndim != 4:
        raise InputError(
            "augment='crop-flip' needs images (n, C, H, W); got rows of shape "
            f"{tuple(images.shape[1:])}; set augment='none'"
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
    """Return each row's own share in its blend with another row, in [½, 1].

    Shares have the distribution Beta(mixup, mixup). They are computed from uniform random numbers
    in [0, 1), which are multiples of 2⁻⁵³. Rows i and j are each blended with the other, so the
    shares s and 1 − s give the same pair of blends. The larger of the two is used.
    """
    share = betaincinv(mixup, mixup, random)
    return np.asarray(np.maximum(share, 1.0 - share))


def blend(rows: Tensor, keep: Tensor) -> Tensor:
    """Blend row i of a batch (n, B, …) with row B − 1 − i; `keep` (n,) is the share of row i."""
    k = keep.to(rows.dtype).view(-1, *[1] * (rows.ndim - 1))
    return k * rows + (1 - k) * rows.flip(1)
