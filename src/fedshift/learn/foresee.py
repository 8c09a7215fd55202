r"""How well a model will do at each site, before a single test label is known.

Accuracy: the model's held-out scores are calibrated (`fedshift.core.scaling.bcts`), and the mean
calibrated chance that it is right is taken over the site's own unlabelled rows. Where labels
shifted, chances are moved to the site's label law first, p_l(y | x) ∝ p̄(y | x) q_l(y) / p̄(y);
where inputs did, the held-out rows are weighted, as a model that is wrong somewhere must be
calibrated where it is used.
Of m rows so many will be right as a beta-binomial law says that knows as much as the effective
held-out rows do.

Numbers: the weighted held-out squared error, with the delta method's interval.

When it fails: if p(y | x) itself is another one in use, nothing that reads inputs alone can know.
That the rows look like nothing in training is told; that their labels mean something else is not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import log_softmax, softmax

from fedshift.core.samples import Float64Array
from fedshift.core.scaling import bcts
from fedshift.core.weights import effective_sample_size
from fedshift.errors import InputError
from fedshift.learn.evaluate import plain_text, share_text

#: effective held-out rows below which a forecast is no more than a guess
FEW = 10.0
#: standard deviation of the belief about the log temperature of the calibration
SPREAD = 0.5


@dataclass(frozen=True, kw_only=True)
class SiteForecast:
    """What to expect at one site.

    Attributes
    ----------
    client : str
    n : int
        Unlabelled rows.
    value : float
        Accuracy or mse.
    low, high : float
        95 % interval of the figure on these very rows.
    loss : float
        Mean cross entropy, or half the mse.
    ess : float
        Effective held-out training rows it rests on.
    doubt : str
        Why it cannot be told; empty if it can.
    """

    client: str
    n: int
    value: float
    low: float
    high: float
    loss: float
    ess: float
    doubt: str = ""

    @property
    def told(self) -> bool:
        """Whether the rows allow a forecast."""
        return not self.doubt


@dataclass(frozen=True, repr=False)
class Forecast:
    """Forecasts of all sites.

    Attributes
    ----------
    rows : tuple of SiteForecast
    figure : {"accuracy", "mse"}
    rounds : int
        Gradients that calibrating took.
    """

    rows: tuple[SiteForecast, ...]
    figure: str = "accuracy"
    rounds: int = 0

    @property
    def status(self) -> str:
        """One sentence."""
        show = share_text if self.figure == "accuracy" else plain_text
        known = [r for r in self.rows if r.told]
        doubts = "; ".join(f"{r.client}: cannot be told, {r.doubt}" for r in self.rows if r.doubt)
        if not known:
            return doubts
        mean = show(float(np.mean([r.value for r in known])))
        worst = (min if self.figure == "accuracy" else max)(known, key=lambda r: r.value)
        said = (
            f"foreseen mean {self.figure} {mean}, worst {show(worst.value)} "
            f"[{show(worst.low)}, {show(worst.high)}] at {worst.client}"
        )
        return f"{said}; {doubts}" if doubts else said

    def __repr__(self) -> str:
        return f"Forecast({self.status})"

    def __getitem__(self, client: str) -> SiteForecast:
        """A site's forecast."""
        for row in self.rows:
            if row.client == client:
                return row
        raise InputError(f"no site {client!r}; there are {[r.client for r in self.rows]}")

    def to_records(self) -> list[dict[str, Any]]:
        """One dict a site, ready for JSON."""
        return [dataclasses.asdict(r) for r in self.rows]


def foresee_accuracy(
    held_out: Mapping[str, Float64Array],
    labels: Mapping[str, npt.NDArray[np.int64]],
    scores: Mapping[str, Float64Array],
    *,
    weights: Mapping[str, Float64Array] | None = None,
    lift: Mapping[str, Float64Array] | None = None,
    doubts: Mapping[str, str] | None = None,
) -> Forecast:
    """Accuracy of a model at every site, from its calibrated confidence on the site's rows.

    Parameters
    ----------
    held_out : mapping of client to (n_k, C)
        Scores of training rows by models that have not seen them.
    labels : mapping of client to (n_k,)
    scores : mapping of client to (m_l, C)
        Of the unlabelled rows.
    weights : mapping of client to (n_k,), optional
        Of the training rows; where inputs shifted, towards the laws met in use.
    lift : mapping of client to (C,), optional
        q_l(y) / p̄(y) of every site, where labels shifted.
    doubts : mapping of client to str, optional
        What else speaks against a forecast.
    """
    names = sorted(held_out)
    known = np.concatenate([held_out[n] for n in names])
    y = np.concatenate([labels[n] for n in names])
    w = {n: np.ones(len(labels[n])) for n in names} if weights is None else weights
    v = np.concatenate([w[n] / len(labels[n]) for n in names])
    calibration = bcts(softmax(known, axis=1), y, weight=v / v.sum(), spread=SPREAD)
    rows = []
    for name, own in scores.items():
        up = np.ones(known.shape[1]) if lift is None else lift[name]
        chance = calibration(softmax(own, axis=1)) * up
        chance = chance / chance.sum(axis=1, keepdims=True)
        m, ess = len(own), effective_sample_size(v * up[y])
        right = float(chance[np.arange(m), own.argmax(axis=1)].mean())
        low, high = _counted(right, ess, m)
        loss = float(-(chance * log_softmax(own, axis=1)).sum(axis=1).mean())
        doubt = (doubts or {}).get(name, "") or _few(ess)
        rows.append(
            SiteForecast(
                client=name, n=m, value=right, low=low, high=high, loss=loss, ess=ess, doubt=doubt
            )
        )
    return Forecast(tuple(rows), rounds=calibration.rounds)


def foresee_error(
    squares: Mapping[str, Float64Array],
    sizes: Mapping[str, int],
    *,
    weights: Mapping[str, Float64Array] | None = None,
    doubts: Mapping[str, str] | None = None,
) -> Forecast:
    """Mean squared error, the same for all sites: weighted held-out errors of training rows.

    Parameters
    ----------
    squares : mapping of client to (n_k,)
        Squared held-out errors.
    sizes : mapping of client to int
        Unlabelled rows of every site.
    weights : mapping of client to (n_k,), optional
        Towards the laws met in use.
    """
    names = sorted(squares)
    e = np.concatenate([squares[n] for n in names])
    w = {n: np.ones(len(squares[n])) for n in names} if weights is None else weights
    v = np.concatenate([w[n] / len(squares[n]) for n in names])
    v = v / v.sum()
    mean, ess = float(v @ e), effective_sample_size(v)
    spread, known = float(v @ np.square(e - mean)), float(np.square(v * (e - mean)).sum())
    rows = []
    for name, m in sizes.items():
        half = 1.96 * math.sqrt(known + spread / m)
        rows.append(
            SiteForecast(
                client=name,
                n=m,
                value=mean,
                low=max(0.0, mean - half),
                high=mean + half,
                loss=mean / 2,
                ess=ess,
                doubt=(doubts or {}).get(name, "") or _few(ess),
            )
        )
    return Forecast(tuple(rows), "mse")


def _few(ess: float) -> str:
    return "" if ess >= FEW else f"only {ess:.1f} held-out rows count"


def _counted(share: float, ess: float, m: int, level: float = 0.95) -> tuple[float, float]:
    """Shares of m rows that a beta-binomial law of mean `share` and `ess` known rows allows."""
    law = stats.betabinom(m, share * ess + 0.5, (1 - share) * ess + 0.5)
    low, high = law.ppf([(1 - level) / 2, (1 + level) / 2]) / m
    return min(float(low), share), max(float(high), share)
