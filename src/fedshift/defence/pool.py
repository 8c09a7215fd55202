"""Rows that clients share for ratios, when one of the clients may be hostile or broken."""

from __future__ import annotations

import secrets
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.core.params import positive, whole
from fedshift.core.samples import FloatArray
from fedshift.defence.neighbours import Lie, plane
from fedshift.errors import InputError

#: fewest clients that can be compared: each with three others, two of them honest
COMPARED = 4
Keep = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class PoolDefence:
    """What rows and pools must look like to be used.

    Rows: of the common shape, numbers, finite, within public bounds where there are some, and
    not far outside the range of the other clients. Pools: no larger than the median one, no
    heap of copies of a few rows, not far from everybody else, and no weight on a few
    rows alone. Every comparison is with the median of the other clients, which one hostile
    pool among three others cannot take out of the range of the honest; so it takes four clients.
    With fewer nobody is left out for being unlike the others.

    Under target shift honest pools differ: each may hold a class of its own. The factors below
    leave room for that (``benchmarks/attacks.py`` prints how near honest clients come to them).
    An honest client whose rows lie several standard deviations from everybody's is left
    out too, and is told why; raise `far` and `influence` where sites differ that much. A pool
    that looks like some other real law (the training laws, say) cannot be told from an
    honest one; its part in the numerator is one law of K, and `fedshift.defence.ratios`
    limits what a law may say.

    Attributes
    ----------
    bounds : (float, float) or None
        Public bounds of every value, for example (0, 1) for images.
    slack : float
        Values may lie so many widths outside the range of the median other client.
    tolerance : float
        A client with more than this share of bad rows is left out.
    quota : int or None
        Most rows a client; None: as many as the median client sent (of two, any number).
    spread : float
        A pool less wide than this times the median is aimed at a few rows.
    near : float
        Rows nearer to another of their pool than this times the others' median are copies …
    copies : float
        … and a pool with so much larger a share of them than the others is left out.
    far : float
        A pool whose median row lies so many times farther from the nearest row of the others
        than theirs do, and farther than the others are wide, is left out.
    influence : float
        So many times the others' influence (`neighbours.Lie.influence`) is too much.
    min_rows : int
        A pool with fewer usable rows is left out.
    most : int
        Rows of a client that are compared; of more, so many are drawn at random.
    repeat : int
        Most times a row is repeated to bring a small pool to the size of the others (`evened`).
    """

    bounds: tuple[float, float] | None = None
    slack: float = 2.0
    tolerance: float = 0.5
    quota: int | None = None
    spread: float = 0.4
    near: float = 0.25
    copies: float = 0.3
    far: float = 2.0
    influence: float = 2.5
    min_rows: int = 2
    most: int = 1000
    repeat: int = 10

    def __post_init__(self) -> None:
        for name in ("slack", "tolerance", "spread", "near", "copies", "far", "influence"):
            positive(self, name)
        for name in ("min_rows", "repeat"):
            whole(self, name)
        whole(self, "most", least=2)
        if self.quota is not None:
            whole(self, "quota")
        if isinstance(self.bounds, list):
            object.__setattr__(self, "bounds", tuple(self.bounds))
        b: Any = self.bounds
        if b is not None and not (isinstance(b, tuple) and len(b) == 2 and b[0] < b[1]):
            raise InputError(f"PoolDefence: bounds must be (low, high) with low < high; got {b!r}")


@dataclass(frozen=True)
class PoolVerdict:
    """What became of one client's rows.

    Attributes
    ----------
    came, kept : int
        Rows.
    dropped : dict of reason to rows
    left_out : str or None
        Why the whole pool does not count.
    spread, distance, influence : float or None
        As multiples of the other clients' median, where they were compared.
    copies : float or None
        Share of rows that are near-copies of one another.
    """

    came: int
    kept: int
    dropped: Mapping[str, int]
    left_out: str | None = None
    spread: float | None = None
    copies: float | None = None
    distance: float | None = None
    influence: float | None = None


@dataclass(frozen=True, repr=False)
class PoolReport:
    """What became of the shared rows.

    Attributes
    ----------
    clients : dict of name to PoolVerdict
    quota : int
        Most rows a client.
    compared : bool
        Whether there were clients enough to compare them.
    """

    clients: dict[str, PoolVerdict]
    quota: int
    compared: bool

    @property
    def left_out(self) -> dict[str, str]:
        """Who was left out, and why."""
        return {n: v.left_out for n, v in self.clients.items() if v.left_out is not None}

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        clients = {name: asdict(v) for name, v in self.clients.items()}
        return {"quota": self.quota, "compared": self.compared, "clients": clients}

    def __repr__(self) -> str:
        used = len(self.clients) - len(self.left_out)
        said = [f"{used} of {len(self.clients)} pools used, at most {self.quota} rows each"]
        said += [f"left out {name}: {why}" for name, why in self.left_out.items()]
        if not self.compared:
            said.append(f"not compared: that takes {COMPARED} clients")
        return f"PoolReport({'; '.join(said)})"


def clean_pool(
    pool: Mapping[str, Any],
    defence: PoolDefence | None = None,
    *,
    reference: FloatArray | None = None,
    seed: int | None = None,
) -> tuple[dict[str, FloatArray], PoolReport]:
    """The rows that can be used, and what became of the others.

    Parameters
    ----------
    pool : mapping of client to rows (n, …)
        As they came.
    defence : PoolDefence, optional
    reference : rows (r, …), optional
        Rows known to be real: a client that cleans the pool gives its own training rows, which
        is where a hostile pool would weigh.
    seed : int, optional
        Of the rows drawn for quotas and comparisons. Leave it out in real use: whoever knows it
        before the rows are sent knows which of them nobody will look at.

    Returns
    -------
    dict of client to rows, PoolReport

    Raises
    ------
    InputError
        If no pool is left.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> pool = {name: rng.normal(size=(200, 3)) for name in "abcd"}
    >>> pool["e"] = np.full((500, 3), 0.7)
    >>> rows, report = clean_pool(pool)
    >>> list(rows), report
    (['a', 'b', 'c', 'd'], PoolReport(4 of 5 pools used, at most 200 rows each; left out e: \
aimed at a few rows: 0.00 times as wide as the other pools))
    """
    defence = PoolDefence() if defence is None else defence
    seed = secrets.randbits(128) if seed is None else seed
    rows, verdicts = _readable(pool, None if reference is None else reference.shape[1:])
    _drop_bad_rows(rows, verdicts, defence)
    quota = _cut_to_quota(rows, verdicts, defence, seed)
    compared = len(rows) >= COMPARED
    if compared:
        _compare(rows, verdicts, defence, reference, seed)
    kept = {}
    for name, verdict in verdicts.items():
        if verdict.left_out is None:
            kept[name] = rows[name]
            verdicts[name] = replace(verdict, kept=len(rows[name]))
    report = PoolReport(verdicts, quota, compared)
    if not kept:
        raise InputError(f"no pool can be used: {report.left_out}; ask the clients, or share less")
    return kept, report


def evened(
    pool: Mapping[str, FloatArray], *, repeat: int = 10, seed: int = 0
) -> dict[str, FloatArray]:
    """Pools of equal size, so that every law counts alike once they are shuffled together.

    Rows of smaller pools are repeated, all as often or once more, at most `repeat` times: a pool
    of very few rows stays smaller, or each of them would weigh as much as a hundred of others.

    Parameters
    ----------
    pool : mapping of client to rows (n, …)
        From `clean_pool`.
    repeat : int
    seed : int
        Of the rows repeated once more.

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
        whole_times, more = divmod(min(size, repeat * len(x)), len(x))
        parts = [x] * whole_times + ([_some(x, more, seed, name)] if more else [])
        out[name] = np.concatenate(parts)
    return out


def _readable(
    pool: Mapping[str, Any], shape: tuple[int, ...] | None
) -> tuple[dict[str, FloatArray], dict[str, PoolVerdict]]:
    """Pools that are arrays of numbers with rows of the common shape."""
    given = {name: np.asarray(x) for name, x in pool.items()}
    if shape is None:
        shapes = Counter(x.shape[1:] for x in given.values() if x.ndim > 1 and x.dtype.kind != "O")
        shape = shapes.most_common(1)[0][0] if shapes else ()
    rows, verdicts = {}, {}
    for name, x in given.items():
        why = None
        if x.dtype.kind not in "biuf":
            why = f"type {x.dtype} where numbers are needed"
        elif x.ndim < 2 or x.shape[1:] != shape:
            why = f"rows of shape {x.shape[1:]} where {shape} is needed"
        else:
            rows[name] = x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)
        verdicts[name] = PoolVerdict(len(x) if x.ndim else 0, 0, {}, why)
    return rows, verdicts


def _drop_bad_rows(
    rows: dict[str, FloatArray], verdicts: dict[str, PoolVerdict], defence: PoolDefence
) -> None:
    """Take out rows that are not finite or out of bounds or range, and clients full of them."""
    for name in list(rows):
        flat = rows[name].reshape(len(rows[name]), -1)
        good = np.asarray(np.isfinite(flat).all(axis=1))
        _drop(rows, verdicts, name, good, "not finite", defence)
    if defence.bounds is not None:
        low, high = defence.bounds
        for name in list(rows):
            flat = rows[name].reshape(len(rows[name]), -1)
            good = np.asarray(((flat >= low - 1e-6) & (flat <= high + 1e-6)).all(axis=1))
            _drop(rows, verdicts, name, good, f"outside [{low:g}, {high:g}]", defence)
    if len(rows) >= COMPARED:
        good_by = {name: _in_range(rows, name, defence.slack) for name in rows}
        for name, good in good_by.items():
            _drop(rows, verdicts, name, good, "far outside the others' range", defence)


def _in_range(rows: Mapping[str, FloatArray], name: str, slack: float) -> Keep:
    others = [x.reshape(len(x), -1) for n, x in rows.items() if n != name]
    # values that some client has, not means of two, of which one may be anything
    low = np.quantile([x.min(axis=0) for x in others], 0.5, axis=0, method="lower")
    high = np.quantile([x.max(axis=0) for x in others], 0.5, axis=0, method="higher")
    width = high - low
    if rows[name].ndim > 2:  # pixels share a range
        width = np.full_like(width, width.max())
    room = np.where(width > 0, slack * width, np.inf)  # a column with one value says nothing
    flat = rows[name].reshape(len(rows[name]), -1)
    return np.asarray(((flat >= low - room) & (flat <= high + room)).all(axis=1))


def _drop(
    rows: dict[str, FloatArray],
    verdicts: dict[str, PoolVerdict],
    name: str,
    good: Keep,
    reason: str,
    defence: PoolDefence,
) -> None:
    bad = int((~good).sum())
    left = int(good.sum())
    old = verdicts[name]
    why = None
    if bad > defence.tolerance * len(good):
        why = f"{bad} of {len(good)} rows {reason}"
    elif left < defence.min_rows:
        why = f"{left} usable rows where at least {defence.min_rows} are needed"
    if bad:
        verdicts[name] = replace(old, dropped={**old.dropped, reason: bad}, left_out=why)
        rows[name] = rows[name][good]
    if why is not None:
        verdicts[name] = replace(verdicts[name], left_out=why)
        del rows[name]


def _cut_to_quota(
    rows: dict[str, FloatArray],
    verdicts: dict[str, PoolVerdict],
    defence: PoolDefence,
    seed: int,
) -> int:
    sizes = [len(x) for x in rows.values()] or [0]
    # of two, one could cut the other's pool to its own size
    usual = int(np.quantile(sizes, 0.5, method="lower")) if len(sizes) > 2 else max(sizes)
    quota = defence.quota or usual
    for name, x in rows.items():
        if len(x) > quota:
            rows[name] = _some(x, quota, seed, name)
            dropped = {**verdicts[name].dropped, "above the quota": len(x) - quota}
            verdicts[name] = replace(verdicts[name], dropped=dropped)
    return quota


def _some(x: FloatArray, count: int, seed: int, name: str) -> FloatArray:
    """Rows drawn at random, the same whoever else takes part."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return x[np.sort(rng.choice(len(x), min(count, len(x)), replace=False))]


def _compare(
    rows: dict[str, FloatArray],
    verdicts: dict[str, PoolVerdict],
    defence: PoolDefence,
    reference: FloatArray | None,
    seed: int,
) -> None:
    """Hold every pool against the others."""
    shown = {n: _some(x, defence.most, seed, n) for n, x in rows.items()}
    if reference is not None:
        shown[""] = _some(reference, 2 * defence.most, seed, "")
    lie = Lie(vectors := plane(shown), vectors.pop("", None))
    widths = {n: float(np.median(d)) for n, d in lie.nearest_own.items()}
    found = {}
    for name in rows:
        others = [n for n in rows if n != name]
        wide = _median(lie.spread[n] for n in others)
        width = _median(widths[n] for n in others)
        null = [lie.nearest_other(n, without=name) for n in others]
        usual = _median(np.median(d) for d in null)
        away = float(np.median(lie.nearest_other(name)))
        share = {n: float((lie.nearest_own[n] < defence.near * width).mean()) for n in rows}
        smooth = max(width, 0.05 * wide)  # where most rows have an equal
        influence = _median(lie.influence(n, smooth) for n in others)
        found[name] = replace(
            verdicts[name],
            spread=lie.spread[name] / max(wide, 1e-300),
            copies=share[name],
            distance=away / max(usual, 0.01 * wide, 1e-300),
            influence=lie.influence(name, smooth) / max(influence, 1e-300),
        )
        why = _outlying(found[name], defence, _median(share[n] for n in others))
        if why is None and away > max(defence.far * usual, wide):
            why = f"far from all others: {found[name].distance:.3g} times as far as they are"
        found[name] = replace(found[name], left_out=why)
    verdicts.update(found)


def _outlying(verdict: PoolVerdict, defence: PoolDefence, usual: float) -> str | None:
    """Why a pool is not like the others, or None."""
    spread, copies = verdict.spread or 0.0, verdict.copies or 0.0
    if spread < defence.spread:
        return f"aimed at a few rows: {spread:.2f} times as wide as the other pools"
    if copies - usual > defence.copies:
        return f"{copies:.0%} of its rows are near-copies of one another, {usual:.0%} elsewhere"
    if (verdict.influence or 0.0) > defence.influence:
        return f"would weigh on a few rows alone: {verdict.influence:.3g} times the usual influence"
    return None


def _median(values: Any) -> float:
    return float(np.median(np.fromiter(values, dtype=np.float64)))
