r"""Clients that lean on each other: what it saves in noise, and what it costs.

With weights w_k(z) = α_k(z) Σ_l q_l(z) / p_k(z), shares α_k = K p_k^β / Σ_j p_j^β
(`fedshift.core.weights.log_share`) and m of K clients drawn for a round, with n_k rows each,

.. math:: \hat R = \frac1m \sum_{k \in S} \frac1{n_k} \sum_i w_k(z_{ki}) ℓ(z_{ki})

has mean Σ_l E_l ℓ whatever β, and the variance

.. math:: \frac1{mK} \sum_k \frac{\mathrm{Var}_k(w_k ℓ)}{n_k}
          + \frac{K - m}{m (K - 1)} \cdot \frac1K \sum_k (E_k[w_k ℓ] - \bar E)^2 .

The first term, of the rows within clients, falls with β where clients have about as many rows each:
few rows no longer stand for much. (The shares do not look at n_k: a law that a client of few rows
has much of is then left to those few.) The second, of the draw of clients, is 0 with β = 0, where
every client's mean is the target's; with β > 0 clients stand for different parts of the target.
Where all clients take part it is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array
from fedshift.core.weights import log_share
from fedshift.errors import InputError
from fedshift.theory.checks import count, law, vector


@dataclass(frozen=True, kw_only=True)
class LeanVariance:
    """Variance of the weighted objective of one round, term by term.

    Attributes
    ----------
    within : float
        Of the rows within clients.
    between : float
        Of the draw of clients.
    """

    within: float
    between: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.within + self.between


def lean_variance(
    train: npt.ArrayLike,
    test: npt.ArrayLike,
    *,
    lean: float,
    loss: npt.ArrayLike | None = None,
    rows: npt.ArrayLike = 1.0,
    participants: int | None = None,
) -> LeanVariance:
    """Variance of one round's objective, exactly.

    Parameters
    ----------
    train, test : array (K, m)
        Laws of every client on m states, classes for example.
    lean : float
        β in [0, 1]; 0 needs clients that meet all states that are met in use, or it is biased.
    loss : array (m,) or (m, d), optional
        Of each state; variances of d losses are added. By default the m indicators of the states,
        so that the result is that of the weighted shares of the states.
    rows : float or array (K,)
        n_k.
    participants : int, optional
        m; all by default.

    Examples
    --------
    >>> few, many = [[0.95, 0.05], [0.05, 0.95]], [[0.5, 0.5], [0.5, 0.5]]
    >>> [round(lean_variance(few, many, lean=b, rows=10).total, 3) for b in (0.0, 0.5, 1.0)]
    [0.953, 0.139, 0.019]
    """
    p, q = _laws(train, "train"), _laws(test, "test")
    if p.shape != q.shape:
        raise InputError(
            f"train and test must have the same clients and states; got {p.shape} and {q.shape}"
        )
    clients, states = p.shape
    value = np.eye(states) if loss is None else np.asarray(loss, dtype=np.float64)
    if value.ndim not in (1, 2) or len(value) != states or not np.isfinite(value).all():
        raise InputError(f"loss must be finite numbers, ({states},) or ({states}, d); got {loss!r}")
    value = value.reshape(states, -1)
    n = vector(rows, "rows", length=clients, above=0.0)
    m = clients if participants is None else count(participants, "participants")
    if m > clients:
        raise InputError(f"participants must be 1 to {clients}; got {participants}")
    weight = _weights(p, q, lean)
    mean = (p * weight) @ value
    each = ((p * weight**2) @ value**2 - mean**2).sum(axis=1)
    apart = float(np.square(mean - mean.mean(axis=0)).sum(axis=1).mean())
    left = (clients - m) / (m * (clients - 1)) if clients > 1 else 0.0
    return LeanVariance(within=float((each / n).mean()) / m, between=left * apart)


def best_lean(
    train: npt.ArrayLike,
    test: npt.ArrayLike,
    *,
    loss: npt.ArrayLike | None = None,
    rows: npt.ArrayLike = 1.0,
    participants: int | None = None,
) -> float:
    """The lean of least variance, to two digits; see `lean_variance`.

    Examples
    --------
    >>> few, many = [[0.95, 0.05], [0.05, 0.95]], [[0.5, 0.5], [0.5, 0.5]]
    >>> best_lean(few, many, rows=10), best_lean(few, many, rows=10, participants=1)
    (1.0, 0.36)
    """
    grid = np.linspace(0.0, 1.0, 101)
    missed = (_laws(train, "train") == 0).any(axis=0) & (_laws(test, "test") > 0).any(axis=0)
    if missed.any():
        grid = grid[1:]  # 0 is biased
    found = [
        lean_variance(
            train, test, lean=float(b), loss=loss, rows=rows, participants=participants
        ).total
        for b in grid
    ]
    return float(grid[int(np.argmin(found))])


def _laws(table: npt.ArrayLike, name: str) -> Float64Array:
    found = np.asarray(table, dtype=np.float64)
    if found.ndim != 2:
        raise InputError(f"{name} must have shape (clients, states); got {found.shape}")
    return np.stack([law(row, f"{name} law {k}") for k, row in enumerate(found)])


def _weights(p: Float64Array, q: Float64Array, lean: float) -> Float64Array:
    """w_k of every state, (K, m); 0 where a client does not meet it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        laws, top = np.log(p), q.sum(axis=0)
        share = np.stack([np.exp(log_share(laws.T, k, lean)) for k in range(len(p))])
        weight = share * top / p
    missed = (top > 0) & ((p == 0).all(axis=0) if lean else (p == 0).any(axis=0))
    if missed.any():
        who = "no client has" if lean else "some client has no"
        raise InputError(
            f"every state met in use must be met in training; {who} probability in state "
            f"{int(np.argmax(missed))}; " + ("merge states" if lean else "take lean > 0")
        )
    return np.where(p > 0, weight, 0.0)
