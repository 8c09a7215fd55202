"""Scale → ERM → shift type of the unlabelled rows → weights → gate → forecast.

Every choice uses held-out training rows and unlabelled rows. Test labels are read once, at the end.
Gradients, sums and label distributions leave a site. Rows do not, unless the `ratio` needs them.
The ledger lists everything that left.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy.typing as npt

from fedshift.core.params import nearest
from fedshift.core.threads import threads_for
from fedshift.core.weights import Weighting, Weights
from fedshift.data.federation import Federation
from fedshift.data.tables import Encoded, Sites
from fedshift.errors import InputError, option
from fedshift.federation.client_weights import RatioMethod
from fedshift.federation.crossval import MODELS, CrossFittedModel
from fedshift.federation.shift_type import admit, objection
from fedshift.learn.gate import SUMS, Gate, GateRule, difference, gate
from fedshift.learn.objective import Objective
from fedshift.outcome import TabularOutcome
from fedshift.tabular.site_scores import score_sites
from fedshift.tabular.study import TableStudy

#: training rows from which a perceptron is tried too
MANY = 1000
#: standard errors by which a perceptron must beat the linear model
BETTER = 1.0


def fit_tables(
    federation: Federation | Sites | Encoded,
    *,
    seed: int = 0,
    objective: str = "auto",
    ratio: RatioMethod | None = None,
    model: str = "auto",
    loss: Literal["auto", "cross-entropy", "squared"] = "auto",
    base: Mapping[str, npt.ArrayLike] | None = None,
    weighting: Weighting | None = None,
    rule: GateRule | None = None,
    gated: bool = True,
    folds: int = 5,
) -> TabularOutcome:
    """Train a federation of tables, with weights if these do no harm beyond noise.

    Parameters
    ----------
    federation : Federation or Sites
        Rows of numeric columns with classes or numbers as labels, or tables as they are
        (`fedshift.Sites.of`). Test labels are optional and read at the end.
    objective : str
        "auto": a row has weight q̄/p̄, the ratio of the mixtures of all test and all training
        distributions (`fedshift.federation.shift_type`). "erm": no weights. Any other name of
        `fedshift.learn.objective.Objective`: the weights that this objective defines.
    ratio : see `fedshift.federation.client_weights`, optional
        The source of weights. By default, the shift type and the overlap decide whether there are
        weights, and which. A named ratio is tried whatever they are; the gate still tests it.
    model : {"auto", "linear", "mlp"}
        "auto" also tries a perceptron, by cross-validation, if there are at least 1000
        training rows.
    loss : {"auto", "cross-entropy", "squared"}
        "auto" takes text and whole numbers for classes.
    base : mapping of site to (n_k,), optional
        Sample weights that training rows already have, such as survey weights. Importance weights
        multiply them.
    weighting : Weighting, optional
        How ratios become weights. By default the largest weight is 20.
    rule : GateRule, optional
        Rule of the gate, the no-harm test. By default `GateRule()`.
    gated : bool
        False chooses the weighted model even if the gate refuses it or overlap is poor. If the
        shift type is "none" or "inconclusive", there is no weighted model unless `ratio` is named.
    folds : int
        Number of folds of cross-validation.

    Examples
    --------
    >>> import numpy as np
    >>> from fedshift import Federation
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, size=(2, 60))
    >>> x = rng.normal(size=(2, 60, 3)) + 2 * y[:, :, None]
    >>> sites = {"a": (x[0], y[0], x[1][:30]), "b": (x[1], y[1], x[0][:30])}
    >>> fit_tables(Federation.of(sites)).choice
    'erm'
    """
    begin = time.perf_counter()
    aim = None if objective == "auto" else Objective.of(objective)
    if model not in ("auto", *MODELS):
        raise InputError(f"{option('model')} must be {nearest(model, ('auto', *MODELS))}")
    tables = federation.encode() if isinstance(federation, Sites) else federation
    study = TableStudy.of(tables, loss=loss, base=base, folds=folds, seed=seed)
    federation = study.federation
    if aim is not None:
        aim.check(federation)
    with threads_for(sum(c.x.size for c in federation)):
        erm = _fit_erm(study, model)
        explanations, distributions = study.explain(erm)
        shift, refused = admit(explanations)
        against = objection(shift, explanations["covariate"])
        weights: dict[str, Mapping[str, Weights]] = {}
        if objective == "erm":
            refused = {}
        elif ratio is not None:
            aim, refused = aim or Objective("ftw"), {}
            weights["given"] = study.objective_weights(ratio, aim, weighting)
        elif shift in explanations and against and gated:
            refused[shift] = against
        elif shift in explanations:
            why = explanations[shift]
            try:
                weights[shift] = study.compute_weights(why, distributions, aim, weighting)
            except InputError as error:  # a site too small for its own ratio
                refused[shift] = str(error)
        fits = {"erm": erm} | {n: study.fit(w, erm.model) for n, w in weights.items()}
        decision = gate(
            {name: f.losses for name, f in fits.items()},
            {name: study.times_base(w) for name, w in weights.items()},
            refused=refused,
            rule=rule,
        )
        study.book_sums(len(weights) * SUMS)
        if not gated and weights:
            decision = _forced(decision, next(iter(weights)))
        if decision.choice != "erm":
            decision = replace(decision, objection=against)
        forecast = study.forecast(fits[decision.choice], explanations, distributions, shift)
        candidates = {n: study.candidate(n, f, weights.get(n)) for n, f in fits.items()}
        scores = score_sites(study, candidates[decision.choice])
    return TabularOutcome(
        candidates=candidates,
        gate=decision,
        explanations=explanations,
        shift_type=shift,
        marginals=distributions if shift == "label" else None,
        forecast=forecast,
        scores=scores,
        ledger=study.ledger,
        objective=objective,
        seed=seed,
        seconds=time.perf_counter() - begin,
        shape=federation[0].x.shape[1:],
        columns=federation.columns,
        classes=study.names,
        encoder=study.encoder,
    )


def _fit_erm(study: TableStudy, model: str) -> CrossFittedModel:
    """Train without weights; "auto" takes a perceptron for many rows if it is clearly better."""
    if model != "auto":
        return study.fit(None, model)
    linear = study.fit(None, "linear")
    if study.rows < MANY:
        return linear
    net = study.fit(None, "mlp")
    d = difference(net.losses, linear.losses, study.times_base(None))
    return net if d.value + BETTER * d.error < 0 else linear


def _forced(decision: Gate, choice: str) -> Gate:
    reason = f"not gated; {decision.reasons[choice]}"
    return replace(decision, choice=choice, reasons={**decision.reasons, choice: reason})
