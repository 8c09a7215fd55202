r"""Privacy accounting: the (ε, δ) of everything that a site released with noise.

Two data sets are neighbours if one has a row and the other an empty row in its place. The empty row
has gradient 0 and is counted in no cell of a table of counts. The number of rows is the same and
public. (If a row may be *replaced* by another, the sensitivity doubles: give half the noise.) All
guarantees are for one row. For a person with g rows, ε is up to g times as large, and δ grows more
than that.

*Batches.* A client's batches are cut from a shuffled order of its rows, each row once per epoch.
The order follows from a seed that others know, so the random order does not reduce ε (there is no
privacy amplification by sampling). In each epoch, a row is in one batch only, and the sum of that
batch is one use of the Gaussian mechanism. So n epochs count as n uses (`spend_epochs`). Gaussian
mechanisms compose exactly: n uses with noise σ equal one use with noise σ/√n, whose ε has a closed
form (Balle and Wang 2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedshift.core.params import whole
from fedshift.errors import InputError

if TYPE_CHECKING:  # importing it loads torch
    from fedshift.core.samples import Float64Array

#: Rényi orders to minimise over
ORDERS: Float64Array = np.concatenate(
    [1 + np.geomspace(0.01, 1, 40), np.arange(3, 65), np.rint(np.geomspace(65, 10_000, 60))]
)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """One kind of release, and how often it took place.

    Attributes
    ----------
    what : str
        Name of the release, such as "train.ratio" or "labels".
    kind : {"gaussian", "pure"}
        Gaussian noise, or any ε-private release.
    noise : float
        σ, the standard deviation of Gaussian noise in units of the sensitivity. 0 means no noise
        and infinite ε.
    epsilon : float
        ε of one release of kind "pure"; infinite without noise.
    uses : int
        Largest number of releases that one row takes part in.
    """

    what: str
    kind: str
    noise: float = 0.0
    epsilon: float = 0.0
    uses: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("gaussian", "pure"):
            raise InputError(f"Spent: kind must be gaussian or pure; got {self.kind!r}")
        whole(self, "uses", least=0)
        for name in ("noise", "epsilon"):
            if not getattr(self, name) >= 0:
                raise InputError(f"Spent: {name} must be ≥ 0; got {getattr(self, name)!r}")

    @property
    def open(self) -> bool:
        """Whether a release had no noise."""
        bare = math.isinf(self.epsilon) if self.kind == "pure" else self.noise == 0
        return bare and self.uses > 0

    @property
    def curvature(self) -> float:
        """Sum of 1/σ² over all uses; 0 for releases of kind "pure"."""
        return self.uses / self.noise**2 if self.kind == "gaussian" and self.uses else 0.0

    def renyi(self, orders: Float64Array) -> Float64Array:
        """Return the Rényi divergence of all uses, at orders > 1."""
        if self.kind == "pure" and self.uses:
            return self.uses * pure_renyi(self.epsilon, orders)
        return orders * self.curvature / 2


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Position of a client in its endless sequence of batches.

    Attributes
    ----------
    rows, batch : int
        Number of rows of the client and of each batch.
    noise : float
        As in `Spent`; the same for all batches.
    made : int
        Number of batches so far.
    next : int
        Index of the next batch.
    epoch : int
        Index of the next epoch.
    paid : int
        Number of epochs whose cost has been added.
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
        """Number of batches that contained the most used row."""
        return min(self.made, self.paid)

    def on(self, first: int, steps: int) -> Stream:
        """Return the position after batches `first` … `first + steps − 1`."""
        begin = first * self.batch // self.rows
        end = -(-(first + steps) * self.batch // self.rows)
        # an epoch that continues costs nothing more; a repeated batch costs again
        fresh = end - (max(begin, self.epoch) if first >= self.next else begin)
        return replace(
            self,
            made=self.made + steps,
            next=max(self.next, first + steps),
            epoch=max(self.epoch, end),
            paid=self.paid + max(0, fresh),
        )


class Accountant:
    """Add up the privacy cost of all releases and convert it to (ε, δ).

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
        what: str = "train.ratio",
    ) -> None:
        """Add batches cut from shuffled orders of a client's rows.

        The method may be called batch by batch. The first batch of an epoch pays for the whole
        epoch; repeated batches pay again. A row that occurs in a batch twice must be clipped as one
        row (`private_gradient` does that). For the order of rows, see
        `fedshift.federation.draw.BatchRows`.

        Parameters
        ----------
        noise : float
            σ in units of the clip; 0 means no noise.
        rows, batch : int
            Number of rows of the client and of a batch. If a batch mixes rows of several
            distributions, pass the two numbers of one distribution: the one for which `batch`
            divided by `rows` is largest.
        steps : int
            Number of batches to add.
        first : int, optional
            Index of the first batch to add, in the client's endless sequence of batches. By default
            it follows the last batch added. For a client that skips rounds, `first` is required.
        what : str
            Name of the release. A second training with another order of the rows (another seed or
            fold) needs a name of its own.
        """
        fresh = Stream(rows=rows, batch=batch, noise=noise)
        old = self.streams.get(what, fresh)
        if (old.rows, old.batch, old.noise) != (rows, batch, fresh.noise):
            raise InputError(
                f"{what!r} must keep batch size {old.batch}, {old.rows} rows and noise "
                f"{old.noise:g}; got {batch}, {rows} and {fresh.noise:g}; for other values, pass "
                "a new name as what= (and the index of the first batch as first=, if it is not 0)"
            )
        new = old.on(old.next if first is None else first, steps)
        entry = Spent(what=what, kind="gaussian", noise=new.noise, uses=new.uses - old.uses)
        self.spend(entry)
        self.streams[what] = new

    def spend_counts(self, epsilon: float, *, releases: int = 1, what: str = "counts") -> None:
        """Add tables of counts with noise, or any other releases that are ε-private each."""
        self.spend(Spent(what=what, kind="pure", epsilon=epsilon, uses=releases))

    def spend_bare(self, what: str) -> None:
        """Add a release without noise; ε is infinite from now on."""
        self.spend_counts(math.inf, what=what)

    @property
    def noisy(self) -> bool:
        """Whether any release had noise."""
        return any(s.uses and not s.open for s in self.spent)

    def spend(self, entry: Spent) -> None:
        """Add an entry; entries that differ only in their uses are merged."""
        for i, old in enumerate(self.spent):
            if replace(old, uses=0) == replace(entry, uses=0):
                self.spent[i] = replace(old, uses=old.uses + entry.uses)
                return
        self.spent.append(entry)

    def epsilon(self, delta: float) -> float:
        """Return the smallest ε that is known to hold at δ; infinite if a release had no noise."""
        if not 0 < delta < 1:
            raise InputError(f"delta must lie between 0 and 1; got {delta!r}")
        if any(s.open for s in self.spent):
            return math.inf
        pure = [s for s in self.spent if s.kind == "pure"]
        gaussian = gaussian_epsilon(sum(s.curvature for s in self.spent), delta)
        if not pure:
            return gaussian
        together = sum((s.renyi(ORDERS) for s in self.spent), 0.0 * ORDERS)
        apart = sum(s.uses * s.epsilon for s in pure) + gaussian
        return min(apart, renyi_to_epsilon(together, ORDERS, delta))

    def to_record(self) -> dict[str, Any]:
        """Return plain values for JSON; an infinite ε is None."""
        entries = [asdict(s) for s in self.spent]
        for entry in entries:
            entry["epsilon"] = None if math.isinf(entry["epsilon"]) else entry["epsilon"]
        streams = {what: asdict(stream) for what, stream in self.streams.items()}
        return {"spent": entries, "streams": streams}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read what `to_record` wrote; raise InputError if it is no such record."""
        out = cls()
        try:
            for entry in record["spent"]:
                known = {k: v for k, v in entry.items() if k != "q"}  # older records have it
                epsilon = math.inf if entry["epsilon"] is None else entry["epsilon"]
                out.spend(Spent(**{**known, "epsilon": epsilon}))
            out.streams = {what: Stream(**s) for what, s in record["streams"].items()}
        except (AttributeError, KeyError, TypeError):
            raise InputError(
                "an accountant's record must have spent (a list of Spent entries) and streams; "
                f"got {record!r:.200}"
            ) from None
        return out

    def __repr__(self) -> str:
        if not self.spent:
            return "Accountant(nothing spent)"
        names = ", ".join(dict.fromkeys(s.what for s in self.spent))
        return f"Accountant(ε = {self.epsilon(1e-5):.3g} at δ = 1e-05: {names})"


def renyi_to_epsilon(divergence: Float64Array, orders: Float64Array, delta: float) -> float:
    r"""Return the smallest ε over orders (Canonne, Kamath and Steinke 2020, proposition 12).

    The result is the smallest value of the following, or 0 if that is negative:

    .. math:: D_\alpha + \log\frac{\alpha - 1}{\alpha} - \frac{\log\delta + \log\alpha}{\alpha - 1}

    where α runs over `orders`, D_α is the Rényi divergence at order α, and δ is `delta`.
    """
    bound = divergence + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(bound)))


def gaussian_epsilon(curvature: float, delta: float) -> float:
    r"""Return the exact ε at δ of Gaussian mechanisms with Σ 1/σ² = μ² = `curvature`.

    .. math:: \delta = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu)

    Φ is the standard normal distribution function. This equation is solved for ε.

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
    r"""Return the largest Rényi divergence of any ε-private release, at each order α.

    Randomised response attains this divergence:

    .. math:: \frac{1}{\alpha - 1} \log \frac{\cosh (\alpha - 1/2) \varepsilon}
                                             {\cosh \varepsilon / 2}

    (Bun and Steinke 2016 write it as sinh αε − sinh (α − 1) ε over sinh ε.)
    """
    a, b = (2 * orders - 1) * epsilon, epsilon
    rest = np.log1p(np.exp(-a)) - np.log1p(np.exp(-b))  # log cosh u/2 = u/2 + log(1 + e^−u) − log 2
    return np.asarray(epsilon + rest / (orders - 1))
