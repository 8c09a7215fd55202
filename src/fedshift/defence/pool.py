"""Checks of rows that clients share for ratios, when a client may be hostile or broken."""

from __future__ import annotations

import secrets
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.core.params import whole
from fedshift.core.samples import FloatArray
from fedshift.defence.neighbours import PoolDistances, plane
from fedshift.errors import InputError

#: fewest clients for comparisons: each with three others, two of them honest
COMPARED = 4
#: values may lie outside the median range of the other clients by this many widths of it
SLACK = 2.0
#: a client with more than this share of bad rows is left out
TOLERANCE = 0.5
#: a pool whose spread is below this times the median of the others is left out
SPREAD = 0.4
#: a row is a near-copy if the nearest row of its pool is closer than this times the median of the
#: other pools …
NEAR = 0.25
#: … and a pool is left out if its share of near-copies exceeds that of the others by more than this
COPIES = 0.3
#: a pool is left out if its median row is this many times as far from the nearest row of the others
#: as their rows are, and farther than the others are wide
FAR = 2.0
#: a pool with more than this many times the others' influence
#: (`neighbours.PoolDistances.influence`) is left out
INFLUENCE = 2.5
#: a pool with fewer usable rows is left out
MIN_ROWS = 2
#: largest number of a client's rows in comparisons; from more rows this many are drawn at random
MOST = 1000
#: largest number of repeats of a row that bring a small pool to the size of the others (`evened`)
REPEAT = 10
Keep = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class PoolDefence:
    """Requirements on shared rows and on pools. A pool is the set of rows that one client shares.

    Rows must have the common shape and finite numbers, lie within public bounds if there are any,
    and not lie far outside the range of the other clients. A pool must not consist of near-copies
    of a few rows, not lie far from all other pools, and not raise the weights of a few rows only.
    From a pool larger than the quota, rows are drawn at random. Every pool is compared with the
    median of the pools of the other clients. With three other clients, one hostile pool cannot move
    that median out of the range of the honest pools, so comparisons need four clients. With fewer
    clients, no pool is left out for being different.

    Under label shift, honest pools differ: each may have a class that no other has. The limits
    (constants of this module) allow for that, and ``benchmarks/attacks.py`` prints how close honest
    clients come to them.
    An honest client whose rows lie several standard deviations from all others is also left out;
    the report states why. A pool that imitates another real distribution, such as the training
    distribution, cannot be distinguished from an honest one. Its effect is limited: the numerator
    of the ratio is the sum of the test distributions of all clients, and
    `fedshift.defence.ratios` limits what each of them adds.

    Attributes
    ----------
    bounds : (float, float) or None
        Public bounds of every value, for example (0, 1) for images.
    quota : int or None
        Largest number of rows per client. With None, the quota is the lower median of the clients'
        numbers of rows; with only two clients there is no limit.
    """

    bounds: tuple[float, float] | None = None
    quota: int | None = None

    def __post_init__(self) -> None:
        if self.quota is not None:
            whole(self, "quota")
        if isinstance(self.bounds, list):
            object.__setattr__(self, "bounds", tuple(self.bounds))
        b: Any = self.bounds
        if b is not None and not (isinstance(b, tuple) and len(b) == 2 and b[0] < b[1]):
            raise InputError(f"PoolDefence: bounds must be (low, high) with low < high; got {b!r}")


@dataclass(frozen=True)
class PoolCheck:
    """Result of the checks of one client's rows.

    Attributes
    ----------
    rows : int
        Number of rows that are used.
    dropped : dict of reason to rows
        Numbers of dropped rows.
    left_out : str or None
        Why the whole pool is not used.
    spread, distance, influence : float or None
        Distance between the pool's rows, distance to the nearest row of the others, and
        `neighbours.PoolDistances.influence`, each as a multiple of the other clients' median; None
        without a comparison.
    copies : float or None
        Share of rows that are near-copies of one another.
    """

    rows: int
    dropped: Mapping[str, int]
    left_out: str | None = None
    spread: float | None = None
    copies: float | None = None
    distance: float | None = None
    influence: float | None = None


@dataclass(frozen=True, repr=False)
class PoolReport:
    """Results of the checks of all shared rows.

    Attributes
    ----------
    clients : dict of name to PoolCheck
        The result for each client.
    quota : int
        Largest number of rows per client.
    compared : bool
        Whether there were enough clients to compare them.
    """

    clients: dict[str, PoolCheck]
    quota: int
    compared: bool

    @property
    def left_out(self) -> dict[str, str]:
        """Clients that are left out, and why."""
        return {n: v.left_out for n, v in self.clients.items() if v.left_out is not None}

    def __repr__(self) -> str:
        used = len(self.clients) - len(self.left_out)
        words = [f"{used} of {len(self.clients)} pools used, at most {self.quota} rows each"]
        words += [f"left out {name}: {why}" for name, why in self.left_out.items()]
        if not self.compared:
            words.append(f"not compared with each other: needs at least {COMPARED} clients")
        return f"PoolReport({'; '.join(words)})"


def clean_pool(
    pool: Mapping[str, Any],
    defence: PoolDefence | None = None,
    *,
    reference: FloatArray | None = None,
    seed: int | None = None,
) -> tuple[dict[str, FloatArray], PoolReport]:
    """Check shared rows; return the usable ones and a report.

    Parameters
    ----------
    pool : mapping of client to rows (n, …)
        The rows as received.
    defence : PoolDefence, optional
    reference : rows (r, …), optional
        Rows known to be real. A client that cleans the pool passes its own training rows, because
        a hostile pool would change their weights.
    seed : int, optional
        Seed of the random choice of rows for quotas and comparisons. Leave it out in real use:
        a client that knows the seed before it sends rows knows which rows are not checked.

    Returns
    -------
    dict of client to rows, PoolReport
        The usable rows, and the result of every check.

    Raises
    ------
    InputError
        If no pool can be used.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> pool = {name: rng.normal(size=(200, 3)) for name in "abcd"}
    >>> pool["e"] = np.full((500, 3), 0.7)
    >>> rows, report = clean_pool(pool)
    >>> list(rows), report
    (['a', 'b', 'c', 'd'], PoolReport(4 of 5 pools used, at most 200 rows each; left out e: \
rows too close together: spread 0.00 times that of the other pools))
    """
    defence = PoolDefence() if defence is None else defence
    seed = secrets.randbits(128) if seed is None else seed
    rows, checks = _read_pools(pool, None if reference is None else reference.shape[1:])
    _drop_bad_rows(rows, checks, defence)
    quota = _cut_to_quota(rows, checks, defence, seed)
    compared = len(rows) >= COMPARED
    if compared:
        _compare(rows, checks, reference, seed)
    clean = {}
    for name, check in checks.items():
        if check.left_out is None:
            clean[name] = rows[name]
            checks[name] = replace(check, rows=len(rows[name]))
    report = PoolReport(checks, quota, compared)
    if not clean:
        raise InputError(
            f"at least one shared pool must be usable; got {report.left_out}; check these clients"
        )
    return clean, report


def evened(pool: Mapping[str, FloatArray], *, seed: int = 0) -> dict[str, FloatArray]:
    """Bring pools to equal size, so that each has equal weight when they are shuffled together.

    Every row of a smaller pool is repeated the same number of times, a random few once more, and no
    row occurs more than `REPEAT` times. So a pool of very few rows stays smaller; otherwise each of
    its rows could have the weight of a hundred others.

    Parameters
    ----------
    pool : mapping of client to rows (n, …)
        The pools that `clean_pool` returned.
    seed : int
        Seed of the choice of rows that are repeated once more.

    Examples
    --------
    >>> import numpy as np
    >>> rows = evened({"a": np.zeros((50, 2)), "b": np.ones((20, 2)), "c": np.ones((2, 2))})
    >>> {name: len(x) for name, x in rows.items()}
    {'a': 50, 'b': 50, 'c': 20}
    """
    size = max(map(len, pool.values()))
    out = {}
    for name, x in pool.items():
        whole_times, more = divmod(min(size, REPEAT * len(x)), len(x))
        parts = [x] * whole_times + ([_some(x, more, seed, name)] if more else [])
        out[name] = np.concatenate(parts)
    return out


def _read_pools(
    pool: Mapping[str, Any], shape: tuple[int, ...] | None
) -> tuple[dict[str, FloatArray], dict[str, PoolCheck]]:
    """Pools that are arrays of numbers with rows of the common shape."""
    arrays = {name: np.asarray(x) for name, x in pool.items()}
    if shape is None:
        shapes = Counter(x.shape[1:] for x in arrays.values() if x.ndim > 1 and x.dtype.kind != "O")
        shape = shapes.most_common(1)[0][0] if shapes else ()
    rows, checks = {}, {}
    for name, x in arrays.items():
        why = None
        if x.dtype.kind not in "biuf":
            why = f"type {x.dtype} where numbers are needed"
        elif x.ndim < 2 or x.shape[1:] != shape:
            why = f"rows of shape {x.shape[1:]} where {shape} is needed"
        else:
            rows[name] = x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)
        checks[name] = PoolCheck(0, {}, why)
    return rows, checks


def _drop_bad_rows(
    rows: dict[str, FloatArray], checks: dict[str, PoolCheck], defence: PoolDefence
) -> None:
    """Drop rows that are not finite or out of bounds or range, and clients with too many such."""
    for name in list(rows):
        flat = rows[name].reshape(len(rows[name]), -1)
        good = np.asarray(np.isfinite(flat).all(axis=1))
        _drop(rows, checks, name, good, "not finite")
    if defence.bounds is not None:
        low, high = defence.bounds
        for name in list(rows):
            flat = rows[name].reshape(len(rows[name]), -1)
            good = np.asarray(((flat >= low - 1e-6) & (flat <= high + 1e-6)).all(axis=1))
            _drop(rows, checks, name, good, f"outside [{low:g}, {high:g}]")
    if len(rows) >= COMPARED:
        good_by = {name: _in_range(rows, name) for name in rows}
        for name, good in good_by.items():
            _drop(rows, checks, name, good, "far outside the others' range")


def _in_range(rows: Mapping[str, FloatArray], name: str) -> Keep:
    others = [x.reshape(len(x), -1) for n, x in rows.items() if n != name]
    # values that some client has, not means of two, of which one may be anything
    low = np.quantile([x.min(axis=0) for x in others], 0.5, axis=0, method="lower")
    high = np.quantile([x.max(axis=0) for x in others], 0.5, axis=0, method="higher")
    width = high - low
    if rows[name].ndim > 2:  # pixels share a range
        width = np.full_like(width, width.max())
    slack = np.where(width > 0, SLACK * width, np.inf)  # a constant column has no scale
    flat = rows[name].reshape(len(rows[name]), -1)
    return np.asarray(((flat >= low - slack) & (flat <= high + slack)).all(axis=1))


def _drop(
    rows: dict[str, FloatArray],
    checks: dict[str, PoolCheck],
    name: str,
    good: Keep,
    reason: str,
) -> None:
    bad, left = int((~good).sum()), int(good.sum())
    old = checks[name]
    why = None
    if bad > TOLERANCE * len(good):
        why = f"{bad} of {len(good)} rows {reason}"
    elif left < MIN_ROWS:
        why = f"{left} usable rows where at least {MIN_ROWS} are needed"
    if bad:
        checks[name] = replace(old, dropped={**old.dropped, reason: bad}, left_out=why)
        rows[name] = rows[name][good]
    if why is not None:
        checks[name] = replace(checks[name], left_out=why)
        del rows[name]


def _cut_to_quota(
    rows: dict[str, FloatArray],
    checks: dict[str, PoolCheck],
    defence: PoolDefence,
    seed: int,
) -> int:
    sizes = [len(x) for x in rows.values()] or [0]
    # with two clients, one could cut the other's pool to its own size
    usual = int(np.quantile(sizes, 0.5, method="lower")) if len(sizes) > 2 else max(sizes)
    quota = defence.quota or usual
    for name, x in rows.items():
        if len(x) > quota:
            rows[name] = _some(x, quota, seed, name)
            dropped = {**checks[name].dropped, "above the quota": len(x) - quota}
            checks[name] = replace(checks[name], dropped=dropped)
    return quota


def _some(x: FloatArray, count: int, seed: int, name: str) -> FloatArray:
    """Draw rows at random; the choice does not depend on the other clients."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return x[np.sort(rng.choice(len(x), min(count, len(x)), replace=False))]


def _compare(
    rows: dict[str, FloatArray],
    checks: dict[str, PoolCheck],
    reference: FloatArray | None,
    seed: int,
) -> None:
    """Compare every pool with the others."""
    sample = {n: _some(x, MOST, seed, n) for n, x in rows.items()}
    if reference is not None:
        sample[""] = _some(reference, 2 * MOST, seed, "")
    pools = PoolDistances(vectors := plane(sample), vectors.pop("", None))
    widths = {n: float(np.median(d)) for n, d in pools.nearest_own.items()}
    new = {}
    for name in rows:
        others = [n for n in rows if n != name]
        wide = _median(pools.spread[n] for n in others)
        width = _median(widths[n] for n in others)
        null = [pools.nearest_other(n, without=name) for n in others]
        usual = _median(np.median(d) for d in null)
        away = float(np.median(pools.nearest_other(name)))
        share = {n: float((pools.nearest_own[n] < NEAR * width).mean()) for n in rows}
        smooth = max(width, 0.05 * wide)  # for pools in which most rows have a duplicate
        influence = _median(pools.influence(n, smooth) for n in others)
        check = replace(
            checks[name],
            spread=pools.spread[name] / max(wide, 1e-300),
            copies=share[name],
            distance=away / max(usual, 0.01 * wide, 1e-300),
            influence=pools.influence(name, smooth) / max(influence, 1e-300),
        )
        why = _explain(check, _median(share[n] for n in others))
        if why is None and away > max(FAR * usual, wide):
            why = f"far from all other pools: distance {check.distance:.3g} times their median"
        new[name] = replace(check, left_out=why)
    checks.update(new)


def _explain(check: PoolCheck, usual: float) -> str | None:
    """Why a pool is not similar to the others, or None."""
    spread, copies = check.spread or 0.0, check.copies or 0.0
    if spread < SPREAD:
        return f"rows too close together: spread {spread:.2f} times that of the other pools"
    if copies - usual > COPIES:
        return f"{copies:.0%} of its rows are near-copies of one another, {usual:.0%} in others"
    if (check.influence or 0.0) > INFLUENCE:
        text = "raises the weights of a few rows only: its influence on weights is "
        return f"{text}{check.influence:.3g} times the median of the other pools"
    return None


def _median(values: Any) -> float:
    return float(np.median(np.fromiter(values, dtype=np.float64)))
