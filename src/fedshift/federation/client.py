"""A client's part of a training round, for the reference engine and for Flower.

The code treats one client at a time. In the shapes, P is the number of shared parameters, and S the
number of running means of all BatchNorm layers together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedshift.federation.compress import compress, unit
from fedshift.federation.layout import ParameterLayout
from fedshift.federation.optimise import step
from fedshift.federation.plan import FedAvg
from fedshift.federation.task import Batch, Task
from fedshift.learn.norm import ClientNorm, mix_moments, norm_layers

#: a client's state between rounds: its part of every per-client tensor in `State.tensors`
Memory = dict[str, Tensor]


@dataclass(frozen=True)
class Broadcast:
    """The server's message: shared parameters, BatchNorm statistics and the control variate.

    Attributes
    ----------
    params : Tensor (P,)
        The server's P shared parameters.
    stats : Tensor (2, S) or None
        The S running means and S running variances of the BatchNorm layers; None if they stay with
        the clients, or if the model has no such layer.
    control : Tensor (P,) or None
        The server's control variate; None without SCAFFOLD.
    """

    params: Tensor
    stats: Tensor | None
    control: Tensor | None


@dataclass(frozen=True)
class Reply:
    """A client's answer to a `Broadcast`.

    Attributes
    ----------
    update : Tensor (P,)
        With FedSGD the gradient. With FedAvg the client's parameters after its local steps, minus
        the parameters that it received. Compressed if `Plan.compression` is set.
    stats : Tensor (2, S) or None
        Running means and variances of the client's BatchNorm layers, S numbers each; None if they
        stay with the client.
    control : Tensor (P,) or None
        Change of the client's control variate; None without SCAFFOLD.
    losses : list of float
        Mean weighted loss of the batch of every step.
    unit : float
        With QSGD, every entry of the update is a multiple of this number; 0 without QSGD.
    """

    update: Tensor
    stats: Tensor | None
    control: Tensor | None
    losses: list[float]
    unit: float = 0.0


class Client:
    """One client of a task."""

    def __init__(self, task: Task, position: int, memory: Memory) -> None:
        self.task, self.position, self.memory = task, position, memory
        self.name = task.names[position]
        self.model = task.model
        self.norms = norm_layers(task.model)

    def reply(self, number: int, message: Broadcast) -> Reply:
        """Run the client's part of round `number`, and return its reply to the server."""
        if isinstance(self.task.plan, FedAvg):
            return self._local_steps(number, message, self.task.plan)
        return self._gradient(number, message)

    def _gradient(self, number: int, message: Broadcast) -> Reply:
        task = self.task
        (batch,) = task.batches(self.position, number)
        local = self.memory.get("local")
        loss, grad, local_grad, moments = self.differentiate(batch, message.params, local)
        stats = self._track(message.stats, moments)
        if local is not None and local_grad is not None:
            own = {n.removeprefix("local_"): t for n, t in self.memory.items()}
            step(task.plan.rule, local, local_grad * task.share[self.position], own)
        sent, unit = self._compressed(grad, number)
        return Reply(sent, stats, None, [loss], unit)

    def _local_steps(self, number: int, message: Broadcast, plan: FedAvg) -> Reply:
        params = message.params.clone()
        local, control = self.memory.get("local"), self.memory.get("ck")
        stats, losses = message.stats, []
        momentum = torch.zeros_like(params)
        local_momentum = torch.zeros_like(params if local is None else local)
        for batch in self.task.batches(self.position, number):
            loss, grad, local_grad, moments = self.differentiate(batch, params, local)
            losses.append(loss)
            grad = grad + plan.weight_decay * params + plan.prox * (params - message.params)
            if control is not None and message.control is not None:
                grad = grad + message.control - control
            momentum = plan.local_momentum * momentum + grad
            params = params - plan.local_lr * momentum
            if local is not None and local_grad is not None:
                local_grad = local_grad + plan.weight_decay * local
                local_momentum = plan.local_momentum * local_momentum + local_grad
                local -= plan.local_lr * local_momentum
            stats = self._track(stats, moments)
        update = params - message.params
        change = None
        if control is not None and message.control is not None:
            change = -message.control - update / (plan.local_steps * plan.local_lr)
            control += change
        sent, unit = self._compressed(update, number)
        return Reply(sent, stats, change, losses, unit)

    def differentiate(
        self, batch: Batch, params: Tensor, local: Tensor | None
    ) -> tuple[float, Tensor, Tensor | None, Tensor | None]:
        """Return the loss of a batch, its two gradients, and the batch's BatchNorm moments (2, S).

        The first gradient is for the shared parameters, the second for the client's local ones
        (None if the client has none). The loss is (1/B) Σ_i c_i ℓ_i over the B rows of the batch,
        with ℓ_i the loss of row i and c_i its coefficient (`Batch.coefficient`).
        """
        task = self.task
        parts = [(task.layout, params)]
        if local is not None:
            parts.append((task.local_layout, local))
        leaves = [
            {n: t.detach().clone().requires_grad_() for n, t in layout.views(flat).items()}
            for layout, flat in parts
        ]
        named = {n: t for part in leaves for n, t in part.items()}
        self.model.train()
        scores = torch.func.functional_call(self.model, named, (batch.x,))
        loss = batch.row_losses(task.loss, scores).sum() / len(batch.y)
        slopes = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        grads = {
            n: torch.zeros_like(t) if g is None else g
            for (n, t), g in zip(named.items(), slopes, strict=True)
        }
        flat = [layout.flatten(grads) for layout, _ in parts]
        moments = batch_moments(self.norms, task.stats_layout) if self.norms else None
        return loss.item(), flat[0], flat[1] if local is not None else None, moments

    def _track(self, stats: Tensor | None, moments: Tensor | None) -> Tensor | None:
        """Running statistics after a batch; None where they are local and stay with the client."""
        if moments is None:
            return None
        own = self.memory.get("stats")
        old = stats if own is None else own
        assert old is not None
        new = torch.stack(mix_moments(old[0], old[1], moments[0], moments[1], momentum(self.model)))
        if own is not None:
            own.copy_(new)
            return None
        return new

    def _compressed(self, vector: Tensor, number: int) -> tuple[Tensor, float]:
        """The vector as the server reads it, and its unit."""
        plan = self.task.plan
        if plan.compression is None:
            return vector, 0.0
        error = self.memory.get("error")
        sent, left = compress(
            plan.compression, vector, error, seed=self.task.seed, client=self.name, number=number
        )
        if error is not None and left is not None:
            error.copy_(left)
        return sent, unit(plan.compression, vector)


def batch_moments(norms: dict[str, ClientNorm], layout: ParameterLayout) -> Tensor:
    """Return means and variances of the last batch in all BatchNorm layers, (2, S).

    S is the number of channels of these layers together. If the batch held rows of several clients
    (`ClientNorm.groups`), the shape is (groups, 2, S).
    """
    means = layout.flatten({n: m.batch_mean for n, m in norms.items()})
    variances = layout.flatten({n: m.batch_var for n, m in norms.items()})
    out = torch.stack([means, variances], dim=1)
    return out[0] if len(out) == 1 else out


def momentum(model: nn.Module) -> Tensor:
    """Return the weight of a new batch in each of the S running means (and variances), (S,)."""
    return torch.cat(
        [torch.full_like(m.running_mean, m.momentum) for m in norm_layers(model).values()]
    )
