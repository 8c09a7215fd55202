"""The one place where log ratios become weights.

`Weighting` says how; calling it on log ratios gives `Weights`, a value that knows how many rows
really count, how much of the target it stands for and what was changed on the way.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import logsumexp

from fedshift.core.samples import Float64Array
from fedshift.errors import ClippedWeights, InputError, LowCoverage, LowEffectiveSampleSize

#: below this share of rows that count, `Weights` warns
LOW_ESS = 0.01
#: below this share of the target, `Weights` warns
LOW_COVERAGE = 0.5
#: above this share of rows cut, `Weights` warns
MANY_CLIPPED = 0.05


def effective_sample_size(weight: npt.ArrayLike) -> float:
    """Kish's (Σw)² / Σw²: the number of equally weighted rows with the same variance.

    Examples
    --------
    >>> effective_sample_size([1.0, 1.0, 1.0, 0.0])
    3.0
    """
    w = np.asarray(weight, dtype=np.float64)
    top = w.max(initial=0.0)
    if top == 0.0:
        return 0.0
    w = w / top  # squares of huge or tiny weights must not overflow or vanish
    return float(w.sum() ** 2 / np.square(w).sum())


def log_share(log_laws: npt.ArrayLike, own: int, lean: float) -> Float64Array:
    r"""How much of each of a client's rows it stands for, where clients lean on each other.

    Every client's ratio q(x) / p_k(x) turns its own risk into the target's, alone. Together the
    clients do so with any shares α_k(x) that sum to K, by the weights α_k(x) q(x) / p_k(x):

    .. math:: \sum_k E_{p_k}[α_k \tfrac{q}{p_k} ℓ] = \sum_k ∫ α_k q ℓ = K E_q[ℓ], \qquad
              α_k(x) = K \frac{p_k(x)^β}{\sum_j p_j(x)^β}

    β = 0 is α = 1. β = 1 is the balance heuristic of multiple importance sampling (Veach and
    Guibas 1995): all weights become K q(x) / Σ_j p_j(x), large only where *no* client has rows.
    Between them a client's rare rows count less the more rows its neighbours have there.

    Parameters
    ----------
    log_laws : array (n, K)
        log p_j(x) of all clients' training laws at the client's rows, up to a term that may
        differ from row to row; −inf where a neighbour has no mass.
    own : int
        Column of the client.
    lean : float
        β in [0, 1].

    Returns
    -------
    ndarray (n,)
        log α_k(x).

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(log_share(np.log([[0.9, 0.1]]), own=0, lean=1.0)).round(6)
    array([1.8])
    """
    laws = np.asarray(log_laws, dtype=np.float64)
    if not 0 <= lean <= 1:
        raise InputError(f"lean must be an exponent in [0, 1]; got {lean}")
    if lean == 0:
        return np.zeros(len(laws))
    beyond = lean * (laws - laws[:, [own]])
    return np.asarray(np.log(laws.shape[1]) - logsumexp(beyond, axis=1))


@dataclass(frozen=True, eq=False, repr=False)
class Weights:
    """Weights of the rows of one sample, ready for any learner's ``sample_weight``.

    Attributes
    ----------
    values : ndarray (n,)
        Non-negative and finite.
    ess : float
        Effective sample size.
    coverage : float
        Share of the target law with support in the source: E_source r, at most one. What is
        missing lies where there is no row to weight.
    exponent : float
        Power the ratios were flattened with; one means untouched.
    n_clipped : int
        Rows whose weight was cut.
    normalise : str
        ``"none"`` or ``"mean one"``.
    """

    values: Float64Array
    ess: float
    coverage: float
    exponent: float = 1.0
    n_clipped: int = 0
    normalise: str = "none"

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean weight."""
        return float(self.values.mean())

    @property
    def max(self) -> float:
        """Largest weight."""
        return float(self.values.max())

    @property
    def changes(self) -> str:
        """What was done to the ratios, in words."""
        done = []
        if self.exponent != 1.0:
            done.append(f"flattened to the power {self.exponent:.3g}")
        if self.n_clipped:
            done.append(f"{self.n_clipped} of {self.n} clipped")
        if self.normalise != "none":
            done.append("scaled to mean one")
        return ", ".join(done) or "unchanged"

    def __len__(self) -> int:
        """Number of rows."""
        return self.n

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The values, so that any learner takes this as ``sample_weight``."""
        return np.array(self.values, dtype=dtype, copy=copy)

    def to_tensor(self, *, device: torch.device | str = "cpu") -> torch.Tensor:
        """The values as a float32 tensor."""
        return torch.as_tensor(self.values, dtype=torch.float32, device=device)

    def __repr__(self) -> str:
        return (
            f"Weights(n={self.n}, mean {self.mean:.3g}, max {self.max:.3g}, ESS {self.ess:.4g}, "
            f"coverage {self.coverage:.2f}; {self.changes})"
        )


@dataclass(frozen=True)
class Weighting:
    r"""How log ratios become weights: w = min(r^a, limits), perhaps scaled to mean one.

    The order is fixed: flatten (first the given exponent, then, if the floor on the effective
    sample size asks for it, the smallest further flattening that meets it), winsorise, clip,
    normalise.

    Parameters
    ----------
    normalise : {"none", "mean one"}
        "none" keeps the scale of the ratio, which carries a client's coverage: use it for
        federated training, where a client's normaliser is its aggregation weight.
    clip : float, optional
        Largest ratio allowed.
    winsorise : float, optional
        Quantile in (0, 1]: larger weights are cut to it.
    flatten : float
        Exponent a in [0, 1]: 1 keeps the ratio, 0 forgets it.
    min_ess : float, optional
        Floor on the effective sample size, as a number of rows (> 1) or a share of them (≤ 1).

    Examples
    --------
    >>> import numpy as np
    >>> Weighting(clip=20.0)(np.log([0.5, 1.0, 1.5]))
    Weights(n=3, mean 1, max 1.5, ESS 2.571, coverage 1.00; unchanged)
    """

    normalise: Literal["none", "mean one"] = "none"
    clip: float | None = None
    winsorise: float | None = None
    flatten: float = 1.0
    min_ess: float | None = None

    def __post_init__(self) -> None:
        if self.normalise not in ("none", "mean one"):
            raise InputError(f"normalise must be 'none' or 'mean one'; got {self.normalise!r}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise InputError(f"clip must be a positive ratio; got {self.clip}; None means no clip")
        if self.winsorise is not None and not 0 < self.winsorise <= 1:
            raise InputError(f"winsorise must be a quantile in (0, 1]; got {self.winsorise}")
        if not 0 <= self.flatten <= 1:
            raise InputError(f"flatten must be an exponent in [0, 1]; got {self.flatten}")
        if self.min_ess is not None and not self.min_ess > 0:
            raise InputError(f"min_ess must be positive, rows or a share; got {self.min_ess}")

    def __call__(
        self,
        log_ratio: npt.ArrayLike | torch.Tensor,
        *,
        laws: int = 1,
        coverage: float | None = None,
    ) -> Weights:
        """Weights of the rows with these log ratios.

        Parameters
        ----------
        log_ratio : array (n,)
            log Σ_l p_l(x) − log p_source(x) at the rows of the source.
        laws : int
            Number of target laws in the sum; coverage is counted per law.
        coverage : float, optional
            If it is known: where clients lean on each other it is that of all their rows.
        """
        s = _log_ratios(log_ratio)
        if not laws >= 1:
            raise InputError(f"laws must be the number of target laws, at least 1; got {laws}")
        n = len(s)
        top = float(s.max())
        if top == -math.inf:
            raise InputError(
                "log_ratio must be finite somewhere; got −inf for every row: no source row lies "
                "where the target has mass; check that source and target overlap"
            )
        if coverage is None:  # E_source r, summed in logs
            coverage = min(1.0, math.exp(min(0.0, top + math.log(np.exp(s - top).mean() / laws))))
        if self.normalise == "mean one" and self.clip is None:
            s = s - top  # a common factor is forgotten, so none may overflow
        exponent, w = self._flattened(s)
        cut = self._limit(w)
        n_clipped = int((w > cut).sum())
        w = np.minimum(w, cut)
        if not np.isfinite(w).all():
            raise InputError(
                f"weights must be finite; got a log ratio of {top:.4g}, whose ratio overflows; "
                "give clip=, flatten= or min_ess="
            )
        mean = float(w.mean())
        if mean == 0.0:
            raise InputError(
                f"weights must not all be zero; got log ratios of at most {top:.4g}, which "
                "underflow; check that source and target overlap"
            )
        if self.normalise == "mean one":
            w = w / mean
        weights = Weights(
            w, effective_sample_size(w), coverage, exponent, n_clipped, self.normalise
        )
        _warn(weights, n)
        return weights

    def _flattened(self, s: Float64Array) -> tuple[float, Float64Array]:
        exponent = self.flatten
        if self.min_ess is not None:
            n = len(s)
            floor = self.min_ess * n if self.min_ess <= 1 else self.min_ess
            if floor > n:
                raise InputError(
                    f"min_ess must be at most the number of rows {n}; got {self.min_ess}; "
                    "give a share such as 0.1"
                )
            exponent = self._exponent_for(s, exponent, floor)
        with np.errstate(over="ignore"):
            # exponent 0 forgets the ratio, where it is −inf too
            return exponent, np.exp(exponent * s) if exponent > 0 else np.ones_like(s)

    def _exponent_for(self, s: Float64Array, start: float, floor: float) -> float:
        """The largest exponent ≤ `start` whose weights, cut as they will be, meet the floor."""

        def ess(a: float) -> float:
            if a == 0:
                return float(len(s))
            # a common factor does not change the ESS, but the clip's place depends on it
            with np.errstate(over="ignore"):
                w = np.exp(a * (s - s.max()))
            clip = self.clip and math.exp(min(700.0, math.log(self.clip) - a * float(s.max())))
            return effective_sample_size(np.minimum(w, self._limit(w, clip)))

        if ess(start) >= floor:
            return start
        low, high = 0.0, start
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if ess(middle) >= floor else (low, middle)
        return low

    def _limit(self, w: Float64Array, clip: float | None = None) -> float:
        limit = math.inf
        if self.winsorise is not None:
            limit = float(np.quantile(w, self.winsorise, method="lower"))
        clip = clip if clip is not None else self.clip
        return limit if clip is None else min(limit, clip)


def _log_ratios(log_ratio: npt.ArrayLike | torch.Tensor) -> Float64Array:
    if isinstance(log_ratio, torch.Tensor):
        log_ratio = log_ratio.detach().cpu().double().numpy()
    try:
        s = np.asarray(log_ratio, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"log_ratio must hold numbers; got {type(log_ratio).__name__} that does not convert"
        ) from None
    if s.ndim != 1 or len(s) == 0:
        raise InputError(f"log_ratio must be one value a row, shape (n,), n ≥ 1; got {s.shape}")
    bad = np.isnan(s) | (s == np.inf)
    if bad.any():
        i = int(np.argmax(bad))
        raise InputError(
            f"log_ratio must be finite or −inf; got {s[i]} in row {i}; look at that row's inputs"
        )
    return s


def _warn(weights: Weights, n: int) -> None:
    if n >= 10 and weights.ess < max(3.0, LOW_ESS * n):
        warnings.warn(
            f"only {weights.ess:.1f} of {n} rows count (effective sample size); estimates with "
            "these weights are noise; give min_ess=, flatten= or clip=, or collect source rows "
            "that look like the target",
            LowEffectiveSampleSize,
            stacklevel=3,
        )
    if weights.coverage < LOW_COVERAGE:
        warnings.warn(
            f"source rows stand for only {weights.coverage:.0%} of the target; the rest lies where "
            "the source has no rows, and no weight can mend that; collect such rows",
            LowCoverage,
            stacklevel=3,
        )
    if weights.n_clipped > MANY_CLIPPED * n:
        warnings.warn(
            f"{weights.n_clipped} of {n} weights were cut; the weighted sample no longer follows "
            "the target; raise clip= or winsorise=, or flatten instead",
            ClippedWeights,
            stacklevel=3,
        )


def calibration(
    weight: Float64Array, exact: Float64Array, groups: int = 10
) -> list[dict[str, float]]:
    """How estimated weights compare with exact log ratios, in groups of rows of like weight.

    Parameters
    ----------
    weight, exact : (n,)
        Weights and true log ratios of the same rows; rows where one is 0 are left out.
    groups : int
        At most so many; rows of equal weight stay together.

    Returns
    -------
    list of dict
        "estimated", the log of the mean weight, "exact", the log of the mean true ratio, "n".
    """
    there = (weight > 0) & np.isfinite(exact)
    w, s = weight[there], exact[there]
    if not len(w):
        return []
    edges = np.unique(np.quantile(w, np.linspace(0, 1, groups + 1)[1:-1], method="lower"))
    group = np.searchsorted(edges, w, side="left")
    out = []
    for g in np.unique(group):
        own, n = group == g, int((group == g).sum())
        truth = float(np.logaddexp.reduce(s[own])) - math.log(n)
        out.append({"estimated": math.log(w[own].mean()), "exact": truth, "n": n})
    return out
