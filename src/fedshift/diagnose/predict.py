"""Will weighting help? A quick model trained with and without weights, judged on held-out rows.

Both models see the training rows of all sites, each site counting the same. The risk on a site's
test law is estimated by that site's held-out training rows, weighted by its ratio, so no test
label is used. It is a forecast for a linear model and the site's own test law; a network that fits
every row gains less. The decision itself belongs to the no-harm gate, which trains the real model.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from fedshift.core.samples import Float64Array, FloatArray
from fedshift.core.weights import effective_sample_size
from fedshift.diagnose.encode import encode
from fedshift.diagnose.held_out import FOLDS, SHARED, IntArray, Z, folds_of

#: nats of log loss that do not matter
MARGIN = 0.005
#: effective rows below which nothing is forecast
FEWEST_EFFECTIVE = 20.0
#: rows of a class below which it is left out
RARE = 10

Verdict = Literal["helps", "does not matter", "hurts", "cannot tell"]


@dataclass(frozen=True, kw_only=True)
class PredictedEffect:
    """What weights are expected to gain on a test law.

    Attributes
    ----------
    gain, low, high : float
        Log loss (nats a row) without weights minus with weights, with a 95 % interval; positive
        is good.
    accuracy : float
        Gain in accuracy, without interval.
    ess : float
        Effective rows behind the figures.
    reason : str
        Why nothing can be told, if so.
    """

    gain: float = math.nan
    low: float = math.nan
    high: float = math.nan
    accuracy: float = math.nan
    ess: float = math.nan
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        """In words: the interval lies above 0, within ± `MARGIN`, below 0, or none of these."""
        if self.reason or math.isnan(self.gain):
            return "cannot tell"
        if self.low >= -MARGIN and self.high <= MARGIN:
            return "does not matter"
        if self.low > 0:
            return "helps"
        return "hurts" if self.high < 0 else "cannot tell"

    def __repr__(self) -> str:
        if math.isnan(self.gain):
            return f"PredictedEffect(cannot tell; {self.reason})"
        return (
            f"PredictedEffect({self.verdict}: log loss lower by {self.gain:.4f} "
            f"[{self.low:.4f}, {self.high:.4f}], accuracy {self.accuracy:+.3f})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        figures = {k: getattr(self, k) for k in ("gain", "low", "high", "accuracy", "ess")}
        known = {k: None if math.isnan(v) else v for k, v in figures.items()}
        return {"verdict": self.verdict, **known, "reason": self.reason}


#: nothing moved, so weights are one
NOTHING = PredictedEffect(gain=0.0, low=0.0, high=0.0, accuracy=0.0)


@dataclass(frozen=True, eq=False)
class Weighted:
    """Training rows of one site with classes and, where a ratio is known, weights."""

    x: FloatArray
    y: IntArray
    weight: Float64Array | None


def predicted_effect(
    sites: Sequence[Weighted], *, seed: int = 0
) -> tuple[PredictedEffect, list[PredictedEffect]]:
    """Effect over all sites with a ratio, each counting the same, and on every site."""
    if all(s.weight is None for s in sites):
        none = PredictedEffect(reason="no site's ratio could be estimated")
        return none, [none] * len(sites)
    y = np.concatenate([s.y for s in sites])
    kept = np.flatnonzero(np.bincount(y)[y] >= RARE)
    if len(np.unique(y[kept])) < 2:
        none = PredictedEffect(reason="training rows have one class only")
        return none, [none] * len(sites)
    site = np.repeat(np.arange(len(sites)), [len(s.y) for s in sites])
    known = np.concatenate([np.ones(len(s.y)) if s.weight is None else s.weight for s in sites])
    z = encode(np.concatenate([s.x for s in sites]), seed=seed).z
    gain, right = _differences(z[kept], y[kept], site[kept], known[kept], len(sites), seed=seed)
    parts = [
        PredictedEffect(reason="no ratio could be estimated here")
        if s.weight is None
        else _weighted_mean(*(v[site[kept] == k] for v in (gain, right, known[kept])))
        for k, s in enumerate(sites)
    ]
    return _overall(parts), parts


def _differences(
    z: Float64Array, y: IntArray, site: IntArray, weight: Float64Array, n: int, *, seed: int
) -> tuple[Float64Array, Float64Array]:
    """Loss without weights minus with weights, and likewise hits, at every held-out row."""
    fold = folds_of(site * (int(y.max()) + 1) + y, seed=seed)
    count = np.bincount(site, minlength=n)[site]
    plain = len(y) / (n * count)  # every site counts the same
    losses, hits = [], []
    for w in (plain, plain * weight):
        p = np.empty((len(y), int(y.max()) + 1))
        for j in range(FOLDS):
            p[fold == j] = _fitted(z, y, w, fold != j, fold == j)
        losses.append(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-4)))
        hits.append((p.argmax(axis=1) == y).astype(np.float64))
    return losses[0] - losses[1], hits[1] - hits[0]


def _fitted(
    z: Float64Array, y: IntArray, weight: Float64Array, kept: Any, held: Any
) -> Float64Array:
    out = np.zeros((int(held.sum()), int(y.max()) + 1))
    if len(np.unique(y[kept])) < 2:
        out[:, y[kept][0]] = 1.0
        return out
    with warnings.catch_warnings():
        # weights on a handful of rows make a model that is never done, and is judged as it is
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(max_iter=300).fit(z[kept], y[kept], sample_weight=weight[kept])
    out[:, model.classes_] = model.predict_proba(z[held])
    return out


def _weighted_mean(
    gain: Float64Array, right: Float64Array, weight: Float64Array
) -> PredictedEffect:
    ess, total = effective_sample_size(weight), float(weight.sum())
    if ess < FEWEST_EFFECTIVE or total <= 0:
        return PredictedEffect(ess=ess, reason=f"{ess:.0f} effective rows are too few to forecast")
    mean = float(weight @ gain) / total
    error = math.sqrt(float(np.square(weight) @ np.square(gain - mean))) / total
    half = Z * SHARED * error
    return PredictedEffect(
        gain=mean,
        low=mean - half,
        high=mean + half,
        accuracy=float(weight @ right) / total,
        ess=ess,
    )


def _overall(parts: Sequence[PredictedEffect]) -> PredictedEffect:
    """The mean over the sites that have figures; their rows are independent."""
    told = [p for p in parts if not math.isnan(p.gain)]
    if not told:
        return PredictedEffect(reason="too few effective rows at every site")
    mean = float(np.mean([p.gain for p in told]))
    half = math.sqrt(sum((p.high - p.gain) ** 2 for p in told)) / len(told)
    return PredictedEffect(
        gain=mean,
        low=mean - half,
        high=mean + half,
        accuracy=float(np.mean([p.accuracy for p in told])),
        ess=sum(p.ess for p in told),
    )
