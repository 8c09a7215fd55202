"""Importance-weighted risk on held-out training rows: validation without test labels."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedshift.core.score_text import plain_text, share_text
from fedshift.errors import InputError
from fedshift.learn.evaluate import LossName, as_tensor, per_row


@dataclass(frozen=True, repr=False)
class WeightedRisk:
    r"""Importance-weighted loss and accuracy with standard errors, as sums over rows.

    Let v_i = λ_k w_i / n_k for row i of client k. Here w_i is the row's weight, n_k the client's
    number of rows and λ_k its coefficient in the objective. ℓ_i is the loss of row i. The loss and
    the accuracy are self-normalised means over the rows of all clients added so far,

    .. math:: R̂ = \frac{Σ v_i ℓ_i}{Σ v_i}, \qquad se² = \frac{Σ v_i² (ℓ_i − R̂)²}{(Σ v_i)²}

    ``a + b`` adds the rows of other clients. Each client then has a share in proportion to its sum
    of v_i, as in the objective Σ_k λ_k F_k, where F_k is the mean of w_i ℓ_i over the rows of
    client k. Only eight numbers leave a client.

    Attributes
    ----------
    n : int
        Number of rows.
    v, v2, vl, v2l, v2l2, vc, v2c : float
        Σv, Σv², Σvℓ, Σv²ℓ, Σv²ℓ², Σvc, Σv²c, with c = 1 if the predicted class is correct, else 0.
        The last two are NaN in regression.
    """

    n: int
    v: float
    v2: float
    vl: float
    v2l: float
    v2l2: float
    vc: float
    v2c: float

    def __add__(self, other: WeightedRisk) -> WeightedRisk:
        """Add the rows of another client."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return WeightedRisk(*(a + b for a, b in pairs))

    @property
    def loss(self) -> float:
        """Weighted mean loss."""
        return self.vl / self.v

    @property
    def loss_error(self) -> float:
        """Standard error of `loss`."""
        return _error(self.v, self.v2, self.v2l, self.v2l2, self.loss)

    @property
    def accuracy(self) -> float | None:
        """Weighted share of correct predictions; None in regression."""
        return None if math.isnan(self.vc) else self.vc / self.v

    @property
    def accuracy_error(self) -> float | None:
        """Standard error of `accuracy`."""
        share = self.accuracy
        return None if share is None else _error(self.v, self.v2, self.v2c, self.v2c, share)

    @property
    def ess(self) -> float:
        """Effective sample size (Σv)² / Σv²."""
        return self.v**2 / self.v2

    def __repr__(self) -> str:
        right = ""
        if self.accuracy is not None:
            error = share_text(self.accuracy_error or 0.0)
            right = f"accuracy {share_text(self.accuracy)} ± {error}, "
        return (
            f"WeightedRisk(loss {plain_text(self.loss)} ± {plain_text(self.loss_error)}, {right}"
            f"n={self.n}, ESS {self.ess:.4g})"
        )


def importance_weighted_risk(
    scores: npt.ArrayLike | Tensor,
    y: npt.ArrayLike | Tensor,
    weight: npt.ArrayLike | Tensor,
    *,
    loss: LossName = "cross-entropy",
    share: float = 1.0,
) -> WeightedRisk:
    """Estimate the test risk from held-out training rows of one client, without test labels.

    Add the results of all clients for the risk of the federation. The model must not have been
    trained on these rows, and the weights must be those of the objective. The estimate is
    unreliable if the effective sample size is small.

    Parameters
    ----------
    scores : (n, C) or (n,)
        Scores of classes, or predicted numbers.
    y : (n,)
        Labels.
    weight : (n,)
        Importance weights: non-negative, not all 0. Do not normalise them: a client counts in the
        risk of the federation in proportion to λ_k times the mean of its weights.
    loss : {"cross-entropy", "squared"}
        As in `evaluate`.
    share : float
        λ_k, the client's coefficient in the objective.

    Returns
    -------
    WeightedRisk
    """
    w = as_tensor(weight).cpu().double()
    losses, right, _ = per_row(scores, y, loss, "held-out rows")
    n = len(losses)
    if w.shape != (n,) or not bool(torch.isfinite(w).all()) or bool((w < 0).any()):
        raise InputError(
            f"weight must be {n} finite numbers ≥ 0; got shape {tuple(w.shape)}, smallest "
            f"{w.numpy().min(initial=math.inf):.4g}, sum {w.sum():.4g}; see fedshift.Weighting"
        )
    if not (float(w.sum()) > 0 and 0 < share < math.inf):
        raise InputError(
            "weight must be above 0 for some row, and share must be positive; got a sum of "
            f"{float(w.sum())} and share {share}; leave such a client out"
        )
    v = w.numpy() * (share / n)
    c = np.full(n, math.nan) if right is None else right.astype(np.float64)
    s = v * v
    sums = (v, s, v * losses, s * losses, s * losses**2, v * c, s * c)
    return WeightedRisk(n, *(float(t.sum()) for t in sums))


def _error(v: float, v2: float, v2a: float, v2aa: float, mean: float) -> float:
    """√Σv²(a − mean)² / Σv; rounding errors below zero are set to zero."""
    return math.sqrt(max(0.0, v2aa - 2 * mean * v2a + mean**2 * v2)) / v
