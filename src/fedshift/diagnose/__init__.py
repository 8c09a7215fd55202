"""What shifted, within sites and between them, and will weighting help?

``diagnose(federation)`` answers for a federation, ``drift(reference, new)`` for a new batch of
deployment rows, ``shift_map(federation)`` shows who looks like whom.
"""

from __future__ import annotations

from fedshift.diagnose.columns import ColumnShift
from fedshift.diagnose.diagnosis import Comparison, Diagnosis, SiteDiagnosis
from fedshift.diagnose.drifts import Drift, SiteDrift, drift
from fedshift.diagnose.examine import diagnose
from fedshift.diagnose.finding import Finding
from fedshift.diagnose.kind import Kind
from fedshift.diagnose.map import ShiftMap, shift_map
from fedshift.diagnose.overlap import Overlap
from fedshift.diagnose.predict import PredictedEffect
from fedshift.diagnose.render import render

__all__ = [
    "ColumnShift",
    "Comparison",
    "Diagnosis",
    "Drift",
    "Finding",
    "Kind",
    "Overlap",
    "PredictedEffect",
    "ShiftMap",
    "SiteDiagnosis",
    "SiteDrift",
    "diagnose",
    "drift",
    "render",
    "shift_map",
]
