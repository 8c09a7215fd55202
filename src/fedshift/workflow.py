"""Share → ratio → weights → rounds → evaluate, on one page."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from fedshift.core.params import nearest, one_of, whole
from fedshift.core.samples import Float64Array
from fedshift.core.weights import Weighting, Weights
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError
from fedshift.federation import draw
from fedshift.federation.checkpoint import fingerprint, load, save
from fedshift.federation.engine import Engine
from fedshift.federation.fused import Fused
from fedshift.federation.ledger import Ledger
from fedshift.federation.plan import FedSGD, Plan
from fedshift.federation.reference import Reference
from fedshift.federation.task import State, Task
from fedshift.federation.weigh import ESTIMATORS, RatioMethod, Ratios, estimate, weighted
from fedshift.learn.evaluate import Evaluation, evaluate, predict
from fedshift.learn.models import build
from fedshift.learn.objective import Objective
from fedshift.learn.validate import WeightedRisk, importance_weighted_risk

ENGINES: dict[str, type[Engine]] = {"fused": Fused, "reference": Reference}
Watcher = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    r"""How a federation is trained.

    Attributes
    ----------
    objective : str
        See `fedshift.learn.objective.Objective`.
    ratio : str, estimator or mapping
        Where weights come from. "federated-auto" finds out whether labels or inputs shifted
        (`fedshift.federation.FederatedAuto`); "exact" needs a federation that knows its ratios.
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
    flattenings : tuple of float
        Exponents a in [0, 1] to train with, one after the other, for example (1.0, 0.75, 0.5);
        all use the same log ratios. Kept is the model of lowest validation loss,

        .. math:: â = \arg\min_a \frac{Σ v_i ℓ(θ_a; x_i, y_i)}{Σ v_i}, \qquad
            θ_a \text{ trained with } w = r^a, \quad v_i = λ_k r_i / n_k

        over held-out rows, whose ratios are never flattened; of equal losses, that of the larger
        exponent. Limits of `weighting` (clip, winsorise) hold for training and validation, its
        floor on the effective sample size for training alone. Needs `validation`, and takes the
        place of ``weighting.flatten``. ERM has no ratios: it is trained once. It fails, as all
        validation does, where few held-out rows carry most of the weight.
    check_every : int, optional
        Rounds between checks of validation, checkpoints and lines of the record; default a
        twentieth of the plan.
    watch_test : bool
        Write the mean test figure into every line of the history ("test_accuracy" or "test_mse"),
        and those of the clients ("test_clients", in their order). Nothing is chosen by it.
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
    ratio: RatioMethod = "federated-auto"
    weighting: Weighting = field(default_factory=Weighting)
    model: str | nn.Module | Callable[[tuple[int, ...], int], nn.Module] = "lenet"
    plan: Plan = field(default_factory=FedSGD)
    loss: Literal["cross-entropy", "squared"] = "cross-entropy"
    validation: float = 0.0
    patience: int | None = None
    choose: Literal["last", "best"] = "last"
    flattenings: tuple[float, ...] = ()
    check_every: int | None = None
    watch_test: bool = False
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
        whole(self, "seed", least=0)
        for name in ("patience", "check_every"):
            if getattr(self, name) is not None:
                whole(self, name)
        for name, kind in (("plan", Plan), ("weighting", Weighting)):
            if not isinstance(getattr(self, name), kind):
                raise InputError(
                    f"Settings: {name} must be a {kind.__name__}, for example "
                    f"{'FedSGD(iterations=1000)' if name == 'plan' else 'Weighting(clip=20.0)'}; "
                    f"got {getattr(self, name)!r}"
                )
        if not (isinstance(self.model, str | nn.Module) or callable(self.model)):
            raise InputError(
                f"Settings: model must be a name, a module or a callable; got {self.model!r}"
            )
        share = self.validation
        if isinstance(share, bool) or not (isinstance(share, int | float) and 0 <= share < 1):
            raise InputError(f"validation must be a share in [0, 1); got {share!r}")
        if (self.patience is not None or self.choose == "best") and not self.validation:
            raise InputError(
                "patience and choose='best' look at validation rows; set validation, for example "
                "to 0.1"
            )
        object.__setattr__(self, "flattenings", self._exponents())
        if isinstance(self.ratio, str) and self.ratio not in ("exact", *ESTIMATORS):
            raise InputError(f"ratio must be {nearest(self.ratio, ('exact', *ESTIMATORS))}")
        if self.ratio is None:
            raise InputError("ratio must be given; take 'federated-auto', or 'exact' where known")

    def _exponents(self) -> tuple[float, ...]:
        """`flattenings`, checked."""
        given = self.flattenings
        good = isinstance(given, tuple | list) and all(
            isinstance(a, Real) and not isinstance(a, bool) and 0 <= a <= 1 for a in given
        )
        if not good or len(set(given)) < len(given):
            raise InputError(
                "flattenings must be exponents in [0, 1], each once, for example "
                f"(1.0, 0.75, 0.5); got {given!r}"
            )
        if given and not self.validation:
            raise InputError(
                "flattenings needs validation rows to choose on; got validation 0; set it, for "
                "example to 0.1"
            )
        if given and self.weighting.flatten != 1:
            raise InputError(
                "flattenings takes the place of the weighting's flatten, which must be 1; got "
                f"{self.weighting.flatten}; leave one of them out"
            )
        return tuple(map(float, given))


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
        the state it would have given), seconds.
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


def check_device(name: str) -> None:
    """Raise unless torch can compute there."""
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise InputError(f"device must be 'cpu' or 'cuda'; got {name!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device {name!r} needs a GPU and a torch that can use it; there is none here; take "
            "'cpu', or leave it out"
        )


def _device(settings: Settings) -> str:
    """Where to compute; raises if settings ask for what is not here."""
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    faster = "compile" if settings.compile else "precision='bfloat16'"
    wanted = settings.compile or settings.precision == "bfloat16"
    if wanted and (settings.engine != "fused" or not device.startswith("cuda")):
        raise InputError(
            f"{faster} needs engine='fused' on a GPU; got engine={settings.engine!r} on "
            f"{device!r}; leave it out"
        )
    return device


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
    classes = count_classes(federation, settings)
    _device(settings)  # before anything long begins
    tell({"phase": "ratio", "objective": settings.objective})
    before = time.perf_counter()
    ratios = estimate(
        federation,
        settings.ratio,
        objective=settings.objective,
        seed=settings.seed,
        folder=folder,
        borrow=borrow,
    )
    if ratios is not None:
        begin += time.perf_counter() - before - ratios.seconds  # as if estimated now
        ledger.merge(ratios.ledger)
    labelled = all(c.test_y is not None for c in federation)
    if settings.watch_test and not labelled:
        raise InputError("watch_test needs test labels of every client; leave it out")
    out = _train_candidates(
        federation, ratios, settings, classes=classes, folder=folder, tell=tell, ledger=ledger
    )
    scores = score(out.task, out.state, federation, settings, out.weights) if labelled else None
    reason = "" if ratios is None else ratios.reason
    return replace(out, evaluation=scores, seconds=time.perf_counter() - begin, reason=reason)


# -- training ----------------------------------------------------------------------------------

Part = tuple[Federation, dict[str, Float64Array] | None]


def hold_out(
    federation: Federation,
    weights: Mapping[str, Weights] | None,
    settings: Settings,
    goal: Mapping[str, Weights] | None = None,
) -> tuple[Part, Part | None]:
    """Training rows with their weights, and those kept out for validation, class by class.

    Rows kept out have the weights of `goal`, if they are others than those of training.
    """
    values = [
        None if side is None else {n: w.values for n, w in side.items()}
        for side in (weights, goal or weights)
    ]
    if not settings.validation:
        return (federation, values[0]), None
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
        if settings.loss == "cross-entropy":  # rare classes keep their share of both sides
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
    """Classes of all training labels, checked before anything long begins; 1 in regression."""
    if settings.loss != "cross-entropy":
        return 1
    for c in federation:
        if not np.issubdtype(c.y.dtype, np.integer) or (len(c.y) and c.y.min() < 0):
            raise InputError(
                f"client {c.name!r}: labels must be whole numbers 0, 1, …; got {c.y.dtype}; "
                "encode the classes first, or use FederatedClassifier, which does"
            )
    classes = 1 + max(int(c.y.max()) for c in federation)
    for c in federation:
        if c.test_y is not None and len(c.test_y) and c.test_y.max() >= classes:
            raise InputError(
                f"client {c.name!r}: test labels must be classes met in training, 0 to "
                f"{classes - 1}; got {c.test_y.max()}; no client can teach it"
            )
    return classes


def make_task(
    federation: Federation,
    weights: Mapping[str, Any] | None,
    settings: Settings,
    *,
    classes: int | None = None,
) -> Task:
    """The task of training rows and weights."""
    classes = count_classes(federation, settings) if classes is None else classes
    if settings.loss == "squared":
        federation = Federation(
            tuple(replace(c, y=np.asarray(c.y, dtype=np.float64)) for c in federation)
        )
    model = build(settings.model, federation[0].x.shape[1:], classes, seed=settings.seed)
    task = Task.of(
        federation,
        model,
        settings.plan,
        weights=weights,
        loss=settings.loss,
        dtype=torch.float64 if settings.precision == "float64" else torch.float32,
        device=_device(settings),
    )
    _check_output(task, classes)
    return task


def _check_output(task: Task, classes: int) -> None:
    """Raise unless the model turns rows into as many scores as there are classes."""
    rows = task.x[:2]
    try:
        with torch.inference_mode():
            out = copy.deepcopy(task.model).eval()(rows)
    except RuntimeError as error:
        raise InputError(
            f"model must take rows of shape {tuple(rows.shape[1:])}; got from it: {error}"
        ) from error
    if out.shape != (len(rows), classes):
        raise InputError(
            f"model must give {classes} scores a row, shape ({len(rows)}, {classes}) for "
            f"{len(rows)} rows; got {tuple(out.shape)}"
        )


def start_engine(task: Task, state: State, settings: Settings) -> Engine:
    """The engine the settings ask for, at a state."""
    if settings.engine == "fused":
        amp = settings.precision == "bfloat16"
        return Fused(task, state, amp=amp, compile=settings.compile)
    return ENGINES[settings.engine](task, state)


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
        return None if ratios is None else weighted(federation, ratios, settings.objective, way)

    def trained(tag: dict[str, float], goal: Mapping[str, Weights] | None = None) -> Outcome:
        weights = weights_by(**tag)
        kept, held = hold_out(federation, weights, settings, goal)
        task = make_task(*kept, settings, classes=classes)
        test = partial(score, task, federation=federation, settings=settings, weights=weights)
        state, history, stopped = _train(
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

    if ratios is None or not settings.flattenings:
        return trained({})
    goal = weights_by(flatten=1.0, min_ess=None)
    best: Outcome | None = None
    tried: list[dict[str, Any]] = []
    for flatten in sorted(settings.flattenings, reverse=True):  # of equals the larger is kept
        out = trained({"flatten": flatten}, goal)
        losses = [line["validation_loss"] for line in out.history]
        told = {
            "flatten": flatten,
            "round": out.state.round,
            "validation_loss": min(losses) if settings.choose == "best" else losses[-1],
            "seconds": sum(line["seconds"] for line in out.history),
        }
        if best is None or told["validation_loss"] < min(t["validation_loss"] for t in tried):
            best = out
        tried.append(told)
    assert best is not None
    said = ", ".join(f"{t['validation_loss']:.6g} with {t['flatten']}" for t in tried)
    chosen = best.history[0]["flatten"]
    stopped = f"{best.stopped}; exponent {chosen} had the lowest validation loss ({said})"
    return replace(best, stopped=stopped, tried=tried)


def _train(
    task: Task,
    held: Part | None,
    settings: Settings,
    *,
    tag: Mapping[str, float],
    folder: Path | None,
    tell: Watcher,
    ledger: Ledger,
    test: Callable[[State], Evaluation] | None,
) -> tuple[State, list[dict[str, Any]], str]:
    total = task.plan.n_rounds
    every = settings.check_every or max(1, total // 20)
    mark = {
        **fingerprint(task),
        "engine": settings.engine,
        "device": task.x.device.type,
        "precision": settings.precision,
        "model": _digest(repr(task.model), task.model.state_dict().values()),
        "validation": f"{settings.validation} {settings.seed if held else ''}",
    }
    if tag and held is not None and held[1] is not None:  # not the weights of training
        mark["validation weights"] = _digest("", map(torch.as_tensor, held[1].values()))
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
    tell({"phase": "train", "round": state.round, "rounds": total, **tag})
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
            **tag,
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
        if test is not None:
            seen = test(state)
            line |= {f"test_{seen.figure}": seen.mean, "test_clients": seen.values.tolist()}
        history.append(line)
        tell({"phase": "check", "rounds": total, **line})
        if folder is not None:
            extra = {f"best/{n}": t for n, t in best.tensors.items()}
            notes |= {"history": history, "tries": tries, "ledger": spent.to_records()}
            save(folder, State(done, {**state.tensors, **extra}), notes, fingerprint=mark)
    ledger.merge(spent)
    if settings.choose == "best" and best.tensors:
        stopped += f"; the state after round {best.round} had the lowest validation loss"
        return best, history, stopped
    return state, history, stopped


def _digest(said: str, numbers: Iterable[torch.Tensor]) -> str:
    """A hash of words and numbers: what a model is, and where it starts from."""
    found = hashlib.blake2b(said.encode(), digest_size=16)
    for t in numbers:
        found.update(t.detach().cpu().double().numpy().tobytes())
    return found.hexdigest()


def validate(task: Task, state: State, held: Part, settings: Settings) -> WeightedRisk:
    """Importance-weighted risk on held-out training rows, summed over clients."""
    federation, weights = held
    total: WeightedRisk | None = None
    shared = None if task.plan.norm == "local" else _on_device(task, state, None)
    for c, share in zip(federation, task.share, strict=True):
        if share == 0 or (weights is not None and not weights[c.name].any()):
            continue  # no part of the objective
        model = _on_device(task, state, c.name) if shared is None else shared
        scores = predict(model, torch.as_tensor(c.x, dtype=task.x.dtype))
        w = np.ones(len(c.y)) if weights is None else weights[c.name]
        risk = importance_weighted_risk(scores, c.y, w, loss=settings.loss, share=float(share))
        total = risk if total is None else total + risk
    if total is None:
        raise InputError("no held-out row counts: every client's weight is 0")
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
