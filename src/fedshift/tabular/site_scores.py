"""What is the federation worth to a site? The federated model beside one that it trains alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedshift.core.samples import Float64Array
from fedshift.core.weights import effective_sample_size
from fedshift.federation.crossval import CrossFittedModel, scores_of
from fedshift.learn.evaluate import ClientScore, Evaluation, per_row, score_rows
from fedshift.learn.gate import Difference, difference
from fedshift.outcome import ModelCandidate
from fedshift.tabular.study import TableStudy

#: rows from which a site trains alone, and effective rows from which two models are compared
LEAST, LEAST_ESS = 20, 10.0
#: level of the two-sided interval of a difference
LEVEL = 0.95
#: numbers that a site sends of held-out rows: scores of two models, a difference with its interval
NUMBERS = 2 * 9 + 3


@dataclass(frozen=True, eq=False)
class SiteScores:
    """Scores of the federated model and of models that sites train alone, on the same rows.

    A site trains alone on its own rows only: the model class of the federated model, with the same
    folds, and a ridge penalty chosen in the same way.

    Attributes
    ----------
    rows : {"deployment rows", "held-out training rows"}
        The rows that are scored. A held-out row is scored by models trained without it.
    federated : Evaluation
        Scores of the federated model at every site that has such rows.
    alone : tuple of ClientScore
        Scores of models trained alone, at the sites with enough rows.
    differences : mapping of site to Difference
        Mean loss (log loss or mse) of the federated model minus that of the model trained alone.
        Above 0, the site is better off alone. Held-out rows have their training weights, and so
        represent the deployment rows.
    """

    rows: str
    federated: Evaluation
    alone: tuple[ClientScore, ...]
    differences: Mapping[str, Difference]

    def to_dict(self) -> dict[str, Any]:
        """Return all scores and differences, ready for JSON."""
        return {
            "rows": self.rows,
            "figure": self.federated.figure,
            "federated": self.federated.to_records(),
            "alone": [asdict(score) for score in self.alone],
            "differences": {name: d.to_dict() for name, d in self.differences.items()},
        }


def score_sites(study: TableStudy, chosen: ModelCandidate) -> tuple[SiteScores, ...]:
    """Score a model beside models that sites train alone.

    Training alone needs `LEAST` rows and, in classification, two rows of a second class. Nothing
    leaves a site for it; the scores and differences do. The ledger has those of held-out rows.
    Those of labelled deployment rows are measurements, like `ModelCandidate.evaluation`.

    Returns
    -------
    tuple of SiteScores
        On labelled deployment rows, if any site has some; then on held-out training rows.
    """
    base, weights, fits = study.times_base(None), study.times_base(chosen.weights), {}
    for c in study.scaled:
        y, fits[c.name] = c.y[base[c.name] > 0], [chosen.fit]
        mixed = study.classes == 1 or np.sort(np.bincount(y, minlength=2))[-2] > 1
        if len(y) >= LEAST and mixed:
            fits[c.name].append(study.fit(None, chosen.fit.model, site=c.name))
    study.book_sums(NUMBERS)
    parts = [_compare(study, fits, weights, deployed=deployed) for deployed in (True, False)]
    return tuple(part for part in parts if part is not None)


def _compare(
    study: TableStudy,
    fits: Mapping[str, list[CrossFittedModel]],
    weights: Mapping[str, Float64Array],
    *,
    deployed: bool,
) -> SiteScores | None:
    """Score the federated model and the site's own, if there is one, at every site with labels."""
    every: tuple[list[ClientScore], list[ClientScore]] = ([], [])  # federated, and alone
    differences, unit = {}, 2 if study.loss == "squared" else 1  # the mse is twice the loss
    for c in study.federation:
        y, w = (c.test_y, np.ones(len(c.test_x))) if deployed else (c.y, weights[c.name])
        if y is None or not len(y):
            continue
        x, losses = study.scaled[c.name].test_x, []
        for fit, scores in zip(fits[c.name], every, strict=False):
            z = scores_of(fit.module, x) if deployed else fit.held_out[c.name]
            z = study.scaling.out[0] + study.scaling.out[1] * z  # in the unit of the labels
            scores.append(score_rows(z, y, c, study.loss))
            losses.append({c.name: unit * per_row(z, y, study.loss, c.name)[0]})
        if len(losses) > 1 and effective_sample_size(w) >= LEAST_ESS:
            d = difference(losses[0], losses[1], {c.name: w})
            differences[c.name] = replace(d, candidate="federated", baseline="alone", level=LEVEL)
    if not every[0]:
        return None
    rows = "deployment rows" if deployed else "held-out training rows"
    return SiteScores(rows, Evaluation(tuple(every[0])), tuple(every[1]), differences)
