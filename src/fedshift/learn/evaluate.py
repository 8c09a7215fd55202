"""How good a model is, client by client, with intervals.

Test labels are used here and nowhere else. What chooses models and stops training is
`importance_weighted_risk`, which needs training rows and their weights only.
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

from fedshift.core.params import nearest
from fedshift.core.samples import Float64Array
from fedshift.core.weights import effective_sample_size
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError

LossName = Literal["cross-entropy", "squared"]
LOSSES = ("cross-entropy", "squared")

#: resamples of a bootstrap
DRAWS = 2000
#: from here on the mean is normal for all that can be seen, and resampling only costs time
MANY = 50_000


def interval(successes: float, n: int, *, level: float = 0.95) -> tuple[float, float]:
    r"""Wilson's interval for a share, from `successes` of `n`.

    .. math:: \frac{p̂ + z²/2n ± z \sqrt{p̂(1 − p̂)/n + z²/4n²}}{1 + z²/n}

    Unlike p̂ ± z·se it stays inside [0, 1] and does not shrink to a point at 0 or 1.

    Examples
    --------
    >>> low, high = interval(81, 263)
    >>> f"{low:.4f} {high:.4f}"  # Newcombe 1998, table I
    '0.2553 0.3662'
    """
    if not (n >= 1 and 0 <= successes <= n):
        raise InputError(f"an interval needs n ≥ 1 and 0 ≤ successes ≤ n; got {successes} of {n}")
    z, p = _normal(level), successes / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # rounding must not put a limit on the wrong side of p at 0 and 1
    return max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half))


def bootstrap_interval(
    values: npt.ArrayLike, *, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval for the mean of values (n,), from `DRAWS` seeded resamples.

    From `MANY` values on it is mean ± z·se, which no longer differs. With fewer than about ten
    values, or a heavy tail, it is too narrow: the largest value has not been met yet.
    """
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 1 or len(v) == 0 or not np.isfinite(v).all():
        raise InputError(
            f"values must be finite numbers of shape (n,), n ≥ 1; got shape {v.shape}"
            f"{'' if np.isfinite(v).all() else ' with NaN or inf'}"
        )
    n, z, mean = len(v), _normal(level), float(v.mean())
    if n >= MANY:
        half = z * float(v.std()) / math.sqrt(n)
        return mean - half, mean + half
    rng = np.random.default_rng(seed)
    block = max(1, 1_000_000 // n)  # a few megabytes at a time
    means = [
        v[rng.integers(0, n, size=(min(block, DRAWS - done), n))].mean(axis=1)
        for done in range(0, DRAWS, block)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    # a very skewed sample can have its mean outside; the interval always holds it
    return min(float(low), mean), max(float(high), mean)


@dataclass(frozen=True, kw_only=True)
class ClientScore:
    """One client's test figures; None where a figure has no meaning.

    Attributes
    ----------
    client : str
    n : int
        Test rows.
    accuracy : float or None
        Share of rows whose class has the highest score.
    mse : float or None
        Mean squared error (regression).
    low, high : float
        95 % interval of the accuracy (Wilson) or the mse (bootstrap).
    loss : float
        Mean cross entropy, or half the mse.
    auc, f1 : float or None
        Of class 1, in problems of two classes; auc needs rows of both.
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
            raise InputError(f"client {self.client!r}: a score has an accuracy or an mse")

    @property
    def value(self) -> float:
        """The main figure: accuracy or mse."""
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
class Evaluation:
    """Test figures of all clients, each client counting the same.

    Evaluations of different clients add up: ``a + b``.

    Attributes
    ----------
    rows : tuple of ClientScore
    """

    rows: tuple[ClientScore, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        names = [r.client for r in self.rows]
        if not names:
            raise InputError("an evaluation needs at least one client; got none")
        if len(set(names)) < len(names):
            twice = sorted({n for n in names if names.count(n) > 1})
            raise InputError(f"clients must be evaluated once; got {twice} more than once")
        if len({r.accuracy is None for r in self.rows}) > 1:
            raise InputError("an evaluation is of classes or of numbers; got rows of both kinds")

    @property
    def figure(self) -> str:
        """What the main figure is: "accuracy" or "mse"."""
        return "mse" if self.rows[0].accuracy is None else "accuracy"

    @property
    def values(self) -> Float64Array:
        """The main figure of every client, (K,)."""
        return np.array([r.value for r in self.rows])

    @property
    def mean(self) -> float:
        """Mean over clients."""
        return float(self.values.mean())

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
        return self.values if self.figure == "accuracy" else -self.values

    @property
    def spread(self) -> float:
        """Standard deviation over clients (these clients, not a sample of them)."""
        return float(self.values.std())

    @property
    def interval(self) -> tuple[float, float]:
        r"""95 % interval of the mean over these clients, for test rows drawn anew.

        The clients' samples are independent, so their squared distances to their own limits add:

        .. math:: m − \frac1K \sqrt{Σ_k (v_k − l_k)²}, \quad m + \frac1K \sqrt{Σ_k (u_k − v_k)²}

        (Zou and Donner 2008). This is the binomial variance, taken at the limits, where it is not
        zero even if every row is right. It does not speak of other seeds or other clients.
        """
        low = np.array([r.low for r in self.rows])
        high = np.array([r.high for r in self.rows])
        k, v, mean = len(self.rows), self.values, self.mean
        return (
            mean - float(np.linalg.norm(v - low)) / k,
            mean + float(np.linalg.norm(high - v)) / k,
        )

    @property
    def status(self) -> str:
        """One sentence."""
        show = share_text if self.figure == "accuracy" else plain_text
        (low, high), k = self.interval, len(self.rows)
        return (
            f"mean {self.figure} {show(self.mean)} [{show(low)}, {show(high)}] over {k} "
            f"client{'s' * (k > 1)}, worst {show(self.worst.value)} ({self.worst.client}), "
            f"best {show(self.best.value)} ({self.best.client})"
        )

    def __repr__(self) -> str:
        return f"Evaluation({self.status})"

    def __len__(self) -> int:
        """Number of clients."""
        return len(self.rows)

    def __getitem__(self, client: str) -> ClientScore:
        """A client's figures."""
        for row in self.rows:
            if row.client == client:
                return row
        raise InputError(f"the client must be {nearest(client, [r.client for r in self.rows])}")

    def __add__(self, other: Evaluation) -> Evaluation:
        """The clients of both."""
        return Evaluation(self.rows + other.rows)

    def to_records(self) -> list[dict[str, Any]]:
        """One dict a client, ready for JSON, without figures that no client has."""
        records = [dataclasses.asdict(row) for row in self.rows]
        keys = [k for k in records[0] if any(r[k] is not None for r in records)]
        return [{k: r[k] for k in keys} for r in records]

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> Evaluation:
        """The evaluation `to_records` wrote."""
        return cls(tuple(ClientScore(**r) for r in records))

    def to_frame(self) -> Any:
        """A pandas frame, one row a client."""
        try:
            import pandas
        except ImportError:
            raise ImportError(
                "to_frame needs pandas; install fedshift[tables], or take to_records()"
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
    """Test figures of a model on every client's test rows and labels.

    Parameters
    ----------
    models : Module or callable
        The model, or a function from a client's name to its model (local BatchNorm). It is used
        in evaluation mode, on the device and in the type of its parameters, and left as it was.
    loss : {"cross-entropy", "squared"}
        Scores (n, C) for labels 0 … C − 1, or predictions (n,) or (n, 1) for numbers.
    batch_size : int
        Rows at a time.
    weights : mapping of client to (n,), optional
        Training weights, of which the effective sample size is reported; a client that was not
        trained on has none.

    Raises
    ------
    InputError
        If a client has no test labels, they do not fit the loss, or a score is not finite; the
        client is named.
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
    """Scores (n, …) of rows x (n, …) on the CPU, a batch at a time, in evaluation mode."""
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
            f"client {client.name!r} has no test labels to evaluate on; give test_y, or take "
            "importance_weighted_risk, which needs none"
        )
    if not len(client.test_x):
        raise InputError(f"client {client.name!r} must have a test row at least; got none")
    scores = predict(model, client.test_x, batch_size=batch_size)
    y = client.test_y
    losses, right, numbers = per_row(scores, y, loss, f"client {client.name!r}")
    n = len(losses)
    ess = None if weight is None else effective_sample_size(weight)
    if right is None:
        errors = 2 * losses
        low, high = bootstrap_interval(errors)
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
    low, high = interval(correct, n)
    binary = numbers.shape[1] == 2
    return ClientScore(
        client=client.name,
        n=n,
        accuracy=correct / n,
        low=low,
        high=high,
        loss=float(losses.mean()),
        auc=area_under_curve(numbers[:, 1] - numbers[:, 0], y) if binary else None,
        f1=_f1(right, np.asarray(y) == 1) if binary else None,
        ess=ess,
    )


def area_under_curve(score: npt.ArrayLike, positive: npt.ArrayLike) -> float | None:
    """Chance that a positive row scores above a negative one, ties half; None without both.

    Mann and Whitney's U over the number of pairs, from midranks in O(n log n).
    """
    yes = np.asarray(positive).astype(bool)
    a, b = int(yes.sum()), int((~yes).sum())
    if not (a and b):
        return None
    ranks = stats.rankdata(np.asarray(score, dtype=np.float64))
    return float((ranks[yes].sum() - a * (a + 1) / 2) / (a * b))


def _f1(right: npt.NDArray[np.bool_], positive: npt.NDArray[np.bool_]) -> float | None:
    """2TP / (2TP + FP + FN); None where no row is or is called positive."""
    hits, wrong = int((right & positive).sum()), int((~right).sum())  # FP + FN: two classes
    return 2 * hits / (2 * hits + wrong) if hits + wrong else None


def per_row(
    scores: npt.ArrayLike | Tensor, y: npt.ArrayLike | Tensor, loss: str, who: str
) -> tuple[Float64Array, npt.NDArray[np.bool_] | None, Float64Array]:
    """Loss (n,), right or not (n,) where there are classes, and the scores, all checked."""
    if loss not in LOSSES:
        raise InputError(f"loss must be {nearest(loss, LOSSES)}")
    s, label = as_tensor(scores).cpu().double(), as_tensor(y).cpu()
    label = label.long() if label.dtype == torch.bool else label
    n = len(s) if s.ndim else 0
    if n == 0 or label.shape != (n,):
        raise InputError(
            f"{who}: there must be one label a row of scores; got shapes "
            f"{tuple(label.shape)} and {tuple(s.shape)}"
        )
    finite = torch.isfinite(s.reshape(n, -1)).all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).int().argmax())
        raise InputError(
            f"{who}: the model's scores must be finite; got {s[row].tolist()} in row {row}; "
            "training diverged, or that row's inputs are out of range"
        )
    if loss == "squared":
        if s.numel() != n:
            raise InputError(
                f"{who}: squared loss needs one prediction a row; got scores {tuple(s.shape)}"
            )
        return ((s.reshape(n) - label.double()).square() / 2).numpy(), None, s.numpy()
    if s.ndim != 2 or s.shape[1] < 2:
        raise InputError(
            f"{who}: cross entropy needs scores (n, C) of C ≥ 2 classes; got {tuple(s.shape)}; "
            "for numbers take loss='squared'"
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
    """A tensor; arrays are copied, as torch warns of those that must not be written to."""
    if isinstance(a, Tensor):
        return a.detach()
    array = np.asarray(a)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"labels, scores and weights must be numbers; got {array.dtype}; encode classes as "
            "0, 1, … first"
        )
    return torch.tensor(array)


def _normal(level: float) -> float:
    if not 0 < level < 1:
        raise InputError(f"level must be in (0, 1); got {level}")
    return float(stats.norm.ppf((1 + level) / 2))


def share_text(value: float) -> str:
    """A share without the zero before the point: .835."""
    return f"{value:.3f}".removeprefix("0")


def plain_text(value: float) -> str:
    return f"{value:.3g}"
