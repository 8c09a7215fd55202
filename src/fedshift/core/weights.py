"""The one place where log ratios become weights.

`Weighting` holds the settings. Call it on log ratios to get `Weights`, which also holds the
effective sample size, the coverage of the target and the changes made to the ratios.
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

from fedshift.core.params import check_numbers, one_of
from fedshift.core.samples import Float64Array, as_numbers
from fedshift.errors import (
    ClippedWeights,
    InputError,
    LargeMeanRatio,
    LowCoverage,
    LowEffectiveSampleSize,
)

#: below this effective sample size, as a share of the rows, `Weighting` warns
LOW_ESS = 0.01
#: below this coverage of the target, `Weighting` warns
LOW_COVERAGE = 0.5
#: above this share of clipped rows, `Weighting` warns
MANY_CLIPPED = 0.05
#: factor by which the mean ratio may exceed its bound because ratios are estimates
SLACK = 1.25
#: where ratios are correct, chance of a `LargeMeanRatio` warning and of the error, at most
WARN, REFUSE = 1e-3, 1e-6
#: the error needs a geometric mean of ratios, or a mean weight, beyond its bound by these factors
TYPICAL, MEAN = 2.0, 1e3


def effective_sample_size(weight: npt.ArrayLike) -> float:
    """Kish's (Σw)² / Σw²: the number of equally weighted rows whose mean has the same variance.

    Examples
    --------
    >>> effective_sample_size([1.0, 1.0, 1.0, 0.0])
    3.0
    """
    w = as_numbers(weight, "weight")
    if w.ndim != 1 or np.isnan(w).any():
        raise InputError(f"weight must be one number per row, without gaps; got {weight!r}")
    top = w.max(initial=0.0)
    if top == 0.0:
        return 0.0
    w = w / top  # keeps squares of huge or tiny weights from overflow and underflow
    return float(w.sum() ** 2 / np.square(w).sum())


def log_share(log_densities: npt.ArrayLike, own: int, pooling: float) -> Float64Array:
    r"""Log shares α_k(x) of one client for partial pooling with the other clients.

    Let q be the target density and p_k the training density of client k of K. With the ratio
    q(x) / p_k(x) as weight, each client's own risk estimates the target risk. With weights
    α_k(x) q(x) / p_k(x), the sum over clients estimates K times the target risk, for any shares
    α_k(x) that sum to K:

    .. math:: \sum_k E_{p_k}[α_k \tfrac{q}{p_k} ℓ] = \sum_k ∫ α_k q ℓ = K E_q[ℓ], \qquad
              α_k(x) = K \frac{p_k(x)^β}{\sum_j p_j(x)^β}

    ℓ is the loss. With β = 0 there is no pooling: every α_k(x) is 1. β = 1 is the balance heuristic
    of multiple importance sampling (Veach and Guibas 1995): all weights become K q(x) / Σ_j p_j(x),
    large only where *no* client has rows. For β between 0 and 1, a row that is rare at its client
    gets less weight the more common such rows are at other clients.

    Parameters
    ----------
    log_densities : array (n, K)
        log p_j(x) of all clients' training distributions at the client's rows, up to one additive
        term per row; −inf where a client has no mass.
    own : int
        Column k of the client.
    pooling : float
        β in [0, 1].

    Returns
    -------
    ndarray (n,)
        log α_k(x).

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(log_share(np.log([[0.9, 0.1]]), own=0, pooling=1.0)).round(6)
    array([1.8])
    """
    log_p = np.asarray(log_densities, dtype=np.float64)
    if not 0 <= pooling <= 1:
        raise InputError(f"pooling must be an exponent in [0, 1]; got {pooling}")
    if pooling == 0:
        return np.zeros(len(log_p))
    beyond = pooling * (log_p - log_p[:, [own]])
    return np.asarray(np.log(log_p.shape[1]) - logsumexp(beyond, axis=1))


def log_evidence(log_ratio: Float64Array, bound: float) -> float:
    r"""Return log evidence that the expected ratio over the source exceeds a bound.

    Let r_i be the ratios of n rows, b the bound, and λ one of five shares from 1/n to 1:

    .. math:: E = \frac15 \sum_λ \prod_i (1 - λ + λ \, r_i / b)

    If rows are independent and the expected ratio is at most b, then E has an expectation of at
    most 1. So E exceeds 1/α with a probability of at most α (Markov). This holds for any number of
    rows and for any tail of the ratio, also if its variance is infinite.

    Examples
    --------
    >>> import numpy as np
    >>> round(log_evidence(np.log(np.full(100, 2.0)), 1.0), 1)  # 100 log 2 − log 5
    67.7
    """
    shares = len(log_ratio) ** (-np.arange(5) / 4)
    with np.errstate(divide="ignore"):  # log(1 − λ) of λ = 1
        terms = [
            np.logaddexp(np.log1p(-share), np.log(share / bound) + log_ratio).sum()
            for share in shares
        ]
    return float(logsumexp(terms) - np.log(len(shares)))


@dataclass(frozen=True, eq=False, repr=False)
class Weights:
    """Weights of the rows of one sample, usable as ``sample_weight`` of any learner.

    Attributes
    ----------
    values : ndarray (n,)
        Non-negative and finite.
    ess : float
        Effective sample size.
    coverage : float
        Share of the target distribution that lies where the source has rows. It is
        min(1, E_source r / n_targets), where n_targets is the number of target distributions in the
        ratio r.
    exponent : float
        Flattening exponent; one means unchanged ratios.
    n_clipped : int
        Number of rows whose weight was clipped.
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
        """Changes made to the ratios, in words."""
        words = []
        if self.exponent != 1.0:
            words.append(f"flattened to the power {self.exponent:.3g}")
        if self.n_clipped:
            words.append(f"{self.n_clipped} of {self.n} clipped")
        if self.normalise != "none":
            words.append("scaled to mean one")
        return ", ".join(words) or "unchanged"

    def __len__(self) -> int:
        """Number of rows."""
        return self.n

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the values, so that any learner accepts this as ``sample_weight``."""
        return np.array(self.values, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return (
            f"Weights(n={self.n}, mean {self.mean:.3g}, max {self.max:.3g}, ESS {self.ess:.4g}, "
            f"coverage {self.coverage:.2f}; {self.changes})"
        )


@dataclass(frozen=True)
class Weighting:
    r"""Turn log ratios log r into weights: w = min(r^a, limits), optionally scaled to mean one.

    The order is fixed: flatten, winsorise, clip, normalise. If the effective sample size is below
    `min_ess`, the ratios are flattened further, as little as is needed to reach it.

    Parameters
    ----------
    normalise : {"none", "mean one"}
        "none" keeps the scale of the ratio, which depends on a client's coverage. Use it for
        federated training, where the mean weight of a client's rows affects how much the client
        counts in the average over clients.
    clip : float, optional
        Largest weight.
    winsorise : float, optional
        Quantile in (0, 1]; larger weights are reduced to it.
    flatten : float
        Flattening exponent a in [0, 1]: 1 keeps the ratio, 0 makes all weights equal.
    min_ess : float, optional
        Least effective sample size, as a number of rows (> 1) or a share of them (≤ 1).

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
        check_numbers(type(self), vars(self))
        one_of(self, "normalise", ("none", "mean one"))
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise InputError(f"clip must be a positive ratio; got {self.clip}; None means no clip")
        if self.winsorise is not None and not 0 < self.winsorise <= 1:
            raise InputError(f"winsorise must be a quantile in (0, 1]; got {self.winsorise}")
        if not 0 <= self.flatten <= 1:
            raise InputError(f"flatten must be an exponent in [0, 1]; got {self.flatten}")
        if self.min_ess is not None and not self.min_ess > 0:
            raise InputError(f"min_ess must be a number or share of rows, > 0; got {self.min_ess}")

    def __call__(
        self,
        log_ratio: npt.ArrayLike | torch.Tensor,
        *,
        n_targets: int = 1,
        coverage: float | None = None,
    ) -> Weights:
        """Compute the weights of rows from their log ratios.

        Parameters
        ----------
        log_ratio : array (n,)
            log Σ_l p_l(x) − log p_source(x) at the rows of the source.
        n_targets : int
            Number of target distributions in the sum. The coverage is the mean over them. The mean
            ratio over the source cannot exceed it.
        coverage : float, optional
            Coverage of the target, if it is known. With pooling, pass the coverage by the rows of
            all clients together, and `n_targets` times the number of clients.

        Raises
        ------
        InputError
            If the log ratios are not valid, weights overflow or are all zero, or the ratios are far
            larger than density ratios can be. With ``normalise="mean one"`` the latter is only a
            warning, as log ratios may then lack a constant.

        Warns
        -----
        LargeMeanRatio
            If the mean ratio exceeds `n_targets` by more than sampling error (`log_evidence`).
        """
        s = _log_ratios(log_ratio)
        check_numbers(Weighting.__call__, locals())
        if not n_targets >= 1:
            raise InputError(
                f"n_targets must be the number of target distributions, at least 1; got {n_targets}"
            )
        n = len(s)
        top = float(s.max())
        if top == -math.inf:
            raise InputError(
                "log_ratio must be finite for at least one row; got −inf for all: no source row "
                "lies where the target has mass; check that source and target overlap"
            )
        ratios = s
        excess = top + math.log(np.exp(s - top).mean() / n_targets)  # E_source r, summed in logs
        if coverage is None:
            coverage = math.exp(min(0.0, excess))
        if self.normalise == "mean one" and self.clip is None:
            s = s - top  # normalising removes this common factor; without it nothing overflows
        exponent, w = self._flattened(s)
        cut = self._limit(w)
        n_clipped = int((w > cut).sum())
        w = np.minimum(w, cut)
        if not np.isfinite(w).all():
            raise InputError(
                f"weights must be finite; got a log ratio of {top:.4g}, whose ratio overflows; "
                "set clip=, flatten= or min_ess="
            )
        mean = float(w.mean())
        if mean == 0.0:
            raise InputError(
                f"weights must not all be zero; got log ratios of at most {top:.4g}, which "
                "underflow; check that source and target overlap"
            )
        if excess > math.log(SLACK):
            self._check_mean(ratios, n_targets, excess, mean)
        if self.normalise == "mean one":
            w = w / mean
        weights = Weights(
            w, effective_sample_size(w), coverage, exponent, n_clipped, self.normalise
        )
        _warn(weights, n)
        return weights

    def _check_mean(self, s: Float64Array, n_targets: int, excess: float, mean: float) -> None:
        """Warn or raise if the log mean ratio exceeds log `n_targets`, by `excess`, for no chance.

        `mean` is that of the weights.
        """
        evidence = log_evidence(s, SLACK * n_targets)
        if evidence <= -math.log(WARN):
            return
        text = (
            "log_ratio must be the log of a density ratio, whose mean over the source is at most "
            f"{n_targets}, the number of targets; got ratios of mean "
            f"{math.exp(min(excess, 600.0)) * n_targets:.3g}; pass np.log of a density ratio, or "
            "estimate the ratio with more rows or another estimator"
        )
        typical = np.minimum(s - math.log(n_targets), math.log(MEAN)).mean()
        far = typical > math.log(TYPICAL) or mean > MEAN * n_targets
        if far and self.normalise == "none" and evidence > -math.log(REFUSE):
            raise InputError(text)
        warnings.warn(text, LargeMeanRatio, stacklevel=3)

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
            # exponent 0 makes all weights one, also where the log ratio is −inf
            return exponent, np.exp(exponent * s) if exponent > 0 else np.ones_like(s)

    def _exponent_for(self, s: Float64Array, start: float, floor: float) -> float:
        """The largest exponent ≤ `start` whose weights reach the floor, limits included."""

        def ess(a: float) -> float:
            if a == 0:
                return float(len(s))
            # a common factor does not change the ESS, but moves the clip
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
    s = as_numbers(log_ratio, "log_ratio")
    if s.ndim != 1 or len(s) == 0:
        raise InputError(f"log_ratio must be one value per row, shape (n,), n ≥ 1; got {s.shape}")
    bad = np.isnan(s) | (s == np.inf)
    if bad.any():
        i = int(np.argmax(bad))
        raise InputError(
            f"log_ratio must be finite or −inf; got {s[i]} in row {i}; check that row's inputs"
        )
    return s


def _warn(weights: Weights, n: int) -> None:
    if n >= 10 and weights.ess < max(3.0, LOW_ESS * n):
        warnings.warn(
            f"effective sample size {weights.ess:.1f} of {n} rows; estimates with these weights "
            "are mostly noise; set min_ess=, flatten= or clip=, in a federation also pooling= (one "
            "target for all clients), or collect source rows that are similar to the target",
            LowEffectiveSampleSize,
            stacklevel=3,
        )
    if weights.coverage < LOW_COVERAGE:
        warnings.warn(
            f"source rows cover only {weights.coverage:.0%} of the target; the rest lies where "
            "the source has no rows, and weights cannot fix that; collect such rows",
            LowCoverage,
            stacklevel=3,
        )
    if weights.n_clipped > MANY_CLIPPED * n:
        warnings.warn(
            f"{weights.n_clipped} of {n} weights were clipped; the weighted sample no longer "
            "follows the target; raise clip= or winsorise=, or set flatten= instead",
            ClippedWeights,
            stacklevel=3,
        )
