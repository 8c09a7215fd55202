r"""Partial pooling between clients: its effect on the variance of the objective.

Let w_k(z) = α_k(z) Σ_l q_l(z) / p_k(z) be the weights, with shares α_k = K p_k^β / Σ_j p_j^β
(`fedshift.core.weights.log_share`). A round draws m of K clients, with n_k rows each. Its objective

.. math:: \hat R = \frac1m \sum_{k \in S} \frac1{n_k} \sum_i w_k(z_{ki}) ℓ(z_{ki})

is a sum over S, the clients drawn. It has mean Σ_l E_l ℓ for any β, and the variance

.. math:: \frac1{mK} \sum_k \frac{\mathrm{Var}_k(w_k ℓ)}{n_k}
          + \frac{K - m}{m (K - 1)} \cdot \frac1K \sum_k (E_k[w_k ℓ] - \bar E)^2 .

Ē is the mean of E_k[w_k ℓ] over all clients. The first term comes from the rows within clients. It
decreases with β if clients have similar numbers of rows, because rare rows get less weight. (The
shares do not depend on n_k. So if a class is common on a client with few rows, the loss of the
class is still estimated mostly from those few rows.) The second term comes from the draw of
clients. It is 0 without pooling (β = 0), because the weighted loss of every client then has the
target's mean. For β > 0 clients represent different parts of the target. The second term is also 0
if all clients take part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.params import check_numbers, whole_number
from fedshift.core.samples import Float64Array, as_numbers
from fedshift.core.weights import log_share
from fedshift.errors import InputError
from fedshift.theory.checks import distribution, vector


@dataclass(frozen=True, kw_only=True)
class PoolingVariance:
    """Variance of the weighted objective of one round, term by term.

    Attributes
    ----------
    within : float
        Variance from the rows within clients.
    between : float
        Variance from the draw of clients.
    """

    within: float
    between: float

    @property
    def total(self) -> float:
        """Sum of both terms."""
        return self.within + self.between


def pooling_variance(
    train: npt.ArrayLike,
    test: npt.ArrayLike,
    *,
    pooling: float,
    loss: npt.ArrayLike | None = None,
    rows: npt.ArrayLike = 1.0,
    participants: int | None = None,
) -> PoolingVariance:
    """Exact variance of the objective of one round.

    Parameters
    ----------
    train, test : array (K, J)
        Every client's training and test distribution on J states, such as classes.
    pooling : float
        β in [0, 1]. With 0 every client must have training probability in all states of the test
        distributions. If a client does not, the objective is biased, and this function raises an
        error.
    loss : array (J,) or (J, d), optional
        Loss of each state; variances of d losses are added. By default there is one loss for each
        state: 1 in that state, else 0. The result is then the sum of the variances of the weighted
        state shares.
    rows : float or array (K,)
        n_k, the number of rows of each client.
    participants : int, optional
        Number of clients drawn for a round; by default all.

    Examples
    --------
    >>> few, many = [[0.95, 0.05], [0.05, 0.95]], [[0.5, 0.5], [0.5, 0.5]]
    >>> [round(pooling_variance(few, many, pooling=b, rows=10).total, 3) for b in (0.0, 0.5, 1.0)]
    [0.953, 0.139, 0.019]
    """
    check_numbers(pooling_variance, locals())
    p, q = _distributions(train, "train"), _distributions(test, "test")
    if p.shape != q.shape:
        raise InputError(
            f"train and test must have the same clients and states; got {p.shape} and {q.shape}"
        )
    clients, states = p.shape
    value = np.eye(states) if loss is None else as_numbers(loss, "loss")
    if value.ndim not in (1, 2) or len(value) != states or not np.isfinite(value).all():
        raise InputError(f"loss must be finite numbers, ({states},) or ({states}, d); got {loss!r}")
    value = value.reshape(states, -1)
    n = vector(rows, "rows", length=clients, above=0.0)
    m = clients if participants is None else whole_number(participants, "participants")
    if m > clients:
        raise InputError(f"participants must be 1 to {clients}; got {participants}")
    weight = _weights(p, q, pooling)
    mean = (p * weight) @ value
    each = ((p * weight**2) @ value**2 - mean**2).sum(axis=1)
    apart = float(np.square(mean - mean.mean(axis=0)).sum(axis=1).mean())
    left = (clients - m) / (m * (clients - 1)) if clients > 1 else 0.0
    return PoolingVariance(within=float((each / n).mean()) / m, between=left * apart)


def best_pooling(
    train: npt.ArrayLike,
    test: npt.ArrayLike,
    *,
    loss: npt.ArrayLike | None = None,
    rows: npt.ArrayLike = 1.0,
    participants: int | None = None,
) -> float:
    """The `pooling` of least variance, to two digits; see `pooling_variance`.

    Examples
    --------
    >>> few, many = [[0.95, 0.05], [0.05, 0.95]], [[0.5, 0.5], [0.5, 0.5]]
    >>> best_pooling(few, many, rows=10), best_pooling(few, many, rows=10, participants=1)
    (1.0, 0.36)
    """
    grid = np.linspace(0.0, 1.0, 101)
    missed = (_distributions(train, "train") == 0).any(axis=0) & (
        _distributions(test, "test") > 0
    ).any(axis=0)
    if missed.any():
        grid = grid[1:]  # 0 is biased
    variances = [
        pooling_variance(
            train, test, pooling=float(b), loss=loss, rows=rows, participants=participants
        ).total
        for b in grid
    ]
    return float(grid[int(np.argmin(variances))])


def _distributions(table: npt.ArrayLike, name: str) -> Float64Array:
    p = as_numbers(table, name)
    if p.ndim != 2 or not len(p):
        raise InputError(f"{name} must have shape (clients, states); got {p.shape}")
    return np.stack([distribution(row, f"{name} distribution {k}") for k, row in enumerate(p)])


def _weights(p: Float64Array, q: Float64Array, pooling: float) -> Float64Array:
    """w_k of every state, (K, J); 0 where a client does not have it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p, top = np.log(p), q.sum(axis=0)
        share = np.stack([np.exp(log_share(log_p.T, k, pooling)) for k in range(len(p))])
        weight = share * top / p
    missed = (top > 0) & ((p == 0).all(axis=0) if pooling else (p == 0).any(axis=0))
    if missed.any():
        who = "every client" if pooling else "some client"
        raise InputError(
            f"every state of the test distributions must occur in training; {who} has probability "
            f"0 in state {int(np.argmax(missed))}; {'merge states' if pooling else 'raise pooling'}"
        )
    return np.where(p > 0, weight, 0.0)
