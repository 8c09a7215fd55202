"""All that a client does in a round, in obvious code. The reference and Flower run this."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedshift.federation.compress import compress, unit
from fedshift.federation.layout import Layout
from fedshift.federation.optimise import step
from fedshift.federation.plan import FedAvg
from fedshift.federation.task import Batch, Task
from fedshift.learn.norm import ClientNorm, mixed, norm_layers


@dataclass
class Memory:
    """What stays with a client between rounds; entries of `State.tensors`, its own row of each."""

    tensors: dict[str, Tensor]

    def get(self, name: str) -> Tensor | None:
        """An entry, or None."""
        return self.tensors.get(name)


@dataclass(frozen=True)
class Broadcast:
    """What the server sends: shared parameters, statistics and the control variate."""

    params: Tensor
    stats: Tensor | None
    control: Tensor | None


@dataclass(frozen=True)
class Reply:
    """What a client sends back.

    Attributes
    ----------
    update : Tensor (P,)
        The gradient (FedSGD) or the step θ_k − θ (FedAvg), compressed if the plan says so.
    stats : Tensor (2, S) or None
    control : Tensor (P,) or None
        Change of its control variate.
    losses : list of float
        One a step.
    unit : float
        What a rounded update (QSGD) counts in; 0 otherwise.
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

    def reply(self, number: int, told: Broadcast) -> Reply:
        """Do a round."""
        if isinstance(self.task.plan, FedAvg):
            return self._local_steps(number, told, self.task.plan)
        return self._gradient(number, told)

    def _gradient(self, number: int, told: Broadcast) -> Reply:
        task = self.task
        (batch,) = task.batches(self.position, number)
        local = self.memory.get("local")
        loss, grad, local_grad, seen = self.differentiate(batch, told.params, local)
        stats = self._track(told.stats, seen)
        if local is not None and local_grad is not None:
            own = {n: self.memory.tensors[f"local_{n}"] for n in _remembered(self.memory)}
            step(task.plan.rule, local, local_grad * task.share[self.position], own)
        sent, unit = self._compressed(grad, number)
        return Reply(sent, stats, None, [loss], unit)

    def _local_steps(self, number: int, told: Broadcast, plan: FedAvg) -> Reply:
        params = told.params.clone()
        local, control = self.memory.get("local"), self.memory.get("ck")
        stats, losses = told.stats, []
        momentum = torch.zeros_like(params)
        local_momentum = torch.zeros_like(params if local is None else local)
        for batch in self.task.batches(self.position, number):
            loss, grad, local_grad, seen = self.differentiate(batch, params, local)
            losses.append(loss)
            grad = grad + plan.weight_decay * params + plan.prox * (params - told.params)
            if control is not None and told.control is not None:
                grad = grad + told.control - control
            momentum = plan.local_momentum * momentum + grad
            params = params - plan.local_lr * momentum
            if local is not None and local_grad is not None:
                local_grad = local_grad + plan.weight_decay * local
                local_momentum = plan.local_momentum * local_momentum + local_grad
                local -= plan.local_lr * local_momentum
            stats = self._track(stats, seen)
        update = params - told.params
        change = None
        if control is not None and told.control is not None:
            change = -told.control - update / (plan.local_steps * plan.local_lr)
            control += change
        sent, unit = self._compressed(update, number)
        return Reply(sent, stats, change, losses, unit)

    def differentiate(
        self, batch: Batch, params: Tensor, local: Tensor | None
    ) -> tuple[float, Tensor, Tensor | None, Tensor | None]:
        """Loss (1/B) Σ coefficient · ℓ, its gradients, and the statistics BatchNorm met (2, S)."""
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
        loss = batch.weighted(task.loss, scores).sum() / len(batch.y)
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        grads = {
            n: torch.zeros_like(t) if g is None else g
            for (n, t), g in zip(named.items(), found, strict=True)
        }
        flat = [layout.flatten(grads) for layout, _ in parts]
        seen = seen_stats(self.norms, task.stats_layout) if self.norms else None
        return loss.item(), flat[0], flat[1] if local is not None else None, seen

    def _track(self, stats: Tensor | None, seen: Tensor | None) -> Tensor | None:
        """Running statistics after a batch; kept by the client where they are local."""
        if seen is None:
            return None
        own = self.memory.get("stats")
        old = stats if own is None else own
        assert old is not None
        new = torch.stack(mixed(old[0], old[1], seen[0], seen[1], momentum(self.model)))
        if own is not None:
            own.copy_(new)
            return None
        return new

    def _compressed(self, vector: Tensor, number: int) -> tuple[Tensor, float]:
        """What the server reads, and the unit it counts in."""
        plan = self.task.plan
        if plan.compression is None:
            return vector, 0.0
        error = self.memory.get("error")
        sent, left = compress(
            plan.compression, vector, error, seed=plan.seed, client=self.name, number=number
        )
        if error is not None and left is not None:
            error.copy_(left)
        return sent, unit(plan.compression, vector)


def _remembered(memory: Memory) -> list[str]:
    return [n.removeprefix("local_") for n in memory.tensors if n.startswith("local_")]


def seen_stats(norms: dict[str, ClientNorm], layout: Layout) -> Tensor:
    """Moments all layers met, (2, S), or (groups, 2, S) after a pass with several groups."""
    means = layout.flatten({n: m.seen_mean for n, m in norms.items()})
    variances = layout.flatten({n: m.seen_var for n, m in norms.items()})
    out = torch.stack([means, variances], dim=1)
    return out[0] if len(out) == 1 else out


def momentum(model: nn.Module) -> Tensor:
    """Share of a new batch in the running statistics, (S,)."""
    return torch.cat(
        [torch.full_like(m.running_mean, m.momentum) for m in norm_layers(model).values()]
    )
