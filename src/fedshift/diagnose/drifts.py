"""Has the data met in use moved since the weights were made, and is it time to make new ones?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedshift.core.label import mlls
from fedshift.core.params import nearest
from fedshift.core.samples import FloatArray, Laws, as_rows, column_names
from fedshift.diagnose.columns import ColumnShift, column_shifts
from fedshift.diagnose.columns import column_names as unnamed
from fedshift.diagnose.finding import LEVEL, SMALLEST, Finding, adjust
from fedshift.diagnose.null import draws_for
from fedshift.diagnose.two_sample import Budget, Pair, Side, inputs
from fedshift.errors import InputError
from fedshift.ratio.label import LabelShift

Verdict = Literal["re-estimate", "keep the weights", "cannot tell"]


@dataclass(frozen=True, kw_only=True)
class LabelLaw:
    """A label law brought up to date, started from the one before.

    Attributes
    ----------
    classes : tuple
    before, now : tuple of float
        Shares of the classes in the reference batch and in the new one, both estimated.
    steps : int
        EM steps it took.
    """

    classes: tuple[Any, ...]
    before: tuple[float, ...]
    now: tuple[float, ...]
    steps: int

    @property
    def moved(self) -> float:
        """Total variation between the two."""
        return float(np.abs(np.subtract(self.now, self.before)).sum()) / 2.0

    def __repr__(self) -> str:
        return (
            f"LabelLaw({len(self.classes)} classes, moved by {self.moved:.3f}, {self.steps} steps)"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class SiteDrift:
    """A new batch of a site's deployment rows against the one its weights were made for.

    Attributes
    ----------
    site : str
    finding : Finding
    columns : tuple of ColumnShift
    labels : LabelLaw or None
        Present if a fitted label-shift estimator was given.
    """

    site: str
    finding: Finding
    columns: tuple[ColumnShift, ...]
    labels: LabelLaw | None

    @property
    def verdict(self) -> Verdict:
        """Whether to estimate the ratio anew."""
        said: dict[str, Verdict] = {"shift": "re-estimate", "cannot tell": "cannot tell"}
        return said.get(self.finding.status, "keep the weights")

    @property
    def sentence(self) -> str:
        """What was found and what to do."""
        f = self.finding
        rows = f"{self.site} ({f.source_rows} rows then, {f.target_rows} now)"
        if self.verdict == "cannot tell":
            return f"{rows}: cannot tell whether the data moved: {f.reason}."
        size = f"AUC {f.auc:.2f} [{f.low:.2f}, {f.high:.2f}], {f.p_text}"
        if self.verdict == "keep the weights":
            return f"{rows}: {f.status} since the weights were made ({size}); keep them."
        most = ", ".join(c.name for c in self.columns[:3])
        labels = f"; the label law moved by {self.labels.moved:.2f}" if self.labels else ""
        return f"{rows}: the data moved ({size}), most in {most}{labels}; estimate the ratio anew."

    def __repr__(self) -> str:
        return f"SiteDrift({self.sentence})"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        law = self.labels
        return {
            "site": self.site,
            "verdict": self.verdict,
            "finding": self.finding.to_dict(),
            "columns": [dict(c.__dict__) for c in self.columns],
            "labels": None
            if law is None
            else {
                "classes": [str(c) for c in law.classes],
                "before": list(law.before),
                "now": list(law.now),
            },
        }


@dataclass(frozen=True, repr=False)
class Drift:
    """New batches of all sites.

    Attributes
    ----------
    sites : tuple of SiteDrift
    """

    sites: tuple[SiteDrift, ...]

    @property
    def verdict(self) -> Verdict:
        """Re-estimate if one site must; keep if all may."""
        said = [s.verdict for s in self.sites]
        order: tuple[Verdict, ...] = ("re-estimate", "cannot tell")
        return next((v for v in order if v in said), "keep the weights")

    def __getitem__(self, site: str) -> SiteDrift:
        """A site's."""
        for s in self.sites:
            if s.site == site:
                return s
        raise InputError(f"the site must be {nearest(site, [s.site for s in self.sites])}")

    def sentences(self) -> list[str]:
        """One a site."""
        return [s.sentence for s in self.sites]

    def __repr__(self) -> str:
        moved = sum(s.verdict == "re-estimate" for s in self.sites)
        return f"Drift({self.verdict}; moved at {moved} of {len(self.sites)})"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, with a version of its own under "schema"."""
        return {
            "schema": "fedshift.drift/1",
            "verdict": self.verdict,
            "sites": [s.to_dict() for s in self.sites],
            "sentences": self.sentences(),
        }


def drift(
    reference: Laws,
    new: Laws,
    *,
    labels: LabelShift | Mapping[str, LabelShift] | None = None,
    columns: Sequence[str] | None = None,
    features: Mapping[str, str] | None = None,
    seed: int = 0,
    alpha: float = 0.05,
    smallest: float = SMALLEST,
    rows: int = 5000,
) -> Drift:
    """Compare a new batch of deployment rows with the one the weights were made for.

    The test, the effect size and the family-wise error rate are those of `diagnose`. Being below
    `smallest` is a reason to keep weights: ratios change as little as the laws do.

    Parameters
    ----------
    reference, new : rows (n, ...), (m, ...), or mappings of site to rows
        Sites must be the same; ``federation.test`` is such a mapping.
    labels : fitted label-shift estimator (`MLLS`, ...), or mapping of site to one, optional
        Its target label law is brought up to date from the new rows: EM starts at the old law, the
        classifiers are used as they are, and no training row is touched.
    columns, features
        Names of the columns, and the mapping from encoded column to original feature.
    seed, alpha, smallest, rows
        See `diagnose`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> drift(rng.normal(size=(500, 2)), rng.normal(0.6, 1, size=(500, 2)))
    Drift(re-estimate; moved at 1 of 1)
    """
    before, now = _by_site(reference, "reference"), _by_site(new, "new")
    if set(before) != set(now):
        raise InputError(
            f"new must hold the sites of reference, {sorted(before)}; got {sorted(now)}; leave "
            "out sites without new rows on both sides"
        )
    names = columns or _names(reference) or _names(new)
    draws = draws_for(len(before), LEVEL * alpha)
    budget = Budget(rows=rows, draws=draws, level=LEVEL * alpha, smallest=smallest, seed=seed)
    pairs = {
        site: Pair.of(Side(x), Side(now[site]), budget, site, "since") for site, x in before.items()
    }
    found = adjust([inputs(pair, budget) for pair in pairs.values()])
    return Drift(
        tuple(
            SiteDrift(
                site=site,
                finding=finding,
                columns=_columns(before[site], now[site], names, features, pair, finding, seed),
                labels=_law(labels, site, now[site]),
            )
            for (site, pair), finding in zip(pairs.items(), found, strict=True)
        )
    )


def _by_site(laws: Laws, name: str) -> dict[str, FloatArray]:
    named = laws if isinstance(laws, Mapping) else {"deployment": laws}
    if not named:
        raise InputError(f"{name} must hold rows of at least one site; got an empty mapping")
    return {str(site): as_rows(x, name=f"{name}[{site!r}]") for site, x in named.items()}


def _names(laws: Laws) -> list[str] | None:
    first = next(iter(laws.values())) if isinstance(laws, Mapping) else laws
    names = column_names(first)
    return None if names is None else [str(n) for n in names]


def _columns(
    before: FloatArray,
    now: FloatArray,
    names: Sequence[str] | None,
    groups: Mapping[str, str] | None,
    pair: Pair,
    finding: Finding,
    seed: int,
) -> tuple[ColumnShift, ...]:
    if finding.status != "shift":
        return ()
    named = names or unnamed(before.shape[1:])
    return column_shifts(before, now, names=named, groups=groups, pair=pair, seed=seed)


def _law(
    labels: LabelShift | Mapping[str, LabelShift] | None, site: str, new: FloatArray
) -> LabelLaw | None:
    model = labels.get(site) if isinstance(labels, Mapping) else labels
    if model is None:
        return None
    old = model.target_priors_.get(site, model.target_prior_)
    found = mlls(model.predict_source_proba(new), model.source_prior_, start=old)
    return LabelLaw(
        classes=tuple(model.classes_.tolist()),
        before=tuple(old.tolist()),
        now=tuple(found.prior.tolist()),
        steps=len(found.log_likelihood),
    )


__all__ = ["Drift", "LabelLaw", "SiteDrift", "drift"]
