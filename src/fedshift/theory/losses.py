"""The constants of ℓ1 and ℓ2 that bounds on the ratio's error need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from fedshift.core.bregman import Divergence, divergence
from fedshift.errors import InputError
from fedshift.theory.checks import number

#: places at which a range of ratios is looked at; both ends are among them
GRID = 4097


@dataclass(frozen=True, kw_only=True)
class LossConstants:
    """Constants of ℓ1 and ℓ2 = C ℓ1 − f' on a range of ratios (the paper's assumption 1).

    Attributes
    ----------
    l1, l2 : float
        Lipschitz constants L1 and L2.
    delta : float
        Δ ≥ |ℓ1|, |ℓ2|. A constant added to ℓ2 changes no difference of risks, so ℓ2 is centred.
    floor : float
        inf ℓ1 ≥ 0.
    c : float
        C of the non-negative correction, below 1/sup r*.
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
        r"""A margin the paper leaves as "some constant": η with E[Â] ≥ η for every r in the class.

        .. math:: E[\hat A] = \int (p^{tr} - C \sum_l p_l^{te})\, ℓ_1(r)
                  \ge \inf ℓ_1 \, (1 - K C)

        as the bracket is never negative where C ≤ 1/sup r*. Zero if there is no such margin.
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

    Read off a fine grid with its ends, which is exact where the derivatives are monotone (LSIF,
    UKL) and good to six digits elsewhere.

    Parameters
    ----------
    which : str or Divergence
        "lsif", "ukl", "lr", "robust" or "pu".
    low, high : float
        0 < low < high: the values the ratio model may take.
    c : float
        C of the non-negative correction, at most 1/sup r*.
    of : {"ratio", "log ratio"}
        What the class of functions gives. For networks that give log ratios (link exp) take the
        latter: Talagrand's contraction then passes through the link at no cost.

    Examples
    --------
    >>> loss_constants("lsif", low=0.5, high=4.0, c=0.25)  # ℓ1' = z, ℓ2' = Cz − 1
    LossConstants(L1 4, L2 0.875, Δ 8, C 0.25)
    """
    number(low, "low", above=0.0)
    number(high, "high", above=low)
    if of not in ("ratio", "log ratio"):
        raise InputError(f"of must be 'ratio' or 'log ratio'; got {of!r}")
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
