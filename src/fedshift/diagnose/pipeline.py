"""`diagnose`: from a federation to a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedshift.core.threads import threads_for
from fedshift.data.federation import Federation, check_federation
from fedshift.diagnose.classes import Classes
from fedshift.diagnose.columns import column_names, column_shifts
from fedshift.diagnose.conditional import labels_given_inputs
from fedshift.diagnose.diagnosis import Comparison, Diagnosis, SiteDiagnosis
from fedshift.diagnose.finding import LEVEL, SMALLEST, Finding, adjust
from fedshift.diagnose.overlap import Overlap, overlap, whole
from fedshift.diagnose.plan import PlannedComparison, between, check_options, within
from fedshift.diagnose.shift_type import ShiftType, with_labels, without_labels
from fedshift.diagnose.significance import draws_for
from fedshift.diagnose.two_sample import Budget, Pair, inputs, labels

#: With more draws than MANY, tests use fewer rows, but at least FEWER: many sites need many draws.
MANY, FEWER = 2500, 1000


@threads_for(0)  # thinned rows are little work, however large the federation
def diagnose(
    federation: Federation,
    *,
    seed: int = 0,
    alpha: float = 0.05,
    smallest: float = SMALLEST,
    rows: int = 5000,
    features: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Test where the data shifted, and name each shift's type.

    Each site's training rows are compared with its test rows and with the training rows of the
    other sites. The tests compare inputs and, unless test labels are missing, also labels, and
    labels given inputs. If nothing shifted, the probability of any false alarm is at most `alpha`
    (exact permutation tests, Holm's correction over all tests). With many rows every difference is
    significant, so a shift also needs an AUC of at least `smallest`.

    Parameters
    ----------
    federation : Federation
        Sites with training rows, labels and test rows. Test labels are optional.
    seed : int
        The same seed gives the same result, whatever the order of sites or the units of columns.
    alpha : float
        Bound on the probability of any false alarm. The tests together use alpha / 2. The other
        half allows for rows that depend on each other, and for the one test that is not exact
        (labels given inputs).
    smallest : float
        Smallest AUC that matters. If the best classifier separates two distributions with this AUC,
        the mean of any loss in [0, 1] differs by at most 2 AUC − 1 between them.
    rows : int
        A test uses at most this many source rows and this many target rows, drawn at random. More
        rows take longer and only make smaller differences significant. With more than about five
        sites, fewer rows are used (at least 1000): more tests need smaller p-values and so more
        draws, and fewer rows keep the duration in bounds.
    features : mapping, optional
        The original feature of each encoded column, for one-hot columns.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y, new = rng.random(400) < 0.3, rng.random(400) < 0.8
    >>> x, test_x = (rng.normal(size=(400, 3)) + 2 * v[:, None] for v in (y, new))
    >>> ward = diagnose(Federation.of({"ward": (x, y, test_x)}))["ward"]
    >>> ward.status, ward.shift_type.name
    ('shift', 'label')
    """
    check_federation(federation, "diagnose")
    check_options(alpha, smallest, rows, seed)
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
    adjusted = _adjust([_test(pair, budget) for pair in pairs])
    names = federation.columns or column_names(federation[0].x.shape[1:])
    compared = [
        Comparison(
            site=plan.site,
            other=plan.other,
            findings=findings,
            shift_type=_shift_type(plan, pair, findings, budget),
            columns=column_shifts(
                plan.source.x, plan.target.x, names=names, groups=features, pair=pair, seed=seed
            )
            if findings[0].status == "shift"
            else (),
        )
        for plan, pair, findings in zip(plans, pairs, adjusted, strict=True)
    ]
    inside = zip(own, pairs, compared[: len(own)], strict=False)
    return Diagnosis(
        sites=tuple(
            SiteDiagnosis(
                **c.__dict__,
                train_rows=len(plan.source),
                test_rows=len(plan.target),
                overlap=_overlap(plan, pair, c, budget),
            )
            for plan, pair, c in inside
        ),
        between=tuple(compared[len(own) :]),
        classes=classes.names,
        alpha=alpha,
        smallest=smallest,
        tests=tests,
        seed=seed,
    )


def _test(pair: Pair, budget: Budget) -> list[Finding]:
    findings = [inputs(pair, budget)]
    if pair.y is not None:
        findings += [labels(pair, budget), labels_given_inputs(pair, budget)]
    return findings


def _adjust(raw: Sequence[Sequence[Finding]]) -> list[tuple[Finding, ...]]:
    flat = iter(adjust([f for findings in raw for f in findings]))
    return [tuple(next(flat) for _ in findings) for findings in raw]


def _shift_type(
    plan: PlannedComparison, pair: Pair, findings: Sequence[Finding], budget: Budget
) -> ShiftType:
    if plan.labelled:
        return with_labels(pair, {f.question: f for f in findings}, budget)
    return without_labels(pair, plan.classes[pair.rows], findings[0], budget)


def _overlap(plan: PlannedComparison, pair: Pair, c: Comparison, budget: Budget) -> Overlap:
    """Overlap of a site; complete if its inputs did not shift."""
    finding = c["inputs"]
    if finding.status == "inconclusive":
        return Overlap(reason=finding.reason)
    if finding.status != "shift":
        return whole(len(plan.source))
    return overlap(pair, budget, rows=len(plan.source))
