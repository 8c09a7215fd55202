"""Estimators of density ratios, one in each file, all with the same methods.

Every estimator has ``fit(*, source, target)``, ``log_ratio(X)``, ``ratio(X)`` and
``score(*, source, target)``. The ratio is always target over source. If you are unsure which
estimator to use, use `Auto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedshift.ratio.auto import Auto as Auto
    from fedshift.ratio.base import RatioEstimator as RatioEstimator
    from fedshift.ratio.bound import GridBound as GridBound
    from fedshift.ratio.bound import KMeansBound as KMeansBound
    from fedshift.ratio.bound import ScoreBound as ScoreBound
    from fedshift.ratio.classifier import Classifier as Classifier
    from fedshift.ratio.crossfit import CrossFit as CrossFit
    from fedshift.ratio.gaussian import Gaussian as Gaussian
    from fedshift.ratio.kliep import KLIEP as KLIEP
    from fedshift.ratio.kmm import KMM as KMM
    from fedshift.ratio.known_label_shift import label_shift_log_ratio as label_shift_log_ratio
    from fedshift.ratio.label import BBSE as BBSE
    from fedshift.ratio.label import MLLS as MLLS
    from fedshift.ratio.label import RLLS as RLLS
    from fedshift.ratio.logistic import Logistic as Logistic
    from fedshift.ratio.multi_source import MultiSource as MultiSource
    from fedshift.ratio.neural import Neural as Neural
    from fedshift.ratio.reweight import Reweighter as Reweighter
    from fedshift.ratio.ulsif import RULSIF as RULSIF
    from fedshift.ratio.ulsif import ULSIF as ULSIF
else:
    from fedshift.core.lazy import attach

    __getattr__, __dir__, __all__ = attach(
        __name__,
        {
            "auto": ("Auto",),
            "base": ("RatioEstimator",),
            "bound": ("GridBound", "KMeansBound", "ScoreBound"),
            "classifier": ("Classifier",),
            "crossfit": ("CrossFit",),
            "gaussian": ("Gaussian",),
            "kliep": ("KLIEP",),
            "kmm": ("KMM",),
            "known_label_shift": ("label_shift_log_ratio",),
            "label": ("BBSE", "MLLS", "RLLS"),
            "logistic": ("Logistic",),
            "multi_source": ("MultiSource",),
            "neural": ("Neural",),
            "reweight": ("Reweighter",),
            "ulsif": ("RULSIF", "ULSIF"),
        },
    )
