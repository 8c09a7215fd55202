"""Can it be told from generated rows who was in the training data? An attack on oneself.

Members are rows the sampler was fitted to, others are rows of the same law it never saw. An
attack gives every row a score; its AUC is the chance that a member scores above another. Half is
a coin, one is certainty. Averages hide the few rows that are given away, so the share of members
found where one in a hundred others is accused falsely is told as well.

*By distance*: members lie nearer to a generated row. *By likelihood*: members are likelier under
the model; for samplers that have a density.

An audit that finds nothing shows that these attacks fail, not that none succeeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import nhypergeom, rankdata

from fedshift.core.samples import Float64Array
from fedshift.errors import InputError
from fedshift.privacy.generate import Sampler

#: false accusations at which found members are counted
FALSE = 0.01


@dataclass(frozen=True, kw_only=True)
class Audit:
    """How well an attack tells members from others.

    Attributes
    ----------
    attack : {"distance", "likelihood"}
    auc, low, high : float
        Chance that a member scores above another, and its 95 % interval.
    tpr : float
        Share of members found where 1 % of others are accused (none, below 100 others).
    members, others : int
        Rows it was tried on.
    """

    attack: str
    auc: float
    low: float
    high: float
    tpr: float
    members: int
    others: int

    @property
    def leaks(self) -> bool:
        """Whether members stand out, all of them or a few: surely, and by more than a trifle."""
        many = self.low > 0.5 and self.auc >= 0.55
        found = round(self.tpr * self.members)
        # chance of so many members above the same threshold, were all rows alike
        drawn = nhypergeom(self.members + self.others, self.members, _allowed(self.others) + 1)
        few = self.tpr >= 5 * FALSE and drawn.sf(found - 1) < 0.01
        return bool(many or few)

    @property
    def status(self) -> str:
        """One line for people."""
        verdict = "members do not stand out"
        if self.leaks:
            verdict = "members stand out, do not send"
        elif self.low > 0.5:
            verdict = "members stand out a little"
        return (
            f"membership audit by {self.attack}: AUC {self.auc:.3f} ({self.low:.3f} to "
            f"{self.high:.3f}), {self.tpr:.1%} of members found at {FALSE:.0%} false alarms: "
            f"{verdict}"
        )

    def __repr__(self) -> str:
        return f"Audit({self.status})"


def score_audit(attack: str, members: npt.ArrayLike, others: npt.ArrayLike) -> Audit:
    """An audit from the scores of an attack, higher where it says member.

    The interval is DeLong's, and never narrower than three over the smaller number of rows.

    Examples
    --------
    >>> print(score_audit("distance", np.arange(100) + 0.5, np.arange(100)).status)
    membership audit by distance: AUC 0.505 (0.425 to 0.585), 2.0% of members found at 1% false \
alarms: members do not stand out
    """
    a, b = np.asarray(members, dtype=np.float64), np.asarray(others, dtype=np.float64)
    if min(len(a), len(b)) < 2 or np.isnan(a).any() or np.isnan(b).any():
        raise InputError(
            f"an audit needs at least 2 members and 2 others with scores; got {len(a)} and {len(b)}"
        )
    both = rankdata(np.concatenate([a, b]))
    above = (both[: len(a)] - rankdata(a)) / len(b)  # share of others below each member
    under = 1 - (both[len(a) :] - rankdata(b)) / len(a)
    auc = float(above.mean())
    error = np.sqrt(above.var(ddof=1) / len(a) + under.var(ddof=1) / len(b))
    half = max(1.96 * float(error), 3 / min(len(a), len(b)))
    threshold = np.sort(b)[::-1][_allowed(len(b))]
    return Audit(
        attack=attack,
        auc=auc,
        low=max(0.0, auc - half),
        high=min(1.0, auc + half),
        tpr=float(np.mean(a > threshold)),
        members=len(a),
        others=len(b),
    )


def audit_samples(samples: npt.ArrayLike, members: npt.ArrayLike, others: npt.ArrayLike) -> Audit:
    """The attack by distance to the nearest generated row, in the samples' own units."""
    made, own, out = _flat(samples), _flat(members), _flat(others)
    scale = made.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return score_audit(
        "distance", -_nearest(own / scale, made / scale), -_nearest(out / scale, made / scale)
    )


def audit(
    sampler: Sampler, samples: npt.ArrayLike, members: npt.ArrayLike, others: npt.ArrayLike
) -> tuple[Audit, ...]:
    """All attacks that a sampler and the samples about to leave allow."""
    out = [audit_samples(samples, members, others)]
    density: Any = getattr(sampler, "log_density", None)
    if density is not None:
        out.append(score_audit("likelihood", density(members), density(others)))
    return tuple(out)


def fit_audited(
    sampler: Sampler, x: npt.ArrayLike, n: int, *, seed: int, held_out: float = 0.25
) -> tuple[npt.NDArray[Any], tuple[Audit, ...]]:
    """Fit a sampler, draw what would leave the site, and audit just that.

    Parameters
    ----------
    sampler : Sampler
        Is fitted in place, to all but the rows held out.
    x : rows (N, …)
    n : int
        Rows to draw.
    seed : int
    held_out : float
        Share of rows that the sampler never sees.

    Returns
    -------
    samples : ndarray (n, …)
    audits : tuple of Audit
        Print the status of each before anything is sent.
    """
    rows, rng = np.asarray(x), np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    cut = round(held_out * len(rows))
    if not 2 <= cut < len(rows):
        raise InputError(
            f"an audit needs at least 2 rows held out and some left; got {cut} of {len(rows)}; "
            "change held_out or take a lower rung"
        )
    others, members = rows[order[:cut]], rows[order[cut:]]
    fit_seed, draw_seed = (int(s) for s in rng.integers(2**31, size=2))
    samples = sampler.fit(members, seed=fit_seed).sample(n, seed=draw_seed)
    return samples, audit(sampler, samples, members, others)


def _allowed(others: int) -> int:
    return int(FALSE * others)


def _nearest(rows: Float64Array, made: Float64Array) -> Float64Array:
    from sklearn.neighbors import NearestNeighbors

    return np.asarray(NearestNeighbors(n_neighbors=1).fit(made).kneighbors(rows)[0][:, 0])


def _flat(rows: npt.ArrayLike) -> Float64Array:
    values = np.asarray(rows, dtype=np.float64)
    return values.reshape(len(values), -1)


__all__ = ["FALSE", "Audit", "audit", "audit_samples", "fit_audited", "score_audit"]
