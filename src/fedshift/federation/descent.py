"""Train small models to convergence by L-BFGS on the server, with gradients of all rows.

Tables of a few thousand rows and models of a few thousand parameters need no mini-batches. Every
round, every client sends the loss and the gradient of all its rows. The server estimates the
curvature from its last steps. A linear model reaches its optimum after some tens of rounds,
whatever the scale of the weights. There is no learning rate to choose.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize

from fedshift.core.samples import Float64Array
from fedshift.errors import InputError, TrainingDiverged
from fedshift.federation.ledger import Ledger
from fedshift.federation.task import State, Task
from fedshift.learn.losses import cross_entropy
from fedshift.learn.models import Linear
from fedshift.learn.norm import norm_layers

#: parameters (P,) ↦ loss and gradient (P,)
Value = Callable[[Float64Array], tuple[float, Float64Array]]

#: steps from which the server estimates the curvature
MEMORY = 10


@dataclass(frozen=True, eq=False)
class Descent:
    """Result of training by L-BFGS with one ridge penalty (`descend`).

    Attributes
    ----------
    state : State
        Parameters; `Task.module` makes the model from them.
    ridge : float
        Ridge penalty ρ.
    loss : float
        Weighted mean loss of all rows, without the penalty.
    rounds : int
        Number of gradients that every client sent.
    converged : bool
        Whether the optimiser reported convergence.
    """

    state: State
    ridge: float
    loss: float
    rounds: int
    converged: bool

    def __repr__(self) -> str:
        end = "converged" if self.converged else "stopped"
        return f"Descent({end} after {self.rounds} rounds, loss {self.loss:.4g})"


def descend(
    task: Task, *, ridges: Sequence[float], rounds: int = 300, tol: float = 1e-5
) -> list[Descent]:
    r"""Minimise the weighted loss of all clients for every ridge penalty in a sequence.

    .. math:: J(θ) = \frac{Σ_k λ_k \frac1{n_k} Σ_i w_i ℓ_i(θ)}{Σ_k λ_k \frac1{n_k} Σ_i w_i}
              + \frac{ρ}{2} ‖W‖²

    λ_k is the weight of client k in the plan, n_k its number of rows, w_i the importance weight and
    ℓ_i the loss of row i, and ρ the ridge penalty. θ are the model's parameters, and W its weight
    matrices; biases have no penalty. The denominator is the same for all clients. So multiplying
    all weights by a constant does not change the optimum. A client's share in the objective is
    proportional to λ_k and to its mean importance weight.

    Parameters
    ----------
    task : Task
        Its plan gives the client weights λ_k; the plan's batches and optimiser are not used.
    ridges : sequence of float
        Penalties ρ ≥ 0, from strong to weak. A linear model starts at the optimum of the previous
        penalty.
    rounds : int
        Largest number of rounds for each penalty.
    tol : float
        Training ends when every entry of the gradient is at most `tol` in absolute value, or when a
        step lowers the loss by less than about `tol`².
    """
    if task.plan.tail or task.plan.importance == "logits":
        raise InputError(
            f"L-BFGS cannot use tail above 0 or importance='logits'; got tail={task.plan.tail}, "
            f"importance={task.plan.importance!r}; set tail=0 and importance='loss' in the plan"
        )
    if norm_layers(task.model):
        raise InputError("L-BFGS needs a model without BatchNorm; take model='linear' or 'mlp'")
    plain = isinstance(task.model, Linear)
    value = (_linear if plain else _differentiated)(task)
    shapes = task.layout.shapes.values()
    matrix = np.concatenate([np.full(s.numel(), float(len(s) > 1)) for s in shapes])
    at = begin = task.begin().tensors["params"].double().numpy()
    descents = []
    for ridge in ridges:
        # a strong ridge may leave a network's hidden units at zero: start again
        at = at if plain else begin
        end = minimize(
            _pulled,
            at,
            args=(value, ridge * matrix),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxcor": MEMORY,
                "maxfun": rounds,
                "maxiter": rounds,
                "gtol": tol,
                "ftol": tol * tol,  # near the end the loss changes by the square of the gradient
            },
        )
        if not np.isfinite(end.fun):
            raise TrainingDiverged(
                f"the loss became {end.fun} with ridge {ridge:g}; check features for huge values"
            )
        at = np.asarray(end.x)
        loss = float(end.fun - ridge / 2 * matrix @ np.square(at))
        state = State(int(end.nfev), {"params": torch.as_tensor(at, dtype=task.x.dtype)})
        descents.append(Descent(state, float(ridge), loss, int(end.nfev), bool(end.success)))
    return descents


def _pulled(at: Float64Array, value: Value, pull: Float64Array) -> tuple[float, Float64Array]:
    """A loss and its gradient with a ridge added."""
    loss, gradient = value(at)
    return loss + float(pull @ np.square(at)) / 2, gradient + pull * at


def _differentiated(task: Task) -> Value:
    """Loss and gradient of any model."""
    part = torch.as_tensor(row_shares(task), dtype=task.x.dtype)
    model = copy.deepcopy(task.model).eval()
    theta = task.begin().tensors["params"].to(part)
    leaves = []
    for name, view in task.layout.views(theta).items():
        leaf = model.get_parameter(name)
        leaf.data = view  # the vector is the model's memory
        leaves.append(leaf)

    def value(at: Float64Array) -> tuple[float, Float64Array]:
        theta.copy_(torch.from_numpy(at))
        loss = (part * task.loss(model(task.x), task.y)).sum()
        slopes = torch.autograd.grad(loss, leaves)
        return loss.item(), torch.cat([g.flatten() for g in slopes]).double().numpy()

    return value


def _linear(task: Task) -> Value:
    """Loss and gradient of a linear model in closed form; faster on small tables."""
    part = row_shares(task)
    x = task.x.flatten(1).double().numpy()
    y = task.y.numpy()
    n, d = x.shape
    rows = np.arange(n)
    classes = task.loss is cross_entropy

    def value(at: Float64Array) -> tuple[float, Float64Array]:
        weight, bias = at[: -(len(at) // (d + 1))], at[-(len(at) // (d + 1)) :]
        z = x @ weight.reshape(-1, d).T + bias
        if classes:
            z -= z.max(axis=1, keepdims=True)
            gap = np.exp(z)
            total = gap.sum(axis=1)
            loss = float(part @ (np.log(total) - z[rows, y]))
            gap /= total[:, None]
            gap[rows, y] -= 1.0
        else:
            gap = z - y[:, None]
            loss = float(part @ np.square(gap[:, 0])) / 2
        gap *= part[:, None]
        return loss, np.concatenate([(gap.T @ x).ravel(), gap.sum(axis=0)])

    return value


def row_shares(task: Task) -> Float64Array:
    """Return the share of each of the N rows in the objective of `descend`, (N,).

    The share of row i of client k is λ_k w_i / n_k, divided by the sum of this over all rows. λ_k,
    w_i and n_k are as in `descend`.
    """
    sizes = np.diff(task.start)
    v = task.weight.double().cpu().numpy() * np.repeat(task.share / sizes, sizes)
    if not v.sum() > 0:
        raise InputError(
            "some row must have a weight above 0; got 0 for every row of every client; check the "
            "ratios, or train without weights"
        )
    return np.asarray(v / v.sum())


def book(ledger: Ledger, task: Task, descents: Sequence[Descent], *, phase: str) -> None:
    """Add the bytes that clients sent and received to a ledger.

    Clients send the gradient and the loss in every round, and their total weight only once.
    """
    size, rounds = task.x.element_size(), sum(d.rounds for d in descents)
    for name, share in zip(task.names, task.share, strict=True):
        if share > 0:
            up = rounds * (task.layout.size + 1) + 1
            down = size * rounds * task.layout.size
            ledger.add(name, phase, up=size * up, down=down, replies=rounds)
