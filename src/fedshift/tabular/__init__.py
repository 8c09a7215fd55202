"""From a federation of tables to a model that is no worse than plain federated training."""

from __future__ import annotations

from fedshift.tabular.fit import fit_tables
from fedshift.tabular.outcome import Candidate, TabularOutcome

__all__ = ["Candidate", "TabularOutcome", "fit_tables"]
