"""Training on weighted rows: hold out, train with checkpoints, validate, score."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedshift.core.digest import NoFile, digest
from fedshift.core.samples import Float64Array
from fedshift.core.weights import Weights
from fedshift.data.federation import Federation
from fedshift.errors import InputError, NotResumable, TrainingDiverged, UnscaledLabels
from fedshift.federation import draw
from fedshift.federation.checkpoint import fingerprint, load, save
from fedshift.federation.engine import Engine
from fedshift.federation.fused import Fused
from fedshift.federation.ledger import Ledger
from fedshift.federation.marginals import class_count
from fedshift.federation.reference import Reference
from fedshift.federation.scaling import Scaling
from fedshift.federation.task import State, Task
from fedshift.learn.evaluate import Evaluation, as_tensor, evaluate, predict
from fedshift.learn.models import build
from fedshift.learn.weighted_risk import WeightedRisk, importance_weighted_risk
from fedshift.settings import Settings, device_of

Watcher = Callable[[dict[str, Any]], None]
WeightedRows = tuple[Federation, dict[str, Float64Array] | None]
#: root mean squares of regression labels above this, or below its inverse, give a warning
FAR = 100.0


def hold_out(
    federation: Federation,
    weights: Mapping[str, Weights] | None,
    settings: Settings,
    goal: Mapping[str, Weights] | None = None,
) -> tuple[WeightedRows, WeightedRows | None]:
    """Split rows with their weights into training and validation rows, class by class.

    If `goal` (weights for validation) is given, validation rows get these weights instead of
    the training weights.
    """
    values = [
        None if side is None else {n: w.values for n, w in side.items()}
        for side in (weights, goal or weights)
    ]
    if not settings.validation:
        return (federation, values[0]), None
    sides: list[WeightedRows] = []
    chosen = {}
    for c in federation:
        count = max(1, round(settings.validation * len(c.x)))
        if count >= len(c.x):
            raise InputError(
                f"client {c.name!r} has {len(c.x)} rows, too few to hold {count} out for "
                "validation; lower validation"
            )
        order = draw.permutation(draw.key(settings.seed, "validation", c.name), 0, len(c.x))
        if settings.loss == "cross-entropy":  # rare classes keep their share on both sides
            order = order[np.argsort(c.y[order], kind="stable")]
        every = np.diff(np.arange(len(c.x) + 1) * count // len(c.x)) > 0
        chosen[c.name] = (np.sort(order[~every]), np.sort(order[every]))
    for side in (0, 1):
        clients = tuple(
            replace(c, x=c.x[chosen[c.name][side]], y=c.y[chosen[c.name][side]]) for c in federation
        )
        whole = values[side]
        part = None if whole is None else {n: v[chosen[n][side]] for n, v in whole.items()}
        sides.append((Federation(clients), part))
    return sides[0], sides[1]


def count_classes(federation: Federation, settings: Settings) -> int:
    """Check the labels and count the classes of all training labels; 1 in regression."""
    if settings.loss != "cross-entropy":
        return 1
    classes = class_count(federation)
    for c in federation:
        if c.test_y is not None and len(c.test_y) and c.test_y.max() >= classes:
            raise InputError(
                f"client {c.name!r}: test labels must be classes of the training labels, 0 to "
                f"{classes - 1}; got {c.test_y.max()}, which no client trains on; remove these rows"
            )
    return classes


def check_label_size(federation: Federation) -> None:
    """Warn if the root mean square of labels is far from 1, where usual steps lead nowhere."""
    size = max(float(np.sqrt(np.mean(np.square(c.y)))) for c in federation)
    if size and not 1 / FAR < size < FAR:
        warnings.warn(
            f"labels should be numbers of size 1 or so; got a root mean square of {size:.3g}, at "
            "which training may end far from them; subtract a mean and divide by a deviation, the "
            "same at all clients",
            UnscaledLabels,
            stacklevel=4,
        )


def make_task(
    federation: Federation,
    weights: Mapping[str, Any] | None,
    settings: Settings,
    model: nn.Module,
    scaling: Scaling | None = None,
) -> Task:
    """Build the task, which holds the rows, weights, model and plan that an engine trains on."""
    task = Task.of(
        federation if scaling is None else scaling.federation(federation),
        model,
        settings.plan.with_seed(settings.seed),
        weights=weights,
        loss=settings.loss,
        dtype=torch.float64 if settings.precision == "float64" else torch.float32,
        device=device_of(settings),
    )
    if not (task.of_all * task.mean_weight).any():
        raise InputError(
            "training needs a row with weight > 0; got weight 0 for all rows of all clients that "
            "take part; check the ratios, and that training and test rows overlap"
        )
    return replace(task, scaling=scaling)


def checked_model(federation: Federation, settings: Settings, classes: int) -> nn.Module:
    """Build the model that the settings name, and check that it returns one score per class."""
    first = federation[0].x
    model = build(settings.model, first.shape[1:], classes, seed=settings.seed)
    try:
        with torch.inference_mode():
            trial = copy.deepcopy(model).eval()
            rows = as_tensor(first[:2]).to(next(trial.parameters()).dtype)
            out = trial(rows)
    except RuntimeError as error:
        raise InputError(
            f"model must take rows of shape {tuple(rows.shape[1:])}; it raised: {error}"
        ) from error
    if out.shape != (len(rows), classes):
        raise InputError(
            f"model must return {classes} scores per row, shape ({len(rows)}, {classes}) for "
            f"{len(rows)} rows; got {tuple(out.shape)}"
        )
    return model


def code_digests(federation: Federation, settings: Settings, model: nn.Module) -> dict[str, str]:
    """Hash the code and the parameters of the model, the ratio and the shift, where they are used.

    Returns an empty dict, with a warning, if code stands in no file (`digest`).
    """
    ratio = None if settings.objective == "erm" else settings.ratio
    shift = federation.truth if isinstance(ratio, str) and ratio == "exact" else None
    used = {"model": (settings.model, model), "ratio": ratio, "shift": shift}
    try:
        return {name: digest(value) for name, value in used.items()}
    except NoFile as error:
        warnings.warn(
            f"{error}, so nothing is resumed and no checkpoint is written; move the code of model, "
            "ratio and shift into a module file and import it",
            NotResumable,
            stacklevel=4,
        )
        return {}


def start_engine(task: Task, state: State, settings: Settings) -> Engine:
    """Create the engine that the settings name, starting from a state."""
    if settings.engine == "reference":
        return Reference(task, state)
    return Fused(task, state, amp=settings.precision == "bfloat16", compile=settings.compile)


def train(
    task: Task,
    validation: WeightedRows | None,
    settings: Settings,
    *,
    folder: Path | None,
    code: Mapping[str, str],
    watch: Watcher,
    ledger: Ledger,
    test: Callable[[State], Evaluation] | None,
) -> tuple[State, list[dict[str, Any]], str]:
    """Run the rounds of the plan, with checks, checkpoints and early stopping.

    Parameters
    ----------
    validation : WeightedRows, optional
        Validation rows with their weights.
    folder : Path, optional
        Folder of checkpoints; training continues from the last one.
    code : mapping of str to str
        Entries of the fingerprint for the user's code (`code_digests`).
    ledger : Ledger
        Records what is sent, also if training diverges.
    test : callable, optional
        Scores a state for the history; its scores never influence a choice.

    Returns
    -------
    state : State
        The last or the best state, as set by `Settings.choose`.
    history : list of dict
    stopped : str
        Why training ended.

    Raises
    ------
    TrainingDiverged
        If a loss or a score of a validation row is not finite.
    """
    total = task.plan.n_rounds
    every = settings.check_every or max(1, total // 20)
    mark = {
        **fingerprint(task),
        "engine": settings.engine,
        "device": task.x.device.type,
        "precision": settings.precision,
        **code,
        "validation": f"{settings.validation} {settings.seed if validation else ''}",
    }
    if validation is not None and validation[1] is not None:  # may differ from those of training
        mark["validation weights"] = digest(validation[1])
    last = None if folder is None else load(folder, expect=mark)
    state, notes = last if last else (task.begin(), {"history": [], "best": None, "ledger": []})
    best = State(
        int(notes["best"]["round"]) if notes["best"] else 0,
        {n.removeprefix("best/"): t for n, t in state.tensors.items() if n.startswith("best/")},
    )
    state = State(
        state.round, {n: t for n, t in state.tensors.items() if not n.startswith("best/")}
    )
    history: list[dict[str, Any]] = notes["history"]
    spent = Ledger.from_records(notes["ledger"])
    engine = start_engine(task, state, settings)
    stopped = f"all {total} rounds are done"
    watch({"phase": "train", "round": state.round, "rounds": total})
    done, tries = state.round, int(notes.get("tries", 0))
    try:
        while done < total:
            if settings.patience is not None and tries >= settings.patience:
                stopped = f"no lower validation loss in {tries} checks, after round {done}"
                break
            begin = time.perf_counter()
            log = engine.advance(min(every, total - done))
            done += len(log.losses)
            spent.record_rounds(task, log)
            line: dict[str, Any] = {
                "round": done,
                "loss": float(log.losses.mean())
                * (task.scaling.out[1] ** 2 if task.scaling else 1),
                "seconds": time.perf_counter() - begin,
            }
            state = engine.state
            if validation is not None:
                risk = validate(task, state, validation, settings)
                line |= {"validation_loss": risk.loss, "validation_accuracy": risk.accuracy}
                if not notes["best"] or risk.loss < notes["best"]["loss"]:
                    notes["best"] = {"round": done, "loss": risk.loss}
                    best, tries = state, 0
                else:
                    tries += 1
            if test is not None:
                s = test(state)
                line |= {f"test_{s.figure}": s.mean, "test_clients": s.scores.tolist()}
            history.append(line)
            watch({"phase": "check", "rounds": total, **line})
            if folder is not None:
                extra = {f"best/{n}": t for n, t in best.tensors.items()}
                notes |= {"history": history, "tries": tries, "ledger": spent.to_records()}
                save(folder, State(done, {**state.tensors, **extra}), notes, fingerprint=mark)
    finally:  # also what a diverged run has sent
        ledger.merge(spent)
    if settings.choose == "best" and best.tensors:
        stopped += f"; the state after round {best.round} had the lowest validation loss"
        return best, history, stopped
    return state, history, stopped


def validate(task: Task, state: State, rows: WeightedRows, settings: Settings) -> WeightedRisk:
    """Compute the importance-weighted risk on validation rows, summed over clients."""
    federation, weights = rows
    total: WeightedRisk | None = None
    model_of = _models(task, state)
    for c, share in zip(federation, task.share, strict=True):
        if share == 0 or (weights is not None and not weights[c.name].any()):
            continue  # not in the objective
        scores = predict(model_of(c.name), c.x)
        if not bool(torch.isfinite(scores).all()):
            raise TrainingDiverged(
                f"after round {state.round}, scores of validation rows of client {c.name!r} are "
                "not finite; lower lr, or limit weights with Weighting(clip=…)"
            )
        w = np.ones(len(c.y)) if weights is None else weights[c.name]
        risk = importance_weighted_risk(scores, c.y, w, loss=settings.loss, share=float(share))
        total = risk if total is None else total + risk
    if total is None:
        raise InputError("validation needs a row with weight > 0; got none; check the ratios")
    return total


def score(
    task: Task,
    state: State,
    federation: Federation,
    settings: Settings,
    weights: Mapping[str, Weights] | None = None,
    auc: bool = True,
) -> Evaluation:
    """Evaluate a state on the test rows of every client, with or without the AUC."""
    return evaluate(_models(task, state), federation, loss=settings.loss, weights=weights, auc=auc)


def _models(task: Task, state: State) -> Callable[[str], nn.Module]:
    """Return the model of each client by name: its own with local BatchNorm, else one for all."""
    if task.plan.norm == "local":
        return lambda client: task.module(state, client).to(task.x.device)
    shared = task.module(state, None).to(task.x.device)
    return lambda _: shared
