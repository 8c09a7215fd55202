"""Membership audit: do generated rows reveal which rows their model was fitted to?

Members are rows that the sampler was fitted to. Non-members (`others`) are rows of the same
distribution that it never saw. An attack gives every row a score. Its AUC is the probability that a
member scores above a non-member: 0.5 is guessing, 1 is certainty. An average can hide a few exposed
rows, so the audit also reports the share of members detected at a false alarm rate of 1 %.

The attack *by distance* assumes that members lie nearer to a generated row. The attack *by
likelihood* assumes that members are more likely under the model; it applies to samplers that have a
density.

If an audit reports that members do not stand out, these attacks fail. Other attacks may succeed.
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

#: false alarm rate at which detected members are counted
FALSE = 0.01


@dataclass(frozen=True, kw_only=True)
class Audit:
    """How well an attack separates members from non-members.

    Attributes
    ----------
    attack : {"distance", "likelihood"}
    auc, low, high : float
        Probability that a member scores above a non-member, and its 95 % interval.
    tpr : float
        Share of members detected at a false alarm rate of 1 %; with fewer than 100 non-members, at
        a rate of 0.
    members, others : int
        Number of members and of non-members.
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
        """Whether the attack separates members from non-members, on average or for a few members.

        True only if the separation is statistically significant and large enough to matter.
        """
        many = self.low > 0.5 and self.auc >= 0.55
        hits = round(self.tpr * self.members)
        # chance of so many members above the threshold if all rows were alike
        null = nhypergeom(self.members + self.others, self.members, _allowed(self.others) + 1)
        few = self.tpr >= 5 * FALSE and null.sf(hits - 1) < 0.01
        return bool(many or few)

    @property
    def status(self) -> str:
        """The result in one line of text."""
        text = "members do not stand out"
        if self.leaks:
            text = "members stand out: do not send these rows"
        elif self.low > 0.5:
            text = "members stand out a little, too little to withhold the rows"
        return (
            f"membership audit by {self.attack}: AUC {self.auc:.3f} ({self.low:.3f} to "
            f"{self.high:.3f}), {self.tpr:.1%} of members detected at {FALSE:.0%} false alarms: "
            f"{text}"
        )

    def __repr__(self) -> str:
        return f"Audit({self.status})"


def score_audit(attack: str, members: npt.ArrayLike, others: npt.ArrayLike) -> Audit:
    """Audit the scores of an attack, where members should have higher scores than non-members.

    The interval is DeLong's, but never narrower than ± 3 / min(m, n), for m members and n
    non-members.

    Examples
    --------
    >>> print(score_audit("distance", np.arange(100) + 0.5, np.arange(100)).status)
    membership audit by distance: AUC 0.505 (0.425 to 0.585), 2.0% of members detected at 1% false \
alarms: members do not stand out
    """
    a, b = np.asarray(members, dtype=np.float64), np.asarray(others, dtype=np.float64)
    if min(len(a), len(b)) < 2 or np.isnan(a).any() or np.isnan(b).any():
        raise InputError(
            f"an audit needs ≥ 2 members and ≥ 2 non-members with scores; got {len(a)} and {len(b)}"
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
    """Audit samples with the attack by distance.

    The score of a row is minus its distance to the nearest sample. Columns are divided by their
    standard deviations over the samples.
    """
    z, own, out = _flat(samples), _flat(members), _flat(others)
    scale = z.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return score_audit(
        "distance", -_nearest(own / scale, z / scale), -_nearest(out / scale, z / scale)
    )


def audit(
    sampler: Sampler, samples: npt.ArrayLike, members: npt.ArrayLike, others: npt.ArrayLike
) -> tuple[Audit, ...]:
    """Run all attacks that apply to a sampler and its samples."""
    out = [audit_samples(samples, members, others)]
    density: Any = getattr(sampler, "log_density", None)
    if density is not None:
        out.append(score_audit("likelihood", density(members), density(others)))
    return tuple(out)


def fit_audited(
    sampler: Sampler, x: npt.ArrayLike, n: int, *, seed: int, held_out: float = 0.25
) -> tuple[npt.NDArray[Any], tuple[Audit, ...]]:
    """Fit a sampler, generate the rows that would leave the site, and audit them.

    Parameters
    ----------
    sampler : Sampler
        The sampler; it is fitted in place, to all rows but the held-out ones.
    x : rows (N, …)
        The site's rows.
    n : int
        Number of rows to generate.
    seed : int
        Seed of the split, the fit and the generated rows.
    held_out : float
        Share of rows that the sampler never sees.

    Returns
    -------
    samples : ndarray (n, …)
    audits : tuple of Audit
        The results. Read the status of each audit before you send the samples.
    """
    rows, rng = np.asarray(x), np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    cut = round(held_out * len(rows))
    if not 2 <= cut < len(rows):
        raise InputError(
            f"an audit needs ≥ 2 held-out rows and ≥ 1 to fit; got {cut} of {len(rows)} held out; "
            "change held_out or take a lower disclosure level"
        )
    others, members = rows[order[:cut]], rows[order[cut:]]
    fit_seed, draw_seed = (int(s) for s in rng.integers(2**31, size=2))
    samples = sampler.fit(members, seed=fit_seed).sample(n, seed=draw_seed)
    return samples, audit(sampler, samples, members, others)


def _allowed(others: int) -> int:
    return int(FALSE * others)


def _nearest(rows: Float64Array, samples: Float64Array) -> Float64Array:
    from sklearn.neighbors import NearestNeighbors

    return np.asarray(NearestNeighbors(n_neighbors=1).fit(samples).kneighbors(rows)[0][:, 0])


def _flat(rows: npt.ArrayLike) -> Float64Array:
    values = np.asarray(rows, dtype=np.float64)
    return values.reshape(len(values), -1)
