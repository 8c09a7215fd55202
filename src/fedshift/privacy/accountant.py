r"""How much privacy a site has spent: (ε, δ) of all that it released with noise.

Two sets of rows are neighbours if one has a row where the other has nothing: its gradient is 0
and it lies in no cell, while the number of rows stays the same and is public. (Where a row may
be *replaced* by another, twice the length is at stake: give ``sensitivity=2``.) Everything said
is about one row; a person with g rows has up to g times the ε, and more than that in δ.

*Batches.* A client's batches are cut from a shuffled order of its rows, each row once an epoch,
and the order follows from a seed that others know. So there is no amplification by sampling: the
batch that holds a row is a Gaussian mechanism, the others of that epoch do not see the row, and
n epochs compose as n uses of it (`spend_epochs`). Gaussian mechanisms compose exactly: n uses
with noise σ are one with σ/√n, whose ε is known in closed form (Balle and Wang 2018).

*Poisson.* Only where every row really enters every batch by its own secret coin of probability q
may `spend_poisson` be used; its Rényi divergence at whole orders α is (Mironov et al. 2019)

.. math:: \frac{1}{\alpha - 1} \log \sum_{k=0}^{\alpha} \binom{\alpha}{k} (1-q)^{\alpha-k} q^k
          e^{k (k-1) / (2 \sigma^2)} .
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, log_ndtr, logsumexp

from fedshift.core.params import whole
from fedshift.errors import InputError

if TYPE_CHECKING:  # it needs torch, a site's books do not
    from fedshift.core.samples import Float64Array

#: Rényi orders that are tried; between whole ones (α − 1) D_α is interpolated, as it is convex
ORDERS: Float64Array = np.concatenate(
    [1 + np.geomspace(0.01, 1, 40), np.arange(3, 65), np.rint(np.geomspace(65, 10_000, 60))]
)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """One kind of release, and how often it happened.

    Attributes
    ----------
    what : str
        For people: "train.ratio", "labels".
    kind : {"gaussian", "poisson", "pure"}
        Gaussian noise; the same on batches by coins; any ε-private release.
    noise : float
        σ in units of the sensitivity; 0 is none, and ε infinite.
    epsilon : float
        Of one release ("pure"); infinite if it had no noise.
    q : float
        Probability that a row is in a batch ("poisson").
    uses : int
        Releases that one row took part in, at most.
    """

    what: str
    kind: str
    noise: float = 0.0
    epsilon: float = 0.0
    q: float = 1.0
    uses: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("gaussian", "poisson", "pure"):
            raise InputError(f"spent: kind must be gaussian, poisson or pure; got {self.kind!r}")
        whole(self, "uses", least=0)
        for name in ("noise", "epsilon"):
            if not getattr(self, name) >= 0:
                raise InputError(f"spent: {name} must be ≥ 0; got {getattr(self, name)!r}")
        if not 0 < self.q <= 1:
            raise InputError(f"spent: q must be a probability above 0; got {self.q!r}")

    @property
    def open(self) -> bool:
        """Whether something left without noise."""
        bare = math.isinf(self.epsilon) if self.kind == "pure" else self.noise == 0
        return bare and self.uses > 0

    @property
    def curvature(self) -> float:
        """Sum of 1/σ², where that says it all: Gaussian noise without sampling."""
        plain = self.kind == "gaussian" or (self.kind == "poisson" and self.q == 1)
        return self.uses / self.noise**2 if plain and self.uses else 0.0

    def renyi(self, orders: Float64Array) -> Float64Array:
        """Rényi divergence of all of it, at orders > 1."""
        if not self.uses:
            return 0.0 * orders
        if self.kind == "pure":
            return self.uses * pure_renyi(self.epsilon, orders)
        if self.curvature:
            return orders * self.curvature / 2
        return self.uses * sampled_renyi(self.q, self.noise, orders)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """How far a client is in its endless sequence of batches.

    Attributes
    ----------
    rows, batch : int
        Of the client, and of each batch.
    noise : float
        As in `Spent`; the same for all batches.
    made : int
        Batches made.
    next : int
        One after the last of them.
    epoch : int
        One after the last epoch that was met.
    paid : int
        Epochs paid for.
    """

    rows: int
    batch: int
    noise: float
    made: int = 0
    next: int = 0
    epoch: int = 0
    paid: int = 0

    def __post_init__(self) -> None:
        whole(self, "rows")
        whole(self, "batch")

    @property
    def uses(self) -> int:
        """Batches that one row was in, at most."""
        return min(self.made, self.paid)

    def on(self, first: int, steps: int) -> Stream:
        """After batches `first` … `first + steps − 1`."""
        begin = first * self.batch // self.rows
        end = -(-(first + steps) * self.batch // self.rows)
        # an epoch goes on where it was left; a batch made again is paid for again
        fresh = end - (max(begin, self.epoch) if first >= self.next else begin)
        return replace(
            self,
            made=self.made + steps,
            next=max(self.next, first + steps),
            epoch=max(self.epoch, end),
            paid=self.paid + max(0, fresh),
        )


class Accountant:
    """Adds up what was spent and converts it to (ε, δ).

    Examples
    --------
    >>> books = Accountant()
    >>> books.spend_epochs(noise=2.0, rows=1000, batch=50, steps=40)  # two epochs
    >>> round(books.epsilon(delta=1e-5), 2)
    2.94
    >>> books.spend_counts(0.5)
    >>> books
    Accountant(ε = 3.44 at δ = 1e-05: train.ratio, counts)
    """

    def __init__(self) -> None:
        self.spent: list[Spent] = []
        self.streams: dict[str, Stream] = {}

    def spend_epochs(
        self,
        *,
        noise: float,
        rows: int,
        batch: int,
        steps: int = 1,
        first: int | None = None,
        sensitivity: float = 1.0,
        what: str = "train.ratio",
    ) -> None:
        """Batches cut from shuffled orders of a client's rows (`fedshift.federation.draw.Rows`).

        May be told batch by batch: an epoch is paid for when its first batch is met, and once,
        unless batches are made again. A row that lies in a batch twice must be clipped as one
        row (`private_gradient` does that).

        Parameters
        ----------
        noise : float
            σ in units of the clip; 0 is none.
        rows, batch : int
            Of the client and of a batch. Where several laws fill a batch, those of the law whose
            rows come up most often.
        steps : int
            Batches now.
        first : int, optional
            Number of the first of them in the endless sequence; by default they follow on. A
            client that sits rounds out must give it.
        sensitivity : float
            Longest change that one row can make, in units of the clip.
        what : str
            Trainings with orders of their own (another seed, another fold) need a name each.
        """
        fresh = Stream(rows=rows, batch=batch, noise=_scaled(noise, sensitivity))
        old = self.streams.get(what, fresh)
        if (old.rows, old.batch, old.noise) != (rows, batch, fresh.noise):
            raise InputError(
                f"{what!r} was {old.batch} of {old.rows} rows a batch with noise {old.noise:g}; "
                f"got {batch} of {rows} with {fresh.noise:g}; give it another name, and `first`"
            )
        new = old.on(old.next if first is None else first, steps)
        entry = Spent(what=what, kind="gaussian", noise=new.noise, uses=new.uses - old.uses)
        self.spend(entry)
        self.streams[what] = new

    def spend_poisson(
        self,
        *,
        noise: float,
        q: float,
        steps: int = 1,
        sensitivity: float = 1.0,
        what: str = "train.ratio",
    ) -> None:
        """Batches that every row enters by a secret coin of its own, with probability q."""
        noise = _scaled(noise, sensitivity)
        self.spend(Spent(what=what, kind="poisson", noise=noise, q=q, uses=steps))

    def spend_counts(self, epsilon: float, *, releases: int = 1, what: str = "counts") -> None:
        """Tables with noise of `epsilon` each (any other ε-private release as well)."""
        self.spend(Spent(what=what, kind="pure", epsilon=epsilon, uses=releases))

    def spend_bare(self, what: str) -> None:
        """Something that left without noise; ε is infinite from now on."""
        self.spend_counts(math.inf, what=what)

    @property
    def noisy(self) -> bool:
        """Whether anything left with noise."""
        return any(s.uses and not s.open for s in self.spent)

    def spend(self, entry: Spent) -> None:
        """Book an entry; one that differs from an earlier one in its uses alone is added to it."""
        for i, old in enumerate(self.spent):
            if replace(old, uses=0) == replace(entry, uses=0):
                self.spent[i] = replace(old, uses=old.uses + entry.uses)
                return
        self.spent.append(entry)

    def epsilon(self, delta: float) -> float:
        """The least ε known to hold at δ; infinite if something left without noise."""
        if not 0 < delta < 1:
            raise InputError(f"delta must lie between 0 and 1; got {delta!r}")
        if any(s.open for s in self.spent):
            return math.inf
        pure = [s for s in self.spent if s.kind == "pure"]
        rest = [s for s in self.spent if s.kind != "pure"]
        apart = sum(s.uses * s.epsilon for s in pure) + _noisy_epsilon(rest, delta)
        return min(apart, _renyi_epsilon(self.spent, delta)) if pure else apart

    def to_record(self) -> dict[str, Any]:
        """Plain values, ready for JSON; an infinite ε is None."""
        entries = [asdict(s) for s in self.spent]
        for entry in entries:
            entry["epsilon"] = None if math.isinf(entry["epsilon"]) else entry["epsilon"]
        streams = {what: asdict(stream) for what, stream in self.streams.items()}
        return {"spent": entries, "streams": streams}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The accountant `to_record` wrote; InputError if it is no such record."""
        out = cls()
        try:
            for entry in record["spent"]:
                epsilon = math.inf if entry["epsilon"] is None else entry["epsilon"]
                out.spend(Spent(**{**entry, "epsilon": epsilon}))
            out.streams = {what: Stream(**s) for what, s in record["streams"].items()}
        except (AttributeError, KeyError, TypeError):
            raise InputError(
                "an accountant's record must have spent (a list of entries of Spent) and streams; "
                f"got {record!r:.200}"
            ) from None
        return out

    def __repr__(self) -> str:
        if not self.spent:
            return "Accountant(nothing spent)"
        names = ", ".join(dict.fromkeys(s.what for s in self.spent))
        return f"Accountant(ε = {self.epsilon(1e-5):.3g} at δ = 1e-05: {names})"


def _noisy_epsilon(entries: list[Spent], delta: float) -> float:
    """Of Gaussian mechanisms: exact without sampling, otherwise by Rényi."""
    if all(s.curvature or not s.uses for s in entries):
        return gaussian_epsilon(sum(s.curvature for s in entries), delta)
    return _renyi_epsilon(entries, delta)


def _renyi_epsilon(entries: list[Spent], delta: float) -> float:
    return renyi_to_epsilon(sum((s.renyi(ORDERS) for s in entries), 0.0 * ORDERS), ORDERS, delta)


def renyi_to_epsilon(divergence: Float64Array, orders: Float64Array, delta: float) -> float:
    r"""The least ε over orders (Canonne, Kamath and Steinke 2020, proposition 12),

    .. math:: D_\alpha + \log\frac{\alpha - 1}{\alpha} - \frac{\log\delta + \log\alpha}{\alpha - 1}.
    """
    bound = divergence + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(bound)))


def gaussian_epsilon(curvature: float, delta: float) -> float:
    r"""ε of Gaussian mechanisms with Σ 1/σ² = `curvature`, exactly: with μ its root,

    .. math:: \delta = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu).

    Examples
    --------
    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """
    if curvature == 0:
        return 0.0
    mu = math.sqrt(curvature)

    def excess(epsilon: float) -> float:
        first = log_ndtr(mu / 2 - epsilon / mu)
        second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return float(first + np.log(-np.expm1(min(second - first, -1e-300)))) - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    top = 1.0
    while excess(top) > 0:
        top *= 2
    return float(brentq(excess, 0.0, top, xtol=1e-12, rtol=1e-12))


def pure_renyi(epsilon: float, orders: Float64Array) -> Float64Array:
    r"""Largest Rényi divergence of any ε-private release, that of randomised response,

    .. math:: \frac{1}{\alpha - 1} \log \frac{\cosh (\alpha - 1/2) \varepsilon}
                                             {\cosh \varepsilon / 2} .

    (Bun and Steinke 2016, with sinh αε − sinh (α − 1) ε over sinh ε.)
    """
    a, b = (2 * orders - 1) * epsilon, epsilon
    rest = np.log1p(np.exp(-a)) - np.log1p(np.exp(-b))  # log cosh u/2 = u/2 + log(1 + e^−u) − log 2
    return np.asarray(epsilon + rest / (orders - 1))


def sampled_renyi(q: float, noise: float, orders: Float64Array) -> Float64Array:
    """Rényi divergence of the Poisson-sampled Gaussian; an upper bound between whole orders."""
    low, high = np.floor(orders), np.ceil(orders)
    at = {int(a): _log_moment(int(a), q, noise) for a in np.union1d(low, high)}
    first, last = (np.array([at[int(a)] for a in part]) for part in (low, high))
    return np.asarray((first + (orders - low) * (last - first)) / (orders - 1))


@lru_cache(maxsize=4096)
def _log_moment(order: int, q: float, noise: float) -> float:
    k = np.arange(order + 1)
    choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = choose + (order - k) * np.log1p(-q) + k * np.log(q) + k * (k - 1) / (2 * noise**2)
    return max(0.0, float(logsumexp(terms)))


def _scaled(noise: float, sensitivity: float) -> float:
    if not 0 < sensitivity < math.inf:
        raise InputError(f"sensitivity must be a positive number; got {sensitivity!r}")
    return noise / sensitivity


__all__ = [
    "ORDERS",
    "Accountant",
    "Spent",
    "Stream",
    "gaussian_epsilon",
    "pure_renyi",
    "renyi_to_epsilon",
    "sampled_renyi",
]
