"""Loss functions for training, which return a loss for each row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Return the cross entropy of each row, shape (n,)."""
    return F.cross_entropy(scores, y, reduction="none")


def squared(scores: Tensor, y: Tensor) -> Tensor:
    """Return half the squared error of each row, shape (n,)."""
    return (scores.reshape(len(y)) - y).square() / 2


@dataclass(frozen=True)
class Polynomial:
    r"""Cross entropy with a polynomial tail: weights matter even if a network fits every row.

    The loss is a function of the margin z of the correct class y. With s_j the score of class j,

    .. math::

       z = s_y − \log Σ_{j ≠ y} e^{s_j}, \qquad
       ℓ(z) = \log(1 + e^{−z}) \; (z < 0), \quad
       \log 2 \, (1 + \tfrac{z}{2 a \log 2})^{−a} \; (z ≥ 0)

    For z < 0 the loss is the cross entropy. The two branches have the same value and slope at z =
    0, and the loss is convex. A network that fits every row raises all margins without limit. If
    the loss falls like e^{−z}, the classifier to which training converges does not depend on the
    rows' weights. With a polynomial tail, that classifier depends on them (Wang, Chatterji, Haque,
    Hashimoto: Is importance weighting incompatible with interpolating classifiers? 2021). The
    smaller the exponent a, the longer well-fitted rows influence training. For a → ∞ the tail is
    log 2 · e^{−z/(2 log 2)}.

    Attributes
    ----------
    tail : float
        The exponent a > 0.
    """

    tail: float

    def __call__(self, scores: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row, shape (n,)."""
        at = y.unsqueeze(1)
        rest = scores.scatter(1, at, -torch.inf)
        z = scores.gather(1, at).squeeze(1) - torch.logsumexp(rest, dim=1)
        # each branch is clamped to its own side, so that its gradient stays finite on the other
        left = F.softplus(-z.clamp(max=0.0))
        width = 2 * self.tail * math.log(2.0)
        right = math.log(2.0) * torch.exp(-self.tail * torch.log1p(z.clamp(min=0.0) / width))
        return torch.where(z < 0, left, right)


#: losses by their names in settings
LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "squared": squared}
