"""Ratios and weights when one of the test laws in the numerator may be made up."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedshift.core.params import one_of, positive, whole
from fedshift.core.samples import Float64Array
from fedshift.core.weights import Weighting, Weights
from fedshift.errors import InputError

How = Literal["sum", "median", "trimmed"]
HOWS: tuple[How, ...] = ("sum", "median", "trimmed")
#: mean weights below this do not limit others
_LEAST_MEAN = 1e-6


@dataclass(frozen=True, kw_only=True)
class RatioDefence:
    r"""What one test law may do to the weights of a client's rows.

    A row x of client k weighs Σ_l r_lk(x), r_lk = p_l^te / p_k^tr. Whoever makes up its test law
    can aim it at a single row: with a share α of the numerator the effective sample size falls
    to 1 / α² whatever n. Four limits, in this order:

    1. No law's largest ratio is more than `multiple` times that of the median law, or than
       `multiple` where that law has little mass on the client's rows: an honest client may be
       the only one that is used on rows like its own.
    2. No law's mean ratio over the client's rows is more than `mass`: in truth
       E_k r_lk ≤ 1.
    3. The largest weights are cut to a quantile (`winsorise`), one row among a thousand.
    4. Ratios are flattened, as little as it takes, until the effective sample size is at
       least max(`min_ess` n, `min_rows`).

    And of what a client may weigh itself, as FedAvg has it: its mean weight is believed up to
    `boast` times that of the median client (`defend_normalisers`).

    The median over laws (K · median_l r_lk, or a trimmed mean) is stronger, and wrong where
    test laws differ: a class that only one client meets has a median ratio near 0, and the
    shift of that client is forgotten. Take it where all clients are used on much the same
    data. That is why the default is "sum" with limits.

    Attributes
    ----------
    how : {"sum", "median", "trimmed"}
        Of the laws.
    trim : float
        Share of laws cut at either end by "trimmed", in [0, 1/2).
    multiple : float or None
    mass : float or None
    boast : float or None
        None: mean weights are believed up to `mass` times the number of laws.
    winsorise : float or None
        Quantile in (0, 1].
    min_ess : float or None
        Share of the rows; None: no floor.
    min_rows : int
        The floor is never below so many rows (or all, where there are fewer).

    Examples
    --------
    >>> RatioDefence().floor(6000)
    60.0
    """

    how: How = "sum"
    trim: float = 0.2
    multiple: float | None = 10.0
    mass: float | None = 2.0
    boast: float | None = 1.5
    winsorise: float | None = 0.999
    min_ess: float | None = 0.01
    min_rows: int = 10

    def __post_init__(self) -> None:
        one_of(self, "how", HOWS)
        trim: Any = self.trim
        if not (isinstance(trim, numbers.Real) and 0 <= float(trim) < 0.5):
            raise InputError(f"RatioDefence: trim must be a share in [0, 0.5); got {trim!r}")
        for name in ("multiple", "mass", "boast", "winsorise", "min_ess"):
            if getattr(self, name) is not None:
                value = positive(self, name)
                if value < 1 and name == "boast":
                    raise InputError(f"RatioDefence: boast must be at least 1; got {value!r}")
                if value > 1 and name in ("winsorise", "min_ess"):
                    raise InputError(f"RatioDefence: {name} must be in (0, 1]; got {value!r}")
        whole(self, "min_rows")

    def floor(self, n: int) -> float:
        """The least effective sample size of n rows."""
        return 0.0 if self.min_ess is None else min(float(n), max(self.min_ess * n, self.min_rows))

    def weighting(self, n: int, normalise: Literal["none", "mean one"] = "none") -> Weighting:
        """Limits 3 and 4, as `fedshift.core.weights.Weighting` spells them."""
        floor = self.floor(n)
        share = None if floor == 0 else floor / n
        return Weighting(normalise=normalise, winsorise=self.winsorise, min_ess=share)


@dataclass(frozen=True)
class LawVerdict:
    """What one test law said of a client's rows, and what was made of it.

    Attributes
    ----------
    top : float
        Its largest log ratio.
    mean : float
        Log of its mean ratio over the rows; in truth at most 0.
    cut : int
        Rows whose ratio was cut to a multiple of the median law's largest, or of 1.
    scaled : float
        What all its ratios were multiplied by to bring the mean down; 1 if it was low enough.
    """

    top: float
    mean: float
    cut: int = 0
    scaled: float = 1.0


@dataclass(frozen=True, repr=False)
class RatioReport:
    """What became of the laws in a numerator.

    Attributes
    ----------
    laws : dict of name to LawVerdict
    left_out : dict of name to reason
        Laws that could not be used at all.
    how : str
    """

    laws: dict[str, LawVerdict]
    left_out: dict[str, str]
    how: str

    @property
    def limited(self) -> list[str]:
        """Laws that were cut or scaled."""
        return [name for name, v in self.laws.items() if v.cut or v.scaled < 1]

    def __repr__(self) -> str:
        said = [f"{self.how} of {len(self.laws)} laws"]
        if self.limited:
            said.append(f"limited: {', '.join(self.limited)}")
        said += [f"left out {name}: {why}" for name, why in self.left_out.items()]
        return f"RatioReport({'; '.join(said)})"


def defend_log_ratios(
    log_ratios: Mapping[str, npt.ArrayLike], defence: RatioDefence | None = None
) -> tuple[Float64Array, RatioReport]:
    r"""Log of Σ_l r_l at a client's rows, with limits on what each law may say (1 and 2).

    Parameters
    ----------
    log_ratios : mapping of client to array (n,)
        log p_l^te − log p_k^tr at every row, one array a test law l; −∞ is allowed.
    defence : RatioDefence, optional

    Returns
    -------
    ndarray (n,), RatioReport
        To be turned into weights by `defend_weights`.

    Raises
    ------
    InputError
        If no law can be used.

    Examples
    --------
    >>> import numpy as np
    >>> honest = {str(k): np.zeros(100) for k in range(4)}
    >>> aimed = np.where(np.arange(100) == 7, 9.0, 0.0)
    >>> s, report = defend_log_ratios(honest | {"bad": aimed})
    >>> float(np.exp(s[7])), report  # 4 + 10 where 8107 was asked for
    (14.000000000000004, RatioReport(sum of 5 laws; limited: bad))
    """
    defence = RatioDefence() if defence is None else defence
    kept, left_out = _usable(log_ratios)
    names, s = list(kept), np.stack(list(kept.values()))
    tops = s.max(axis=1)
    before = _log_mean(s)
    cut = np.zeros(len(s), dtype=np.int64)
    if defence.multiple is not None:
        usual = max(0.0, _lower_median(tops))  # a ratio below `multiple` is never extreme
        limit = usual + math.log(defence.multiple)
        cut = (s > limit).sum(axis=1)
        s = np.minimum(s, limit)
    shrink = np.zeros(len(s))
    if defence.mass is not None:
        shrink = np.minimum(0.0, math.log(defence.mass) - _log_mean(s))
        s = s + np.where(np.isfinite(shrink), shrink, 0.0)[:, None]
    verdicts = {
        name: LawVerdict(float(top), float(mean), int(c), math.exp(min(0.0, factor)))
        for name, top, mean, c, factor in zip(names, tops, before, cut, shrink, strict=True)
    }
    return _joined(s, defence), RatioReport(verdicts, left_out, defence.how)


def defend_weights(
    log_ratio: npt.ArrayLike,
    defence: RatioDefence | None = None,
    *,
    laws: int = 1,
    normalise: Literal["none", "mean one"] = "none",
) -> Weights:
    """Weights of a client's rows, winsorised and with a floor on their number (limits 3 and 4).

    Parameters
    ----------
    log_ratio : array (n,)
        Of the numerator as a whole: from `defend_log_ratios`, or from an estimator that pools
        the laws.
    laws : int
        Test laws in the numerator.

    Examples
    --------
    >>> import numpy as np
    >>> aimed = np.where(np.arange(1000) == 7, 12.0, 0.0)
    >>> defend_weights(aimed).ess
    1000.0
    """
    defence = RatioDefence() if defence is None else defence
    s = np.asarray(log_ratio, dtype=np.float64)
    if s.ndim != 1 or not len(s):
        raise InputError(f"log_ratio must be one value a row, shape (n,), n ≥ 1; got {s.shape}")
    return defence.weighting(len(s), normalise)(s, laws=laws)


def defend_normalisers(
    mean_weights: npt.ArrayLike, defence: RatioDefence | None = None, *, laws: int = 1
) -> Float64Array:
    """What clients say their mean weight is, (K,), brought down to what can be true.

    With FedAvg a client's mean weight is its part in the mean, and the client itself reports it.
    In truth E_k Σ_l r_lk ≤ the number of laws, with equality for every client whose training rows
    have all that anybody is used on: honest mean weights are much alike. Each is cut to `boast`
    times the lower median of those above 0 and to `mass` times the number of laws, and to 0 where
    it is not finite or negative. One of K clients that are alike then weighs at most
    `boast` / (K − 1 + `boast`), three of eleven among five; a client whose mean weight is in truth
    larger than that of most counts for less than it should.

    Examples
    --------
    >>> defend_normalisers([4.5, 5000.0, 5.0, 4.0, float("nan")], laws=5).tolist()
    [4.5, 6.75, 5.0, 4.0, 0.0]
    """
    defence = RatioDefence() if defence is None else defence
    m = np.asarray(mean_weights, dtype=np.float64)
    most = np.inf if defence.mass is None else defence.mass * laws
    said = m[np.isfinite(m) & (m > 0)]
    if defence.boast is not None and len(said):  # one of two must not make all parts vanish
        most = min(most, defence.boast * max(_lower_median(said), _LEAST_MEAN))
    return np.where(np.isfinite(m), np.clip(m, 0.0, most), 0.0)


def check_law(law: Any, classes: int) -> str | None:
    """Why what a client sent is no label law over so many classes, or None where it is one.

    Examples
    --------
    >>> check_law([0.5, 0.5], 2)
    >>> check_law([500, 500], 2)
    'shares that sum to 1e+03, not to 1'
    """
    try:
        q = np.asarray(law, dtype=np.float64)
    except (TypeError, ValueError):
        return f"{type(law).__name__} that does not convert to numbers"
    if q.shape != (classes,):
        return f"shape {q.shape} where ({classes},) is needed"
    if not np.isfinite(q).all():
        return "shares that are not finite"
    if (q < 0).any():
        return f"a share of {q.min():.3g}, below 0"
    total = float(q.sum())
    return None if abs(total - 1) <= 1e-3 else f"shares that sum to {total:.3g}, not to 1"


def label_log_ratios(
    laws: Mapping[str, Any], train_law: npt.ArrayLike, labels: npt.ArrayLike
) -> tuple[dict[str, Float64Array], dict[str, str]]:
    """What every client's test label law says of another's rows: log q_l(y) − log p_k(y).

    A site that reports a false law is limited like any other (`defend_log_ratios`); one that
    reports no law at all is left out here.

    Parameters
    ----------
    laws : mapping of client to array (C,)
        As they came.
    train_law : array (C,)
        Of the client whose rows are weighted.
    labels : int array (n,)
        Its labels.

    Returns
    -------
    dict of client to ndarray (n,), dict of client to reason
        Those that can be used, and those left out.
    """
    p, y = np.asarray(train_law, dtype=np.float64), np.asarray(labels)
    whys = {name: check_law(q, len(p)) for name, q in laws.items()}
    with np.errstate(divide="ignore"):  # a class the law lacks; those the rows lack never come up
        found = {
            name: np.log(np.asarray(q, dtype=np.float64)[y]) - np.log(p[y])
            for name, q in laws.items()
            if whys[name] is None
        }
    left_out = {name: why for name, why in whys.items() if why is not None}
    return found, left_out


def _usable(
    log_ratios: Mapping[str, npt.ArrayLike],
) -> tuple[dict[str, Float64Array], dict[str, str]]:
    given = {name: np.asarray(r, dtype=np.float64) for name, r in log_ratios.items()}
    shapes = {r.shape for r in given.values()}
    if len(shapes) != 1 or next(iter(shapes)) == (0,) or len(next(iter(shapes))) != 1:
        raise InputError(
            "log_ratios must be one array a law, each with one value a row; got shapes "
            f"{sorted(shapes)}"
        )
    left_out = {
        name: f"{int((~(r < np.inf)).sum())} of {len(r)} log ratios NaN or +inf"
        for name, r in given.items()
        if not (r < np.inf).all()
    }
    kept = {name: r for name, r in given.items() if name not in left_out}
    if not kept:
        raise InputError(f"no test law can be used: {left_out}; look at the ratio model")
    return kept, left_out


def _lower_median(values: Float64Array) -> float:
    """One of them: of an even number the lower one, which one of two cannot raise."""
    return float(np.quantile(values, 0.5, method="lower"))


def _log_mean(s: Float64Array) -> Float64Array:
    """Log of the mean ratio of every law (K, n) ↦ (K,), without overflow."""
    return np.asarray(np.logaddexp.reduce(s, axis=1) - math.log(s.shape[1]))


def _joined(s: Float64Array, defence: RatioDefence) -> Float64Array:
    """Laws (K, n) to one numerator (n,)."""
    count = len(s)
    if defence.how == "sum":
        return np.asarray(np.logaddexp.reduce(s, axis=0))
    ordered = np.sort(s, axis=0)
    if defence.how == "median":
        middle = ordered[(count - 1) // 2 : count // 2 + 1]
    else:
        cut = math.floor(defence.trim * count + 1e-9)
        middle = ordered[cut : count - cut]
    return np.asarray(np.logaddexp.reduce(middle, axis=0) + math.log(count / len(middle)))
