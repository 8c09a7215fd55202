"""Train every site alone, and score its model beside the federated one, on the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array
from fedshift.data.federation import ClientData, Federation
from fedshift.federation.crossval import CrossFittedModel, cross_fit, ridge_path, scores_of
from fedshift.learn.evaluate import Evaluation, per_row, score_rows
from fedshift.learn.gate import difference
from fedshift.learn.site_scores import SiteScores
from fedshift.tabular.outcome import ModelCandidate
from fedshift.tabular.study import TableStudy

#: rows from which a site trains alone, and effective rows from which two models are compared
LEAST, LEAST_ESS = 20, 10.0
#: rounds of training alone: a perceptron changes little after them (a linear model needs fewer)
ROUNDS = 75
#: level of the two-sided interval of a difference
LEVEL = 0.95
#: numbers that a site sends for each kind of rows: scores of two models, a difference with interval
NUMBERS = 2 * 9 + 4


def score_sites(study: TableStudy, chosen: ModelCandidate) -> tuple[SiteScores, ...]:
    """Score a model beside models that sites train alone.

    Training alone needs `LEAST` rows and, in classification, two rows of a second class. Nothing
    leaves a site for it; the scores and differences do.

    Returns
    -------
    tuple of SiteScores
        On labelled deployment rows, if any site has some; then on held-out training rows.
    """
    base = study.times_base(None)
    alone = {c.name: fit for c in study.scaled if (fit := _alone(study, c, chosen, base[c.name]))}
    weights = study.times_base(chosen.weights)
    labels = {c.name: c.y for c in study.federation}
    tested = {c.name: c.test_y for c in study.federation if c.test_y is not None and len(c.test_y)}
    fits = {n: (chosen.fit, *([alone[n]] if n in alone else [])) for n in labels}
    held_out = {n: [fit.held_out[n] for fit in pair] for n, pair in fits.items()}
    out = [_compare(study, "held-out training rows", labels, held_out, weights)]
    if tested:
        scores = {
            n: [scores_of(fit.module, study.scaled[n].test_x) for fit in fits[n]] for n in tested
        }
        ones = {n: np.ones(len(y)) for n, y in tested.items()}
        out.insert(0, _compare(study, "deployment rows", tested, scores, ones))
    study.book_sums(NUMBERS * len(out))
    return tuple(out)


def _alone(
    study: TableStudy, c: ClientData, chosen: ModelCandidate, base: Float64Array
) -> CrossFittedModel | None:
    """Train a site alone; None if it has too few rows."""
    y = c.y[base > 0]
    second = len(y) if study.loss == "squared" else np.sort(np.unique(y, return_counts=True)[1])
    if len(y) < LEAST or np.append(0, second)[-2:].min() < 2:
        return None
    return cross_fit(
        Federation((c,)),
        {c.name: base},
        {c.name: study.fold[c.name]},
        model=chosen.fit.model,
        loss=study.loss,
        classes=study.classes,
        ridges=ridge_path(chosen.fit.model, study.rows),
        rounds=ROUNDS,
        seed=study.seed,
    )


def _compare(
    study: TableStudy,
    rows: str,
    labels: Mapping[str, npt.NDArray[np.generic]],
    scores: Mapping[str, list[Float64Array]],
    weights: Mapping[str, Float64Array],
) -> SiteScores:
    """Score the federated model (first) and the site's own (second, if there is one)."""
    federated, local, differences = [], {}, {}
    shift, scale = study.out  # of labels in a regression
    for name, y in labels.items():
        pair = [s * scale + shift for s in scores[name]]
        train_y = study.federation[name].y
        both = [score_rows(s, y, client=name, loss=study.loss, train_y=train_y) for s in pair]
        federated.append(both[0])
        if len(both) < 2:
            continue
        local[name] = both[1]
        unit = 2 if study.loss == "squared" else 1  # the mse is twice the loss
        losses = [{name: unit * per_row(s, y, study.loss, name)[0]} for s in pair]
        if weights[name].any():
            d = difference(losses[0], losses[1], {name: weights[name]})
            if d.ess >= LEAST_ESS:
                differences[name] = replace(d, candidate="federated", baseline="alone", level=LEVEL)
    return SiteScores(rows, Evaluation(tuple(federated)), local, differences)
