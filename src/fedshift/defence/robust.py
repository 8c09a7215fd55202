"""Combine the updates of many clients when one of them may be hostile or broken."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedshift.core.params import one_of, positive
from fedshift.core.samples import Float64Array
from fedshift.errors import InputError

AggregationRule = Literal["mean", "trimmed-mean", "median"]
RULES: tuple[AggregationRule, ...] = ("mean", "trimmed-mean", "median")


@dataclass(frozen=True, kw_only=True)
class Robust:
    r"""How the server combines updates u_1 … u_m into one.

    .. math:: u = Σ_k p_k \min\left(1, \frac{c}{‖u_k‖}\right) u_k, \qquad
              c = \text{multiple} · \operatorname{median}_k ‖u_k‖

    Here p_k is the weight of client k, and c the largest length. By default, updates longer than
    the median length are shortened to it, and nothing else changes. Under label shift, honest
    updates point in very different directions: a class may exist on one client only. The trimmed
    mean and the median drop what only one client contributes, and so they never learn that class.
    Use these rules for similar clients only.

    A shortened update can still point the wrong way. Clipping limits the effect of one client in a
    round to that of `multiple` ordinary updates. With ``multiple=1`` the longer half of the updates
    is shortened a little every round, whether or not these clients are honest. A larger multiple
    shortens fewer updates but gives one client more influence. ``benchmarks/attacks.py`` compares
    the accuracy with limits of one and two medians.

    Attributes
    ----------
    rule : {"mean", "trimmed-mean", "median"}
        How updates are combined. The last two rules work coordinate by coordinate (Yin et al.
        2018).
    clip : "median", float or None
        Largest length of an update. "median": `multiple` times the lower median of the lengths
        above 0 in this round. A number sets the length itself, and None sets no limit. With two
        clients, the lower median is the shorter length. One client cannot raise it, but can lower
        it and thereby shorten the step of the round. Therefore "median" sets no limit in a
        federation of two clients (`among`).
    multiple : float
        Multiple of the median length; used with ``clip="median"``.
    trim : float
        Share of clients that "trimmed-mean" drops at each end, in [0, 1/2).

    Examples
    --------
    >>> Robust(clip=None)
    Robust(rule='mean', clip=None, multiple=1.0, trim=0.2)
    """

    rule: AggregationRule = "mean"
    clip: float | Literal["median"] | None = "median"
    multiple: float = 1.0
    trim: float = 0.2

    def __post_init__(self) -> None:
        one_of(self, "rule", RULES)
        positive(self, "multiple")
        if self.clip is not None and self.clip != "median":
            if isinstance(self.clip, str):
                raise InputError(
                    f"Robust: clip must be 'median', a length or None; got {self.clip!r}"
                )
            positive(self, "clip")
        trim: Any = self.trim
        if not (isinstance(trim, numbers.Real) and 0 <= float(trim) < 0.5):
            raise InputError(f"Robust: trim must be a share in [0, 0.5); got {trim!r}")

    def among(self, clients: int) -> Robust:
        """Return the settings for a number of clients: no median clipping for fewer than 3."""
        return replace(self, clip=None) if self.clip == "median" and clients < 3 else self


@dataclass(frozen=True)
class UpdateReport:
    """Results of the checks of all updates of a round.

    Attributes
    ----------
    bound : float
        Largest length of an update; inf without clipping.
    clipped : list of names (or positions)
        Clients with shortened updates.
    left_out : dict of name (or position) to reason
        Clients that are left out, and why.
    beside : tuple of names
        Clients whose statistics or control variate were limited (`fedshift.defence.statistics`).
    """

    bound: float
    clipped: list[str]
    left_out: dict[str, str]
    beside: tuple[str, ...] = ()


def combine(
    updates: Sequence[Tensor] | Tensor,
    part: npt.ArrayLike,
    robust: Robust | None = None,
    *,
    names: Sequence[str] | None = None,
) -> tuple[Tensor, UpdateReport]:
    r"""Combine updates into one: Σ_k part_k u_k, or a robust estimate of it.

    With rule "mean", and if no update is shortened or left out, the result equals
    ``out += float(part) * update`` in a loop over clients, bit for bit. Other rules estimate the
    mean with weights part_k / Σ part and multiply it by Σ part over all clients. Updates that are
    not finite are left out. If updates are left out, the result of "mean" is multiplied by (Σ part
    over all updates) / (Σ part over those that remain). So the server's step does not get shorter.

    Parameters
    ----------
    updates : m tensors (P,), or one (m, P)
    part : array (m,)
        Weight of each update, ≥ 0; need not sum to one. A client with part 0 is left out.
    robust : Robust, optional
    names : m names, optional
        Names for the report; by default the positions of the updates.

    Returns
    -------
    Tensor (P,), UpdateReport
        The combined update, and what was shortened or left out.

    Raises
    ------
    InputError
        If no update can be used.

    Examples
    --------
    >>> import torch
    >>> grads = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([0.0, -5000.0])]
    >>> total, report = combine(grads, [1, 1, 1])
    >>> total.tolist()
    [1.0, 0.0]
    >>> report
    UpdateReport(bound=1.0, clipped=['2'], left_out={}, beside=())
    """
    robust = Robust() if robust is None else robust
    rows = list(updates)
    p = _parts(part, rows)
    labels = [str(k) for k in range(len(rows))] if names is None else list(names)
    if len(set(labels)) != len(rows):
        raise InputError(f"names must be {len(rows)} different names; got {labels}")
    norms = np.array([float(torch.linalg.vector_norm(u.double())) for u in rows])
    whys = [_unusable(u, share) for u, share in zip(rows, p, strict=True)]
    used = [k for k, why in enumerate(whys) if why is None]
    if not used:
        reasons = "; ".join(f"{n}: {why}" for n, why in zip(labels, whys, strict=True))
        raise InputError(f"at least one update must be usable; got none ({reasons})")
    bound = _bound(robust, norms[used])
    factors = np.array([_factor(norm, bound) for norm in norms])
    out = _apply_rule(robust, [rows[k] for k in used], p[used], factors[used])
    missing = float(p.sum() - p[used].sum())
    if robust.rule != "mean":
        out *= float(p.sum())
    elif missing > 0:
        out *= float(p.sum()) / (float(p.sum()) - missing)
    clipped = [labels[k] for k in used if factors[k] < 1]
    left_out = {n: why for n, why in zip(labels, whys, strict=True) if why is not None}
    return out, UpdateReport(bound, clipped, left_out)


def check_update(
    vector: Tensor | npt.NDArray[Any], expected_size: int, limit: float = math.inf
) -> str | None:
    """Return why a vector from a client cannot be used as an update, or None if it can.

    Parameters
    ----------
    vector : any object
        The value as received.
    expected_size : int
        Number of values in an update.
    limit : float
        Largest norm. Set it far above what training needs, to detect broken clients; `combine`
        handles smaller excesses.

    Examples
    --------
    >>> import numpy as np
    >>> check_update(np.zeros(3, dtype=np.float32), 3)
    >>> check_update(np.zeros(4, dtype=np.float32), 3)
    'shape (4,) where (3,) is needed'
    >>> check_update(np.array([1.0, np.nan, 0.0]), 3)
    '1 of 3 numbers not finite'
    """
    if not isinstance(vector, Tensor | np.ndarray):
        return f"{type(vector).__name__} where an array is needed"
    if tuple(vector.shape) != (expected_size,):  # before any work: it may be a gigabyte
        return f"shape {tuple(vector.shape)} where ({expected_size},) is needed"
    kind = str(vector.dtype).removeprefix("torch.")
    if kind not in ("float32", "float64"):
        return f"type {kind} where float32 or float64 is needed"
    u = torch.as_tensor(vector).double()
    bad = int((~torch.isfinite(u)).sum())
    if bad:
        return f"{bad} of {expected_size} numbers not finite"
    norm = float(torch.linalg.vector_norm(u))
    return f"norm {norm:.3g} above the limit {limit:.3g}" if norm > limit else None


def _parts(part: npt.ArrayLike, rows: list[Tensor]) -> Float64Array:
    p = np.asarray(part, dtype=np.float64)
    if not rows or p.shape != (len(rows),):
        raise InputError(
            f"part must be one number per update; got shape {p.shape} for {len(rows)} updates"
        )
    if not (np.isfinite(p).all() and (p >= 0).all() and p.sum() > 0):
        raise InputError(f"part must be finite, ≥ 0 and not all 0; got {p.tolist()}")
    shapes = {tuple(u.shape) for u in rows}
    if len(shapes) > 1 or rows[0].ndim != 1:
        raise InputError(
            f"updates must be vectors of one length; got shapes {sorted(shapes)}; first drop "
            "updates that check_update rejects"
        )
    return p


def _unusable(update: Tensor, part: float) -> str | None:
    if part == 0:
        return "has part 0"
    return None if bool(torch.isfinite(update).all()) else "not finite"


def _bound(robust: Robust, norms: Float64Array) -> float:
    if robust.clip is None:
        return math.inf
    if robust.clip == "median":
        some = norms[norms > 0]  # empty updates must not stop the round
        median = float(np.quantile(some, 0.5, method="lower")) if len(some) else math.inf
        return robust.multiple * median
    return float(robust.clip)


def _factor(norm: float, bound: float) -> float:
    return 1.0 if norm <= bound else bound / norm


def _apply_rule(
    robust: Robust, rows: list[Tensor], part: Float64Array, factors: Float64Array
) -> Tensor:
    """Σ part · factor · update for "mean", the estimated mean otherwise."""
    if robust.rule == "mean":
        out = torch.zeros_like(rows[0])
        for p, factor, row in zip(part, factors, rows, strict=True):
            out += float(p * factor) * row  # × 1.0 changes no bit
        return out
    u = torch.stack([float(f) * row for f, row in zip(factors, rows, strict=True)])
    share = torch.as_tensor(part / part.sum(), device=u.device)
    if robust.rule == "trimmed-mean":
        return _trimmed(u, share, math.floor(robust.trim * len(u) + 1e-9))
    return _median(u, share)


def _trimmed(u: Tensor, share: Tensor, cut: int) -> Tensor:
    """Weighted mean of each coordinate without the `cut` smallest and largest values."""
    value, order = u.double().sort(dim=0)
    keep = slice(cut, len(u) - cut)
    weight = share[order[keep]]
    return ((weight * value[keep]).sum(0) / weight.sum(0)).to(u.dtype)


def _median(u: Tensor, share: Tensor) -> Tensor:
    """Weighted median of each coordinate; the midpoint if half the weight lies on either side."""
    value, order = u.double().sort(dim=0)
    sums = share[order].cumsum(0)
    low = (sums < 0.5 - 1e-9).sum(0, keepdim=True)
    high = (sums < 0.5 + 1e-9).sum(0, keepdim=True)
    return ((value.gather(0, low) + value.gather(0, high)) / 2)[0].to(u.dtype)
