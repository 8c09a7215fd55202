"""Plans and the engines that run them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift.federation.choice import FederatedAuto
    from fedshift.federation.engine import Engine, Log
    from fedshift.federation.fused import Fused, Runs
    from fedshift.federation.marginals import FederatedMLLS
    from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Optimizer, Sign, TopK
    from fedshift.federation.reference import Reference
    from fedshift.federation.task import State, Task

#: loaded on first use: the process that hands messages on must not wait for torch
_HOME = {
    "QSGD": "plan",
    "Engine": "engine",
    "FedAvg": "plan",
    "FedSGD": "plan",
    "FederatedAuto": "choice",
    "FederatedMLLS": "marginals",
    "Fused": "fused",
    "Log": "engine",
    "Optimizer": "plan",
    "Reference": "reference",
    "Runs": "fused",
    "Sign": "plan",
    "State": "task",
    "Task": "task",
    "TopK": "plan",
}

__all__ = [
    "QSGD",
    "Engine",
    "FedAvg",
    "FedSGD",
    "FederatedAuto",
    "FederatedMLLS",
    "Fused",
    "Log",
    "Optimizer",
    "Reference",
    "Runs",
    "Sign",
    "State",
    "Task",
    "TopK",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"fedshift.federation.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fedshift.federation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
