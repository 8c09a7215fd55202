"""Share → ratio → weights → rounds → evaluate, on one page."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from sklearn.base import clone
from torch import nn

from fedshift.core.files import atomic_path
from fedshift.core.params import nearest, one_of
from fedshift.core.samples import Float64Array
from fedshift.core.weights import Weighting, Weights
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError
from fedshift.federation import draw
from fedshift.federation.checkpoint import fingerprint, load, save
from fedshift.federation.engine import Engine
from fedshift.federation.fused import Fused
from fedshift.federation.ledger import Ledger
from fedshift.federation.marginals import FederatedMLLS
from fedshift.federation.plan import FedSGD, Plan
from fedshift.federation.reference import Reference
from fedshift.federation.task import State, Task
from fedshift.learn.evaluate import (
    Evaluation,
    WeightedRisk,
    evaluate,
    importance_weighted_risk,
    predict,
)
from fedshift.learn.models import build
from fedshift.learn.objective import Objective

ENGINES: dict[str, type[Engine]] = {"fused": Fused, "reference": Reference}
#: estimators by the name a recipe gives them; a class is imported when it is asked for
ESTIMATORS = {
    "auto": "ratio.auto.Auto",
    "bbse": "ratio.label.BBSE",
    "classifier": "ratio.classifier.Classifier",
    "federated-mlls": "federation.marginals.FederatedMLLS",
    "kliep": "ratio.kliep.KLIEP",
    "kmm": "ratio.kmm.KMM",
    "logistic": "ratio.logistic.Logistic",
    "mlls": "ratio.label.MLLS",
    "multi-source": "ratio.multi_source.MultiSource",
    "neural": "ratio.neural.Neural",
    "rlls": "ratio.label.RLLS",
    "rulsif": "ratio.ulsif.RULSIF",
    "ulsif": "ratio.ulsif.ULSIF",
}
LABELLED = ("BBSE", "MLLS", "RLLS")

#: "exact", a name of `ESTIMATORS`, an estimator, or log ratios by client
RatioMethod = str | Any | Mapping[str, npt.ArrayLike]
Watcher = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a federation is trained.

    Attributes
    ----------
    objective : str
        See `fedshift.learn.objective.Objective`.
    ratio : str, estimator or mapping
        Where weights come from; "exact" needs a federation that knows its ratios.
    weighting : Weighting
    model : str, module or callable
        See `fedshift.learn.models.build`.
    plan : Plan
    loss : {"cross-entropy", "squared"}
    validation : float
        Share of every client's training rows kept out for importance-weighted validation; test
        labels are never looked at before the end.
    patience : int, optional
        Stop after so many checks without a lower validation loss. Needs `validation`.
    choose : {"last", "best"}
        Which state is the result: the last, or the one of lowest validation loss.
    check_every : int, optional
        Rounds between checks of validation, checkpoints and lines of the record; default a
        twentieth of the plan.
    engine : {"fused", "reference"}
    device : str, optional
        Default: a GPU if there is one.
    precision : {"float32", "float64", "bfloat16"}
        "bfloat16": arithmetic on a GPU, parameters in float32.
    compile : bool
        Compile the model (GPU).
    seed : int
        Of the model, the ratios and the validation split; the plan has its own.
    """

    objective: str = "ftw"
    ratio: RatioMethod = "multi-source"
    weighting: Weighting = field(default_factory=Weighting)
    model: str | nn.Module | Callable[[tuple[int, ...], int], nn.Module] = "lenet"
    plan: Plan = field(default_factory=FedSGD)
    loss: Literal["cross-entropy", "squared"] = "cross-entropy"
    validation: float = 0.0
    patience: int | None = None
    choose: Literal["last", "best"] = "last"
    check_every: int | None = None
    engine: Literal["fused", "reference"] = "fused"
    device: str | None = None
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        Objective.of(self.objective)
        one_of(self, "engine", tuple(ENGINES))
        one_of(self, "choose", ("last", "best"))
        one_of(self, "loss", ("cross-entropy", "squared"))
        one_of(self, "precision", ("float32", "float64", "bfloat16"))
        if not 0 <= self.validation < 1:
            raise InputError(f"validation must be a share in [0, 1); got {self.validation!r}")
        if (self.patience is not None or self.choose == "best") and not self.validation:
            raise InputError(
                "patience and choose='best' look at validation rows; set validation, for example "
                "to 0.1"
            )
        if isinstance(self.ratio, str) and self.ratio not in ("exact", *ESTIMATORS):
            raise InputError(f"ratio must be {nearest(self.ratio, ('exact', *ESTIMATORS))}")


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
        A line for every check: round, loss, seconds, validation figures.
    ledger : Ledger
    evaluation : Evaluation or None
        On the test rows, if the federation has their labels.
    stopped : str
        Why training ended.
    seconds : float
    """

    task: Task
    state: State
    weights: Mapping[str, Weights] | None
    history: list[dict[str, Any]]
    ledger: Ledger
    evaluation: Evaluation | None
    stopped: str
    seconds: float

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
    folder: Path | None = None,
    watch: Watcher | None = None,
) -> Outcome:
    """Train a federation and evaluate it per client.

    Parameters
    ----------
    folder : Path, optional
        Keeps log ratios and checkpoints there; a run that finds its own goes on from them, to
        the same bits on the CPU.
    watch : callable, optional
        Is told every phase and check, as a dict.
    """
    begin = time.perf_counter()
    tell = watch or (lambda _: None)
    ledger = Ledger()
    tell({"phase": "ratio", "objective": settings.objective})
    weights = weigh(federation, settings, folder=folder, ledger=ledger)
    kept, held = hold_out(federation, weights, settings)
    task = make_task(kept[0], kept[1], settings)
    outcome = _train(task, held, settings, folder=folder, tell=tell, ledger=ledger)
    state, history, stopped = outcome
    scores = None
    if all(c.test_y is not None for c in federation):
        scores = score(task, state, federation, settings, weights)
    spent = time.perf_counter() - begin
    return Outcome(task, state, weights, history, ledger, scores, stopped, spent)


# -- ratios and weights ------------------------------------------------------------------------


def weigh(
    federation: Federation,
    settings: Settings,
    *,
    folder: Path | None = None,
    ledger: Ledger | None = None,
) -> dict[str, Weights] | None:
    """Weights of every client's training rows; None for ERM."""
    objective = Objective.of(settings.objective)
    goals = objective.goals(federation)
    if objective.kind == "erm":
        return None
    cache = None if folder is None else folder / "log-ratios.safetensors"
    wanted = _ratio_fingerprint(federation, settings)
    ratios = _cached(cache, wanted)
    if ratios is None:
        ratios = log_ratios(federation, settings.ratio, goals, seed=settings.seed)
        if cache is not None:
            tensors = {name: torch.as_tensor(r) for name, r in ratios.items()}
            with atomic_path(cache) as temporary:
                temporary.write_bytes(to_safetensors(tensors, {"fingerprint": wanted}))
    if ledger is not None:
        _record_sharing(federation, settings.ratio, goals, ledger)
    laws = objective.laws(federation)
    return {
        name: settings.weighting(r, laws=laws if goals[name] == "all" else 1)
        for name, r in ratios.items()
    }


def log_ratios(
    federation: Federation, method: RatioMethod, goals: Mapping[str, str | None], *, seed: int
) -> dict[str, Float64Array]:
    """Log ratios at every client's training rows, 0 for clients without a goal."""
    out = {c.name: np.zeros(len(c.x)) for c in federation}
    asked = {name: goal for name, goal in goals.items() if goal is not None}
    if isinstance(method, Mapping):
        for name in asked:
            out[name] = np.asarray(method[name], dtype=np.float64)
        return out
    if method == "exact":
        return out | {n: federation.exact_log_ratio(n, goal) for n, goal in asked.items()}
    estimator = make_estimator(method, seed=seed) if isinstance(method, str) else method
    if hasattr(estimator, "source_log_ratio"):  # one model for all clients
        known = getattr(estimator, "sources_", None)
        if known is None or sorted(known) != sorted(out):
            estimator = clone(estimator)
            if isinstance(estimator, FederatedMLLS):
                estimator.fit(federation)
            else:
                estimator.fit(source=federation.train, target=federation.test)
        for name, goal in asked.items():
            target = None if goal == "all" else name if goal == "own" else goal
            found = estimator.source_log_ratio(name, target=target)
            if len(found) != len(out[name]):
                raise InputError(
                    f"client {name!r} has {len(out[name])} training rows, but the fitted ratio was "
                    f"fitted on {len(found)}; give an unfitted one, or the same federation"
                )
            out[name] = found
        return out
    for name, goal in asked.items():
        c = federation[name]
        extra = {"source_labels": c.y} if type(estimator).__name__ in LABELLED else {}
        fitted = clone(estimator).fit(source=c.x, target=federation.targets(name, goal), **extra)
        seen = getattr(fitted, "source_log_ratio_", None)  # out of fold, where there is one
        out[name] = np.asarray(fitted.log_ratio(c.x) if seen is None else seen)
    return out


def make_estimator(name: str, *, seed: int, **options: Any) -> Any:
    """An estimator of `ESTIMATORS` by name, with options; imported when it is asked for."""
    from importlib import import_module

    module, _, kind = ESTIMATORS[name].rpartition(".")
    made = getattr(import_module(f"fedshift.{module}"), kind)
    given: dict[str, Any] = {"seed": seed} if "seed" in made().get_params() else {}
    if name == "multi-source":
        given["folds"] = 5  # held-out logits calibrate every ratio
    return made(**{**given, **options})


def _record_sharing(
    federation: Federation,
    method: RatioMethod,
    goals: Mapping[str, str | None],
    ledger: Ledger,
) -> None:
    """Test rows that had to leave a client for its neighbours' ratios, in the ledger."""
    quiet = ("exact", "federated-mlls", "multi-source")
    shared = (isinstance(method, str) and method in quiet) or isinstance(method, Mapping)
    if shared or hasattr(method, "source_log_ratio"):
        return
    for name, goal in goals.items():
        for other in federation:
            if other.name != name and goal in ("all", other.name):
                size = other.test_x.nbytes
                ledger.add(other.name, "query.share", up=size, rows=len(other.test_x))
                ledger.add(name, "query.share", down=size)


def _ratio_fingerprint(federation: Federation, settings: Settings) -> str:
    given = settings.ratio
    if isinstance(given, Mapping):
        said = hashlib.blake2b(
            b"".join(np.ascontiguousarray(v).tobytes() for v in given.values())
        ).hexdigest()
    else:
        said = given if isinstance(given, str) else repr(given)
    data = hashlib.blake2b(digest_size=16)
    for c in federation:
        for part in (c.x, c.y, c.test_x):
            data.update(np.ascontiguousarray(part).data)
    return json.dumps([settings.objective, said, settings.seed, data.hexdigest()])


def _cached(path: Path | None, wanted: str) -> dict[str, Float64Array] | None:
    if path is None or not path.exists():
        return None
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        found = (file.metadata() or {}).get("fingerprint")
    if found != wanted:
        return None
    return {name: t.numpy() for name, t in load_file(str(path)).items()}


# -- training ----------------------------------------------------------------------------------

Part = tuple[Federation, dict[str, Float64Array] | None]


def hold_out(
    federation: Federation, weights: Mapping[str, Weights] | None, settings: Settings
) -> tuple[Part, Part | None]:
    """Training rows with their weights, and those kept out for validation."""
    values = None if weights is None else {n: w.values for n, w in weights.items()}
    if not settings.validation:
        return (federation, values), None
    sides: list[Part] = []
    chosen = {}
    for c in federation:
        count = max(1, round(settings.validation * len(c.x)))
        if count >= len(c.x):
            raise InputError(
                f"client {c.name!r} has {len(c.x)} rows, too few to keep {count} out for "
                "validation; lower validation"
            )
        order = draw.permutation(draw.key(settings.seed, "validation", c.name), 0, len(c.x))
        chosen[c.name] = (np.sort(order[count:]), np.sort(order[:count]))
    for side in (0, 1):
        clients = tuple(
            replace(c, x=c.x[chosen[c.name][side]], y=c.y[chosen[c.name][side]]) for c in federation
        )
        part = None if values is None else {n: v[chosen[n][side]] for n, v in values.items()}
        sides.append((Federation(clients), part))
    return sides[0], sides[1]


def make_task(
    federation: Federation, weights: Mapping[str, Any] | None, settings: Settings
) -> Task:
    """The task of training rows and weights."""
    classes = 1
    if settings.loss == "cross-entropy":
        labels = [np.asarray(c.y) for c in federation]
        for c in federation:
            if not np.issubdtype(c.y.dtype, np.integer) or (len(c.y) and c.y.min() < 0):
                raise InputError(
                    f"client {c.name!r}: labels must be whole numbers 0, 1, …; got {c.y.dtype}; "
                    "encode the classes first, or use FederatedClassifier, which does"
                )
        classes = 1 + max(int(y.max()) for y in labels)
    else:
        federation = Federation(
            tuple(replace(c, y=np.asarray(c.y, dtype=np.float64)) for c in federation)
        )
    model = build(settings.model, federation[0].x.shape[1:], classes, seed=settings.seed)
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float64 if settings.precision == "float64" else torch.float32
    return Task.of(
        federation,
        model,
        settings.plan,
        weights=weights,
        loss=settings.loss,
        dtype=dtype,
        device=device,
    )


def start_engine(task: Task, state: State, settings: Settings) -> Engine:
    """The engine the settings ask for, at a state."""
    if settings.engine == "fused":
        amp = settings.precision == "bfloat16"
        return Fused(task, state, amp=amp, compile=settings.compile)
    return ENGINES[settings.engine](task, state)


def _train(
    task: Task,
    held: Part | None,
    settings: Settings,
    *,
    folder: Path | None,
    tell: Watcher,
    ledger: Ledger,
) -> tuple[State, list[dict[str, Any]], str]:
    total = task.plan.n_rounds
    every = settings.check_every or max(1, total // 20)
    mark = {**fingerprint(task), "engine": settings.engine, "device": task.x.device.type}
    found = None if folder is None else load(folder, expect=mark)
    state, notes = found if found else (task.begin(), {"history": [], "best": None, "ledger": []})
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
    stopped = f"all {total} rounds were run"
    tell({"phase": "train", "round": state.round, "rounds": total})
    done, tries = state.round, int(notes.get("tries", 0))
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
            "loss": float(log.losses.mean()),
            "seconds": time.perf_counter() - begin,
        }
        state = engine.state
        if held is not None:
            risk = validate(task, state, held, settings)
            line |= {"validation_loss": risk.loss, "validation_accuracy": risk.accuracy}
            if not notes["best"] or risk.loss < notes["best"]["loss"]:
                notes["best"] = {"round": done, "loss": risk.loss}
                best, tries = state, 0
            else:
                tries += 1
        history.append(line)
        tell({"phase": "check", "rounds": total, **line})
        if folder is not None:
            extra = {f"best/{n}": t for n, t in best.tensors.items()}
            notes |= {"history": history, "tries": tries, "ledger": spent.to_records()}
            save(folder, State(done, {**state.tensors, **extra}), notes, fingerprint=mark)
    for record in spent.to_records():
        ledger.add(
            record["client"],
            record["phase"],
            up=record["up"],
            down=record["down"],
            rows=record["rows"],
        )
    if settings.choose == "best" and best.tensors:
        stopped += f"; the state after round {best.round} had the lowest validation loss"
        return best, history, stopped
    return state, history, stopped


def validate(task: Task, state: State, held: Part, settings: Settings) -> WeightedRisk:
    """Importance-weighted risk on held-out training rows, summed over clients."""
    federation, weights = held
    total: WeightedRisk | None = None
    shared = None if task.plan.norm == "local" else _on_device(task, state, None)
    for c, share in zip(federation, task.share, strict=True):
        model = _on_device(task, state, c.name) if shared is None else shared
        scores = predict(model, torch.as_tensor(c.x, dtype=task.x.dtype))
        w = np.ones(len(c.y)) if weights is None else weights[c.name]
        risk = importance_weighted_risk(scores, c.y, w, loss=settings.loss, share=float(share))
        total = risk if total is None else total + risk
    assert total is not None
    return total


def score(
    task: Task,
    state: State,
    federation: Federation,
    settings: Settings,
    weights: Mapping[str, Weights] | None = None,
) -> Evaluation:
    """Evaluate a state on every client's test rows."""
    local = task.plan.norm == "local"
    shared = None if local else _on_device(task, state, None)

    def model_of(client: str) -> nn.Module:
        return _on_device(task, state, client) if shared is None else shared

    data = Federation(tuple(_cast(c, task.x.dtype) for c in federation))
    values = None if weights is None else {n: w.values for n, w in weights.items()}
    return evaluate(model_of, data, loss=settings.loss, weights=values)


def _on_device(task: Task, state: State, client: str | None) -> nn.Module:
    return task.module(state, client).to(task.x.device)


def _cast(c: ClientData, dtype: torch.dtype) -> ClientData:
    kind = np.float64 if dtype == torch.float64 else np.float32
    return replace(c, test_x=c.test_x.astype(kind, copy=False))
