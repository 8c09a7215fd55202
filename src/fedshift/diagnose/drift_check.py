"""Compare new deployment rows with earlier ones, and decide whether to re-estimate the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedshift.core.by_name import ByName
from fedshift.core.label import mlls
from fedshift.core.samples import FloatArray, RowSets, as_rows, column_names
from fedshift.diagnose.columns import ColumnShift, column_shifts, largest
from fedshift.diagnose.columns import column_names as unnamed
from fedshift.diagnose.finding import LEVEL, SMALLEST, Finding, adjust
from fedshift.diagnose.plan import check_options
from fedshift.diagnose.significance import draws_for
from fedshift.diagnose.two_sample import Budget, Pair, Side, inputs
from fedshift.errors import InputError
from fedshift.ratio.label import LabelShift

DriftVerdict = Literal["re-estimate", "keep the weights", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class UpdatedLabelDistribution:
    """A label distribution estimated again from new rows.

    Attributes
    ----------
    classes : tuple
    before, now : tuple of float
        Estimated class proportions of the reference rows and of the new rows.
    steps : int
        Number of EM steps.
    """

    classes: tuple[Any, ...]
    before: tuple[float, ...]
    now: tuple[float, ...]
    steps: int

    @property
    def distance(self) -> float:
        """Total variation between the two label distributions."""
        return float(np.abs(np.subtract(self.now, self.before)).sum()) / 2.0

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({len(self.classes)} classes, distance {self.distance:.3f})"


@dataclass(frozen=True, kw_only=True, repr=False)
class SiteDrift:
    """A comparison of a site's new deployment rows with its earlier deployment rows.

    The earlier rows are the ones that the weights were estimated from.

    Attributes
    ----------
    site : str
    finding : Finding
        The test of the inputs.
    columns : tuple of ColumnShift
        The columns that differ most; empty unless the inputs shifted.
    labels : UpdatedLabelDistribution or None
        Estimated from the new rows; None without a fitted label-shift estimator.
    """

    site: str
    finding: Finding
    columns: tuple[ColumnShift, ...]
    labels: UpdatedLabelDistribution | None

    @property
    def verdict(self) -> DriftVerdict:
        """Whether to re-estimate the density ratio."""
        advice: dict[str, DriftVerdict] = {"shift": "re-estimate", "inconclusive": "inconclusive"}
        return advice.get(self.finding.status, "keep the weights")

    @property
    def sentence(self) -> str:
        """The result and the next step."""
        f = self.finding
        rows = f"{self.site} ({f.source_rows} earlier and {f.target_rows} new rows)"
        if self.verdict == "inconclusive":
            return f"{rows}: inconclusive: {f.reason}."
        size = f"AUC {f.auc:.2f} [{f.low:.2f}, {f.high:.2f}], {f.p_text}"
        if self.verdict == "keep the weights":
            return f"{rows}: {f.status} ({size}). Keep the weights."
        labels = (
            f" Estimated class proportions changed by {self.labels.distance:.2f}."
            if self.labels
            else ""
        )
        change = f"Largest change: {largest(self.columns)}.{labels}"
        return f"{rows}: shift ({size}). {change} Re-estimate the weights."

    def __repr__(self) -> str:
        return f"SiteDrift({self.sentence})"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict ready for JSON."""
        labels = self.labels
        return {
            "site": self.site,
            "verdict": self.verdict,
            "finding": self.finding.to_dict(),
            "columns": [dict(c.__dict__) for c in self.columns],
            "labels": None
            if labels is None
            else {
                "classes": [str(c) for c in labels.classes],
                "before": list(labels.before),
                "now": list(labels.now),
            },
        }


@dataclass(frozen=True, repr=False)
class Drift(ByName[SiteDrift]):
    """Comparisons of new deployment rows with earlier ones, for all sites.

    Attributes
    ----------
    sites : tuple of SiteDrift
    """

    _entries, _key = "sites", "site"

    sites: tuple[SiteDrift, ...]

    @property
    def verdict(self) -> DriftVerdict:
        """The verdict for all sites together.

        "re-estimate" if the rows of any site shifted, else "inconclusive" if any site is
        inconclusive, else "keep the weights".
        """
        verdicts = [s.verdict for s in self.sites]
        order: tuple[DriftVerdict, ...] = ("re-estimate", "inconclusive")
        return next((v for v in order if v in verdicts), "keep the weights")

    def sentences(self) -> list[str]:
        """Return one sentence per site."""
        return [s.sentence for s in self.sites]

    def __repr__(self) -> str:
        count = sum(s.verdict == "re-estimate" for s in self.sites)
        return f"Drift({self.verdict}; shift at {count} of {len(self.sites)} sites)"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict ready for JSON; its version is under "schema"."""
        return {
            "schema": "fedshift.drift/1",
            "verdict": self.verdict,
            "sites": [s.to_dict() for s in self.sites],
            "sentences": self.sentences(),
        }


def drift(
    reference: RowSets,
    new: RowSets,
    *,
    labels: LabelShift | Mapping[str, LabelShift] | None = None,
    columns: Sequence[str] | None = None,
    features: Mapping[str, str] | None = None,
    seed: int = 0,
    alpha: float = 0.05,
    smallest: float = SMALLEST,
    rows: int = 5000,
) -> Drift:
    """Compare new deployment rows with the earlier rows that the weights were estimated from.

    The test, the effect size and the bound on false alarms are the same as in `diagnose`. If the
    AUC of a shift is below `smallest`, keep the weights: small changes of the distributions change
    the ratios little.

    Parameters
    ----------
    reference, new : rows (n, ...), (m, ...), or mappings of site to rows
        Both must have the same sites; ``federation.test`` is such a mapping.
    labels : fitted label-shift estimator (`MLLS`, ...), or mapping of site to one, optional
        The target label distribution is estimated again from the new rows. EM starts at the old
        distribution; no classifier is trained and no training row is read.
    columns : sequence of str, optional
        Names of the columns.
    features : mapping, optional
        The original feature of each encoded column, for one-hot columns.
    seed, alpha, smallest, rows
        See `diagnose`.

    Returns
    -------
    Drift

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> drift(rng.normal(size=(500, 2)), rng.normal(0.6, 1, size=(500, 2)))
    Drift(re-estimate; shift at 1 of 1 sites)
    """
    check_options(alpha, smallest, rows, seed)
    before, now = _by_site(reference, "reference"), _by_site(new, "new")
    if set(before) != set(now):
        raise InputError(
            f"new must have the sites of reference, {sorted(before)}; got {sorted(now)}; remove "
            "from both mappings the sites that have no new rows"
        )
    shapes = {x.shape[1:] for x in (*before.values(), *now.values())}
    if len(shapes) > 1:
        raise InputError(f"reference and new must have rows of one shape; got {sorted(shapes)}")
    known = columns or _names(reference) or _names(new)
    names = {site: known or unnamed(x.shape[1:]) for site, x in now.items()}
    draws = draws_for(len(before), LEVEL * alpha)
    budget = Budget(rows=rows, draws=draws, level=LEVEL * alpha, smallest=smallest, seed=seed)
    pairs = {
        site: Pair.of(Side(x), Side(now[site]), budget, site, "since") for site, x in before.items()
    }
    findings = adjust([inputs(pair, budget) for pair in pairs.values()])
    sites = [
        SiteDrift(
            site=site,
            finding=finding,
            columns=column_shifts(
                before[site], now[site], names=names[site], groups=features, pair=pair, seed=seed
            )
            if finding.status == "shift"
            else (),
            labels=_distribution(labels, site, now[site]),
        )
        for (site, pair), finding in zip(pairs.items(), findings, strict=True)
    ]
    return Drift(tuple(sites))


def _by_site(rows: RowSets, name: str) -> dict[str, FloatArray]:
    by_site = rows if isinstance(rows, Mapping) else {"deployment": rows}
    if not by_site:
        raise InputError(f"{name} must have rows of at least one site; got an empty mapping")
    return {str(site): as_rows(x, name=f"{name}[{site!r}]") for site, x in by_site.items()}


def _names(rows: RowSets) -> list[str] | None:
    first = next(iter(rows.values())) if isinstance(rows, Mapping) else rows
    names = column_names(first)
    return None if names is None else [str(n) for n in names]


def _distribution(
    labels: LabelShift | Mapping[str, LabelShift] | None, site: str, new: FloatArray
) -> UpdatedLabelDistribution | None:
    model = labels.get(site) if isinstance(labels, Mapping) else labels
    if model is None:
        return None
    old = model.target_priors_.get(site, model.target_prior_)
    fit = mlls(model.predict_source_proba(new), model.source_prior_, start=old)
    return UpdatedLabelDistribution(
        classes=tuple(model.classes_.tolist()),
        before=tuple(old.tolist()),
        now=tuple(fit.prior.tolist()),
        steps=len(fit.log_likelihood),
    )
