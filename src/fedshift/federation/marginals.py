"""Ratios under label shift, with nothing but gradients and label marginals leaving a client."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fedshift.core.device import pick_device
from fedshift.core.label import mlls
from fedshift.core.params import one_of, whole
from fedshift.core.samples import Float64Array
from fedshift.core.scaling import CALIBRATIONS
from fedshift.core.threads import threads_for
from fedshift.core.weights import log_share
from fedshift.data.federation import Federation
from fedshift.errors import InputError
from fedshift.federation import draw
from fedshift.federation.fused import Runs
from fedshift.federation.ledger import Ledger
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.federation.task import State, Task
from fedshift.learn.evaluate import predict
from fedshift.learn.models import build
from fedshift.learn.objective import Objective


class FederatedMLLS(BaseEstimator):
    r"""r_k = Σ_l q_l(y) / p_k(y) at a training row of label y, with estimated test label laws q_l.

    Under label shift p(x | y) is the same everywhere, so all that is missing are the clients' test
    label laws. Four steps:

    1. All clients train a classifier together for the uniform label law, once for every fold of
       their rows: rows of class y of client k weigh 1 / (C p_k(y)), known from its own labels.
       Gradients leave the clients.
    2. The classifiers are calibrated on the rows they have not seen, weighted the same way: one
       temperature and a bias for every class (bias-corrected temperature scaling), and a matrix
       where rows speak for one. Sums leave the clients: what their rows of each class weigh, of
       the scores, and a slope for every step of the fit.
    3. Every client finds its test label law of highest likelihood (`fedshift.core.label.mlls`)
       from the mean of the calibrated probabilities of its unlabelled test rows.
    4. It sends that law, C numbers, and looks its ratios up by label.

    Here all of it runs in one process, and nothing else would have to leave a client.

    Folds let every row calibrate; the few rows of a rare class decide the small shares of classes
    that look alike.

    Fails where p(x | y) differs between clients or between training and use (then the classifier
    of one is no classifier of the other), and for test classes that no client has.

    Parameters
    ----------
    model : str, module or callable
        See `fedshift.learn.models.build`.
    plan : FedSGD or FedAvg, optional
        Of step 1; for images try ``FedSGD(iterations=2000, importance="sampling",
        augment="crop-flip")``.
    folds : int
    lean : float
        How far clients lean on each other's rows in steps 1 and 2, β in [0, 1]: weights there are
        multiplied by the shares K p_k(y)^β / Σ_j p_j(y)^β (`fedshift.core.weights.log_share`), so
        that a client's few rows of a class count less where its neighbours have many. Training
        label laws leave the clients then.
    calibration : {"matrix", "bcts"}
        Of step 2: with C² numbers for classes that are taken for each other, where rows kept out
        speak for them (`fedshift.core.scaling.matrix_scaling`), or by temperature and biases alone.
        The first is better where some classes have far fewer rows than others that look like them
        (`benchmarks/laws.py`). Deployments have the second, which needs fewer numbers from a site.
    precision : {"float32", "bfloat16"}
        Of the arithmetic of step 1; see `fedshift.Settings`.
    device : str, optional
    seed : int
        Of folds and model; added to the plan's.

    Attributes
    ----------
    marginals_ : dict of client to ndarray (C,)
        Estimated test label laws.
    calibration_ : Calibration or MatrixCalibration
    ledger_ : Ledger
        Bytes of all steps; of the sums of step 2, the most that they can be.
    digest_ : str
        Of the federation it was fitted on.
    """

    def __init__(
        self,
        *,
        model: str | nn.Module | Callable[[tuple[int, ...], int], nn.Module] = "mlp",
        plan: FedSGD | FedAvg | None = None,
        folds: int = 5,
        lean: float = 0.0,
        calibration: Literal["bcts", "matrix"] = "matrix",
        precision: Literal["float32", "bfloat16"] = "float32",
        device: str | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.plan = plan
        self.folds = folds
        self.lean = lean
        self.calibration = calibration
        self.precision = precision
        self.device = device
        self.seed = seed

    def fit(self, federation: Federation) -> Self:
        """Train, calibrate, and estimate every client's test label law."""
        check_phase(self)
        whole(self, "folds", least=2)
        Objective.of("ftw").check_lean(self.lean)
        if self.lean and self.plan is not None:
            self.plan.check_lean()
        laws = label_laws(federation)
        count = len(next(iter(laws.values())))
        if count < 2:
            raise InputError(
                "label laws need two classes; got training rows of one; take 'multi-source'"
            )
        self.sources_ = [c.name for c in federation]
        self._laws, self._labels = laws, {c.name: c.y for c in federation}
        balance = {c.name: balanced(c.y, count) * self._shares(c.name) for c in federation}
        fold = {c.name: folds_of(c.name, c.y, self.folds, seed=self.seed) for c in federation}
        tasks = [self._task(federation, balance, fold, j, count) for j in range(self.folds)]
        states = self._train(tasks)
        seen = {c.name: np.full((len(c.y), count), 1 / count) for c in federation}
        used: dict[str, list[Float64Array]] = {c.name: [] for c in federation}
        for j, (task, state) in enumerate(zip(tasks, states, strict=True)):
            for c in federation:
                model = task.module(state, c.name).to(task.x.device)
                own = fold[c.name] == j
                if own.any():
                    seen[c.name][own] = _probabilities(model, c.x[own])
                used[c.name].append(_probabilities(model, c.test_x))
        out = np.concatenate([fold[c.name] >= 0 for c in federation])
        labels = np.concatenate([c.y for c in federation])[out]
        weight = np.concatenate([balance[c.name] / len(c.y) for c in federation])[out]
        # clients may lack a class; calibrated to equal shares, all classes start alike
        weight = weight / np.bincount(labels, weight)[labels]
        found = np.concatenate([seen[c.name] for c in federation])[out]
        self._seen, self._used = seen, used
        self._held_out = found, labels, weight / weight.sum()
        self.digest_ = federation_digest(federation)
        return self._estimate()

    def recalibrated(self, calibration: Literal["bcts", "matrix"]) -> Self:
        """A copy with label laws by another calibration of the same classifiers."""
        check_is_fitted(self, "marginals_")
        other = copy(self)
        other.calibration = calibration
        one_of(other, "calibration", tuple(CALIBRATIONS))
        return other._estimate()

    def _estimate(self) -> Self:
        """Steps 2 to 4, from what the classifiers said."""
        found, labels, weight = self._held_out
        self.calibration_ = CALIBRATIONS[self.calibration](found, labels, weight=weight)
        self.ledger_ = self._trained + self._told(found.shape[1])
        self.asked_ = asked(self)
        self._judged = {
            n: np.mean([self.calibration_(p) for p in ps], axis=0) for n, ps in self._used.items()
        }
        uniform = np.full(found.shape[1], 1 / found.shape[1])
        self.marginals_: dict[str, Float64Array] = {
            name: mlls(p, uniform).prior for name, p in self._judged.items()
        }
        return self

    def source_log_ratio(self, source: str, *, target: Any = None) -> Float64Array:
        """Log ratio at a client's training rows; `target` names test laws, None means all."""
        check_is_fitted(self, "marginals_")
        names = list(self.marginals_) if target is None else np.atleast_1d(target).tolist()
        top = np.sum([self.marginals_[n] for n in names], axis=0)
        with np.errstate(divide="ignore"):
            table = np.log(top) - np.log(self._laws[source])
        return np.asarray(table[self._labels[source]])

    def source_log_laws(self, source: str) -> Float64Array:
        """Log p_j(y) of all clients' training laws at a client's training rows, (n, K).

        Columns in the order of `sources_`. Needs every client's training label law.
        """
        check_is_fitted(self, "sources_")
        laws = np.stack([self._laws[n] for n in self.sources_])
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(laws[:, self._labels[source]]).T)

    def _shares(self, client: str) -> Float64Array:
        """What a client stands for at each of its rows, 1 unless clients lean on each other."""
        own = self.sources_.index(client)
        return np.exp(log_share(self.source_log_laws(client), own, self.lean))

    def posteriors(self, client: str) -> tuple[Float64Array, Float64Array]:
        """p(y | x) under the uniform label law, of training rows (n, C) and of test rows (m, C).

        Calibrated; a training row is judged by the classifier that has not seen it (the only row
        of a client by none, as if all classes were alike before calibration), a test row by the
        mean of all.
        """
        check_is_fitted(self, "marginals_")
        return self.calibration_(self._seen[client]), self._judged[client]

    def _task(
        self,
        federation: Federation,
        balance: dict[str, Float64Array],
        fold: dict[str, npt.NDArray[np.int64]],
        out: int,
        count: int,
    ) -> Task:
        """Training without one fold."""
        plan = FedSGD() if self.plan is None else self.plan
        kept = {name: f != out for name, f in fold.items()}
        return Task.of(
            Federation(
                tuple(replace(c, x=c.x[kept[c.name]], y=c.y[kept[c.name]]) for c in federation)
            ),
            build(self.model, federation[0].x.shape[1:], count, seed=self.seed + out),
            replace(plan, seed=plan.seed + self.seed),
            weights={name: w[kept[name]] for name, w in balance.items()},
            device=pick_device(self.device),
        )

    def _train(self, tasks: list[Task]) -> list[State]:
        """All folds side by side; the ledger counts what every client sent for all of them."""
        amp = self.precision == "bfloat16"
        runs, left = Runs(tasks, amp=amp), tasks[0].plan.n_rounds
        self.ledger_ = self._trained = Ledger()
        size = tasks[0].step_size * len(tasks)
        while left:
            with threads_for(size):
                logs = runs.advance(min(left, 250))
            left -= len(logs[0].losses)
            for task, log in zip(tasks, logs, strict=True):
                self.ledger_.record_rounds(task, log, phase="train.ratio")
            for task, log in zip(tasks, logs, strict=True):
                log.check(task)
        return runs.states()

    def _told(self, classes: int) -> Ledger:
        """What the sums of a calibration and the label laws cost every client."""
        law, ledger, steps = 8 * classes, Ledger(), self.calibration_.rounds
        size = 8 * (classes + 1 if self.calibration == "bcts" else classes * (classes + 1))
        for name in self.sources_:
            ledger.add(name, "query.calibrate", up=law + steps * (size + 8), down=steps * size)
            ledger.add(name, "query.describe", up=law, down=law)  # its own, and the sum of all
            if self.lean:  # its training law too, to all others
                ledger.add(name, "query.describe", up=law, down=law * len(self.sources_))
        return ledger


def asked(estimator: Any) -> str:
    """What an estimator was asked for: a fit with other parameters is another."""
    return repr(sorted(estimator.get_params(deep=False).items()))


def check_phase(estimator: Any) -> None:
    """Raise unless the options that all federated estimators have can be used."""
    one_of(estimator, "calibration", tuple(CALIBRATIONS))
    one_of(estimator, "precision", ("float32", "bfloat16"))
    if not isinstance(estimator.plan, FedSGD | FedAvg | None):
        raise InputError(
            f"{type(estimator).__name__}: plan must be FedSGD(…), FedAvg(…) or None; got "
            f"{estimator.plan!r}"
        )
    pick_device(estimator.device)


def label_laws(federation: Federation) -> dict[str, Float64Array]:
    """Counted training label law (C,) of every client.

    Raises
    ------
    InputError
        If labels are no whole numbers 0, 1, …, or no client has one of the classes; or none of two
        rows has: the only row of a client teaches, and nothing is left to calibrate its class by.
    """
    count = class_count(federation)
    there = np.unique(np.concatenate([np.unique(c.y) for c in federation]))
    if len(there) < count:  # before anything is counted: numbers may be large
        absent = np.flatnonzero(np.append(there, count) != np.arange(len(there) + 1))[0]
        raise InputError(
            f"every class 0 … {count - 1} must occur at some client; got no row of class "
            f"{absent}; renumber the classes"
        )
    taught = [np.unique(c.y) for c in federation if len(c.y) > 1]
    bare = np.setdiff1d(there, np.concatenate(taught) if taught else [])
    if len(bare):
        raise InputError(
            f"every class must occur at a client of two training rows or more; got class {bare[0]} "
            "at clients of a single row only; give one of them another row, or leave them out"
        )
    return {c.name: np.bincount(c.y, minlength=count) / len(c.y) for c in federation}


def class_count(federation: Federation) -> int:
    """1 + the largest label of all clients; raises unless labels are whole numbers 0, 1, …."""
    for c in federation:
        if not np.issubdtype(c.y.dtype, np.integer) or c.y.min() < 0:
            raise InputError(
                f"client {c.name!r}: labels must be whole numbers 0, 1, …; got {c.y.dtype}; "
                "encode the classes first, or use FederatedClassifier, which does"
            )
    return 1 + max(int(c.y.max()) for c in federation)


def balanced(y: npt.NDArray[Any], count: int) -> Float64Array:
    """Weights of a client's rows under which all classes it has occur alike: 1 / (C p(y))."""
    law = np.bincount(y, minlength=count) / len(y)
    return np.asarray(1.0 / (count * law[y]))


def folds_of(name: str, y: npt.NDArray[Any], folds: int, *, seed: int = 0) -> npt.NDArray[np.int64]:
    """A fold for every row of a client, class by class so that rare ones are spread evenly."""
    order = draw.permutation(draw.key(seed, "folds", name), 0, len(y))
    order = order[np.argsort(y[order], kind="stable")]
    fold = np.full(len(y), -1, dtype=np.int64)
    if len(y) > 1:  # the only row of a client is always trained on
        fold[order] = np.arange(len(y)) % folds
    return fold


def federation_digest(federation: Federation) -> str:
    """A hash of all that ratios may depend on: names, training rows, labels and test rows."""
    data = hashlib.blake2b(digest_size=16)
    for c in federation:
        for part in (c.x, c.y, c.test_x):
            data.update(f"{c.name} {part.shape} {part.dtype}".encode())
            plain = part if part.dtype.kind in "biuf" else np.array(part, dtype=str)
            data.update(np.ascontiguousarray(plain).data.cast("B"))
    return data.hexdigest()


def _probabilities(model: nn.Module, x: Any) -> Float64Array:
    scores = predict(model, torch.as_tensor(x, dtype=torch.float32)).double().cpu().numpy()
    return np.asarray(softmax(scores, axis=1))
