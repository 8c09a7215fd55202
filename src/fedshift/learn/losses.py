"""Losses of every row, as tensor functions: what training descends on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Loss of every row, (n,)."""
    return F.cross_entropy(scores, y, reduction="none")


def squared(scores: Tensor, y: Tensor) -> Tensor:
    """Half the squared error of every row, (n,)."""
    return (scores.reshape(len(y)) - y).square() / 2


@dataclass(frozen=True)
class Polynomial:
    r"""Cross entropy with a polynomial tail, a function of the margin z of the right class.

    .. math::

       z = s_y − \log Σ_{j ≠ y} e^{s_j}, \qquad
       ℓ(z) = \log(1 + e^{−z}) \; (z < 0), \quad
       \log 2 \, (1 + \tfrac{z}{2 a \log 2})^{−a} \; (z ≥ 0)

    Left of zero it is cross entropy; value and slope agree at zero, and it is convex. A network
    that fits every row drives all margins up for ever; where the loss falls like e^{−z}, the
    limit does not depend on the rows' weights, with a polynomial tail it does (Wang, Chatterji,
    Haque, Hashimoto: Is importance weighting incompatible with interpolating classifiers? 2021).
    The smaller the exponent a, the longer well-fitted rows keep pulling; a → ∞ is e^{−z/(2 log 2)}.

    Attributes
    ----------
    tail : float
        The exponent a > 0.
    """

    tail: float

    def __call__(self, scores: Tensor, y: Tensor) -> Tensor:
        """Loss of every row, (n,)."""
        at = y.unsqueeze(1)
        rest = scores.scatter(1, at, -torch.inf)
        z = scores.gather(1, at).squeeze(1) - torch.logsumexp(rest, dim=1)
        # each branch is only asked where it holds: gradients of the other must stay finite
        left = F.softplus(-z.clamp(max=0.0))
        width = 2 * self.tail * math.log(2.0)
        right = math.log(2.0) * torch.exp(-self.tail * torch.log1p(z.clamp(min=0.0) / width))
        return torch.where(z < 0, left, right)


#: by the name that settings give them
LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "squared": squared}
