"""One run: log ratios → weights → rounds → evaluation."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedshift.core.files import locked
from fedshift.core.weights import Weights
from fedshift.data.federation import Federation, check_federation
from fedshift.data.labels import with_numbers
from fedshift.errors import FedshiftWarning, InputError
from fedshift.federation.client_weights import Ratios, compute_weights, estimate_log_ratios
from fedshift.federation.ledger import Ledger
from fedshift.federation.scaling import Scaling
from fedshift.outcome import Outcome
from fedshift.progress import bar
from fedshift.settings import Settings, device_of
from fedshift.training import (
    Watcher,
    check_label_size,
    checked_model,
    code_digests,
    count_classes,
    hold_out,
    make_task,
    score,
    train,
)

#: log ratio above which a common factor is divided out
HUGE = 600.0


def run(
    federation: Federation,
    settings: Settings,
    *,
    folder: Path | str | None = None,
    shared: dict[str, Ratios] | None = None,
    watch: Watcher | None = None,
    scaling: Scaling | None = None,
) -> Outcome:
    """Train a federation and evaluate it on each client.

    Parameters
    ----------
    folder : Path, optional
        Folder of log ratios and checkpoints. A run continues from the files that it finds there. On
        a CPU with the same number of threads, the result equals that of an uninterrupted run, bit
        for bit. The module files of your own model, ratio estimator and shift must be unchanged.
    shared : dict, optional
        Log ratios of earlier runs. Pass one empty dict to several runs, and those that need the
        same ratios estimate them once. The ledger is still that of a run that estimated its ratios
        itself.
    watch : callable, optional
        Called with a dict at the start of every phase and at every check. On a terminal, bars on
        standard error show the progress.
    scaling : Scaling, optional
        Scales the rows and labels that are trained on. Ratios, scores and the model that is
        returned are of rows as they are.

    Raises
    ------
    InUseError
        If another process works in `folder`; the error names it.
    CheckpointError
        If `folder` has a run with other data, settings or code; the error names what differs.

    Warns
    -----
    NotResumable
        If your code stands in no module file, as in a notebook or in ``python -c``. Then nothing is
        read from `folder` and nothing is written to it.
    """
    check_federation(federation, "run")
    if not isinstance(settings, Settings):
        raise InputError(f"run needs fedshift.Settings; got {type(settings).__name__}")
    watch = watch or (lambda _: None)
    if folder is None:
        return _run(federation, settings, None, shared, watch, scaling)
    with locked(Path(folder), advice="wait until it ends, or choose another folder"):
        return _run(federation, settings, Path(folder), shared, watch, scaling)


def _run(
    federation: Federation,
    settings: Settings,
    folder: Path | None,
    shared: dict[str, Ratios] | None,
    watch: Watcher,
    scaling: Scaling | None,
) -> Outcome:
    """Check, estimate ratios, train and evaluate; see `run`."""
    ledger = Ledger()
    if settings.loss == "squared":
        federation = with_numbers(federation)
        if scaling is None:
            check_label_size(federation)
    classes = count_classes(federation, settings)  # all checks come first
    device_of(settings)
    model = checked_model(federation, settings, classes)
    hold_out(federation, None, settings)
    settings.plan.check_clients([c.name for c in federation])
    labelled = all(c.test_y is not None for c in federation)
    if settings.watch_test and not labelled:
        raise InputError("watch_test needs test labels of every client; set watch_test=False")
    code = {} if folder is None else code_digests(federation, settings, model)
    folder = folder if code else None
    watch({"phase": "ratio", "objective": settings.objective})
    with bar("density ratios"):
        ratios = estimate_log_ratios(
            federation,
            settings.ratio,
            objective=settings.objective,
            pooling=settings.pooling,
            seed=settings.seed,
            device=settings.device,
            folder=folder,
            shared=shared,
        )
    begin, weights, goal = time.perf_counter(), None, None
    if ratios is not None:
        ledger.merge(ratios.ledger)
        way = settings.weighting
        objective, pooling = settings.objective, settings.pooling
        weights = compute_weights(federation, ratios, objective, way, pooling=pooling)
        if settings.validation and (way.flatten != 1 or way.min_ess is not None):
            goal = validation_weights(federation, ratios, settings)
    rows, validation = hold_out(federation, weights, settings, goal)
    task = make_task(*rows, settings, model, scaling)
    test = partial(score, task, federation=federation, settings=settings, weights=weights)
    with bar("training: rounds", task.plan.n_rounds) as advance:

        def follow(event: dict[str, Any]) -> None:
            advance(event["round"])
            watch(event)

        state, history, stopped = train(
            task,
            validation,
            settings,
            folder=folder,
            code=code,
            watch=follow,
            ledger=ledger,
            test=partial(test, auc=False) if settings.watch_test else None,
        )
    return Outcome(
        task=task,
        state=state,
        weights=weights,
        history=history,
        ledger=ledger,
        evaluation=test(state) if labelled else None,
        stopped=stopped,
        seconds=time.perf_counter() - begin,
        ratio_seconds=0.0 if ratios is None else ratios.seconds,
        reason="" if ratios is None else ratios.reason,
        columns=federation.columns,
    )


def validation_weights(federation: Federation, ratios: Ratios, s: Settings) -> dict[str, Weights]:
    """Weights of validation rows: ratios that are neither flattened nor held to `min_ess`.

    The validation loss divides by their sum, so a common factor keeps huge ratios finite.
    """
    way = replace(s.weighting, flatten=1.0, min_ess=None)
    top = max(float(r.max()) for r in ratios.values.values())
    if top > HUGE and way.clip is None:
        ratios = replace(ratios, values={n: r - top for n, r in ratios.values.items()})
    with warnings.catch_warnings():  # training weights give the same warnings
        warnings.simplefilter("ignore", FedshiftWarning)
        return compute_weights(federation, ratios, s.objective, way, pooling=s.pooling)
