"""Many clients' updates to one, when one of them may be hostile or broken."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedshift.core.params import one_of, positive, whole
from fedshift.core.samples import Float64Array
from fedshift.errors import InputError

Rule = Literal["mean", "trimmed-mean", "median", "krum", "multi-krum"]
RULES: tuple[Rule, ...] = ("mean", "trimmed-mean", "median", "krum", "multi-krum")


@dataclass(frozen=True, kw_only=True)
class Robust:
    r"""How the server turns updates u_1 … u_m into one.

    .. math:: u = Σ_k p_k \min\left(1, \frac{c}{‖u_k‖}\right) u_k, \qquad
              c = \text{multiple} · \operatorname{median}_k ‖u_k‖

    The default only shortens updates that are longer than the median one. Under target shift
    honest updates point in very different directions: each client may be the only one that knows
    a class, and a rule which drops what the others do not say (trimmed mean, median, Krum) drops
    that class for good. Those rules are for clients that are alike. A shortened update can
    still point the wrong way: clipping bounds what one client does in a round to `multiple`
    ordinary updates, no less. With ``multiple=1`` the longer half of the updates is shortened a
    little every round, honest or not; a larger multiple leaves more of them alone and lets one
    client count for more (``benchmarks/attacks.py`` prints what either costs).

    Attributes
    ----------
    rule : {"mean", "trimmed-mean", "median", "krum", "multi-krum"}
        Coordinate by coordinate (trimmed mean, median: Yin et al. 2018), or whole updates: the
        one nearest to its neighbours ("krum"), or the mean of all but the `byzantine` updates
        farthest from theirs ("multi-krum", Blanchard et al. 2017).
    clip : "median", float or None
        Longest update allowed: a multiple of this round's median length, a length, or no limit.
        The median is that of the updates that are not 0, of an even number the lower one: one of
        two cannot make the limit larger. It can make it small, and the round's step with it; in
        a federation of two, where every round would be such, there is no limit (`among`).
    multiple : float
        Of the median, with ``clip="median"``.
    trim : float
        Share of clients cut at either end by "trimmed-mean", in [0, 1/2).
    byzantine : int
        How many clients Krum takes for hostile.

    Examples
    --------
    >>> Robust(clip=None)
    Robust(rule='mean', clip=None, multiple=1.0, trim=0.2, byzantine=1)
    """

    rule: Rule = "mean"
    clip: float | Literal["median"] | None = "median"
    multiple: float = 1.0
    trim: float = 0.2
    byzantine: int = 1

    def __post_init__(self) -> None:
        one_of(self, "rule", RULES)
        positive(self, "multiple")
        whole(self, "byzantine", least=0)
        if self.clip is not None and self.clip != "median":
            if isinstance(self.clip, str):
                raise InputError(
                    f"Robust: clip must be 'median', a length or None; got {self.clip!r}"
                )
            positive(self, "clip")
        trim: Any = self.trim
        if not (isinstance(trim, numbers.Real) and 0 <= float(trim) < 0.5):
            raise InputError(f"Robust: trim must be a share in [0, 0.5); got {trim!r}")

    @property
    def least(self) -> int:
        """The fewest updates the rule can work with; make it a round's minimum of replies."""
        if self.rule in ("krum", "multi-krum"):
            return 2 * self.byzantine + 3
        return 1

    def among(self, clients: int) -> Robust:
        """The rule for a federation of so many: of two nobody can say which is the odd one."""
        return replace(self, clip=None) if self.clip == "median" and clients < 3 else self


@dataclass(frozen=True)
class Verdict:
    """What became of one client's update.

    Attributes
    ----------
    norm : float
        Its length as it came.
    factor : float
        What it was multiplied by; 1 where it was short enough, 0 where it was left out.
    left_out : str or None
        Why it does not count.
    """

    norm: float
    factor: float = 1.0
    left_out: str | None = None


@dataclass(frozen=True, repr=False)
class Report:
    """What became of the updates of a round.

    Attributes
    ----------
    rule : str
    bound : float
        Longest update allowed; inf without clipping.
    clients : dict of name (or position) to Verdict
    beside : tuple of names
        Whose statistics or control variate were cut (`fedshift.defence.beside`).
    """

    rule: str
    bound: float
    clients: dict[str, Verdict]
    beside: tuple[str, ...] = ()

    @property
    def clipped(self) -> list[str]:
        """Who was shortened."""
        return [name for name, v in self.clients.items() if v.left_out is None and v.factor < 1]

    @property
    def left_out(self) -> dict[str, str]:
        """Who was left out, and why."""
        return {n: v.left_out for n, v in self.clients.items() if v.left_out is not None}

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        clients = {name: asdict(v) for name, v in self.clients.items()}
        bound = self.bound if math.isfinite(self.bound) else None
        return {"rule": self.rule, "bound": bound, "clients": clients}

    def __repr__(self) -> str:
        said = [f"{len(self.clients)} updates by {self.rule}"]
        if self.clipped:
            said.append(f"shortened to {self.bound:.3g}: {', '.join(self.clipped)}")
        said += [f"left out {name}: {why}" for name, why in self.left_out.items()]
        return f"Report({'; '.join(said)})"


def combine(
    updates: Sequence[Tensor] | Tensor,
    part: npt.ArrayLike,
    robust: Robust | None = None,
    *,
    names: Sequence[str] | None = None,
) -> tuple[Tensor, Report]:
    r"""One update from many: Σ_k part_k u_k, or a robust estimate of it.

    With rule "mean" and nobody shortened or left out, the result is bit for bit that of
    ``out += float(part) * update``, one client after the other. Other rules estimate the mean
    with weights part_k / Σ part and multiply it by Σ part; so does "mean" once a client is left
    out, and a missing client does not shorten the server's step. Updates that are not finite are
    left out.

    Parameters
    ----------
    updates : m tensors (P,), or one (m, P)
    part : array (m,)
        What each counts, ≥ 0; need not sum to one. A client with part 0 has no say at all.
    robust : Robust, optional
    names : m names, optional
        For the report; positions otherwise.

    Returns
    -------
    Tensor (P,), Report

    Raises
    ------
    InputError
        If fewer usable updates came than the rule needs (`Robust.least`).

    Examples
    --------
    >>> import torch
    >>> grads = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([0.0, -5000.0])]
    >>> total, report = combine(grads, [1, 1, 1])
    >>> total.tolist()
    [1.0, 0.0]
    >>> report
    Report(3 updates by mean; shortened to 1: 2)
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
    _enough(robust, len(used), {labels[k]: why for k, why in enumerate(whys) if why})
    bound = _bound(robust, norms[used])
    factors = np.array([_factor(norm, bound) for norm in norms])
    out, dropped = _ruled(robust, [rows[k] for k in used], p[used], factors[used])
    missing = float(p.sum() - p[used].sum())
    if robust.rule != "mean":
        out *= float(p.sum())
    elif missing > 0:
        out *= float(p.sum()) / (float(p.sum()) - missing)
    for place, why in dropped.items():
        whys[used[place]] = why
    verdicts = [
        Verdict(float(norm), float(factor) if why is None else 0.0, why)
        for norm, factor, why in zip(norms, factors, whys, strict=True)
    ]
    return out, Report(robust.rule, bound, dict(zip(labels, verdicts, strict=True)))


def check_update(
    vector: Tensor | npt.NDArray[Any], expected_size: int, limit: float = math.inf
) -> str | None:
    """Why a vector from a client cannot be used as an update, or None where it can.

    Parameters
    ----------
    vector : whatever came
    expected_size : int
        Numbers in an update.
    limit : float
        Longest norm allowed: far above what training can need, for broken clients; `combine`
        does the fine work.

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
            f"part must be one number an update; got shape {p.shape} for {len(rows)} updates"
        )
    if not (np.isfinite(p).all() and (p >= 0).all() and p.sum() > 0):
        raise InputError(f"part must be finite, ≥ 0 and not all 0; got {p.tolist()}")
    shapes = {tuple(u.shape) for u in rows}
    if len(shapes) > 1 or rows[0].ndim != 1:
        raise InputError(
            f"updates must be vectors of one length; got shapes {sorted(shapes)}; drop what "
            "check_update finds first"
        )
    return p


def _unusable(update: Tensor, part: float) -> str | None:
    if part == 0:
        return "counts with part 0"
    return None if bool(torch.isfinite(update).all()) else "not finite"


def _enough(robust: Robust, count: int, gone: dict[str, str]) -> None:
    if count >= robust.least:
        return
    left = "; ".join(f"{name}: {why}" for name, why in gone.items())
    raise InputError(
        f"rule {robust.rule!r} with byzantine={robust.byzantine} needs at least {robust.least} "
        f"usable updates; got {count}{f' ({left})' if left else ''}; wait for more replies"
        + (", or take rule='mean'" if robust.least > 1 else "")
    )


def _bound(robust: Robust, norms: Float64Array) -> float:
    if robust.clip is None:
        return math.inf
    if robust.clip == "median":
        moved = norms[norms > 0]  # who sends nothing must not stop everybody
        return (
            robust.multiple * float(np.quantile(moved, 0.5, method="lower"))
            if len(moved)
            else math.inf
        )
    return float(robust.clip)


def _factor(norm: float, bound: float) -> float:
    return 1.0 if norm <= bound else bound / norm


def _ruled(
    robust: Robust, rows: list[Tensor], part: Float64Array, factors: Float64Array
) -> tuple[Tensor, dict[int, str]]:
    """Σ part · factor · update for "mean", the estimated mean otherwise; who was dropped."""
    if robust.rule == "mean":
        out = torch.zeros_like(rows[0])
        for p, factor, row in zip(part, factors, rows, strict=True):
            out += float(p * factor) * row  # × 1.0 changes no bit
        return out, {}
    u = torch.stack([float(f) * row for f, row in zip(factors, rows, strict=True)])
    share = torch.as_tensor(part / part.sum(), device=u.device)
    if robust.rule == "trimmed-mean":
        return _trimmed(u, share, math.floor(robust.trim * len(u) + 1e-9)), {}
    if robust.rule == "median":
        return _median(u, share), {}
    return _krum(u, share, robust)


def _trimmed(u: Tensor, share: Tensor, cut: int) -> Tensor:
    """Of each coordinate, the weighted mean without the `cut` smallest and largest values."""
    value, order = u.double().sort(dim=0)
    keep = slice(cut, len(u) - cut)
    weight = share[order[keep]]
    return ((weight * value[keep]).sum(0) / weight.sum(0)).to(u.dtype)


def _median(u: Tensor, share: Tensor) -> Tensor:
    """Weighted median of each coordinate; the middle of the two where half lies on either side."""
    value, order = u.double().sort(dim=0)
    sums = share[order].cumsum(0)
    low = (sums < 0.5 - 1e-9).sum(0, keepdim=True)
    high = (sums < 0.5 + 1e-9).sum(0, keepdim=True)
    return ((value.gather(0, low) + value.gather(0, high)) / 2)[0].to(u.dtype)


def _krum(u: Tensor, share: Tensor, robust: Robust) -> tuple[Tensor, dict[int, str]]:
    """Score of an update: Σ of squared distances to its m − byzantine − 2 nearest."""
    m, f = len(u), robust.byzantine
    distance = torch.cdist(u.double(), u.double(), compute_mode="donot_use_mm_for_euclid_dist")
    near = distance.square().sort(dim=1).values[:, 1 : m - f - 1]  # the first is itself
    score = near.sum(1)
    keep = score.argsort(stable=True)[: 1 if robust.rule == "krum" else m - f].sort().values
    weight = share[keep] / share[keep].sum()
    kept = set(keep.tolist())
    dropped = {
        k: f"{robust.rule}: {math.sqrt(float(score[k]) / near.shape[1]):.3g} from its neighbours, "
        f"where those kept are at most {math.sqrt(float(score[keep].max()) / near.shape[1]):.3g}"
        for k in range(m)
        if k not in kept
    }
    return (weight[:, None] * u[keep].double()).sum(0).to(u.dtype), dropped
