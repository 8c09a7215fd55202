"""The small interface every engine has, and what a run of rounds reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.threads import threads_for
from fedshift.errors import TrainingDiverged
from fedshift.federation.task import State, Task


@dataclass(frozen=True)
class Log:
    """What happened in some rounds.

    Attributes
    ----------
    first : int
        Number of the first round.
    clients : int array (rounds, m)
        Who took part, as positions.
    losses : float array (rounds, m, steps)
        Mean weighted loss of every batch, before the step.
    """

    first: int
    clients: npt.NDArray[np.int64]
    losses: npt.NDArray[np.float64]

    def check(self, task: Task) -> None:
        """Raise if a loss is not finite, and say whose, when and in which batch."""
        bad = ~np.isfinite(self.losses)
        if bad.any():
            i, j, s = (int(v) for v in np.argwhere(bad)[0])
            client = task.names[int(self.clients[i, j])]
            raise TrainingDiverged(
                f"the loss became {self.losses[i, j, s]} for client {client!r} in round "
                f"{self.first + i}, batch {s} of {self.losses.shape[2]}; the last checkpoint is "
                "kept; lower the learning rate, clip the weights, or look at that client's rows"
            )


class Engine(ABC):
    """Anything that can run a plan.

    Parameters
    ----------
    task : Task
    state : State, optional
        Where to go on; the beginning if left out.
    """

    def __init__(self, task: Task, state: State | None = None) -> None:
        self.task = task
        self._load((state or task.begin()).copy())

    @abstractmethod
    def _load(self, state: State) -> None:
        """Take a state over."""

    @abstractmethod
    def _advance(self, rounds: int) -> Log:
        """Run rounds without looking at the losses."""

    @property
    @abstractmethod
    def state(self) -> State:
        """A copy of where the run stands."""

    def advance(self, rounds: int) -> Log:
        """Run some rounds.

        Raises
        ------
        TrainingDiverged
            If a loss is NaN or infinite; the engine's state is then of no use.
        """
        with threads_for(self.task.step_size):
            log = self._advance(rounds)
        log.check(self.task)
        return log
