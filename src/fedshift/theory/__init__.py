"""Calculators for the formulas of Ramezani-Kebrya et al. (TMLR 2023), with named terms.

In the docstrings of this package, "the paper" is that one.
"""

from __future__ import annotations

from fedshift.theory.bound_error import BoundError as BoundError
from fedshift.theory.communication import Communication as Communication
from fedshift.theory.conditions import Condition as Condition
from fedshift.theory.conditions import appendix_example as appendix_example
from fedshift.theory.conditions import corrected_condition as corrected_condition
from fedshift.theory.conditions import corrected_counterexample as corrected_counterexample
from fedshift.theory.conditions import printed_condition as printed_condition
from fedshift.theory.conditions import printed_counterexample as printed_counterexample
from fedshift.theory.losses import LossConstants as LossConstants
from fedshift.theory.losses import loss_constants as loss_constants
from fedshift.theory.one_hot import HelpfulWeights as HelpfulWeights
from fedshift.theory.one_hot import OneHot as OneHot
from fedshift.theory.one_hot import OneHotComparison as OneHotComparison
from fedshift.theory.one_hot import helpful_weights as helpful_weights
from fedshift.theory.one_hot import small_weights_example as small_weights_example
from fedshift.theory.one_hot import weighting_helps as weighting_helps
from fedshift.theory.pooling import PoolingVariance as PoolingVariance
from fedshift.theory.pooling import best_pooling as best_pooling
from fedshift.theory.pooling import pooling_variance as pooling_variance
from fedshift.theory.rademacher import MLPClass as MLPClass
from fedshift.theory.rademacher import Rademacher as Rademacher
from fedshift.theory.rademacher import rademacher_complexity as rademacher_complexity
from fedshift.theory.ratio_error import AllClients as AllClients
from fedshift.theory.ratio_error import RatioError as RatioError
from fedshift.theory.ratio_error import mlp_ratio_error_bound as mlp_ratio_error_bound
from fedshift.theory.ratio_error import printed_ratio_error_bound as printed_ratio_error_bound
from fedshift.theory.ratio_error import ratio_error_bound as ratio_error_bound
from fedshift.theory.ridge import RidgeRisk as RidgeRisk
from fedshift.theory.ridge import fixed_design as fixed_design
from fedshift.theory.ridge import random_design as random_design
from fedshift.theory.ridge import second_moment as second_moment
from fedshift.theory.spectrum import Spectra as Spectra
from fedshift.theory.spectrum import Spectrum as Spectrum
from fedshift.theory.spectrum import eigenvalue_check as eigenvalue_check
from fedshift.theory.spectrum import eigenvalue_checks as eigenvalue_checks
from fedshift.theory.variance import ObjectiveVariance as ObjectiveVariance
