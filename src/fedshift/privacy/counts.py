r"""Tables of counts that may leave a site: small cells hidden, whole-number noise if asked for.

One row lies in one cell, so adding or removing a row changes one count by one: the sensitivity
of a whole table is 1, and noise of the two-sided geometric law

.. math:: P(z) \propto e^{-\varepsilon |z|}, \qquad z = 0, \pm 1, \pm 2, \dots

on every cell makes its release ε-differentially private. The noise is drawn from whole numbers
alone (Canonne, Kamath and Steinke 2020), so its last digits give nothing away as those of
floating-point Laplace noise do.

An *estimated* label law (`fedshift.core.label`) is no such table: one row may move all of it.
For noise, count the classes that a classifier predicts, and estimate from the released counts.

*Differences.* Two answers about the same rows can be subtracted. The same table under two
thresholds shows the cells between them; cells that differ by a sliver show who is in the sliver.
A site therefore answers through `Releases`, which repeats its first answer and, without noise,
refuses any other table of the same law.
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

if TYPE_CHECKING:  # it needs torch, counting does not
    from fedshift.core.samples import Float64Array

Counts = npt.NDArray[np.int64]
#: randomness: a seed or generator for tests; None is the operating system's entropy
Random = np.random.Generator | int | None

#: finest step of ε: noise is drawn for the next lower multiple of it
_STEP = 10**6


@dataclass(frozen=True)
class Released:
    """A table as it left the site.

    Attributes
    ----------
    counts : int array
        With 0 in suppressed cells.
    suppressed : bool array
        Cells that are not shown.
    epsilon : float
        What the release cost; infinite if there was no noise.
    """

    counts: Counts
    suppressed: npt.NDArray[np.bool_]
    epsilon: float = math.inf

    @property
    def total(self) -> int:
        """Rows in the cells that are shown; with noise, about so many."""
        return int(self.counts.sum())

    @property
    def law(self) -> Float64Array:
        """Shares of the cells, summing to one over those that are shown."""
        return np.asarray(self.counts / self.counts.sum())

    def to_record(self) -> dict[str, Any]:
        """Plain values for JSON or a message."""
        return {
            "counts": self.counts.tolist(),
            "suppressed": self.suppressed.tolist(),
            "epsilon": None if math.isinf(self.epsilon) else self.epsilon,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """What `to_record` wrote; InputError if it cannot be a release."""
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
                "a release must show at least one row and none in suppressed cells; got "
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
    """A table of counts as the policy lets it go.

    Without noise, cells below `min_count` c are not shown, zeros included. As the number of rows
    is known, what is missing from it tells the sum of the hidden cells; while that is below c,
    or there is only one hidden cell, another is hidden as well, drawn at random and rather a
    small one. Each hidden cell may then hold any of 0 … c − 1 rows, whatever is worked out from
    the sum and from the rule itself. Another draw of the same table would undo that.

    With `epsilon_counts`, every cell gets noise first; then noisy counts below `min_count` are
    hidden, which costs nothing further.

    Parameters
    ----------
    counts : whole numbers, any shape
        Each row in exactly one cell.
    policy : Privacy
    rng : Generator or seed, optional
        Of the noise. Leave it out in real use: then it is the operating system's entropy, and
        nobody who knows a seed can take the noise off again.
    secret : bytes, optional
        Of the cells hidden besides: what nobody outside can guess, and always the same for the
        same rows (a site takes a hash of them). Without it they are drawn like the noise.

    Returns
    -------
    Released

    Raises
    ------
    Refused
        If there are fewer than `min_rows` rows, or no cell can be shown.

    Examples
    --------
    >>> release_counts([120, 3, 60, 40, 0], policy=Privacy(), rng=0).counts.tolist()
    [120, 0, 60, 0, 0]
    """
    table = _enough(counts, policy)
    below = _source(rng)
    if policy.epsilon_counts is None:
        draw = below if secret is None else _source(_seed(secret, table))
        hidden, epsilon = _hidden(table, policy.min_count, draw), math.inf
    else:
        step = _exact(policy.epsilon_counts)
        table = table + np.array([geometric(step, below) for _ in range(table.size)]).reshape(
            table.shape
        )
        hidden, epsilon = table < policy.min_count, float(step)
    if hidden.all():
        raise Refused(
            f"no cell can be shown: too many hold fewer rows than the {policy.min_count} this "
            "site shows; ask for fewer, larger cells"
        )
    return Released(np.where(hidden, 0, table), hidden, epsilon)


def _enough(counts: npt.ArrayLike, policy: Privacy) -> Counts:
    table = _checked(np.asarray(counts))
    if table.sum() < policy.min_rows:
        raise Refused(
            f"counts were asked of a law with fewer rows than the {policy.min_rows} this site "
            "needs to answer; leave the site out, or have its owner lower min_rows"
        )
    return table


def _hidden(table: Counts, least: int, below: Callable[[int], int]) -> npt.NDArray[np.bool_]:
    """Cells below `least`, and as many others as it takes that none can be worked out.

    Let hidden cells hold v, 0, …, 0 rows, v < `least`, and one of them the rest of their sum, which
    is `least` or more. If that rest is below `least` all are small, and nothing else is hidden; if
    not, it could have been drawn. The answer is the same either way, so v may be anything. To hide
    the smallest cell instead would tell that it is the smallest.
    """
    hidden = table < least
    while hidden.any() and not hidden.all():
        if hidden.sum() >= 2 and table[hidden].sum() >= least:
            break
        shown = np.flatnonzero(~hidden)
        tickets = np.cumsum(table.sum() // table.flat[shown])  # at least one for each
        drawn = np.searchsorted(tickets, below(int(tickets[-1])), side="right")
        hidden.flat[shown[drawn]] = True
    return hidden


@dataclass
class Releases:
    """What a site has answered, so that answers cannot be subtracted from one another.

    The same question gets the same answer, noise and all, whatever the policy has become since.
    Another table of the same law is refused unless it has noise, and is then paid for again.
    That no cell could be shown is an answer too: asking on until the noise is kind would undo it.
    A site keeps this on its disk (`to_record`), and starts anew for other rows only.

    Examples
    --------
    >>> books = Releases()
    >>> books.answer("labels", "test", [50, 50], policy=Privacy()).total
    100
    >>> books.answer("labels", "test", [50, 51], policy=Privacy()).total
    100
    """

    given: dict[str, dict[str, Released | None]] = field(default_factory=dict)

    def answer(
        self,
        what: str,
        law: str,
        counts: npt.ArrayLike,
        *,
        policy: Privacy,
        rng: Random = None,
        secret: bytes | None = None,
        spent: Callable[[float], None] | None = None,
    ) -> Released:
        """Release a table once.

        Parameters
        ----------
        what : str
            The question: "labels", or a digest of the cells.
        law : str
            Whose rows: "train", "test".
        counts, policy, rng, secret
            As in `release_counts`.
        spent : callable, optional
            Told the ε of a new release, infinite without noise: `Accountant.spend_counts`.
        """
        told = self.given.get(law, {})
        if what not in told:
            table = _enough(counts, policy)
            self._may_add(law, what, policy)
            cost = (
                math.inf if policy.epsilon_counts is None else float(_exact(policy.epsilon_counts))
            )
            told = self.given.setdefault(law, told)
            told[what] = None  # until it is released
            if spent is not None:
                spent(cost)
            told[what] = release_counts(table, policy=policy, rng=rng, secret=secret)
        out = told[what]
        if out is None:
            raise Refused(
                f"{what!r} of law {law!r} was asked before, and no cell could be shown; a second "
                "try would undo the protection; leave this site out"
            )
        return out

    def _may_add(self, law: str, what: str, policy: Privacy) -> None:
        told = self.given.get(law, {})
        bare = any(r is None or math.isinf(r.epsilon) for r in told.values())
        if told and (policy.epsilon_counts is None or bare):
            raise Refused(
                f"counts of law {law!r} were released before, for {', '.join(sorted(told))}; a "
                f"second table, {what!r}, could be subtracted from it; use the first, or have "
                "the site's owner set epsilon_counts before the first release"
            )

    def to_record(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            law: {what: None if r is None else r.to_record() for what, r in told.items()}
            for law, told in self.given.items()
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """What `to_record` wrote."""
        return cls(
            {
                law: {
                    what: None if r is None else Released.from_record(r) for what, r in told.items()
                }
                for law, told in record.items()
            }
        )


# -- noise -------------------------------------------------------------------------------------


def geometric(epsilon: Fraction, below: Callable[[int], int]) -> int:
    """A whole number z with probability ∝ exp(−ε |z|), exactly.

    `below(n)` must give 0 … n − 1, equally likely; nothing else is random, and no floating-point
    number occurs. (Canonne, Kamath and Steinke 2020, algorithm 2.)
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
    found = hashlib.blake2b(table.tobytes(), key=secret[:64], digest_size=32)
    return int.from_bytes(found.digest(), "big")


def _exact(epsilon: float) -> Fraction:
    out = Fraction(math.floor(epsilon * _STEP), _STEP)
    if not out:
        raise InputError(
            f"epsilon_counts must be at least {1 / _STEP:g}; got {epsilon!r}; so much noise "
            "would leave nothing of the counts: take a lower rung"
        )
    return out


def _checked(table: npt.NDArray[Any]) -> Counts:
    if table.size == 0 or table.dtype.kind not in "iu" or (table < 0).any():
        raise InputError(
            f"counts must be whole numbers ≥ 0, at least one; got shape {table.shape} of "
            f"{table.dtype}"
        )
    return table.astype(np.int64)


__all__ = ["Random", "Released", "Releases", "geometric", "release_counts"]
