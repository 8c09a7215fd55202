"""The door: a federation in, a diagnosis out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from fedshift.core.samples import Float64Array
from fedshift.core.threads import threads_for
from fedshift.data.federation import Federation
from fedshift.diagnose.classes import Classes
from fedshift.diagnose.columns import ColumnShift, column_names, column_shifts
from fedshift.diagnose.conditional import labels_given_inputs
from fedshift.diagnose.diagnosis import Comparison, Diagnosis, SiteDiagnosis
from fedshift.diagnose.finding import LEVEL, SMALLEST, Finding, adjust
from fedshift.diagnose.kind import Kind, label_ratio, with_labels, without_labels
from fedshift.diagnose.null import draws_for
from fedshift.diagnose.overlap import Overlap, overlap, whole
from fedshift.diagnose.plan import Planned, between, within
from fedshift.diagnose.predict import NOTHING, PredictedEffect, Weighted, predicted_effect
from fedshift.diagnose.two_sample import Budget, Pair, inputs, labels
from fedshift.errors import InputError

#: draws above which tests use fewer rows, and how few at most: many sites need many draws
MANY, FEWER = 2500, 1000


def diagnose(
    federation: Federation,
    *,
    seed: int = 0,
    alpha: float = 0.05,
    smallest: float = SMALLEST,
    rows: int = 5000,
    features: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Say what shifted, which kind it is, where, and whether weighting will help.

    Every site's training rows are compared with its test rows and with the training rows of the
    other sites: inputs, and where both sides have labels, labels and labels given inputs. The
    chance that a diagnosis without any shift raises a single alarm is at most `alpha` (exact
    permutation tests, Holm's correction over all questions). With many rows everything is
    significant, so an alarm also needs an AUC of at least `smallest`.

    Parameters
    ----------
    federation : Federation
        Test labels, where given, are used to name the kind of shift and for nothing else.
    seed : int
        Neither the order of sites nor units of columns change what a seed gives.
    alpha : float
        Tests are held to half of it: see `fedshift.diagnose.finding.LEVEL`.
    smallest : float
        Smallest AUC that matters. No bounded loss changes by more than 2 AUC − 1 between two laws
        that the best classifier tells apart with this AUC.
    rows : int
        Most rows a side that a test uses, drawn at random; more would cost time and add
        significance, not insight. With more than about five sites it is less, down to 1000, as
        p-values must get smaller the more questions are asked.
    features : mapping, optional
        Encoded column to original feature, for one-hot columns.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y, new = rng.random(400) < 0.3, rng.random(400) < 0.8
    >>> x, test_x = (rng.normal(size=(400, 3)) + 2 * v[:, None] for v in (y, new))
    >>> found = diagnose(Federation.of({"ward": (x, y, test_x)}))
    >>> found["ward"].status, found["ward"].kind.name
    ('shift', 'label')
    """
    _check(alpha, smallest, rows)
    with threads_for(0):  # thinned rows are small work, whatever the federation
        return _diagnose(federation, seed, alpha, smallest, rows, features)


def _check(alpha: float, smallest: float, rows: int) -> None:
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie in (0, 1); got {alpha}; 0.05 is usual")
    if not 0.5 <= smallest < 1:
        raise InputError(f"smallest must be an AUC in [0.5, 1); got {smallest}")
    if rows < 50:
        raise InputError(f"rows must be at least 50; got {rows}; 5000 is usual")


def _diagnose(
    federation: Federation,
    seed: int,
    alpha: float,
    smallest: float,
    rows: int,
    groups: Mapping[str, str] | None,
) -> Diagnosis:
    classes = Classes.of(federation)
    own = [within(c, classes) for c in federation]
    apart = between(own, rows=rows, seed=seed)
    plans = [*own, *apart]
    tests = sum(3 if p.labelled else 1 for p in plans)
    level = LEVEL * alpha
    draws = draws_for(tests, level)
    fewer = min(rows, max(FEWER, rows * MANY // draws))
    budget = Budget(rows=fewer, draws=draws, level=level, smallest=smallest, seed=seed)
    pairs = [Pair.of(p.source, p.target, budget, p.site, p.other) for p in plans]
    raw = [_ask(pair, budget) for pair in pairs]
    findings = _adjusted(raw)
    names = federation.columns or column_names(federation[0].x.shape[1:])
    compared = [
        Comparison(
            site=plan.site,
            other=plan.other,
            findings=found,
            kind=_kind(plan, pair, found, budget),
            columns=_moved(plan, pair, found, names, groups, seed),
        )
        for plan, pair, found in zip(plans, pairs, findings, strict=True)
    ]
    inside, total = _weighed(own, pairs, compared[: len(own)], budget)
    return Diagnosis(
        sites=inside,
        between=tuple(compared[len(own) :]),
        predicted_effect=total,
        classes=classes.names,
        alpha=alpha,
        smallest=smallest,
        tests=tests,
        seed=seed,
    )


def _ask(pair: Pair, budget: Budget) -> list[Finding]:
    found = [inputs(pair, budget)]
    if pair.y is not None:
        found += [labels(pair, budget), labels_given_inputs(pair, budget)]
    return found


def _adjusted(raw: Sequence[Sequence[Finding]]) -> list[tuple[Finding, ...]]:
    flat = iter(adjust([f for found in raw for f in found]))
    return [tuple(next(flat) for _ in found) for found in raw]


def _kind(plan: Planned, pair: Pair, found: tuple[Finding, ...], budget: Budget) -> Kind:
    if plan.labelled:
        return with_labels(pair, {f.question: f for f in found}, budget)
    return without_labels(pair, plan.classes[pair.rows], found[0], budget)


def _moved(
    plan: Planned,
    pair: Pair,
    found: tuple[Finding, ...],
    names: Sequence[str],
    groups: Mapping[str, str] | None,
    seed: int,
) -> tuple[ColumnShift, ...]:
    if found[0].status != "shift":
        return ()
    return column_shifts(
        plan.source.x, plan.target.x, names=names, groups=groups, pair=pair, seed=seed
    )


def _weighed(
    own: Sequence[Planned], pairs: Sequence[Pair], compared: Sequence[Comparison], budget: Budget
) -> tuple[tuple[SiteDiagnosis, ...], PredictedEffect]:
    """Overlap and forecast of every site; where nothing moved, weights are one."""
    laps, sites = [], []
    for plan, pair, c in zip(own, pairs, compared, strict=False):
        lap, weight = _ratio(plan, pair, c, budget)
        laps.append(lap)
        sites.append(Weighted(plan.source.x[pair.rows], plan.classes[pair.rows], weight))
    if any(c["inputs"].status == "shift" for c in compared):
        order = sorted(range(len(own)), key=lambda k: own[k].site)  # whatever the order given
        total, by_name = predicted_effect([sites[k] for k in order], seed=budget.seed)
        each = [effect for _, effect in sorted(zip(order, by_name, strict=True))]
    else:
        unknown = PredictedEffect(reason="too few rows, or no shift of the inputs to follow")
        total = NOTHING if all(s.weight is not None for s in sites) else unknown
        each = [unknown if s.weight is None else NOTHING for s in sites]
    made = tuple(
        SiteDiagnosis(
            **c.__dict__,
            train_rows=len(plan.source),
            test_rows=len(plan.target),
            overlap=lap,
            predicted_effect=effect,
        )
        for c, plan, lap, effect in zip(compared, own, laps, each, strict=True)
    )
    return made, total


def _ratio(
    plan: Planned, pair: Pair, c: Comparison, budget: Budget
) -> tuple[Overlap, Float64Array | None]:
    """Overlap of a site, and weights of the pair's source rows; None where they are not known."""
    found = c["inputs"]
    if found.status == "cannot tell":
        return Overlap(reason=found.reason), None
    if found.status != "shift":
        # test labels may show what the inputs hide; ratios, made without them, cannot follow
        hidden = c.status == "shift"
        return whole(len(plan.source)), None if hidden else np.ones(pair.sizes[0])
    lap, log_ratio = overlap(pair, budget, rows=len(plan.source))
    if c.kind.name == "label":
        with suppress(InputError):
            y = plan.classes[pair.rows]
            return lap, label_ratio(pair, y, budget)[0][y]
    return lap, None if log_ratio is None else np.exp(log_ratio)
