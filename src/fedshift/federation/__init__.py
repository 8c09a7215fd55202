"""Plans and the engines that run them."""

from __future__ import annotations

from fedshift.federation.engine import Engine, Log
from fedshift.federation.fused import Fused, Runs
from fedshift.federation.marginals import FederatedMLLS
from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Optimizer, TopK
from fedshift.federation.reference import Reference
from fedshift.federation.task import State, Task

__all__ = [
    "QSGD",
    "Engine",
    "FedAvg",
    "FedSGD",
    "FederatedMLLS",
    "Fused",
    "Log",
    "Optimizer",
    "Reference",
    "Runs",
    "State",
    "Task",
    "TopK",
]
