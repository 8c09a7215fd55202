"""A client whose ratio gradients leave with noise."""

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
    """Clips every row's gradient and adds noise; books what each batch costs.

    Losses are not told: they would need noise of their own.

    Parameters
    ----------
    policy : Privacy
        Its `noise` and `clip`.
    books : Accountant
    stream : str
        Names the sequence of batches in the books; folds have one each.
    seed : int, optional
        Of the noise, for tests; the operating system's entropy if left out.
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
                "private gradients need each row once an epoch and on its own; take "
                "importance='loss' and mixup=0 in the plan of the ratio phase"
            )
        self._policy, self._books, self._stream = policy, books, stream
        self._functional = row_loss(self.model, task.loss)
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def reply(self, number: int, told: Broadcast) -> Reply:
        """Do a round."""
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
        return super().reply(number, told)

    def differentiate(
        self, batch: Batch, params: Tensor, local: Tensor | None
    ) -> tuple[float, Tensor, Tensor | None, Tensor | None]:
        """A gradient with noise; no loss, no statistics."""
        layout: Any = self.task.layout
        self.model.train()
        found = private_gradient(
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
        return 0.0, layout.flatten(found), None, None
