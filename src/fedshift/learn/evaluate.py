"""Evaluation of a model on the test rows of each client, with intervals.

Only this module uses test labels. To choose models and to stop training, use
`importance_weighted_risk`, which needs only training rows and their weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.core.by_name import ByName
from fedshift.core.params import nearest
from fedshift.core.samples import Float64Array
from fedshift.core.weights import effective_sample_size
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError

LossName = Literal["cross-entropy", "squared"]
LOSSES = ("cross-entropy", "squared")

#: resamples of a bootstrap
DRAWS = 2000
#: from this number of values the normal interval is used; it then agrees with the bootstrap's
MANY = 50_000


def mean_interval(values: Float64Array) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean of values (n,), from `DRAWS` resamples.

    With `MANY` values or more, the normal interval is returned, because the two intervals then
    agree to within rounding. With fewer than about ten values, or with a heavy tail, the interval
    is too narrow, because the sample then lacks large values.
    """
    n, mean = len(values), float(values.mean())
    if n >= MANY:
        half = float(stats.norm.ppf(0.975) * values.std()) / math.sqrt(n)
        return mean - half, mean + half
    if n == 1:
        return mean, mean
    batch = max(1, 1_000_000 // n)  # a few megabytes at a time
    rng = np.random.default_rng(0)
    low, high = stats.bootstrap(
        (values,), np.mean, n_resamples=DRAWS, batch=batch, method="percentile", random_state=rng
    ).confidence_interval
    # the mean of a very skewed sample can lie outside the interval; extend it to the mean
    return min(float(low), mean), max(float(high), mean)


@dataclass(frozen=True, kw_only=True)
class ClientScore:
    """Scores of one client on its test rows; None for a score that does not apply.

    Attributes
    ----------
    client : str
    n : int
        Number of test rows.
    accuracy : float or None
        Share of rows whose class has the highest score.
    mse : float or None
        Mean squared error (regression).
    low, high : float
        95 % interval of the accuracy (Wilson) or the mse (bootstrap).
    loss : float
        Mean cross entropy, or half the mse.
    auc, f1 : float or None
        AUC and F1 score of class 1, with two classes only. The AUC needs rows of both classes.
    r2 : float or None
        1 − mse / variance of the labels.
    ess : float or None
        Effective sample size of the client's training weights.
    """

    client: str
    n: int
    accuracy: float | None = None
    mse: float | None = None
    low: float
    high: float
    loss: float
    auc: float | None = None
    f1: float | None = None
    r2: float | None = None
    ess: float | None = None

    def __post_init__(self) -> None:
        if (self.accuracy is None) == (self.mse is None):
            raise InputError(f"client {self.client!r}: give accuracy or mse; got both or neither")

    @property
    def value(self) -> float:
        """The main score: accuracy or mse."""
        value = self.mse if self.accuracy is None else self.accuracy
        assert value is not None
        return value

    def __repr__(self) -> str:
        name, show = ("mse", plain_text) if self.accuracy is None else ("accuracy", share_text)
        return (
            f"ClientScore({self.client!r}: {name} {show(self.value)} "
            f"[{show(self.low)}, {show(self.high)}], loss {plain_text(self.loss)}, n={self.n})"
        )


@dataclass(frozen=True, repr=False)
class Evaluation(ByName[ClientScore]):
    """Test scores of all clients. In a mean over clients, each client gets equal weight.

    ``a + b`` joins the evaluations of different clients.

    Attributes
    ----------
    rows : tuple of ClientScore
        One for each client.
    """

    _entries, _key = "rows", "client"

    rows: tuple[ClientScore, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        names = [r.client for r in self.rows]
        if not names:
            raise InputError("an evaluation needs at least one client; got none")
        if len(set(names)) < len(names):
            twice = sorted({n for n in names if names.count(n) > 1})
            raise InputError(f"each client must be evaluated once; got {twice} more than once")
        if len({r.accuracy is None for r in self.rows}) > 1:
            raise InputError("all clients need the same main score, accuracy or mse; got both")

    @property
    def figure(self) -> str:
        """Name of the main score: "accuracy" or "mse"."""
        return "mse" if self.rows[0].accuracy is None else "accuracy"

    @property
    def scores(self) -> Float64Array:
        """The main score of every client, shape (K,)."""
        return np.array([r.value for r in self.rows])

    @property
    def mean(self) -> float:
        """Mean of the main score over clients."""
        return float(self.scores.mean())

    @property
    def worst(self) -> ClientScore:
        """The client with the lowest accuracy or highest mse."""
        return self.rows[int(self._order.argmin())]

    @property
    def best(self) -> ClientScore:
        """The client with the highest accuracy or lowest mse."""
        return self.rows[int(self._order.argmax())]

    @property
    def _order(self) -> Float64Array:
        return self.scores if self.figure == "accuracy" else -self.scores

    @property
    def spread(self) -> float:
        """Standard deviation of the main score over these K clients (divided by K, not K − 1)."""
        return float(self.scores.std())

    @property
    def interval(self) -> tuple[float, float]:
        r"""95 % interval of the mean over these clients, for newly drawn test rows.

        Let v_k be the main score of client k, l_k and u_k the limits of its interval, K the number
        of clients and m the mean score. The clients' test rows are independent, so the squared
        distances between scores and limits add up. The interval goes from the first to the second
        of these values:

        .. math:: m − \frac1K \sqrt{Σ_k (v_k − l_k)²}, \quad m + \frac1K \sqrt{Σ_k (u_k − v_k)²}

        (Zou and Donner 2008). The limits of accuracies use a binomial variance that is above zero
        even if every prediction is correct. The interval does not account for the choice of the
        seed or of the clients.
        """
        low = np.array([r.low for r in self.rows])
        high = np.array([r.high for r in self.rows])
        k, v, mean = len(self.rows), self.scores, self.mean
        return (
            mean - float(np.linalg.norm(v - low)) / k,
            mean + float(np.linalg.norm(high - v)) / k,
        )

    @property
    def status(self) -> str:
        """One sentence with mean, interval, worst and best client."""
        show = share_text if self.figure == "accuracy" else plain_text
        (low, high), k = self.interval, len(self.rows)
        return (
            f"mean {self.figure} {show(self.mean)} [{show(low)}, {show(high)}] over {k} "
            f"client{'s' * (k > 1)}, worst {show(self.worst.value)} ({self.worst.client}), "
            f"best {show(self.best.value)} ({self.best.client})"
        )

    def __repr__(self) -> str:
        return f"Evaluation({self.status})"

    def __add__(self, other: Evaluation) -> Evaluation:
        """Join two evaluations of different clients."""
        return Evaluation(self.rows + other.rows)

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dict per client, ready for JSON, without scores that no client has."""
        records = [dataclasses.asdict(row) for row in self.rows]
        keys = [k for k in records[0] if any(r[k] is not None for r in records)]
        return [{k: r[k] for k in keys} for r in records]

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> Evaluation:
        """Rebuild an evaluation from the dicts of `to_records`."""
        return cls(tuple(ClientScore(**r) for r in records))

    def to_frame(self) -> Any:
        """Return a pandas data frame with one row per client."""
        try:
            import pandas
        except ImportError:
            raise ImportError(
                "to_frame needs pandas; install fedshift[tables], or use to_records()"
            ) from None
        return pandas.DataFrame(self.to_records())


Models = nn.Module | Callable[[str], nn.Module]


def evaluate(
    models: Models,
    federation: Federation,
    *,
    loss: LossName = "cross-entropy",
    batch_size: int = 1024,
    weights: Mapping[str, npt.ArrayLike] | None = None,
) -> Evaluation:
    """Evaluate a model on every client's labelled test rows.

    Parameters
    ----------
    models : Module or callable
        The model, or a function from a client's name to its model (for local BatchNorm). The
        model runs in evaluation mode, on the device and in the number type of its parameters.
        Afterwards its previous mode is restored.
    federation : Federation
        The clients.
    loss : {"cross-entropy", "squared"}
        "cross-entropy" needs scores (n, C) and labels 0 … C − 1. "squared" needs predictions (n,)
        or (n, 1) and numbers as labels.
    batch_size : int
        Rows in a forward pass.
    weights : mapping of client to (n,), optional
        Training weights, for the effective sample size. Leave out clients whose rows were not used
        in training.

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError
        If a client has no test labels, its labels do not fit the loss, or a score is not finite.
        The message names the client.
    """
    return Evaluation(
        tuple(
            _score_client(
                models if isinstance(models, nn.Module) else models(client.name),
                client,
                loss=loss,
                batch_size=batch_size,
                weight=None if weights is None else weights.get(client.name),
            )
            for client in federation
        )
    )


def predict(model: nn.Module, x: npt.ArrayLike | Tensor, *, batch_size: int = 1024) -> Tensor:
    """Return scores (n, …) of rows x (n, …), computed in evaluation mode, as a CPU tensor."""
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1; got {batch_size}")
    rows = x if isinstance(x, Tensor) else np.asarray(x)
    like = next(model.parameters(), torch.empty(0))
    was_training = {m: m.training for m in model.modules()}
    try:
        model.eval()
        with torch.inference_mode():
            parts = [
                model(as_tensor(rows[i : i + batch_size]).to(like)).cpu()
                for i in range(0, len(rows), batch_size)
            ]
    finally:
        for module, training in was_training.items():
            module.training = training
    return torch.cat(parts)


def _score_client(
    model: nn.Module,
    client: ClientData,
    *,
    loss: LossName,
    batch_size: int,
    weight: npt.ArrayLike | None,
) -> ClientScore:
    if client.test_y is None:
        raise InputError(
            f"client {client.name!r} has no test labels to evaluate on; pass test_y, or use "
            "importance_weighted_risk, which needs none"
        )
    if not len(client.test_x):
        raise InputError(f"client {client.name!r} must have a test row; got none; leave it out")
    scores = predict(model, client.test_x, batch_size=batch_size)
    y = client.test_y
    losses, right, numbers = per_row(scores, y, loss, f"client {client.name!r}")
    n = len(losses)
    ess = None if weight is None else effective_sample_size(weight)
    if right is None:
        errors = 2 * losses
        low, high = mean_interval(errors)
        mse, variance = float(errors.mean()), float(np.asarray(y, dtype=np.float64).var())
        return ClientScore(
            client=client.name,
            n=n,
            mse=mse,
            low=low,
            high=high,
            loss=float(losses.mean()),
            r2=1 - mse / variance if variance > 0 else None,
            ess=ess,
        )
    correct = int(right.sum())
    low, high = stats.binomtest(correct, n).proportion_ci(method="wilson")
    positive = np.asarray(y) == 1
    auc = f1 = None
    if numbers.shape[1] == 2:
        from sklearn.metrics import roc_auc_score  # slow to import, and only used here

        if 0 < positive.sum() < n:
            auc = float(roc_auc_score(positive, numbers[:, 1] - numbers[:, 0]))
        f1 = _f1(right, positive)
    return ClientScore(
        client=client.name,
        n=n,
        accuracy=correct / n,
        low=float(low),
        high=float(high),
        loss=float(losses.mean()),
        auc=auc,
        f1=f1,
        ess=ess,
    )


def _f1(right: npt.NDArray[np.bool_], positive: npt.NDArray[np.bool_]) -> float | None:
    """2TP / (2TP + FP + FN); None if no row has label 1 and none is predicted as 1."""
    hits, wrong = int((right & positive).sum()), int((~right).sum())  # FP + FN: two classes
    return 2 * hits / (2 * hits + wrong) if hits + wrong else None


def per_row(
    scores: npt.ArrayLike | Tensor, y: npt.ArrayLike | Tensor, loss: str, who: str
) -> tuple[Float64Array, npt.NDArray[np.bool_] | None, Float64Array]:
    """Check scores and labels; return the losses, correctness and scores of the rows.

    Correctness is an array (n,): whether the predicted class of each row is correct. It is None in
    regression. `who` names the rows in error messages.
    """
    if loss not in LOSSES:
        raise InputError(f"loss must be {nearest(loss, LOSSES)}")
    s, label = as_tensor(scores).cpu().double(), as_tensor(y).cpu()
    label = label.long() if label.dtype == torch.bool else label
    n = len(s) if s.ndim else 0
    if n == 0 or label.shape != (n,):
        raise InputError(
            f"{who}: scores must have one row for each label; got labels of shape "
            f"{tuple(label.shape)} and scores of shape {tuple(s.shape)}"
        )
    finite = torch.isfinite(s.reshape(n, -1)).all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).int().argmax())
        raise InputError(
            f"{who}: the model's scores must be finite; got {s[row].tolist()} in row {row}; "
            "check that row's inputs, or lower the learning rate if training diverged"
        )
    if loss == "squared":
        if s.numel() != n:
            raise InputError(
                f"{who}: squared loss needs one prediction per row; got shape {tuple(s.shape)}"
            )
        return ((s.reshape(n) - label.double()).square() / 2).numpy(), None, s.numpy()
    if s.ndim != 2 or s.shape[1] < 2:
        raise InputError(
            f"{who}: cross entropy needs scores (n, C) of C ≥ 2 classes; got shape "
            f"{tuple(s.shape)}; for numbers take loss='squared'"
        )
    classes = s.shape[1]
    if label.is_floating_point() or bool(((label < 0) | (label >= classes)).any()):
        raise InputError(
            f"{who}: labels must be whole numbers from 0 to {classes - 1}, as the model has "
            f"{classes} scores; got {label.dtype} from {label.min()} to {label.max()}"
        )
    label = label.long()
    losses = F.cross_entropy(s, label, reduction="none")
    return losses.numpy(), (s.argmax(dim=1) == label).numpy(), s.numpy()


def as_tensor(a: npt.ArrayLike | Tensor) -> Tensor:
    """Return a tensor. Arrays are copied, because torch warns about read-only ones."""
    if isinstance(a, Tensor):
        return a.detach()
    array = np.asarray(a)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"labels, scores and weights must be numbers; got {array.dtype}; encode classes as "
            "0, 1, … first"
        )
    return torch.tensor(array)


def share_text(value: float) -> str:
    """Format a share with three digits and no leading zero: .835."""
    return f"{value:.3f}".removeprefix("0")


def plain_text(value: float) -> str:
    """Format a number with three significant digits."""
    return f"{value:.3g}"
