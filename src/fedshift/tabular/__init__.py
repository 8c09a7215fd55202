"""Training on a federation of tables, with weights only where they do no harm."""

from __future__ import annotations

from fedshift.tabular.fit import fit_tables

__all__ = ["fit_tables"]
