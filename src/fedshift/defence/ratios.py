"""Limits on ratios and weights when a test distribution in the numerator may be false."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedshift.core.params import positive, whole
from fedshift.core.samples import Float64Array
from fedshift.core.weights import Weighting
from fedshift.errors import InputError

#: a median mean weight below this is raised to it
_LEAST_MEAN = 1e-6


@dataclass(frozen=True, kw_only=True)
class RatioDefence:
    r"""Limits on the effect of one test distribution on the weights of a client's rows.

    A row x of client k has weight Σ_l r_lk(x), with r_lk = p_l^te / p_k^tr: the test distribution
    of client l over the training distribution of client k. A client that sends a false test
    distribution can aim it at a single row. If that row then has a share α of the total weight, the
    effective sample size is at most 1 / α², regardless of the number of rows n. Four limits apply
    in this order:

    1. The largest ratio of a distribution is at most `multiple` times the lower median of the
       distributions' largest ratios. If this median is below 1 (most distributions have little mass
       on the client's rows), the limit is `multiple` itself. Without this exception, true ratios
       would be cut if only one honest client had deployment rows similar to this client's rows.
    2. The mean ratio of a distribution over the client's rows is at most `mass`. For the true
       ratios, this mean is at most 1 in expectation: E_k r_lk ≤ 1, with E_k the expectation
       under p_k^tr.
    3. Weights above a quantile (`winsorise`) are reduced to it, by default those of one row in a
       thousand.
    4. Ratios are flattened, as little as possible, until the effective sample size is at least
       max(`min_ess` n, `min_rows`).

    A fifth limit applies to the weight of a whole client in FedAvg: its mean weight is at most
    `boast` times the lower median over clients (`defend_normalisers`).

    Attributes
    ----------
    multiple : float or None
        Largest ratio, as a multiple of the lower median (limit 1); None sets no limit.
    mass : float or None
        Largest mean ratio (limit 2); None sets no limit.
    boast : float or None
        Largest mean weight, as a multiple of the lower median over clients. With None, mean weights
        are only limited to `mass` times the number of distributions.
    winsorise : float or None
        Quantile in (0, 1] (limit 3); None sets no limit.
    min_ess : float or None
        Smallest effective sample size, as a share of the rows (limit 4); None sets no limit.
    min_rows : int
        Limit 4 is at least this many rows, or all rows if there are fewer.

    Examples
    --------
    >>> RatioDefence().floor(6000)
    60.0
    """

    multiple: float | None = 10.0
    mass: float | None = 2.0
    boast: float | None = 1.5
    winsorise: float | None = 0.999
    min_ess: float | None = 0.01
    min_rows: int = 10

    def __post_init__(self) -> None:
        for name in ("multiple", "mass", "boast", "winsorise", "min_ess"):
            if getattr(self, name) is not None:
                value = positive(self, name)
                if value < 1 and name == "boast":
                    raise InputError(f"RatioDefence: boast must be at least 1; got {value!r}")
                if value > 1 and name in ("winsorise", "min_ess"):
                    raise InputError(f"RatioDefence: {name} must be in (0, 1]; got {value!r}")
        whole(self, "min_rows")

    def floor(self, n: int) -> float:
        """Return the smallest effective sample size that is allowed for n rows."""
        return 0.0 if self.min_ess is None else min(float(n), max(self.min_ess * n, self.min_rows))

    def weighting(self, n: int, weighting: Weighting | None = None) -> Weighting:
        """Add limits 3 and 4 to a weighting of n rows, unless it has such limits already."""
        weighting, floor = weighting or Weighting(), self.floor(n)
        return replace(
            weighting,
            winsorise=weighting.winsorise or self.winsorise,
            min_ess=weighting.min_ess or (floor / n if floor else None),
        )


class RatioReport(NamedTuple):
    """Changes to the distributions in a numerator.

    Attributes
    ----------
    limited : list of str
        Distributions that were cut by limit 1 or scaled by limit 2.
    left_out : dict of name to reason
        Distributions that could not be used at all.
    """

    limited: list[str]
    left_out: dict[str, str]


def defend_log_ratios(
    log_ratios: Mapping[str, npt.ArrayLike], defence: RatioDefence | None = None
) -> tuple[Float64Array, RatioReport]:
    r"""Return log Σ_l r_l at a client's rows, with limits 1 and 2 on each distribution.

    The limits are those of `RatioDefence`, and r_l is the ratio of test distribution l.

    Parameters
    ----------
    log_ratios : mapping of client to array (n,)
        log p_l^te − log p_k^tr at every row, one array per test distribution l; −∞ is allowed.
    defence : RatioDefence, optional

    Returns
    -------
    ndarray (n,), RatioReport
        The log ratios, and what was changed. Turn the log ratios into weights with
        `RatioDefence.weighting`.

    Raises
    ------
    InputError
        If no distribution can be used.

    Examples
    --------
    >>> import numpy as np
    >>> honest = {str(k): np.zeros(100) for k in range(4)}
    >>> aimed = np.where(np.arange(100) == 7, 9.0, 0.0)
    >>> s, report = defend_log_ratios(honest | {"bad": aimed})
    >>> float(np.exp(s[7])), report  # 4 + 10 instead of 4 + 8103
    (14.000000000000004, RatioReport(limited=['bad'], left_out={}))
    """
    defence = RatioDefence() if defence is None else defence
    usable, left_out = _usable(log_ratios)
    s = np.stack(list(usable.values()))
    changed = np.zeros(len(s), dtype=bool)
    if defence.multiple is not None:
        usual = max(0.0, _lower_median(s.max(axis=1)))  # a ratio below `multiple` is never extreme
        limit = usual + math.log(defence.multiple)
        changed |= (s > limit).any(axis=1)
        s = np.minimum(s, limit)
    if defence.mass is not None:
        shrink = np.minimum(0.0, math.log(defence.mass) - _log_mean(s))
        s = s + np.where(np.isfinite(shrink), shrink, 0.0)[:, None]
        changed |= shrink < 0
    limited = list(itertools.compress(usable, changed))
    return np.logaddexp.reduce(s, axis=0), RatioReport(limited, left_out)


def defend_normalisers(
    mean_weights: npt.ArrayLike, defence: RatioDefence | None = None, *, n_targets: int = 1
) -> Float64Array:
    """Limit the mean weights that clients report, (K,) for K clients, to plausible values.

    In FedAvg the mean weight of a client is its share of the average, and the client reports it
    itself. For the true ratios r_lk of `RatioDefence`, the expected mean weight is at most the
    number of test distributions, with equality for a client whose training rows cover all
    deployment rows. So honest mean weights are similar. Each mean weight is limited to `boast`
    times the lower median of the mean weights above 0, and to `mass` times the number of
    distributions (`n_targets`). It becomes 0 if it is negative or not finite. If the other K − 1
    clients have equal mean weights, one client then has a share of at most `boast` / (K − 1 +
    `boast`): for five clients and the default `boast` of 1.5, 3/11. A client whose true mean weight
    is above the limit gets less weight than it should.

    Examples
    --------
    >>> defend_normalisers([4.5, 5000.0, 5.0, 4.0, float("nan")], n_targets=5).tolist()
    [4.5, 6.75, 5.0, 4.0, 0.0]
    """
    defence = RatioDefence() if defence is None else defence
    m = np.asarray(mean_weights, dtype=np.float64)
    most = np.inf if defence.mass is None else defence.mass * n_targets
    valid = m[np.isfinite(m) & (m > 0)]
    if defence.boast is not None and len(valid):  # one of two must not reduce all shares to 0
        most = min(most, defence.boast * max(_lower_median(valid), _LEAST_MEAN))
    return np.where(np.isfinite(m), np.clip(m, 0.0, most), 0.0)


def check_label_distribution(distribution: Any, classes: int) -> str | None:
    """Return why a value is not a label distribution over `classes` classes, or None if it is.

    Examples
    --------
    >>> check_label_distribution([0.5, 0.5], 2)
    >>> check_label_distribution([500, 500], 2)
    'shares that sum to 1e+03, not to 1'
    """
    try:
        q = np.asarray(distribution, dtype=np.float64)
    except (TypeError, ValueError):
        return f"{type(distribution).__name__} that does not convert to numbers"
    if q.shape != (classes,):
        return f"shape {q.shape} where ({classes},) is needed"
    if not np.isfinite(q).all():
        return "shares that are not finite"
    if (q < 0).any():
        return f"a share of {q.min():.3g}, below 0"
    total = float(q.sum())
    return None if abs(total - 1) <= 1e-3 else f"shares that sum to {total:.3g}, not to 1"


def label_log_ratios(
    distributions: Mapping[str, Any], train_distribution: npt.ArrayLike, labels: npt.ArrayLike
) -> tuple[dict[str, Float64Array], dict[str, str]]:
    """Return log q_l(y) − log p_k(y) for the labels y of one client's rows, for each client l.

    q_l is the test label distribution of client l, and p_k the training label distribution of the
    client whose rows are weighted. Values that are not a label distribution are left out. False
    label distributions are kept, and `defend_log_ratios` limits their ratios.

    Parameters
    ----------
    distributions : mapping of client to array (C,)
        Label distributions as received.
    train_distribution : array (C,)
        Label distribution of the client whose rows are weighted.
    labels : int array (n,)
        Labels of this client's rows.

    Returns
    -------
    dict of client to ndarray (n,), dict of client to reason
        The log ratios, and for each client that is left out the reason.
    """
    p, y = np.asarray(train_distribution, dtype=np.float64), np.asarray(labels)
    whys = {name: check_label_distribution(q, len(p)) for name, q in distributions.items()}
    with np.errstate(divide="ignore"):  # q may lack a class; p has every class of the labels
        log_ratios = {
            name: np.log(np.asarray(q, dtype=np.float64)[y]) - np.log(p[y])
            for name, q in distributions.items()
            if whys[name] is None
        }
    left_out = {name: why for name, why in whys.items() if why is not None}
    return log_ratios, left_out


def _usable(
    log_ratios: Mapping[str, npt.ArrayLike],
) -> tuple[dict[str, Float64Array], dict[str, str]]:
    arrays = {name: np.asarray(r, dtype=np.float64) for name, r in log_ratios.items()}
    shapes = {r.shape for r in arrays.values()}
    if len(shapes) != 1 or next(iter(shapes)) == (0,) or len(next(iter(shapes))) != 1:
        raise InputError(
            "log_ratios must be one array per distribution, each with one value per row; got "
            f"shapes {sorted(shapes)}"
        )
    left_out = {
        name: f"{int((~(r < np.inf)).sum())} of {len(r)} log ratios NaN or +inf"
        for name, r in arrays.items()
        if not (r < np.inf).all()
    }
    usable = {name: r for name, r in arrays.items() if name not in left_out}
    if not usable:
        raise InputError(f"no test distribution can be used: {left_out}; check the ratio model")
    return usable, left_out


def _lower_median(values: Float64Array) -> float:
    """The lower median, so one of two clients cannot raise it."""
    return float(np.quantile(values, 0.5, method="lower"))


def _log_mean(s: Float64Array) -> Float64Array:
    """Log of the mean ratio of every distribution, (K, n) ↦ (K,), without overflow."""
    return np.asarray(np.logaddexp.reduce(s, axis=1) - math.log(s.shape[1]))
