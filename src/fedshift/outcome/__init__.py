"""What a run returns, and its save, load and predict."""

from __future__ import annotations

from fedshift.outcome.folder import Stored, StoredLabels, load
from fedshift.outcome.results import ModelCandidate, Outcome, TabularOutcome
from fedshift.outcome.weights import write_sample_weights

__all__ = [
    "ModelCandidate",
    "Outcome",
    "Stored",
    "StoredLabels",
    "TabularOutcome",
    "load",
    "write_sample_weights",
]
