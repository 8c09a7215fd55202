"""Small models trained to the end: every round a gradient of all rows, the server steps by L-BFGS.

Tables of a few thousand rows and models of a few thousand numbers need no mini-batches. Every
client sends the loss and the gradient of all its rows, and the server, which remembers the last
steps, takes one that knows the curvature. A linear model is at its optimum after some tens of
rounds, whatever the scale of the weights, with no learning rate to choose.
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

#: steps whose curvature the server remembers
MEMORY = 10


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended.

    Attributes
    ----------
    state : State
        Parameters that `Task.module` takes.
    ridge : float
    loss : float
        Weighted mean loss, without the penalty.
    rounds : int
        Gradients every client sent.
    converged : bool
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
    r"""Minimise the weighted loss of all clients for every ridge of a path.

    .. math:: J(θ) = \frac{Σ_k λ_k \frac1{n_k} Σ_i w_i ℓ_i(θ)}{Σ_k λ_k \frac1{n_k} Σ_i w_i}
              + \frac{ρ}{2} ‖W‖²

    W are the matrices of θ; biases are free. What divides the clients' sums is one number for all
    of them, so all weights × c have the same optimum and a client counts by its coverage.

    Parameters
    ----------
    task : Task
        The plan's client weights λ_k are used, its batches and server rule are not.
    ridges : sequence of float
        ρ ≥ 0, from strong to weak: a linear model starts where the one before ended.
    rounds : int
        At most, for each ridge.
    tol : float
        Largest entry of the gradient at the end.
    """
    if task.plan.tail or task.plan.importance == "logits":
        raise InputError(
            "a descent multiplies plain losses by weights; take tail=0 and importance='loss' in "
            "the plan"
        )
    if norm_layers(task.model):
        raise InputError("a descent needs a model without BatchNorm; take model='linear' or 'mlp'")
    plain = isinstance(task.model, Linear)
    value = (_linear if plain else _differentiated)(task)
    shapes = task.layout.shapes.values()
    matrix = np.concatenate([np.full(s.numel(), float(len(s) > 1)) for s in shapes])
    at = begin = task.begin().tensors["params"].double().numpy()
    found = []
    for ridge in ridges:
        # a strong ridge may have put a network's hidden units to sleep: begin anew
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
                "ftol": tol * tol,  # near the end the loss moves by the square of the gradient
            },
        )
        if not np.isfinite(end.fun):
            raise TrainingDiverged(
                f"the loss became {end.fun} with ridge {ridge:g}; look for columns of huge values"
            )
        at = np.asarray(end.x)
        loss = float(end.fun - ridge / 2 * matrix @ np.square(at))
        state = State(int(end.nfev), {"params": torch.as_tensor(at, dtype=task.x.dtype)})
        found.append(Descent(state, float(ridge), loss, int(end.nfev), bool(end.success)))
    return found


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
    """The same for a linear model, in closed form: several times faster on small tables."""
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
    """λ_k w_i / n_k of every row over their sum, (N,)."""
    sizes = np.diff(task.start)
    v = task.weight.double().cpu().numpy() * np.repeat(task.share / sizes, sizes)
    if not v.sum() > 0:
        raise InputError(
            "some row must count; got a weight of 0 for every row of every client; look at the "
            "ratios, or train without weights"
        )
    return np.asarray(v / v.sum())


def book(ledger: Ledger, task: Task, descents: Sequence[Descent], *, phase: str) -> None:
    """Add to a ledger what clients sent: a gradient and a loss every round, once their weight."""
    size, rounds = task.x.element_size(), sum(d.rounds for d in descents)
    for name, share in zip(task.names, task.share, strict=True):
        if share > 0:
            up = rounds * (task.layout.size + 1) + 1
            ledger.add(name, phase, up=size * up, down=size * rounds * task.layout.size)
