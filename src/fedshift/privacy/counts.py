r"""Tables of counts that may leave a site: small cells hidden, and optional whole-number noise.

A cell is one entry of a table, such as a label or a bin. Each row is counted in one cell, so adding
or removing a row changes one count by one. The sensitivity of a whole table is therefore 1. Noise
of the two-sided geometric distribution

.. math:: P(z) \propto e^{-\varepsilon |z|}, \qquad z = 0, \pm 1, \pm 2, \dots

on every cell makes the release of the table ε-differentially private. The noise is drawn with whole
numbers only (Canonne, Kamath and Steinke 2020). Unlike floating-point Laplace noise, its last
digits reveal nothing.

An *estimated* label distribution (`fedshift.core.label`) is not such a table: one row may change
every entry. To add noise, count the classes that a classifier predicts and estimate from the
released counts.

*Differences.* Two tables about the same rows can be subtracted from each other. The same table
under two values of `min_count` reveals the counts between the two values. Two tables whose cells
have slightly different limits reveal how many rows lie between the limits. A site therefore answers
through `Releases`, which repeats its first answer and, without noise, refuses any other table of
the same distribution.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from fedshift.errors import InputError
from fedshift.privacy.policy import Privacy, Refused

if TYPE_CHECKING:  # importing it loads torch
    from fedshift.core.samples import Float64Array

Counts = npt.NDArray[np.int64]
#: a seed or generator for tests; None is the operating system's entropy
Random = np.random.Generator | int | None

#: ε is rounded down to a multiple of one over this
_STEP = 10**6


@dataclass(frozen=True)
class Released:
    """A table of counts as it leaves the site.

    Attributes
    ----------
    counts : int array
        The counts, with 0 in hidden cells.
    suppressed : bool array
        The hidden cells.
    epsilon : float
        ε of the release; infinite without noise.
    """

    counts: Counts
    suppressed: npt.NDArray[np.bool_]
    epsilon: float = math.inf

    @property
    def total(self) -> int:
        """Number of rows in the visible cells; approximate with noise."""
        return int(self.counts.sum())

    @property
    def shares(self) -> Float64Array:
        """Share of the visible rows in each cell; 0 in hidden cells."""
        return np.asarray(self.counts / self.counts.sum())

    def to_record(self) -> dict[str, Any]:
        """Return plain values for JSON or a message."""
        return {
            "counts": self.counts.tolist(),
            "suppressed": self.suppressed.tolist(),
            "epsilon": None if math.isinf(self.epsilon) else self.epsilon,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read what `to_record` wrote; raise InputError if it cannot be a release."""
        try:
            counts = np.asarray(record["counts"])
            hidden = np.asarray(record["suppressed"], dtype=bool)
            epsilon = math.inf if record["epsilon"] is None else float(record["epsilon"])
        except (KeyError, TypeError, ValueError):
            raise InputError(
                "a release must have counts, suppressed and epsilon; got "
                f"{sorted(map(str, record))}"
            ) from None
        counts = _checked(counts)
        if counts.shape != hidden.shape or counts[hidden].any() or not counts.any():
            raise InputError(
                "a release must have rows, and none in suppressed cells; got counts "
                f"{counts.tolist()} with suppressed {hidden.tolist()}"
            )
        return cls(counts, hidden, epsilon)

    def __repr__(self) -> str:
        noise = "no noise" if math.isinf(self.epsilon) else f"ε = {self.epsilon:g}"
        return (
            f"Released({self.total:,} rows in {int((~self.suppressed).sum())} of "
            f"{self.counts.size} cells; {noise})"
        )


def release_counts(
    counts: npt.ArrayLike, *, policy: Privacy, rng: Random = None, secret: bytes | None = None
) -> Released:
    """Release a table of counts as the policy allows.

    Let c be the policy's `min_count`. Without noise, cells with fewer than c rows are hidden, empty
    cells included. The number of rows is public, so it reveals the sum of the hidden cells. While
    that sum is below c, or only one cell is hidden, another cell is hidden too. It is drawn at
    random with a preference for small counts. Then even someone who knows the sum and this rule
    cannot exclude any count from 0 to c − 1 for a hidden cell. If other cells were drawn for the
    same table a second time, the two answers together would undo the protection.

    With `epsilon_counts`, every cell first gets noise. Then noisy counts below `min_count` are
    hidden, at no further cost.

    Parameters
    ----------
    counts : whole numbers, any shape
        Each row is in exactly one cell.
    policy : Privacy
    rng : Generator or seed, optional
        Source of the noise. Leave it out in real use: the default is the operating system's
        entropy, and anyone who knows a seed can remove the noise.
    secret : bytes, optional
        Key of the random choice of further hidden cells. It must be impossible to guess and always
        the same for the same rows (a site uses a hash of its rows). By default `rng` chooses.

    Returns
    -------
    Released

    Raises
    ------
    Refused
        If there are fewer than `min_rows` rows, or every cell would be hidden.

    Examples
    --------
    >>> release_counts([120, 3, 60, 40, 0], policy=Privacy(), rng=0).counts.tolist()
    [120, 0, 60, 0, 0]
    """
    table = _enough(counts, policy)
    below = _source(rng)
    if policy.epsilon_counts is None:
        draw = below if secret is None else _source(_seed(secret, table))
        hidden, epsilon = _hide(table, policy.min_count, draw), math.inf
    else:
        step = _exact(policy.epsilon_counts)
        table = table + np.array([geometric(step, below) for _ in range(table.size)]).reshape(
            table.shape
        )
        hidden, epsilon = table < policy.min_count, float(step)
    if hidden.all():
        raise Refused(
            f"no cell can be released: too many hold fewer than {policy.min_count} rows, this "
            "site's min_count; request fewer, larger cells"
        )
    return Released(np.where(hidden, 0, table), hidden, epsilon)


def _enough(counts: npt.ArrayLike, policy: Privacy) -> Counts:
    table = _checked(np.asarray(counts))
    if table.sum() < policy.min_rows:
        raise Refused(
            f"counts need a distribution of at least {policy.min_rows} rows at this site; there "
            "are fewer rows; leave the site out, or have its owner lower min_rows"
        )
    return table


def _hide(table: Counts, least: int, below: Callable[[int], int]) -> npt.NDArray[np.bool_]:
    """Cells below `least`, and as many others as are needed so that none can be inferred.

    Let hidden cells hold v, 0, …, 0 rows, v < `least`, and one of them the rest of their sum, which
    is at least `least`. If that rest is below `least`, all are small and no other cell is hidden.
    If not, it could have been drawn. The answer is the same in both cases, so v can be anything.
    Hiding the smallest cell instead would reveal that it is the smallest.
    """
    hidden = table < least
    while hidden.any() and not hidden.all():
        if hidden.sum() >= 2 and table[hidden].sum() >= least:
            break
        visible = np.flatnonzero(~hidden)
        tickets = np.cumsum(table.sum() // table.flat[visible])  # at least one for each
        winner = np.searchsorted(tickets, below(int(tickets[-1])), side="right")
        hidden.flat[visible[winner]] = True
    return hidden


@dataclass
class Releases:
    """All tables that a site has released, kept so that none can be subtracted from another.

    The same question gets the same answer, noise included, even if the policy has changed since.
    Another table of the same distribution is refused unless it has noise; its ε then adds to the
    cost. If a table is refused because every cell would be hidden, it stays refused: repeated tries
    with new noise would undo the protection. A site stores this object on disk (`to_record`), and
    starts a new one only when its rows change.

    Attributes
    ----------
    tables : dict of distribution to dict of question to Released or None
        The releases; None for a table that could not be released.

    Examples
    --------
    >>> books = Releases()
    >>> books.answer("labels", "test", [50, 50], policy=Privacy()).total
    100
    >>> books.answer("labels", "test", [50, 51], policy=Privacy()).total
    100
    """

    tables: dict[str, dict[str, Released | None]] = field(default_factory=dict)

    def answer(
        self,
        what: str,
        distribution: str,
        counts: npt.ArrayLike,
        *,
        policy: Privacy,
        rng: Random = None,
        secret: bytes | None = None,
        spent: Callable[[float], None] | None = None,
    ) -> Released:
        """Release a table once, and return that release from then on.

        Parameters
        ----------
        what : str
            Name of the table: "labels", or a digest of the definition of the cells.
        distribution : str
            The rows that are counted: "train" or "test".
        counts, policy, rng, secret
            As in `release_counts`.
        spent : callable, optional
            Called with the ε of a new release, infinite without noise, for example
            `Accountant.spend_counts`.
        """
        tables = self.tables.get(distribution, {})
        if what not in tables:
            table = _enough(counts, policy)
            self._check_new(distribution, what, policy)
            epsilon = policy.epsilon_counts
            cost = math.inf if epsilon is None else float(_exact(epsilon))
            tables = self.tables.setdefault(distribution, tables)
            tables[what] = None  # until it is released
            if spent is not None:
                spent(cost)
            tables[what] = release_counts(table, policy=policy, rng=rng, secret=secret)
        out = tables[what]
        if out is None:
            raise Refused(
                f"no cell of {what!r} could be released for the {distribution} rows, and a second "
                "try would undo the protection; leave this site out"
            )
        return out

    def _check_new(self, distribution: str, what: str, policy: Privacy) -> None:
        tables = self.tables.get(distribution, {})
        bare = any(r is None or math.isinf(r.epsilon) for r in tables.values())
        if tables and (policy.epsilon_counts is None or bare):
            raise Refused(
                f"{', '.join(sorted(tables))} of the {distribution} rows were released before; the "
                f"difference to a second table, {what!r}, could reveal single rows; use the first, "
                "or have the site's owner set epsilon_counts (noise) before any table is released"
            )

    def to_record(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            rows: {what: None if r is None else r.to_record() for what, r in tables.items()}
            for rows, tables in self.tables.items()
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read what `to_record` wrote."""
        return cls(
            {
                rows: {k: None if r is None else Released.from_record(r) for k, r in tables.items()}
                for rows, tables in record.items()
            }
        )


# -- noise -------------------------------------------------------------------------------------


def geometric(epsilon: Fraction, below: Callable[[int], int]) -> int:
    """Draw a whole number z with probability exactly ∝ exp(−ε |z|).

    `below(n)` must return 0 … n − 1 with equal probability. It is the only source of randomness,
    and no floating-point number occurs. (Canonne, Kamath and Steinke 2020, algorithm 2.)
    """
    s, t = epsilon.numerator, epsilon.denominator
    while True:
        u = below(t)
        if not _coin(u, t, below):
            continue
        v = 0
        while _coin(1, 1, below):
            v += 1
        size, negative = (u + t * v) // s, below(2) == 1
        if not (negative and size == 0):
            return -size if negative else size


def _coin(top: int, bottom: int, below: Callable[[int], int]) -> bool:
    """True with probability exp(−top / bottom), for top ≤ bottom."""
    k = 1
    while below(bottom * k) < top:
        k += 1
    return k % 2 == 1


def _source(rng: Random) -> Callable[[int], int]:
    if rng is None:
        return secrets.randbelow
    generator = np.random.default_rng(rng)
    return lambda n: int(generator.integers(n))


def _seed(secret: bytes, table: Counts) -> int:
    code = hashlib.blake2b(table.tobytes(), key=secret[:64], digest_size=32)
    return int.from_bytes(code.digest(), "big")


def _exact(epsilon: float) -> Fraction:
    out = Fraction(math.floor(epsilon * _STEP), _STEP)
    if not out:
        raise InputError(
            f"epsilon_counts must be at least {1 / _STEP:g}; got {epsilon!r}; with more noise the "
            "counts are useless: take a lower disclosure level"
        )
    return out


def _checked(table: npt.NDArray[Any]) -> Counts:
    if table.size == 0 or table.dtype.kind not in "iu" or (table < 0).any():
        raise InputError(
            f"counts must be a non-empty table of whole numbers ≥ 0; got shape {table.shape} of "
            f"{table.dtype}"
        )
    return table.astype(np.int64)
