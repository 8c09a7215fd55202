"""Density ratios under label shift. Only gradients, sums and label distributions leave clients."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fedshift.core.device import pick_device
from fedshift.core.label import mlls
from fedshift.core.params import nearest, one_of, whole
from fedshift.core.samples import Float64Array
from fedshift.core.scaling import CALIBRATIONS
from fedshift.core.threads import STEP, threads_for
from fedshift.core.weights import log_share
from fedshift.data.federation import Federation, check_federation
from fedshift.errors import InputError
from fedshift.federation import draw
from fedshift.federation.fused import Runs
from fedshift.federation.ledger import Ledger
from fedshift.federation.plan import FedAvg, FedSGD
from fedshift.federation.task import State, Task
from fedshift.learn.evaluate import predict
from fedshift.learn.models import build
from fedshift.learn.objective import Objective
from fedshift.progress import bar


class FederatedMLLS(BaseEstimator):
    r"""Label-shift ratios from test label distributions that clients estimate together.

    With p_k the training label distribution of client k, and q_l the estimated test label
    distribution of client l, the ratio at a training row of label y is

    .. math:: r_k = Σ_l q_l(y) / p_k(y)

    where the sum runs over the clients l whose test distributions are the target.

    Under label shift p(x | y) is the same everywhere, so only the clients' test label distributions
    are unknown. They are estimated in four steps:

    1. Together, all clients train one classifier for every fold, on their rows outside this fold.
       The rows are weighted so that all classes count equally: rows of class y of client k have
       weight 1 / (C p_k(y)), with C the number of classes. The client knows p_k from its own
       labels. In this step only gradients leave the clients.
    2. The classifiers are calibrated on held-out rows with the same weights. The calibration has
       one temperature for all classes and a bias for each class (bias-corrected temperature
       scaling). If cross-validation on these rows shows that it helps, a C × C matrix is added (see
       `calibration`). Clients send only sums over rows: the sum of the weights of each class, the
       sum of the scores and, for every step of the fit, the sums of the loss and of its gradient.
    3. Every client estimates its test label distribution by maximum likelihood
       (`fedshift.core.label.mlls`), from the mean calibrated probabilities of its unlabelled test
       rows.
    4. Every client sends its estimated distribution, C numbers, and receives the sum of the
       distributions of all clients. It then computes the ratios of its rows from their labels.

    Here all steps run in one process. In a deployment, only the gradients, sums and label
    distributions named above would leave a client.

    With folds, every row is held out once (unless it is the only row of its client), so all these
    rows serve for calibration. This matters for rare classes: their few rows decide how well the
    calibration separates a rare class from a similar class. The accuracy of the rare class's
    estimated share depends on this separation.

    The method fails if p(x | y) differs between clients, or between training and deployment. A
    classifier trained on one of these distributions is then wrong on the other one. The method also
    fails for test classes of which no client has training rows.

    Parameters
    ----------
    model : str, module or callable
        See `fedshift.learn.models.build`.
    plan : FedSGD or FedAvg, optional
        Training of step 1. For images try ``FedSGD(iterations=2000, importance="sampling",
        augment="crop-flip")``.
    folds : int
        Number of folds, at least 2.
    pooling : float
        Partial pooling of the clients' rows in steps 1 and 2, β in [0, 1]. With K clients, weights
        in these steps are multiplied by the shares K p_k(y)^β / Σ_j p_j(y)^β
        (`fedshift.core.weights.log_share`). So a client's few rows of a class have less weight if
        other clients have many rows of this class. With β above 0, training label distributions
        leave the clients.
    calibration : {"matrix", "bcts"}
        Calibration of step 2. "bcts" has only a temperature and a bias for every class. "matrix"
        adds a C × C matrix for classes that are confused with each other, if cross-validation on
        the held-out rows shows that this helps (`fedshift.core.scaling.matrix_scaling`). "matrix"
        is better if some classes have far fewer rows than similar classes
        (`benchmarks/label_distributions.py`).
        Deployments use "bcts", which needs fewer numbers from a site.
    precision : {"float32", "bfloat16"}
        Arithmetic of step 1; see `fedshift.Settings`.
    device : str, optional
    seed : int
        Seed of the folds and of the model's initial parameters; also added to the plan's seed.

    Attributes
    ----------
    marginals_ : dict of client to ndarray (C,)
        Estimated test label distributions.
    calibration_ : Calibration or MatrixCalibration
        Calibration fitted in step 2.
    ledger_ : Ledger
        Bytes of all steps. For the sums of step 2, the number of bytes is an upper bound.
    digest_ : str
        Hash of the federation that the estimator was fitted on.
    """

    def __init__(
        self,
        *,
        model: str | nn.Module | Callable[[tuple[int, ...], int], nn.Module] = "mlp",
        plan: FedSGD | FedAvg | None = None,
        folds: int = 5,
        pooling: float = 0.0,
        calibration: Literal["bcts", "matrix"] = "matrix",
        precision: Literal["float32", "bfloat16"] = "float32",
        device: str | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.plan = plan
        self.folds = folds
        self.pooling = pooling
        self.calibration = calibration
        self.precision = precision
        self.device = device
        self.seed = seed

    def fit(self, federation: Federation) -> Self:
        """Train, calibrate, and estimate every client's test label distribution."""
        check_federation(federation, type(self).__name__)
        check_phase(self)
        whole(self, "folds", least=2)
        Objective.of("ftw").check_pooling(self.pooling)
        if self.pooling and self.plan is not None:
            self.plan.check_pooling()
        self.digest_ = federation_digest(federation)
        # sums, and so the fit, do not depend on the order of the clients
        federation = Federation(tuple(sorted(federation, key=lambda c: c.name)))
        distributions = label_distributions(federation)
        count = len(next(iter(distributions.values())))
        if count < 2:
            raise InputError(
                "label shift needs two classes; got rows of one class; take ratios 'multi-source'"
            )
        self.sources_ = [c.name for c in federation]
        self._distributions, self._labels = distributions, {c.name: c.y for c in federation}
        balance = {c.name: balanced(c.y, count) * self._shares(c.name) for c in federation}
        fold = {c.name: folds_of(c.name, c.y, self.folds, seed=self.seed) for c in federation}
        tasks = [self._task(federation, balance, fold, j, count) for j in range(self.folds)]
        states = self._train(tasks)
        train_p = {c.name: np.full((len(c.y), count), 1 / count) for c in federation}
        test_p: dict[str, list[Float64Array]] = {c.name: [] for c in federation}
        for j, (task, state) in enumerate(zip(tasks, states, strict=True)):
            for c in federation:
                model = task.module(state, c.name).to(task.x.device)
                own = fold[c.name] == j
                if own.any():
                    train_p[c.name][own] = _probabilities(model, c.x[own])
                test_p[c.name].append(_probabilities(model, c.test_x))
        out = np.concatenate([fold[c.name] >= 0 for c in federation])
        labels = np.concatenate([c.y for c in federation])[out]
        weight = np.concatenate([balance[c.name] / len(c.y) for c in federation])[out]
        # clients may lack a class: give all classes the same total weight
        weight = weight / np.bincount(labels, weight)[labels]
        p = np.concatenate([train_p[c.name] for c in federation])[out]
        self._train_p, self._test_p = train_p, test_p
        self._held_out = p, labels, weight / weight.sum()
        return self._estimate()

    def recalibrated(self, calibration: Literal["bcts", "matrix"]) -> Self:
        """Return a copy that calibrates the same classifiers by another method."""
        check_is_fitted(self, "marginals_")
        other = copy(self)
        other.calibration = calibration
        one_of(other, "calibration", tuple(CALIBRATIONS))
        return other._estimate()

    def _estimate(self) -> Self:
        """Steps 2 to 4, from the classifiers' probabilities."""
        rows, labels, weight = self._held_out
        self.calibration_ = CALIBRATIONS[self.calibration](rows, labels, weight=weight)
        self.ledger_ = self._trained + self._query_cost(rows.shape[1])
        self.params_ = params_of(self)
        self._test_posteriors = {
            n: np.mean([self.calibration_(p) for p in ps], axis=0) for n, ps in self._test_p.items()
        }
        uniform = np.full(rows.shape[1], 1 / rows.shape[1])
        self.marginals_: dict[str, Float64Array] = {
            name: mlls(p, uniform).prior for name, p in self._test_posteriors.items()
        }
        return self

    def source_log_ratio(self, source: str, *, target: Any = None) -> Float64Array:
        """Return log ratios at the n training rows of client `source`, (n,).

        The numerator is the sum of the test distributions of the clients `target` (one name or
        several). With ``target=None``, it is the sum of the test distributions of all clients.
        """
        check_is_fitted(self, "marginals_")
        names = list(self.marginals_) if target is None else np.atleast_1d(target).tolist()
        for name in (source, *names):
            if name not in self.marginals_:
                raise InputError(f"client must be {nearest(name, list(self.marginals_))}")
        top = np.sum([self.marginals_[n] for n in names], axis=0)
        with np.errstate(divide="ignore"):
            table = np.log(top) - np.log(self._distributions[source])
        return np.asarray(table[self._labels[source]])

    def source_log_densities(self, source: str) -> Float64Array:
        """Return log p_j(y) of the labels of a client's n training rows, (n, K).

        There is one column for each of the K clients j, in the order of `sources_`. p_j is the
        training label distribution of client j.
        """
        check_is_fitted(self, "sources_")
        distributions = np.stack([self._distributions[n] for n in self.sources_])
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(distributions[:, self._labels[source]]).T)

    def _shares(self, client: str) -> Float64Array:
        """A client's share of the target at each of its rows (n,); 1 without pooling."""
        own = self.sources_.index(client)
        return np.exp(log_share(self.source_log_densities(client), own, self.pooling))

    def posteriors(self, client: str) -> tuple[Float64Array, Float64Array]:
        """Return calibrated p(y | x) of a client's n training rows (n, C) and m test rows (m, C).

        The probabilities hold if all C classes are equally frequent. A training row gets the
        probabilities of the classifier that was not trained on the row. If a client has a single
        training row, every classifier was trained on this row, so none gives a held-out prediction.
        The row gets equal probabilities for all classes, which are then calibrated. A test row gets
        the mean of the probabilities of all classifiers.
        """
        check_is_fitted(self, "marginals_")
        return self.calibration_(self._train_p[client]), self._test_posteriors[client]

    def _task(
        self,
        federation: Federation,
        balance: dict[str, Float64Array],
        fold: dict[str, npt.NDArray[np.int64]],
        out: int,
        count: int,
    ) -> Task:
        """The training task without one fold."""
        plan = FedSGD() if self.plan is None else self.plan
        keep = {name: f != out for name, f in fold.items()}
        return Task.of(
            Federation(
                tuple(replace(c, x=c.x[keep[c.name]], y=c.y[keep[c.name]]) for c in federation)
            ),
            build(self.model, federation[0].x.shape[1:], count, seed=self.seed + out),
            replace(plan, seed=(plan.seed or 0) + self.seed),
            weights={name: w[keep[name]] for name, w in balance.items()},
            device=pick_device(self.device),
        )

    def _train(self, tasks: list[Task]) -> list[State]:
        """Train all folds side by side; the ledger sums what every client sends for them."""
        amp = self.precision == "bfloat16"
        runs, left = Runs(tasks, amp=amp), tasks[0].plan.n_rounds
        self.ledger_ = self._trained = Ledger()
        size = tasks[0].step_size * len(tasks)
        with bar("label distributions: rounds", left) as advance:
            while left:
                with threads_for(size, STEP):
                    logs = runs.advance(min(left, 250))
                left -= len(logs[0].losses)
                advance(tasks[0].plan.n_rounds - left)
                for task, log in zip(tasks, logs, strict=True):
                    self.ledger_.record_rounds(task, log, phase="train.ratio")
                for task, log in zip(tasks, logs, strict=True):
                    log.check(task)
        return runs.states()

    def _query_cost(self, classes: int) -> Ledger:
        """Bytes of the calibration's sums and of the label distributions, by client."""
        own, ledger, steps = 8 * classes, Ledger(), self.calibration_.rounds
        size = 8 * (classes + 1 if self.calibration == "bcts" else classes * (classes + 1))
        for name in self.sources_:
            up, down = own + steps * (size + 8), steps * size
            ledger.add(name, "query.calibrate", up=up, down=down, replies=steps + 1)
            ledger.add(name, "query.describe", up=own, down=own)  # its own, and the sum of all
            if self.pooling:  # its training distribution too, to all others
                ledger.add(name, "query.describe", up=own, down=own * len(self.sources_))
        return ledger


def params_of(estimator: Any) -> str:
    """Parameters of an estimator as text, to check whether they changed since it was fitted."""
    return repr(sorted(estimator.get_params(deep=False).items()))


def check_phase(estimator: Any) -> None:
    """Raise if an option that all federated estimators share is not valid."""
    one_of(estimator, "calibration", tuple(CALIBRATIONS))
    one_of(estimator, "precision", ("float32", "bfloat16"))
    whole(estimator, "seed", least=0)
    if not isinstance(estimator.plan, FedSGD | FedAvg | None):
        raise InputError(
            f"{type(estimator).__name__}: plan must be FedSGD(…), FedAvg(…) or None; got "
            f"{estimator.plan!r}"
        )
    pick_device(estimator.device)


def label_distributions(federation: Federation) -> dict[str, Float64Array]:
    """Compute every client's training label distribution, (C,) for C classes, from its labels.

    Raises
    ------
    InputError
        If labels are not whole numbers 0, 1, …; if no client has a row of one of the classes; or
        if a class occurs only at clients with a single training row. A client's single row is never
        held out, so no row is left to calibrate the class.
    """
    count = class_count(federation)
    present = np.unique(np.concatenate([np.unique(c.y) for c in federation]))
    if len(present) < count:  # before counting: labels may be large numbers
        absent = np.flatnonzero(np.append(present, count) != np.arange(len(present) + 1))[0]
        raise InputError(
            f"every class 0 … {count - 1} must occur at some client; got no row of class "
            f"{absent}; renumber the classes"
        )
    several = [np.unique(c.y) for c in federation if len(c.y) > 1]
    bare = np.setdiff1d(present, np.concatenate(several) if several else [])
    if len(bare):
        raise InputError(
            f"every class must occur at a client with several training rows; got class {bare[0]} "
            "only at clients with one row; add rows to one of these clients, or leave them out"
        )
    return {c.name: np.bincount(c.y, minlength=count) / len(c.y) for c in federation}


def class_count(federation: Federation) -> int:
    """Return the number of classes, 1 + the largest label.

    Raises unless all labels are whole numbers 0, 1, …, and at least half of them occur: most
    outputs of a model would else stand for no class.
    """
    for c in federation:
        if not np.issubdtype(c.y.dtype, np.integer) or c.y.min() < 0:
            raise InputError(
                f"client {c.name!r}: labels must be whole numbers 0, 1, …; got {c.y.dtype}; "
                "encode the classes first, or use FederatedClassifier, which encodes them; for "
                "numbers take loss='squared' or FederatedRegressor"
            )
    present = np.unique(np.concatenate([np.unique(c.y) for c in federation]))
    count = 1 + int(present[-1])
    if count > 2 * len(present):
        raise InputError(
            f"labels must be class numbers 0, 1, …; got {len(present)} classes with numbers up to "
            f"{present[-1]}; renumber them, as FederatedClassifier does, or take loss='squared' if "
            "the labels are numbers"
        )
    return count


def balanced(y: npt.NDArray[Any], count: int) -> Float64Array:
    """Return weights 1 / (C p(y)) of a client's rows, so that its classes weigh the same in total.

    C = `count` is the number of classes, and p(y) the client's label distribution.
    """
    distribution = np.bincount(y, minlength=count) / len(y)
    return np.asarray(1.0 / (count * distribution[y]))


def folds_of(name: str, y: npt.NDArray[Any], folds: int, *, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return a fold for every row of a client; each class is spread evenly over the folds.

    The only row of a client gets fold −1: no classifier leaves it out.
    """
    order = draw.permutation(draw.key(seed, "folds", name), 0, len(y))
    order = order[np.argsort(y[order], kind="stable")]
    fold = np.full(len(y), -1, dtype=np.int64)
    if len(y) > 1:  # the only row of a client is in every training part
        fold[order] = np.arange(len(y)) % folds
    return fold


def federation_digest(federation: Federation) -> str:
    """Hash client names, training rows, labels and test rows: all that estimates may depend on."""
    data = hashlib.blake2b(digest_size=16)
    for c in federation:
        for part in (c.x, c.y, c.test_x):
            data.update(f"{c.name} {part.shape} {part.dtype}".encode())
            plain = part if part.dtype.kind in "biuf" else np.array(part, dtype=str)
            data.update(np.ascontiguousarray(plain).data.cast("B"))
    return data.hexdigest()


def _probabilities(model: nn.Module, x: Any) -> Float64Array:
    return np.asarray(softmax(predict(model, x).double().numpy(), axis=1))
