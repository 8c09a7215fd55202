r"""The no-harm gate: is a weighted model better than the unweighted one, beyond noise?

Both models score the same held-out training rows, and their losses are compared row by row. Most of
the noise is common to the two losses of a row and cancels. For row i of client k, let d_i be the
loss of the weighted model minus that of the unweighted one, and v_i = λ_k w_i / n_k. Here w_i is
the row's weight, n_k the client's number of rows, and λ_k its coefficient in the objective. The
estimated difference D̂ of the weighted risks and its standard error se are

.. math:: D̂ = \frac{Σ v_i d_i}{Σ v_i}, \qquad
          se² = Σ_k \frac{n_k}{n_k − 1} \Big[ Σ_{i ∈ k} ψ_i² − \tfrac1{n_k} (Σ_{i ∈ k} ψ_i)² \Big],
          \qquad ψ_i = \frac{v_i (d_i − D̂)}{Σ v_i}

This is the delta method for a self-normalised mean. The rows of every client are random, and the
clients are fixed. Only six numbers leave a client: five sums and its part of the weighted risk of
the unweighted model.

*When the gate fails.* If the weights are wrong, the weighted comparison favours the model that was
trained with the same wrong weights. The gate guards against noise, not against this bias.
`fedshift.federation.shift_type` looks for the bias in the unlabelled rows.
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
from fedshift.learn.weighted_risk import WeightedRisk

#: values (n_k,) of every client
ByClient = Mapping[str, npt.ArrayLike]
#: numbers that leave a client for a difference: five sums and the baseline's risk
SUMS = 6


@dataclass(frozen=True, kw_only=True)
class GateRule:
    """Conditions on which the gate chooses a weighted model.

    The defaults were chosen by measurement. On tables with and without shift they refuse weights
    that harm and keep most weights that help (``benchmarks/no_harm.py``).

    Attributes
    ----------
    level : float
        Level of the two-sided interval of the difference, which must lie below 0.
    min_ess : float
        Effective sample size of held-out rows below which the weighted model is refused.
    """

    level: float = 0.8
    min_ess: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise InputError(f"GateRule: level must be in (0, 1); got {self.level}")
        if not self.min_ess >= 0:
            raise InputError(f"GateRule: min_ess must be at least 0; got {self.min_ess}")


@dataclass(frozen=True, eq=False)
class Difference:
    """Weighted risk of a candidate minus the baseline's, on the same held-out rows.

    Every difference of losses in fedshift has this sign: candidate minus reference, such as
    weighted minus unweighted model. A negative difference means that the candidate is better.

    Attributes
    ----------
    candidate, baseline : str
        Names of the two models.
    clients : mapping of client to WeightedRisk
        Sums of the differences, without clients whose rows all have weight 0.
    risk : float
        The baseline's weighted risk.
    level : float
        Level of the two-sided interval.
    """

    candidate: str
    baseline: str
    clients: Mapping[str, WeightedRisk]
    risk: float
    level: float = 0.9

    @property
    def value(self) -> float:
        """The difference D̂ of the weighted risks; if it is negative, the candidate is better."""
        return sum(c.vl for c in self.clients.values()) / self._total

    @property
    def error(self) -> float:
        """Standard error of `value`."""
        d, total, out = self.value, self._total, 0.0
        for c in self.clients.values():
            squares = (c.v2l2 - 2 * d * c.v2l + d * d * c.v2) / total**2
            mean = (c.vl - d * c.v) / total
            if c.n > 1:  # a single row has no spread
                squares = (squares - mean**2 / c.n) * c.n / (c.n - 1)
            out += max(0.0, squares)
        return math.sqrt(out)

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of `value` at `level`."""
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
        """Return all values, ready for JSON."""
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
    """The model that the gate chose, and the evidence.

    Attributes
    ----------
    choice : str
        Name of the chosen model: a candidate or the baseline.
    baseline : str
        Name of the baseline.
    differences : mapping of candidate to Difference
        Difference between each candidate and the baseline.
    reasons : mapping of candidate to str
        Why each candidate passed or was refused.
    rule : GateRule
        The rule that was applied.
    objection : str
        Why the diagnosis speaks against the chosen weights; empty if it does not.
    """

    choice: str
    baseline: str
    differences: Mapping[str, Difference]
    reasons: Mapping[str, str]
    rule: GateRule
    objection: str = ""

    @property
    def status(self) -> str:
        """The choice and its reasons in one sentence."""
        if self.choice != self.baseline:
            against = f" against the diagnosis ({self.objection})" if self.objection else ""
            return f"took {self.choice}{against}: {self.reasons[self.choice]}"
        if not self.reasons:
            return f"kept {self.baseline}: no weighted model was trained"
        text = "; ".join(f"{name}: {why}" for name, why in self.reasons.items())
        return f"kept {self.baseline}; {text}"

    def __repr__(self) -> str:
        return f"Gate({self.status})"

    def to_dict(self) -> dict[str, Any]:
        """Return the choice, reasons, differences and rule, ready for JSON."""
        return {
            "choice": self.choice,
            "baseline": self.baseline,
            "status": self.status,
            "objection": self.objection,
            "reasons": dict(self.reasons),
            "differences": [d.to_dict() for d in self.differences.values()],
            "rule": dataclasses.asdict(self.rule),
        }


def gate(
    losses: Mapping[str, ByClient],
    weights: Mapping[str, ByClient],
    *,
    baseline: str = "erm",
    refused: Mapping[str, str] | None = None,
    rule: GateRule | None = None,
) -> Gate:
    """Choose the candidate that passes with the largest gain, or the baseline if none passes.

    A candidate passes on two conditions. The whole interval of the difference, at `rule.level`, is
    below 0. The effective sample size is at least `rule.min_ess`.

    Parameters
    ----------
    losses : mapping of candidate to mapping of client to (n_k,)
        Held-out losses of all candidates and of the baseline.
    weights : mapping of candidate to mapping of client to (n_k,)
        Weights that each candidate is trained with, not normalised. The baseline needs none.
    refused : mapping of candidate to str, optional
        Candidates that were refused before, and the reasons. Their reasons are reported, and their
        losses are not compared.
    rule : GateRule, optional
        The conditions on which a candidate passes; by default ``GateRule()``.

    Examples
    --------
    >>> losses = {"erm": {"a": [1.0, 1.2, 0.8, 1.1]}, "ftw": {"a": [0.5, 0.6, 0.5, 0.5]}}
    >>> gate(losses, {"ftw": {"a": [1, 1, 2, 2]}}, rule=GateRule(min_ess=2)).choice
    'ftw'
    """
    rule = GateRule() if rule is None else rule
    if baseline not in losses:
        raise InputError(f"baseline must be {nearest(baseline, losses)}")
    differences, reasons, passed = {}, dict(refused or {}), []
    for name in (n for n in losses if n != baseline):
        if name not in weights:
            raise InputError(f"weights must hold candidate {name!r}; got {list(weights)}")
        d = difference(losses[name], losses[baseline], weights[name])
        d = replace(d, candidate=name, baseline=baseline, level=rule.level)
        differences[name], (good, reasons[name]) = d, _judge(d, rule)
        if good:
            passed.append(d)
    best = min(passed, key=lambda d: d.value, default=None)
    return Gate(baseline if best is None else best.candidate, baseline, differences, reasons, rule)


def difference(candidate: ByClient, baseline: ByClient, weight: ByClient) -> Difference:
    """Return the difference of weighted risks on the same rows, candidate minus baseline."""
    clients, mass, risk = {}, 0.0, 0.0
    for name in sorted(weight):  # sums must not depend on the order of clients
        a, b, w = (_read(part, name) for part in (candidate, baseline, weight))
        if not len(a) == len(b) == len(w):
            raise InputError(
                f"client {name!r}: losses and weights must have one value per row; got {len(a)}, "
                f"{len(b)} and {len(w)} values"
            )
        if (w < 0).any():
            raise InputError(f"client {name!r}: weights must be at least 0; got {w.min():g}")
        v = w / max(len(w), 1)
        if v.sum() > 0:
            clients[name] = _sums(v, a - b)
            mass, risk = mass + float(v.sum()), risk + float(v @ b)
    if not clients:
        raise InputError(
            "some held-out row must have a weight above 0; got 0 for every row; check the ratios"
        )
    return Difference("candidate", "baseline", clients, risk / mass)


def _sums(v: Float64Array, d: Float64Array) -> WeightedRisk:
    """Weighted sums of differences `d`, treated as losses."""
    s = v * v
    v1, v2, vd, v2d, v2d2 = (float(p.sum()) for p in (v, s, v * d, s * d, s * d * d))
    return WeightedRisk(len(v), v1, v2, vd, v2d, v2d2, math.nan, math.nan)


def _read(values: ByClient, name: str) -> Float64Array:
    if name not in values:
        raise InputError(f"every client with weights must have losses; client {name!r} has none")
    a = np.asarray(values[name], dtype=np.float64)
    if a.ndim != 1 or not np.isfinite(a).all():
        raise InputError(
            f"client {name!r}: losses and weights must be finite numbers, one per row; got shape "
            f"{a.shape}{'' if np.isfinite(a).all() else ' with NaN or inf'}"
        )
    return a


def _judge(d: Difference, rule: GateRule) -> tuple[bool, str]:
    """Whether a candidate passes, and the reason."""
    half = d.interval[1] - d.value
    text = f"weights would change the held-out risk of {d.risk:.3g} by {d.value:+.3g} ± {half:.2g}"
    if d.ess < rule.min_ess:
        return False, f"effective sample size {d.ess:.1f} of held-out rows, below {rule.min_ess:g}"
    if d.interval[1] >= 0:
        return False, text if d.value >= 0 else f"{text}: harm cannot be ruled out"
    return True, f"it changes the held-out risk of {d.risk:.3g} by {d.value:+.3g} ± {half:.2g}"
