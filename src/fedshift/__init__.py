"""fedshift: federated learning when training data does not look like the deployment data.

Measure the shift, estimate a weight for each training row, train with these weights, and show for
each site whether they help.
"""

TYPE_CHECKING = False  # as typing's, which takes longer to import than all else here
if TYPE_CHECKING:
    from fedshift import data as data
    from fedshift import diagnose as diagnose
    from fedshift import errors as errors
    from fedshift import privacy as privacy
    from fedshift import ratio as ratio
    from fedshift import theory as theory
    from fedshift.core.weights import Weighting as Weighting
    from fedshift.core.weights import Weights as Weights
    from fedshift.core.weights import effective_sample_size as effective_sample_size
    from fedshift.data import shift as shift
    from fedshift.data.federation import ClientData as ClientData
    from fedshift.data.federation import Federation as Federation
    from fedshift.data.tables import Sites as Sites
    from fedshift.estimators import FederatedClassifier as FederatedClassifier
    from fedshift.estimators import FederatedRegressor as FederatedRegressor
    from fedshift.federation.marginals import FederatedMLLS as FederatedMLLS
    from fedshift.federation.plan import QSGD as QSGD
    from fedshift.federation.plan import FedAvg as FedAvg
    from fedshift.federation.plan import FedSGD as FedSGD
    from fedshift.federation.plan import Optimizer as Optimizer
    from fedshift.federation.plan import Sign as Sign
    from fedshift.federation.plan import TopK as TopK
    from fedshift.federation.ratio_selection import FederatedAuto as FederatedAuto
    from fedshift.grid import cross_validate as cross_validate
    from fedshift.learn import models as models
    from fedshift.outcome import load as load
    from fedshift.ratio.multi_source import MultiSource as MultiSource
    from fedshift.ratio.reweight import Reweighter as Reweighter
    from fedshift.settings import Settings as Settings
    from fedshift.sites.flow import train as train
    from fedshift.tabular import fit_tables as fit_tables
    from fedshift.workflow import run as run
else:
    from fedshift.core.lazy import attach

    __getattr__, __dir__, __all__ = attach(
        __name__,
        {
            "core.weights": ("Weighting", "Weights", "effective_sample_size"),
            "data.federation": ("ClientData", "Federation"),
            "data.tables": ("Sites",),
            "estimators": ("FederatedClassifier", "FederatedRegressor"),
            "grid": ("cross_validate",),
            "federation.ratio_selection": ("FederatedAuto",),
            "federation.marginals": ("FederatedMLLS",),
            "federation.plan": ("QSGD", "FedAvg", "FedSGD", "Optimizer", "Sign", "TopK"),
            "outcome": ("load",),
            "ratio.multi_source": ("MultiSource",),
            "ratio.reweight": ("Reweighter",),
            "settings": ("Settings",),
            "sites.flow": ("train",),
            "tabular": ("fit_tables",),
            "workflow": ("run",),
        },
        modules=(
            *("data", "data.shift", "diagnose", "errors", "learn.models", "privacy", "ratio"),
            "theory",
        ),
    )

__version__ = "0.1.0"
