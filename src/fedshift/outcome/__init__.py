"""What a run returns, and its save, load and predict."""

from __future__ import annotations

from fedshift.outcome.folder import SavedLabels as SavedLabels
from fedshift.outcome.folder import SavedRun as SavedRun
from fedshift.outcome.folder import load as load
from fedshift.outcome.results import ModelCandidate as ModelCandidate
from fedshift.outcome.results import Outcome as Outcome
from fedshift.outcome.results import TabularOutcome as TabularOutcome
