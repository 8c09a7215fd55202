"""Share → ratio → weights → rounds → evaluate, on one page."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedshift.core.weights import Weights
from fedshift.data.federation import Federation
from fedshift.errors import FedshiftWarning, InputError, TrainingDiverged
from fedshift.federation.ledger import Ledger
from fedshift.federation.task import State, Task
from fedshift.federation.weigh import Ratios, estimate, weighted
from fedshift.learn.evaluate import Evaluation
from fedshift.settings import Settings, device_of
from fedshift.training import (
    Watcher,
    count_classes,
    hold_out,
    make_task,
    score,
    train,
    with_numbers,
)

#: log ratio from which a common factor is taken out
HUGE = 600.0


@dataclass(frozen=True, eq=False)
class Outcome:
    """A trained federation.

    Attributes
    ----------
    task : Task
    state : State
        The chosen one.
    weights : mapping of client to Weights, or None for ERM
    history : list of dict
        A line for every check: round, loss, seconds, validation figures. With
        `Settings.flattenings` those of the chosen exponent, which every line names ("flatten").
    ledger : Ledger
        Of everything that was trained.
    evaluation : Evaluation or None
        On the test rows, if the federation has their labels.
    stopped : str
        Why training ended; with `Settings.flattenings` also which exponent was kept, and the
        validation loss of each.
    seconds : float
    tried : list of dict
        With `Settings.flattenings`, a line for every exponent: flatten, round, validation_loss (of
        the state it would have given), seconds; or flatten, diverged (how), seconds.
    reason : str
        Why the ratios are what they are, if an estimator chose (`FederatedAuto.reason_`).
    """

    task: Task
    state: State
    weights: Mapping[str, Weights] | None
    history: list[dict[str, Any]]
    ledger: Ledger
    evaluation: Evaluation | None
    stopped: str
    seconds: float
    tried: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""

    def model(self, client: str | None = None) -> nn.Module:
        """The trained model, in evaluation mode; a client's own where BatchNorm is local."""
        return self.task.module(self.state, client)

    def __repr__(self) -> str:
        said = "no test labels" if self.evaluation is None else self.evaluation.status
        return f"Outcome({said}; {self.stopped})"


def run(
    federation: Federation,
    settings: Settings,
    *,
    folder: Path | str | None = None,
    borrow: Iterable[Path] = (),
    watch: Watcher | None = None,
) -> Outcome:
    """Train a federation and evaluate it per client.

    Parameters
    ----------
    folder : Path, optional
        Keeps log ratios and checkpoints there; a run that finds its own goes on from them, to
        the same bits on the CPU (with as many threads).
    borrow : paths
        Folders of other runs, whose log ratios are taken if they are the ones this run needs; what
        it took to estimate them counts here too.
    watch : callable, optional
        Is told every phase and check, as a dict.
    """
    if not isinstance(federation, Federation):
        raise InputError(
            f"run takes a fedshift.Federation; got {type(federation).__name__}; make one with "
            "Federation.of({name: (x, y, test_x)})"
        )
    begin = time.perf_counter()
    tell = watch or (lambda _: None)
    folder = None if folder is None else Path(folder)
    ledger = Ledger()
    if settings.loss == "squared":
        federation = with_numbers(federation)
    classes = count_classes(federation, settings)  # all checks before anything long begins
    device_of(settings)
    settings.plan.check_clients([c.name for c in federation])
    labelled = all(c.test_y is not None for c in federation)
    if settings.watch_test and not labelled:
        raise InputError("watch_test needs test labels of every client; leave it out")
    tell({"phase": "ratio", "objective": settings.objective})
    before = time.perf_counter()
    ratios = estimate(
        federation,
        settings.ratio,
        objective=settings.objective,
        lean=settings.lean,
        seed=settings.seed,
        device=settings.device,
        folder=folder,
        borrow=borrow,
    )
    if ratios is not None:
        begin += time.perf_counter() - before - ratios.seconds  # as if estimated now
        ledger.merge(ratios.ledger)
    out = _train_candidates(
        federation, ratios, settings, classes=classes, folder=folder, tell=tell, ledger=ledger
    )
    scores = score(out.task, out.state, federation, settings, out.weights) if labelled else None
    reason = "" if ratios is None else ratios.reason
    return replace(out, evaluation=scores, seconds=time.perf_counter() - begin, reason=reason)


def _train_candidates(
    federation: Federation,
    ratios: Ratios | None,
    settings: Settings,
    *,
    classes: int,
    folder: Path | None,
    tell: Watcher,
    ledger: Ledger,
) -> Outcome:
    """Train once, or once for every exponent; what has the lowest validation loss, not scored."""

    def weights_by(**changes: Any) -> dict[str, Weights] | None:
        way = replace(settings.weighting, **changes)
        if ratios is None:
            return None
        return weighted(federation, ratios, settings.objective, way, lean=settings.lean)

    def trained(tag: dict[str, float], goal: Mapping[str, Weights] | None = None) -> Outcome:
        weights = weights_by(**tag)
        kept, held = hold_out(federation, weights, settings, goal)
        task = make_task(*kept, settings, classes=classes)
        test = partial(score, task, federation=federation, settings=settings, weights=weights)
        state, history, stopped = train(
            task,
            held,
            settings,
            tag=tag,
            folder=folder and folder.joinpath(*(f"{name}-{a}" for name, a in tag.items())),
            tell=tell,
            ledger=ledger,
            test=test if settings.watch_test else None,
        )
        return Outcome(task, state, weights, history, ledger, None, stopped, 0.0)

    way = settings.weighting
    flat = bool(settings.flattenings) or way.flatten != 1 or way.min_ess is not None
    goal = None
    if ratios is not None and flat and settings.validation:
        goal = _whole(federation, ratios, settings)
    if ratios is None or not settings.flattenings:
        return trained({}, goal)  # held-out rows are judged by their whole ratios
    best: Outcome | None = None
    tried: list[dict[str, Any]] = []
    for flatten in sorted(settings.flattenings, reverse=True):  # of equals the larger is kept
        begin = time.perf_counter()
        try:
            out = trained({"flatten": flatten}, goal)
        except TrainingDiverged as error:  # steep ratios may; flatter ones need not
            spent = time.perf_counter() - begin
            tried.append({"flatten": flatten, "diverged": str(error), "seconds": spent})
            continue
        losses = [line["validation_loss"] for line in out.history]
        told = {
            "flatten": flatten,
            "round": out.state.round,
            "validation_loss": min(losses) if settings.choose == "best" else losses[-1],
            "seconds": sum(line["seconds"] for line in out.history),
        }
        before = [t["validation_loss"] for t in tried if "validation_loss" in t]
        if told["validation_loss"] < min(before, default=math.inf):
            best = out
        tried.append(told)
    if best is None:
        raise TrainingDiverged(f"with every exponent, at last: {tried[-1]['diverged']}")
    said = ", ".join(
        f"{t['validation_loss']:.6g} with {t['flatten']}"
        if "validation_loss" in t
        else f"{t['flatten']} diverged"
        for t in tried
    )
    chosen = best.history[0]["flatten"]
    stopped = f"{best.stopped}; exponent {chosen} had the lowest validation loss ({said})"
    return replace(best, stopped=stopped, tried=tried)


def _whole(federation: Federation, ratios: Ratios, settings: Settings) -> dict[str, Weights]:
    """Weights that held-out rows are judged by: whole ratios, where those of training are flat.

    The validation loss divides by their sum, so a common factor keeps huge ratios finite.
    """
    way = replace(settings.weighting, flatten=1.0, min_ess=None)
    top = max(float(r.max()) for r in ratios.values.values())
    if top > HUGE and way.clip is None:
        ratios = replace(ratios, values={n: r - top for n, r in ratios.values.items()})
    with warnings.catch_warnings():  # training's weights speak for themselves
        warnings.simplefilter("ignore", FedshiftWarning)
        return weighted(federation, ratios, settings.objective, way, lean=settings.lean)
