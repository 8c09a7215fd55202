"""fedshift: federated learning when training data does not look like the data met in use.

Measure the shift, estimate how much each training row should count, train with these weights,
and show for each site whether it helped.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift import (
        core,
        data,
        diagnose,
        errors,
        federation,
        learn,
        ratio,
        sites,
        tabular,
        theory,
    )
    from fedshift.core.weights import Weighting, Weights, effective_sample_size
    from fedshift.data import shift, tables
    from fedshift.data.federation import ClientData, Federation
    from fedshift.data.tables import Sites
    from fedshift.estimators import FederatedClassifier, FederatedRegressor
    from fedshift.federation.plan import QSGD, FedAvg, FedSGD, Optimizer, Sign, TopK
    from fedshift.learn import models
    from fedshift.ratio.reweight import Reweighter
    from fedshift.settings import Settings
    from fedshift.tabular import fit_tables
    from fedshift.workflow import run

__version__ = "0.1.0"

#: names of the one door and where they live; loaded on first use
_HOME = {
    "ClientData": "fedshift.data.federation",
    "FedAvg": "fedshift.federation.plan",
    "FedSGD": "fedshift.federation.plan",
    "FederatedClassifier": "fedshift.estimators",
    "FederatedRegressor": "fedshift.estimators",
    "Federation": "fedshift.data.federation",
    "Optimizer": "fedshift.federation.plan",
    "QSGD": "fedshift.federation.plan",
    "Reweighter": "fedshift.ratio.reweight",
    "Settings": "fedshift.settings",
    "Sign": "fedshift.federation.plan",
    "Sites": "fedshift.data.tables",
    "TopK": "fedshift.federation.plan",
    "Weighting": "fedshift.core.weights",
    "Weights": "fedshift.core.weights",
    "effective_sample_size": "fedshift.core.weights",
    "fit_tables": "fedshift.tabular",
    "run": "fedshift.workflow",
}
_ROOMS = {
    "core": "fedshift.core",
    "data": "fedshift.data",
    "diagnose": "fedshift.diagnose",
    "errors": "fedshift.errors",
    "federation": "fedshift.federation",
    "learn": "fedshift.learn",
    "models": "fedshift.learn.models",
    "ratio": "fedshift.ratio",
    "shift": "fedshift.data.shift",
    "sites": "fedshift.sites",
    "tables": "fedshift.data.tables",
    "tabular": "fedshift.tabular",
    "theory": "fedshift.theory",
}

__all__ = [
    "QSGD",
    "ClientData",
    "FedAvg",
    "FedSGD",
    "FederatedClassifier",
    "FederatedRegressor",
    "Federation",
    "Optimizer",
    "Reweighter",
    "Settings",
    "Sign",
    "Sites",
    "TopK",
    "Weighting",
    "Weights",
    "__version__",
    "core",
    "data",
    "diagnose",
    "effective_sample_size",
    "errors",
    "federation",
    "fit_tables",
    "learn",
    "models",
    "ratio",
    "run",
    "shift",
    "sites",
    "tables",
    "tabular",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(_ROOMS[name])
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fedshift' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
