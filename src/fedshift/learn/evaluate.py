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
from scipy.special import log_softmax
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.core.by_name import ByName
from fedshift.core.params import nearest
from fedshift.core.samples import Float64Array
from fedshift.core.score_text import FIGURES, figure_text, plain_text, share_text
from fedshift.core.weights import effective_sample_size
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError, install_hint

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
        Mean cross entropy (log loss), or half the mse.
    constant : float or None
        Main score of a constant prediction: the most frequent class or the mean of the client's
        own training labels. None if it has no training rows.
    auc : float or None
        Area under the ROC curve (AUROC): each class against all others, mean over the classes of
        the rows. None if the rows have one class.
    f1 : float or None
        F1 score of class 1, with two classes only.
    mae : float or None
        Mean absolute error (regression).
    r2 : float or None
        R² = 1 − mse / variance of the labels (regression). None if all labels are equal.
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
    constant: float | None = None
    auc: float | None = None
    f1: float | None = None
    mae: float | None = None
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

    def mean_of(self, name: str) -> float | None:
        """Mean of any score over the clients that have it; None if no client has it."""
        known = [v for r in self.rows if (v := getattr(r, name)) is not None]
        return float(np.mean(known)) if known else None

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
        """One sentence: mean, interval, worst and best client, and the means of `FIGURES`."""
        show = share_text if self.figure == "accuracy" else plain_text
        (low, high), k = self.interval, len(self.rows)
        names = FIGURES[self.figure]
        means = {n: m for n in names if n != self.figure and (m := self.mean_of(n)) is not None}
        further = [f"{names[n]} {figure_text(self.figure, n, m)}" for n, m in means.items()]
        further = further if means.keys() - {"loss"} else []
        return (
            f"mean {self.figure} {show(self.mean)} [{show(low)}, {show(high)}] over {k} "
            f"client{'s' * (k > 1)}, worst {show(self.worst.value)} ({self.worst.client}), "
            f"best {show(self.best.value)} ({self.best.client})"
            f"{'; mean ' if further else ''}{', '.join(further)}"
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
                f"to_frame needs pandas; use to_records(), or, {install_hint('tables')}"
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
    auc: bool = True,
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
    auc : bool
        Whether to compute the AUC, which takes longer than all other scores.

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError
        If a client has no test labels, its labels do not fit the loss, or a score is not finite.
        The message names the client.
    """
    rows = []
    for c in federation:
        if c.test_y is None:
            raise InputError(
                f"client {c.name!r} has no test labels to evaluate on; pass test_y, or use "
                "importance_weighted_risk, which needs none"
            )
        if not len(c.test_x):
            raise InputError(f"client {c.name!r} must have a test row; got none; leave it out")
        model = models if isinstance(models, nn.Module) else models(c.name)
        scores = predict(model, c.test_x, batch_size=batch_size)
        weight = None if weights is None else weights.get(c.name)
        ess = None if weight is None else effective_sample_size(weight)
        rows.append(score_rows(scores, c.test_y, c, loss, ess=ess, auc=auc))
    return Evaluation(tuple(rows))


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


def score_rows(
    scores: npt.ArrayLike | Tensor,
    y: npt.ArrayLike,
    client: ClientData,
    loss: LossName,
    *,
    ess: float | None = None,
    auc: bool = True,
) -> ClientScore:
    """Evaluate the scores (n, …) of rows with labels y (n,), such as the client's test rows.

    `auc` is as in `evaluate`. `ess` is passed on.
    """
    from sklearn import metrics  # slow to import, and only used here

    losses, right, numbers = per_row(scores, y, loss, f"client {client.name!r}")
    label, n, risk = np.asarray(y), len(losses), float(losses.mean())
    if right is None:
        low, high = mean_interval(2 * losses)
        guess = numbers.reshape(n)
        return ClientScore(
            client=client.name,
            n=n,
            mse=2 * risk,
            low=low,
            high=high,
            loss=risk,
            constant=float(np.square(label - client.y.mean()).mean()) if len(client.y) else None,
            mae=float(metrics.mean_absolute_error(label, guess)),
            r2=float(metrics.r2_score(label, guess)) if label.std() > 0 else None,
            ess=ess,
        )
    correct = int(right.sum())
    low, high = stats.binomtest(correct, n).proportion_ci(method="wilson")
    values, counts = np.unique(client.y, return_counts=True)
    present, area = np.unique(label).astype(np.int64), None
    if auc and len(present) > 1:
        of = present[1:] if numbers.shape[1] == 2 else present  # two classes have the same AUC
        order = log_softmax(numbers, axis=1)[:, of]  # probabilities can tie at 1
        area = float(metrics.roc_auc_score((label[:, None] == of).squeeze(), order.squeeze()))
    return ClientScore(
        client=client.name,
        n=n,
        accuracy=correct / n,
        low=float(low),
        high=float(high),
        loss=risk,
        constant=float(np.mean(label == values[counts.argmax()])) if len(values) else None,
        auc=area,
        f1=_f1(right, label == 1) if numbers.shape[1] == 2 else None,
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
