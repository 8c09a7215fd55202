"""fedshift: federated learning when training data does not look like the data met in use.

Measure the shift, estimate how much each training row should count, train with these weights,
and show for each site whether it helped.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift import core, data, errors, ratio
    from fedshift.core.weights import Weighting, Weights, effective_sample_size
    from fedshift.ratio.reweight import Reweighter

__version__ = "0.1.0"

#: names of the one door and where they live; loaded on first use
_HOME = {
    "Reweighter": "fedshift.ratio.reweight",
    "Weighting": "fedshift.core.weights",
    "Weights": "fedshift.core.weights",
    "effective_sample_size": "fedshift.core.weights",
}
_ROOMS = ("core", "data", "errors", "ratio")

__all__ = [
    "Reweighter",
    "Weighting",
    "Weights",
    "__version__",
    "core",
    "data",
    "effective_sample_size",
    "errors",
    "ratio",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"fedshift.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fedshift' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
