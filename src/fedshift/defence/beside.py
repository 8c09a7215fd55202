"""What clients send beside their updates: BatchNorm statistics and control variates.

Both may be `APART` times as far out as the median client's, no more. Honest clients that differ
seldom are, and whoever keeps to it is not changed by a bit. Statistics `WILD` times as far out say
nothing of the same layers: the middle ones take their place.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedshift.core.samples import Float64Array

#: median lengths that are allowed; with more, one of four clients still does harm
APART = 2.0
#: median lengths from which on statistics are not heard at all
WILD = 10.0


def draw_in(stats: Tensor) -> tuple[Tensor, list[bool]]:
    r"""Statistics (m, 2, S) of m clients, those far from the middle moved towards it, or onto it.

    How far out a client is, is the length of (μ_k − μ, σ_k − σ) / σ over all channels, with the
    lower medians over clients for μ and σ. Channels that hardly vary count by a tenth of the
    typical σ.

    Returns
    -------
    Tensor (m, 2, S), list of bool
        The second: who was moved.

    Examples
    --------
    >>> told = torch.tensor([[[0.0], [1.0]], [[0.3], [1.0]], [[0.2], [1.0]], [[1e4], [1e4]]])
    >>> stats, moved = draw_in(told)
    >>> moved, float(stats[3, 0]) < 1
    ([False, False, False, True], True)
    """
    place = torch.stack([stats[:, 0], stats[:, 1].sqrt()], dim=1).double()
    middle = place.median(0).values
    width = (middle[1].square() + 0.01 * middle[1].square().mean()).sqrt().clamp(min=1e-12)
    apart = (place - middle) / width
    lengths = np.array([float(torch.linalg.vector_norm(a)) for a in apart])
    median = float(np.quantile(lengths, 0.5, method="lower"))
    factors = np.where(lengths > WILD * max(median, 1e-12), 0.0, _factors(lengths))
    out = stats.clone()
    for k in np.flatnonzero(factors < 1):
        mean, deviation = middle + factors[k] * (place[k] - middle)
        out[k] = torch.stack([mean, deviation.square()]).to(stats)
    return out, (factors < 1).tolist()


def shorten(vectors: list[Tensor]) -> tuple[list[Tensor], list[bool]]:
    """Vectors, none longer than `APART` times the lower median, and who was shortened.

    Examples
    --------
    >>> told = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([0.0, -5000.0])]
    >>> [v.tolist() for v in shorten(told)[0]]
    [[1.0, 0.0], [0.0, 2.0], [0.0, -4.0]]
    """
    factors = _factors(np.array([float(torch.linalg.vector_norm(v.double())) for v in vectors]))
    out = [v if f == 1 else v * float(f) for v, f in zip(vectors, factors, strict=True)]
    return out, (factors < 1).tolist()


def _factors(lengths: Float64Array) -> Float64Array:
    """What brings lengths down to `APART` times their lower median."""
    bound = APART * float(np.quantile(lengths, 0.5, method="lower"))
    return np.where(lengths <= bound, 1.0, bound / np.maximum(lengths, 1e-300))
