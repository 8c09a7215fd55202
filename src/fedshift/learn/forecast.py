r"""Forecast a model's performance at each site from unlabelled deployment rows.

*Accuracy.* The model is calibrated on its scores of held-out training rows
(`fedshift.core.scaling.bcts`). The forecast is the mean calibrated probability of a correct
prediction over the site's unlabelled rows. Under label shift, the calibrated probabilities
p̄(y | x) are adjusted to the label distribution q_l of site l:
p_l(y | x) ∝ p̄(y | x) q_l(y) / p̄(y), where p̄(y) is the label distribution of the training rows of
all sites. Under covariate shift, the held-out rows are weighted, because the model must be
calibrated on the deployment distribution. The interval for m unlabelled rows comes from a
beta-binomial distribution. Its precision is the effective sample size of the held-out rows.

*Squared error.* The forecast is the weighted mean error on held-out training rows. Its interval
comes from the delta method.

*When a forecast fails.* If p(y | x) differs in deployment, the forecast is wrong, and unlabelled
rows cannot show it. If a site has rows unlike all training rows, its forecast carries a doubt.
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

from fedshift.core.by_name import ByName
from fedshift.core.samples import Float64Array
from fedshift.core.scaling import bcts
from fedshift.core.score_text import plain_text, share_text
from fedshift.core.weights import effective_sample_size

#: with a smaller effective sample size of held-out rows, a forecast is unreliable
FEW = 10.0
#: prior standard deviation of the calibration's log temperature
SPREAD = 0.5


@dataclass(frozen=True, kw_only=True)
class SiteForecast:
    """The forecast for one site.

    Attributes
    ----------
    client : str
    n : int
        Number of unlabelled rows.
    value : float
        Forecast accuracy or mse.
    low, high : float
        95 % interval of the accuracy or mse on these rows.
    loss : float
        Mean cross entropy, or half the mse.
    ess : float
        Effective sample size of the held-out training rows.
    doubt : str
        Why the forecast is unreliable; empty if it is reliable.
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
    def reliable(self) -> bool:
        """Whether there is no doubt about the forecast."""
        return not self.doubt


@dataclass(frozen=True, repr=False)
class Forecast(ByName[SiteForecast]):
    """The forecasts for all sites.

    Attributes
    ----------
    rows : tuple of SiteForecast
        One forecast for each site.
    figure : {"accuracy", "mse"}
        The score that is forecast.
    rounds : int
        Number of gradients that were computed to calibrate the model.
    """

    _entries, _key = "rows", "client"

    rows: tuple[SiteForecast, ...]
    figure: str = "accuracy"
    rounds: int = 0

    @property
    def status(self) -> str:
        """The mean forecast and the worst site in one line, then the sites without a forecast."""
        show = share_text if self.figure == "accuracy" else plain_text
        known = [r for r in self.rows if r.reliable]
        doubts = "; ".join(f"{r.client}: no forecast, {r.doubt}" for r in self.rows if r.doubt)
        if not known:
            return doubts
        mean = show(float(np.mean([r.value for r in known])))
        worst = (min if self.figure == "accuracy" else max)(known, key=lambda r: r.value)
        text = (
            f"forecast mean {self.figure} {mean}, worst {show(worst.value)} "
            f"[{show(worst.low)}, {show(worst.high)}] at {worst.client}"
        )
        return f"{text}; {doubts}" if doubts else text

    def __repr__(self) -> str:
        return f"Forecast({self.status})"

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dict per site, ready for JSON."""
        return [dataclasses.asdict(r) for r in self.rows]


def forecast_accuracy(
    held_out: Mapping[str, Float64Array],
    labels: Mapping[str, npt.NDArray[np.int64]],
    scores: Mapping[str, Float64Array],
    *,
    weights: Mapping[str, Float64Array] | None = None,
    lift: Mapping[str, Float64Array] | None = None,
    doubts: Mapping[str, str] | None = None,
) -> Forecast:
    """Forecast a model's accuracy at every site from its calibrated confidence on the site's rows.

    Parameters
    ----------
    held_out : mapping of client to (n_k, C)
        Scores of training rows by models that were fitted without these rows.
    labels : mapping of client to (n_k,)
        Labels of these rows.
    scores : mapping of client to (m_l, C)
        Scores of the unlabelled rows.
    weights : mapping of client to (n_k,), optional
        Under covariate shift, weights with which the training rows represent the deployment
        distributions of the sites.
    lift : mapping of client to (C,), optional
        Under label shift, the ratio q_l(y) / p̄(y) for every site l. q_l is the label distribution
        of the site's deployment rows, and p̄ that of the training rows of all sites.
    doubts : mapping of client to str, optional
        Reasons why a site's forecast is unreliable.

    Returns
    -------
    Forecast
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


def forecast_error(
    squares: Mapping[str, Float64Array],
    sizes: Mapping[str, int],
    *,
    weights: Mapping[str, Float64Array] | None = None,
    doubts: Mapping[str, str] | None = None,
) -> Forecast:
    """Forecast the mean squared error, the same for all sites, from weighted held-out errors.

    Parameters
    ----------
    squares : mapping of client to (n_k,)
        Squared errors on training rows, of predictions by models fitted without these rows.
    sizes : mapping of client to int
        Number of unlabelled rows of every site.
    weights : mapping of client to (n_k,), optional
        Weights with which the training rows represent the deployment distributions of the sites.
    doubts : mapping of client to str, optional
        Reasons why a site's forecast is unreliable.

    Returns
    -------
    Forecast
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
    return "" if ess >= FEW else f"effective sample size of held-out rows {ess:.1f} < {FEW:g}"


def _counted(share: float, ess: float, m: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a share among m rows: beta-binomial with mean `share` and precision `ess`."""
    distribution = stats.betabinom(m, share * ess + 0.5, (1 - share) * ess + 0.5)
    low, high = distribution.ppf([(1 - level) / 2, (1 + level) / 2]) / m
    return min(float(low), share), max(float(high), share)
