"""Density ratios: one estimator, one file, one face.

Every estimator has ``fit(*, source, target)``, ``log_ratio(X)``, ``ratio(X)`` and
``score(*, source, target)``; the ratio is always target over source. In doubt take `Auto`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift.ratio.auto import Auto
    from fedshift.ratio.base import RatioEstimator
    from fedshift.ratio.bound import GridBound, KMeansBound, ScoreBound
    from fedshift.ratio.classifier import Classifier
    from fedshift.ratio.crossfit import CrossFit
    from fedshift.ratio.exact import Exact
    from fedshift.ratio.exact_labels import ExactLabels
    from fedshift.ratio.gaussian import Gaussian
    from fedshift.ratio.kliep import KLIEP
    from fedshift.ratio.kmm import KMM
    from fedshift.ratio.label import BBSE, MLLS, RLLS
    from fedshift.ratio.logistic import Logistic
    from fedshift.ratio.multi_source import MultiSource
    from fedshift.ratio.neural import Neural
    from fedshift.ratio.reweight import Reweighter
    from fedshift.ratio.ulsif import RULSIF, ULSIF

#: where each name lives; loaded on first use, so that importing fedshift stays light
_HOME = {
    "BBSE": "label",
    "KLIEP": "kliep",
    "KMM": "kmm",
    "MLLS": "label",
    "RLLS": "label",
    "RULSIF": "ulsif",
    "ULSIF": "ulsif",
    "Auto": "auto",
    "Classifier": "classifier",
    "CrossFit": "crossfit",
    "Exact": "exact",
    "ExactLabels": "exact_labels",
    "Gaussian": "gaussian",
    "GridBound": "bound",
    "KMeansBound": "bound",
    "Logistic": "logistic",
    "MultiSource": "multi_source",
    "Neural": "neural",
    "RatioEstimator": "base",
    "Reweighter": "reweight",
    "ScoreBound": "bound",
}

__all__ = [
    "BBSE",
    "KLIEP",
    "KMM",
    "MLLS",
    "RLLS",
    "RULSIF",
    "ULSIF",
    "Auto",
    "Classifier",
    "CrossFit",
    "Exact",
    "ExactLabels",
    "Gaussian",
    "GridBound",
    "KMeansBound",
    "Logistic",
    "MultiSource",
    "Neural",
    "RatioEstimator",
    "Reweighter",
    "ScoreBound",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
