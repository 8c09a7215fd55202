"""Find and name distribution shifts within sites and between them.

``diagnose(federation)`` compares the rows of a federation. ``drift(reference, new)`` compares a new
batch of deployment rows with an earlier one.
"""

from __future__ import annotations

from fedshift.diagnose.columns import ColumnShift as ColumnShift
from fedshift.diagnose.diagnosis import Comparison as Comparison
from fedshift.diagnose.diagnosis import Diagnosis as Diagnosis
from fedshift.diagnose.diagnosis import SiteDiagnosis as SiteDiagnosis
from fedshift.diagnose.drift_check import Drift as Drift
from fedshift.diagnose.drift_check import SiteDrift as SiteDrift
from fedshift.diagnose.drift_check import drift as drift
from fedshift.diagnose.finding import Finding as Finding
from fedshift.diagnose.overlap import Overlap as Overlap
from fedshift.diagnose.pipeline import diagnose as diagnose
from fedshift.diagnose.shift_type import ShiftType as ShiftType
from fedshift.diagnose.terminal import render as render
