"""Constants of ℓ1 and ℓ2 for bounds on the error of the ratio.

The losses and A are those of `fedshift.core.bregman`; Â is A on the rows of the samples. "The
paper" is Ramezani-Kebrya et al. (TMLR 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from fedshift.core.bregman import Divergence, divergence
from fedshift.errors import InputError
from fedshift.theory.checks import number

#: points of the grid over a range of ratios, both ends included
GRID = 4097


@dataclass(frozen=True, kw_only=True)
class LossConstants:
    """Constants of ℓ1 and ℓ2 = C ℓ1 − f' on a range of ratios (the paper's assumption 1).

    Attributes
    ----------
    l1, l2 : float
        Lipschitz constants L1 and L2.
    delta : float
        Δ, an upper bound on |ℓ1| and |ℓ2|. Adding a constant to ℓ2 does not change differences
        of risks. So ℓ2 is shifted to be centred at 0, which makes Δ as small as possible.
    floor : float
        inf ℓ1 ≥ 0.
    c : float
        C of the non-negative correction, at most 1/sup r*, with r* the true ratio.
    """

    l1: float
    l2: float
    delta: float
    floor: float
    c: float

    def __post_init__(self) -> None:
        for name in ("l1", "l2", "delta", "floor", "c"):
            number(getattr(self, name), name, least=0.0)

    def eta(self, clients: int, *, c: float | None = None) -> float:
        r"""The margin η with E[Â] ≥ η for every ratio model r with values from `low` to `high`.

        `low` and `high` are the arguments of `loss_constants`. The paper says only that some such
        constant exists. For K clients, the margin follows from

        .. math:: E[\hat A] = \int (p^{tr} - C \sum_l p_l^{te})\, ℓ_1(r)
                  \ge \inf ℓ_1 \, (1 - K C)

        This holds because the bracket is never negative for C ≤ 1/sup r*. η is 0 if there is no
        such margin.
        """
        return max(0.0, self.floor * (1.0 - clients * (self.c if c is None else c)))

    def __repr__(self) -> str:
        return (
            f"LossConstants(L1 {self.l1:.3g}, L2 {self.l2:.3g}, Δ {self.delta:.3g}, C {self.c:.3g})"
        )


def loss_constants(
    which: str | Divergence,
    *,
    low: float,
    high: float,
    c: float,
    of: Literal["ratio", "log ratio"] = "ratio",
) -> LossConstants:
    """L1, L2, Δ and inf ℓ1 of a divergence for ratios in [low, high].

    The constants are computed on a fine grid that includes `low` and `high`. The result is exact
    for monotone derivatives (LSIF, UKL) and accurate to six digits otherwise.

    Parameters
    ----------
    which : str or Divergence
        "lsif", "ukl", "lr", "robust" or "pu".
    low, high : float
        0 < low < high: the values the ratio model may take.
    c : float
        C of the non-negative correction, at most 1/sup r*, with r* the true ratio.
    of : {"ratio", "log ratio"}
        What the ratio model returns. Use "log ratio" for networks that return log ratios
        (r = exp of the output). L1 and L2 are then Lipschitz constants in the log ratio, so the
        complexity in the bound is that of the network without exp (Talagrand's contraction).

    Examples
    --------
    >>> loss_constants("lsif", low=0.5, high=4.0, c=0.25)  # ℓ1' = z, ℓ2' = Cz − 1
    LossConstants(L1 4, L2 0.875, Δ 8, C 0.25)
    """
    number(low, "low", above=0.0)
    number(high, "high", above=low)
    if of not in ("ratio", "log ratio"):
        raise InputError(f"of= must be 'ratio' or 'log ratio'; got {of!r}")
    d = divergence(which, c=number(c, "c", least=0.0))
    start, end = math.log(low), math.log(high)
    if end >= d.log_bound:
        raise InputError(f"high must be below 1/C for {d.name!r}; got {high}")
    s = torch.linspace(start, end, GRID, dtype=torch.float64, requires_grad=True)
    first = d.l1(s)
    second = c * first - d.df(s)
    scale = 1.0 if of == "log ratio" else s.detach().exp()
    slopes = [
        float((torch.autograd.grad(loss.sum(), s, retain_graph=True)[0] / scale).abs().max())
        for loss in (first, second)
    ]
    first, second = first.detach(), second.detach()
    half = float(second.max() - second.min()) / 2.0
    delta = max(float(first.abs().max()), half)
    return LossConstants(
        l1=slopes[0], l2=slopes[1], delta=delta, floor=max(0.0, float(first.min())), c=c
    )
