"""pfl-research: `FederatedAveraging` with one local step of size 1 and Adam at the server."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from peers_training.lenet import BATCH, CLIENTS, ROWS, LeNet, rows, weighted_loss

PACKAGE = "pfl"


class _Model(LeNet):
    """LeNet with the two methods pfl asks for."""

    def loss(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """What a client minimises."""
        return weighted_loss(self(x), y, weight)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, weight: Tensor) -> dict[str, Weighted]:
        """What a client reports when asked to evaluate."""
        return {"loss": Weighted(self.loss(x, y, weight).item() * len(x), len(x))}


class _Clock(TrainingProcessCallback):
    """Notes when each central iteration ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Called by pfl."""
        self.times.append(time.perf_counter())
        return False, Metrics()


torch.set_num_threads(1)
_DATA = [rows(ROWS, seed=k) for k in range(CLIENTS)]
_NET = _Model()
_MODEL = PyTorchModel(
    _NET,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.Adam(_NET.parameters(), lr=1e-3),
)
_TURN = itertools.cycle(range(CLIENTS))


def _batch(client: int) -> Dataset:
    """A client's next batch, as a data set of 64 rows."""
    at = torch.randint(0, ROWS, (BATCH,))
    return Dataset([t[at] for t in _DATA[client]], user_id=str(client))


def block(iterations: int) -> float:
    """Seconds for one iteration, the first (which also evaluates) left out."""
    data = FederatedDataset(_batch, lambda: next(_TURN))
    clock = _Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=iterations + 1,
            evaluation_frequency=iterations + 2,
            train_cohort_size=CLIENTS,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        _MODEL,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=1.0, local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return (clock.times[-1] - clock.times[0]) / iterations
