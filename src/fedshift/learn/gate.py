r"""The no-harm gate: is a weighted model better than the unweighted one, beyond noise?

Both models judge the same held-out training rows, so what is compared is the difference of their
losses row by row: most of the noise is common to both and cancels. With d_i that difference and
v_i = λ_k w_i / n_k for row i of client k,

.. math:: D̂ = \frac{Σ v_i d_i}{Σ v_i}, \qquad
          se² = Σ_k \frac{n_k}{n_k − 1} \Big[ Σ_{i ∈ k} ψ_i² − \tfrac1{n_k} (Σ_{i ∈ k} ψ_i)² \Big],
          \qquad ψ_i = \frac{v_i (d_i − D̂)}{Σ v_i}

(the delta method for a self-normalised mean; rows are drawn anew within every client, the clients
stay). Six numbers leave a client.

When it fails: weights that point at the wrong law judge by the wrong law, and approve of a model
trained with the same mistake. The gate sees noise, not that bias; `fedshift.federation.explain`
looks for it in the unlabelled rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedshift.core.params import nearest
from fedshift.core.samples import Float64Array
from fedshift.errors import InputError
from fedshift.learn.validate import WeightedRisk

#: values (n_k,) of every client
ByClient = Mapping[str, npt.ArrayLike]
#: numbers that leave a client for a difference: five sums and the baseline's risk
SUMS = 6


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When a weighted model is taken.

    The defaults were chosen by measurement: on tables with and without shift they refuse what
    harms and keep most of what gains (``benchmarks/no_harm.py``).

    Attributes
    ----------
    level : float
        Of the two-sided interval of the difference.
    gain : float
        Standard errors by which it must be better.
    margin : float
        Harm that the interval may reach, as a share of the baseline's weighted risk.
    min_ess : float
        Effective held-out rows below which nothing can be told.
    """

    level: float = 0.8
    gain: float = 0.5
    margin: float = 0.25
    min_ess: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise InputError(f"Rule: level must be in (0, 1); got {self.level}")
        for name in ("gain", "margin", "min_ess"):
            if not getattr(self, name) >= 0:
                raise InputError(f"Rule: {name} must be at least 0; got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class Difference:
    """Weighted risk of a candidate minus the baseline's, on the same held-out rows.

    Attributes
    ----------
    candidate, baseline : str
    clients : mapping of client to WeightedRisk
        Sums of the differences; clients without a row that counts are left out.
    risk : float
        The baseline's weighted risk.
    level : float
    """

    candidate: str
    baseline: str
    clients: Mapping[str, WeightedRisk]
    risk: float
    level: float = 0.9

    @property
    def value(self) -> float:
        """D̂: below 0 the candidate is better."""
        return sum(c.vl for c in self.clients.values()) / self._total

    @property
    def error(self) -> float:
        """Standard error of `value`."""
        d, total, out = self.value, self._total, 0.0
        for c in self.clients.values():
            squares = (c.v2l2 - 2 * d * c.v2l + d * d * c.v2) / total**2
            mean = (c.vl - d * c.v) / total
            if c.n > 1:  # a single row says nothing of its client's spread
                squares = (squares - mean**2 / c.n) * c.n / (c.n - 1)
            out += max(0.0, squares)
        return math.sqrt(out)

    @property
    def interval(self) -> tuple[float, float]:
        """Of `value`, at `level`."""
        half = float(stats.norm.ppf((1 + self.level) / 2)) * self.error
        return self.value - half, self.value + half

    @property
    def ess(self) -> float:
        """Effective number of held-out rows, (Σv)² / Σv²."""
        return self._total**2 / sum(c.v2 for c in self.clients.values())

    @property
    def _total(self) -> float:
        return sum(c.v for c in self.clients.values())

    def __repr__(self) -> str:
        return (
            f"Difference({self.candidate} − {self.baseline}: {self.value:+.3g} ± "
            f"{self.error:.2g} of {self.risk:.3g}, ESS {self.ess:.4g})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Figures, ready for JSON."""
        low, high = self.interval
        return {
            "candidate": self.candidate,
            "value": self.value,
            "error": self.error,
            "low": low,
            "high": high,
            "risk": self.risk,
            "ess": self.ess,
            "clients": {
                name: {"value": c.loss, "ess": c.ess, "n": c.n} for name, c in self.clients.items()
            },
        }


@dataclass(frozen=True, eq=False)
class Gate:
    """Which model was taken, and why.

    Attributes
    ----------
    choice : str
        A candidate, or the baseline.
    baseline : str
    differences : mapping of candidate to Difference
    reasons : mapping of candidate to str
        Why each was taken or not.
    rule : Rule
    """

    choice: str
    baseline: str
    differences: Mapping[str, Difference]
    reasons: Mapping[str, str]
    rule: Rule

    @property
    def status(self) -> str:
        """One sentence."""
        if self.choice != self.baseline:
            return f"took {self.choice}: {self.reasons[self.choice]}"
        if not self.reasons:
            return f"kept {self.baseline}: nothing was weighed against it"
        said = "; ".join(f"{name}: {why}" for name, why in self.reasons.items())
        return f"kept {self.baseline}; {said}"

    def __repr__(self) -> str:
        return f"Gate({self.status})"

    def to_dict(self) -> dict[str, Any]:
        """The evidence, ready for JSON."""
        return {
            "choice": self.choice,
            "baseline": self.baseline,
            "status": self.status,
            "reasons": dict(self.reasons),
            "differences": [d.to_dict() for d in self.differences.values()],
            "rule": dataclasses.asdict(self.rule),
        }


def gate(
    losses: Mapping[str, ByClient],
    weights: Mapping[str, ByClient],
    *,
    baseline: str = "erm",
    shares: Mapping[str, float] | None = None,
    refused: Mapping[str, str] | None = None,
    rule: Rule | None = None,
) -> Gate:
    """Take the candidate that gains most, if its gain is no accident; else the baseline.

    A candidate passes if its weighted held-out risk is below the baseline's by the rule's `gain`,
    the interval of the difference stays below its `margin` for harm, and enough rows count.

    Parameters
    ----------
    losses : mapping of candidate to mapping of client to (n_k,)
        Held-out losses, the baseline's among them.
    weights : mapping of candidate to mapping of client to (n_k,)
        Of the law each candidate is trained for, not normalised. The baseline needs none.
    shares : mapping of client to λ_k, optional
    refused : mapping of candidate to str, optional
        Candidates that were ruled out before, and why; they are reported, not compared.
    rule : Rule, optional

    Examples
    --------
    >>> held = {"erm": {"a": [1.0, 1.2, 0.8, 1.1]}, "ftw": {"a": [0.5, 0.6, 0.5, 0.5]}}
    >>> gate(held, {"ftw": {"a": [1, 1, 2, 2]}}, rule=Rule(min_ess=2)).choice
    'ftw'
    """
    rule = Rule() if rule is None else rule
    if baseline not in losses:
        raise InputError(f"baseline must be {nearest(baseline, losses)}")
    found, reasons, passed = {}, dict(refused or {}), []
    for name in losses:
        if name == baseline:
            continue
        if name not in weights:
            raise InputError(f"weights must hold those of candidate {name!r}; got {list(weights)}")
        d = difference(losses[name], losses[baseline], weights[name], shares=shares)
        d = replace(d, candidate=name, baseline=baseline, level=rule.level)
        found[name], (good, reasons[name]) = d, _judge(d, rule)
        if good:
            passed.append(d)
    best = min(passed, key=lambda d: d.value, default=None)
    return Gate(baseline if best is None else best.candidate, baseline, found, reasons, rule)


def difference(
    candidate: ByClient,
    baseline: ByClient,
    weight: ByClient,
    *,
    shares: Mapping[str, float] | None = None,
    level: float = 0.9,
) -> Difference:
    """The paired difference of two models' weighted risks, from losses of the same rows."""
    clients, mass, risk = {}, 0.0, 0.0
    for name in sorted(weight):  # sums must not depend on the order of clients
        share = 1.0 if shares is None else float(shares.get(name, 1.0))
        a, b, w = (_read(part, name) for part in (candidate, baseline, weight))
        if not len(a) == len(b) == len(w):
            raise InputError(
                f"client {name!r}: losses and weights must be of the same rows; got {len(a)}, "
                f"{len(b)} and {len(w)}"
            )
        if (w < 0).any() or share < 0:
            raise InputError(f"client {name!r}: weights must be at least 0; got less")
        v = w * (share / max(len(w), 1))
        if v.sum() > 0:
            clients[name] = _sums(v, a - b)
            mass, risk = mass + float(v.sum()), risk + float(v @ b)
    if not clients:
        raise InputError("some held-out row must count; got a weight of 0 for every one")
    return Difference("candidate", "baseline", clients, risk / mass, level)


def _sums(v: Float64Array, d: Float64Array) -> WeightedRisk:
    """A difference of losses is a loss."""
    s = v * v
    v1, v2, vd, v2d, v2d2 = (float(p.sum()) for p in (v, s, v * d, s * d, s * d * d))
    return WeightedRisk(len(v), v1, v2, vd, v2d, v2d2, math.nan, math.nan)


def _read(values: ByClient, name: str) -> Float64Array:
    if name not in values:
        raise InputError(f"losses must be given for every client with weights; none for {name!r}")
    a = np.asarray(values[name], dtype=np.float64)
    if a.ndim != 1 or not np.isfinite(a).all():
        raise InputError(
            f"client {name!r}: losses and weights must be finite numbers, one a row; got shape "
            f"{a.shape}{'' if np.isfinite(a).all() else ' with NaN or inf'}"
        )
    return a


def _judge(d: Difference, rule: Rule) -> tuple[bool, str]:
    """Whether a candidate passes, and the sentence."""
    half = d.interval[1] - d.value
    said = f"weighting would change the risk {d.risk:.3g} by {d.value:+.3g} ± {half:.2g}"
    if d.ess < rule.min_ess:
        return False, f"only {d.ess:.1f} held-out rows count, too few to tell"
    if d.value >= 0 or -d.value < rule.gain * d.error:
        return False, said
    if d.interval[1] > rule.margin * d.risk:
        return False, f"{said}, which may be harm"
    return True, f"it changes the risk {d.risk:.3g} by {d.value:+.3g} ± {half:.2g}"
