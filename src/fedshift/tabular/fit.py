"""Scale → ERM → which shift do the unlabelled rows show? → weights → gate → forecast.

Everything is chosen on training rows that were held out and on unlabelled rows; test labels are
read once, at the end. Gradients, sums and label marginals leave a site, rows do not (unless a
ratio is asked for that needs them; the ledger tells).
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
from fedshift.errors import InputError
from fedshift.federation.crossval import MODELS, Fit
from fedshift.federation.explain import admit
from fedshift.federation.weigh import RatioMethod
from fedshift.learn.gate import SUMS, Gate, Rule, difference, gate
from fedshift.learn.objective import Objective
from fedshift.tabular.job import Job
from fedshift.tabular.outcome import TabularOutcome

#: training rows from which on a perceptron is tried beside the linear model
MANY = 1000
#: standard errors by which a perceptron must beat it
BETTER = 1.0
#: ratios of inputs are many numbers where those of labels are few, and a model that fits p(y | x)
#: needs none of them: they have to gain more
CAREFUL = Rule(gain=1.0)


def fit_tables(
    federation: Federation,
    *,
    seed: int = 0,
    objective: str = "auto",
    ratio: RatioMethod | None = None,
    model: str = "auto",
    loss: Literal["auto", "cross-entropy", "squared"] = "auto",
    base: Mapping[str, npt.ArrayLike] | None = None,
    weighting: Weighting | None = None,
    rule: Rule | None = None,
    gated: bool = True,
    folds: int = 5,
) -> TabularOutcome:
    """Train a federation of tables; weighted only if that is no worse beyond noise.

    Parameters
    ----------
    federation : Federation
        Rows of columns; labels 0, 1, … or numbers. Test labels are optional and read at the end.
    objective : str
        "auto": all sites' test laws count the same, and every row weighs q̄/p̄ of the mixtures
        (`fedshift.federation.explain`); "erm"; or one of `fedshift.learn.objective.Objective`,
        with the weights of its definition.
    ratio : see `fedshift.federation.weigh`, optional
        Where weights come from; by default from whichever kind of shift the unlabelled rows show.
    model : {"auto", "linear", "mlp"}
        "auto" tries a perceptron from a thousand training rows on, by cross-validation.
    loss : {"auto", "cross-entropy", "squared"}
        "auto": whole numbers are classes.
    base : mapping of site to (n_k,), optional
        Weights that training rows have anyway.
    weighting : Weighting, optional
        How ratios become weights; by default the largest is 20.
    rule : Rule, optional
        Of the gate; by default `Rule()`, and a full standard error of gain for a shift of inputs.
    gated : bool
        False takes the weighted model whatever the gate says, if there is one.
    folds : int
        Of cross-validation.

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
        raise InputError(f"model must be {nearest(model, ('auto', *MODELS))}")
    job = Job.of(federation, loss=loss, base=base, folds=folds, seed=seed)
    if aim is not None:
        aim.check(federation)
    with threads_for(sum(c.x.size for c in federation)):
        erm = _plain(job, model)
        explained, laws = job.explain(erm)
        kind, refused = admit(explained)
        weights: dict[str, Mapping[str, Weights]] = {}
        if objective == "erm":
            refused = {}
        elif ratio is not None:
            weights["given"], refused = job.given(ratio, aim or Objective("ftw"), weighting), {}
        elif kind is not None:
            try:
                weights[kind] = job.weigh(explained[kind], laws, aim, weighting)
            except InputError as error:  # a site too small for a ratio of its own
                refused[kind] = str(error)
        fits = {"erm": erm} | {n: job.fit(w, erm.model) for n, w in weights.items()}
        verdict = gate(
            {name: f.losses for name, f in fits.items()},
            {name: job.times_base(w) for name, w in weights.items()},
            refused=refused,
            rule=rule or (CAREFUL if "covariate" in weights else None),
        )
        job.book_sums(len(weights) * SUMS)
        if not gated and weights:
            verdict = _forced(verdict, next(iter(weights)))
        forecast = job.foresee(fits[verdict.choice], explained, laws, kind)
        candidates = {n: job.candidate(n, f, weights.get(n)) for n, f in fits.items()}
    return TabularOutcome(
        candidates=candidates,
        gate=verdict,
        explanations=explained,
        marginals=laws,
        forecast=forecast,
        ledger=job.ledger,
        objective=objective,
        seed=seed,
        seconds=time.perf_counter() - begin,
    )


def _plain(job: Job, model: str) -> Fit:
    """ERM; linear, unless there are many rows and a perceptron is better beyond noise."""
    if model != "auto":
        return job.fit(None, model)
    plain = job.fit(None, "linear")
    if job.rows < MANY:
        return plain
    net = job.fit(None, "mlp")
    d = difference(net.losses, plain.losses, job.times_base(None))
    return net if d.value + BETTER * d.error < 0 else plain


def _forced(verdict: Gate, choice: str) -> Gate:
    reason = f"not gated; {verdict.reasons[choice]}"
    return replace(verdict, choice=choice, reasons={**verdict.reasons, choice: reason})
