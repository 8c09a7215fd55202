r"""Bregman divergences for ratio matching, and their non-negative correction.

"The paper" is Ramezani-Kebrya et al. (TMLR 2023). For a strictly convex f, the divergence of a
model r from the true ratio r* is, up to a constant,

.. math:: E_{source}\,\ell_1(r) - E_{target}\,f'(r),
          \qquad \ell_1(z) = f'(z) z - f(z) + f(0),

The minimiser is r = r*. ℓ1 is non-decreasing, so adding f(0) makes ℓ1 ≥ 0. The non-negative form
below, which contains max(0, A), is valid only if ℓ1 ≥ 0. (The paper's definition of ℓ1 omits f(0).
For least-squares importance fitting, LSIF, it gives ℓ1 = (z² − 1)/2, which is negative for z < 1.
With that ℓ1, the non-negative form has a wrong minimiser.)

The non-negative form, for K target distributions with mixture "pool" and for 0 < C < 1/sup r*, is

.. math:: A = E_{source}\,\ell_1(r) - K C\,E_{pool}\,\ell_1(r), \quad
          B = K\,E_{pool}\,[C \ell_1(r) - f'(r)], \quad \min_r\ \max(0, A) + B.

All functions take **log** ratios, which makes overflow less likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from fedshift.core.samples import Float64Array
from fedshift.errors import InputError

TensorMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Divergence:
    """A Bregman divergence in terms of s = log r.

    Attributes
    ----------
    name : str
    l1 : callable
        s ↦ ℓ1(eˢ), never negative.
    df : callable
        s ↦ f'(eˢ), up to a constant.
    log_bound : float
        Log ratios must stay below this number: −log C for PU, infinity for the others.
    """

    name: str
    l1: TensorMap
    df: TensorMap
    log_bound: float = math.inf


def from_convex(f: TensorMap, df: TensorMap, *, name: str = "custom") -> Divergence:
    """Divergence of a strictly convex f on [0, ∞) with derivative `df`, both functions of r.

    Examples
    --------
    >>> import torch
    >>> d = from_convex(lambda z: (z - 1) ** 2 / 2, lambda z: z - 1)
    >>> float(d.l1(torch.tensor(2.0).log()))  # z² / 2
    2.0
    """
    zero = torch.zeros((), dtype=torch.float64)
    at_zero = f(zero)
    if bool(torch.isnan(at_zero)):  # such as z log z: take the limit from the right
        at_zero = f(zero + 1e-300)
    if not bool(torch.isfinite(at_zero)):
        raise InputError(
            f"divergence {name!r} needs a finite f(0); got {float(at_zero)}; "
            "take another f, because ℓ1 cannot be made non-negative for this one"
        )
    offset = float(at_zero)

    def l1(s: Tensor) -> Tensor:
        z = s.exp()
        return df(z) * z - f(z) + offset

    return Divergence(name, l1, lambda s: df(s.exp()))


def lsif() -> Divergence:
    """Least squares, f(z) = (z − 1)²/2. uLSIF and KMM minimise it too."""
    return Divergence("lsif", lambda s: (2.0 * s).exp() / 2.0, torch.exp)


def ukl() -> Divergence:
    """Unnormalised Kullback-Leibler, f(z) = z log z − z. KLIEP minimises it too."""
    return Divergence("ukl", torch.exp, lambda s: s)


def lr() -> Divergence:
    """Logistic regression (binary KL), f(z) = z log z − (z + 1) log(z + 1)."""
    return Divergence("lr", softplus, logsigmoid)


def robust(alpha: float = 0.5) -> Divergence:
    """Basu's power divergence, f(z) = (z^(α+1) − z)/α.

    For α = 1 it is twice LSIF, and in the limit α → 0 it is UKL.
    """
    if not alpha > 0:
        raise InputError(f"'robust' needs alpha > 0; got {alpha}; for the limit 0 use 'ukl'")
    return Divergence(
        "robust",
        lambda s: ((1.0 + alpha) * s).exp(),
        lambda s: ((1.0 + alpha) * (alpha * s).exp() - 1.0) / alpha,
    )


def pu(c: float) -> Divergence:
    """Positive-unlabelled: the logistic loss of the scaled ratio z = C r in (0, 1).

    The f that the paper prints needs r < 1 everywhere, which no two different distributions
    satisfy. Modelling C r with C < 1/sup r fixes that. The divergence then has ℓ1 = −log(1 − z)
    and f' = C (log z − log(1 − z)).
    """
    if not c > 0:
        raise InputError(f"'pu' needs C > 0; got {c}; pass bound= (on the ratio), or C = 1 / bound")
    log_c = math.log(c)

    def log1m(s: Tensor) -> Tensor:  # log(1 − C eˢ); the floor keeps the edge finite
        return torch.log1p(-(s + log_c).exp().clamp(max=1.0 - 1e-12))

    return Divergence("pu", lambda s: -log1m(s), lambda s: c * (s + log_c - log1m(s)), -log_c)


_BY_NAME: dict[str, Callable[[], Divergence]] = {
    "lsif": lsif,
    "ukl": ukl,
    "lr": lr,
    "robust": robust,
}
NAMES = (*_BY_NAME, "pu")


def divergence(which: str | Divergence, *, c: float | None = None) -> Divergence:
    """Return the divergence of a name: lsif, ukl, lr, robust, or pu. Only pu needs `c`."""
    if isinstance(which, Divergence):
        return which
    if which == "pu":
        if c is None:
            raise InputError("divergence 'pu' needs C, one over a bound on the ratio; set bound=")
        return pu(c)
    if which not in _BY_NAME:
        raise InputError(f"divergence must be one of {', '.join(NAMES)}; got {which!r}")
    return _BY_NAME[which]()


def mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Expectation under weights that sum to one, or the plain mean without weights."""
    return values.mean() if weight is None else torch.dot(weight, values)


def nonnegative_parts(
    source: Tensor,
    target: Tensor,
    which: Divergence,
    *,
    c: float,
    n_targets: int = 1,
    source_weight: Tensor | None = None,
    target_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A and B of the non-negative risk max(0, A) + B.

    Parameters
    ----------
    source, target : Tensor (n,), (m,)
        Log ratios of the sum over targets, at source rows and at rows of the pooled target.
    c : float
        C, with 0 < C < 1/sup r for ratios r. With C = 0 there is no correction.
    n_targets : int
        K, the number of target distributions in the pool.
    """
    l1_target = mean(which.l1(target), target_weight)
    a = mean(which.l1(source), source_weight) - n_targets * c * l1_target
    b = n_targets * (c * l1_target - mean(which.df(target), target_weight))
    return a, b


def training_loss(a: Tensor, b: Tensor, penalty: Tensor | float = 0.0) -> Tensor:
    """Loss of one mini-batch for gradient descent.

    A and B are those of `nonnegative_parts`. If A ≥ 0, the loss is A + B + penalty. A < 0 is a sign
    of over-fitting; then the loss is −A + penalty, so that a descent step *raises* A.
    """
    return torch.where(a >= 0, a + b, -a) + penalty


def bregman_risk(
    source: Float64Array,
    target: Float64Array,
    which: str | Divergence = "lr",
    source_weight: Float64Array | None = None,
    target_weight: Float64Array | None = None,
) -> float:
    """Empirical risk E_source ℓ1(r) − E_target f'(r) of log ratios, without the correction."""
    d = divergence(which)
    s, t = torch.as_tensor(source), torch.as_tensor(target)
    ws = None if source_weight is None else torch.as_tensor(source_weight)
    wt = None if target_weight is None else torch.as_tensor(target_weight)
    return float(mean(d.l1(s), ws) - mean(d.df(t), wt))
