"""Limits on what clients send with their updates: BatchNorm statistics and control variates.

The distance of a client's statistics from the median statistics may be at most `APART` times the
usual distance, and the length of its control variate at most `APART` times the usual length.
"Usual" is the lower median over clients. Honest clients rarely exceed these limits, and values
within the limits are unchanged, bit for bit. Statistics at more than `WILD` times the usual
distance are useless: the median statistics replace them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedshift.core.samples import Float64Array

#: largest length, in median lengths; with a larger limit, one of four clients still does harm
APART = 2.0
#: statistics beyond this many median lengths are replaced
WILD = 10.0


def draw_in(stats: Tensor) -> tuple[Tensor, list[bool]]:
    r"""Move a client's statistics towards the median if they are far from it.

    Statistics that are very far away (`WILD`) are replaced by the median. `stats` (m, 2, S) holds
    the statistics of m clients for S channels. Its second axis holds means and variances.

    The distance of client k is the length of (μ_k − μ, σ_k − σ) / σ over all channels. μ_k and σ_k
    are the client's means and standard deviations, and μ and σ their lower medians over clients.
    For channels that hardly vary, σ is at least a tenth of its root mean square over channels.

    Returns
    -------
    Tensor (m, 2, S), list of bool
        The statistics, and for each client whether its statistics have changed.

    Examples
    --------
    >>> sent = torch.tensor([[[0.0], [1.0]], [[0.3], [1.0]], [[0.2], [1.0]], [[1e4], [1e4]]])
    >>> stats, changed = draw_in(sent)
    >>> changed, float(stats[3, 0]) < 1
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
    """Shorten vectors to `APART` times the lower median length; also return which are shortened.

    Examples
    --------
    >>> sent = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([0.0, -5000.0])]
    >>> [v.tolist() for v in shorten(sent)[0]]
    [[1.0, 0.0], [0.0, 2.0], [0.0, -4.0]]
    """
    factors = _factors(np.array([float(torch.linalg.vector_norm(v.double())) for v in vectors]))
    out = [v if f == 1 else v * float(f) for v, f in zip(vectors, factors, strict=True)]
    return out, (factors < 1).tolist()


def _factors(lengths: Float64Array) -> Float64Array:
    """Factors that reduce lengths to at most `APART` times their lower median."""
    bound = APART * float(np.quantile(lengths, 0.5, method="lower"))
    return np.where(lengths <= bound, 1.0, bound / np.maximum(lengths, 1e-300))
