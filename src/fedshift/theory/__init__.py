"""Numbers from formulas, each with its named terms."""

from __future__ import annotations

from fedshift.theory.bound_error import BoundError
from fedshift.theory.communication import Communication
from fedshift.theory.conditions import (
    Condition,
    appendix_example,
    corrected_condition,
    corrected_counterexample,
    printed_condition,
    printed_counterexample,
)
from fedshift.theory.lean import LeanVariance, best_lean, lean_variance
from fedshift.theory.losses import LossConstants, loss_constants
from fedshift.theory.one_hot import (
    Comparison,
    HelpfulWeights,
    OneHot,
    helpful_weights,
    small_weights_example,
    weighting_helps,
)
from fedshift.theory.rademacher import MLPClass, Rademacher, rademacher_complexity
from fedshift.theory.ratio_error import (
    AllClients,
    RatioError,
    mlp_ratio_error_bound,
    printed_ratio_error_bound,
    ratio_error_bound,
)
from fedshift.theory.ridge import RidgeRisk, fixed_design, random_design, second_moment
from fedshift.theory.spectrum import Spectra, Spectrum, eigenvalue_check, eigenvalue_checks
from fedshift.theory.variance import ObjectiveVariance

__all__ = [
    "AllClients",
    "BoundError",
    "Communication",
    "Comparison",
    "Condition",
    "HelpfulWeights",
    "LeanVariance",
    "LossConstants",
    "MLPClass",
    "ObjectiveVariance",
    "OneHot",
    "Rademacher",
    "RatioError",
    "RidgeRisk",
    "Spectra",
    "Spectrum",
    "appendix_example",
    "best_lean",
    "corrected_condition",
    "corrected_counterexample",
    "eigenvalue_check",
    "eigenvalue_checks",
    "fixed_design",
    "helpful_weights",
    "lean_variance",
    "loss_constants",
    "mlp_ratio_error_bound",
    "printed_condition",
    "printed_counterexample",
    "printed_ratio_error_bound",
    "rademacher_complexity",
    "random_design",
    "ratio_error_bound",
    "second_moment",
    "small_weights_example",
    "weighting_helps",
]
