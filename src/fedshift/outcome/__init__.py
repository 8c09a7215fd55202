"""What a run returns, and its save, load and predict."""

from __future__ import annotations

from fedshift.outcome.folder import SavedLabels, SavedRun, load
from fedshift.outcome.results import ModelCandidate, Outcome, TabularOutcome
from fedshift.outcome.weights import write_sample_weights

__all__ = [
    "ModelCandidate",
    "Outcome",
    "SavedLabels",
    "SavedRun",
    "TabularOutcome",
    "load",
    "write_sample_weights",
]
