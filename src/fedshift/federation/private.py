"""A client that adds noise to its gradients of the ratio model before it sends them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedshift.errors import InputError
from fedshift.federation.client import Broadcast, Client, Memory, Reply
from fedshift.federation.task import Batch, Task
from fedshift.privacy.accountant import Accountant
from fedshift.privacy.gradients import private_gradient, row_loss
from fedshift.privacy.policy import Privacy


class PrivateClient(Client):
    """Clips each row's gradient, adds noise, and records the privacy loss of each batch.

    Losses do not leave the client, because they would need noise of their own.

    Parameters
    ----------
    policy : Privacy
        Policy of the site. Its `noise` and `clip` are used.
    books : Accountant
        Account of the privacy that the site has spent; each batch is added to it.
    stream : str
        Name under which the accountant counts this sequence of batches. Each fold has its own.
    seed : int, optional
        Seed of the noise, for tests. By default the noise is drawn from the operating system's
        entropy.
    """

    def __init__(
        self,
        task: Task,
        position: int,
        memory: Memory,
        *,
        policy: Privacy,
        books: Accountant,
        stream: str,
        seed: int | None = None,
    ) -> None:
        super().__init__(task, position, memory)
        if task.plan.importance != "loss" or task.plan.mixup:
            raise InputError(
                "gradients with noise need each row once per epoch, not mixed with other rows; got "
                f"importance={task.plan.importance!r}, mixup={task.plan.mixup}; use "
                "importance='loss' and mixup=0 in the plan of the ratio phase"
            )
        self._policy, self._books, self._stream = policy, books, stream
        self._functional = row_loss(self.model, task.loss)
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def reply(self, number: int, message: Broadcast) -> Reply:
        """Train for one round and return the reply."""
        plan, n = self.task.plan, len(self.task.x)
        self._rows = iter(torch.as_tensor(self.task.batch_rows(self.position, number)))
        self._books.spend_epochs(
            noise=self._policy.noise,
            rows=n,
            batch=plan.batch_size,
            steps=plan.n_steps,
            first=number * plan.n_steps,
            what=f"train.ratio {self._stream}",
        )
        return super().reply(number, message)

    def differentiate(
        self, batch: Batch, params: Tensor, local: Tensor | None
    ) -> tuple[float, Tensor, Tensor | None, Tensor | None]:
        """Return loss 0, a gradient with noise, and None for everything about BatchNorm layers."""
        layout: Any = self.task.layout
        self.model.train()
        gradient = private_gradient(
            self._functional,
            layout.views(params),
            batch.x,
            batch.y,
            batch.coefficient,
            rows=next(self._rows),
            clip=self._policy.clip,
            noise=self._policy.noise,
            generator=self._generator,
        )
        return 0.0, layout.flatten(gradient), None, None
