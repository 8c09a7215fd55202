"""The base class of the engines that train, and the log of successive rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.threads import STEP, threads_for
from fedshift.errors import TrainingDiverged
from fedshift.federation.task import State, Task


@dataclass(frozen=True)
class Log:
    """Participants and losses of several successive rounds.

    Attributes
    ----------
    first : int
        Number of the first round.
    clients : int array (rounds, m)
        Positions of the m participants of every round.
    losses : float array (rounds, m, steps)
        Mean weighted loss of the batch of every step in a round, computed before the step.
    """

    first: int
    clients: npt.NDArray[np.int64]
    losses: npt.NDArray[np.float64]

    def check(self, task: Task) -> None:
        """Raise if a loss is not finite; the error names client, round and batch."""
        bad = ~np.isfinite(self.losses)
        if bad.any():
            i, j, s = (int(v) for v in np.argwhere(bad)[0])
            client = task.names[int(self.clients[i, j])]
            raise TrainingDiverged(
                f"the loss became {self.losses[i, j, s]} for client {client!r} in round "
                f"{self.first + i}, batch {s} of {self.losses.shape[2]}; the last checkpoint "
                "remains; lower the learning rate, clip the weights, or check the client's rows"
            )


class Engine(ABC):
    """Base class of the engines, which run the rounds of a plan.

    Parameters
    ----------
    task : Task
    state : State, optional
        State from which the run continues; the task's initial state by default.
    """

    def __init__(self, task: Task, state: State | None = None) -> None:
        self.task = task
        self._load((state or task.begin()).copy())

    @abstractmethod
    def _load(self, state: State) -> None:
        """Continue from a state."""

    @abstractmethod
    def _advance(self, rounds: int) -> Log:
        """Run rounds without checking the losses."""

    @property
    @abstractmethod
    def state(self) -> State:
        """A copy of the run's state."""

    def advance(self, rounds: int) -> Log:
        """Run the next `rounds` rounds.

        Raises
        ------
        TrainingDiverged
            If a loss is NaN or infinite. The engine cannot be used after this error.
        """
        with threads_for(self.task.step_size, STEP):
            log = self._advance(rounds)
        log.check(self.task)
        return log
