"""Numbers from formulas, each with its named terms."""

from __future__ import annotations

from fedshift.theory.communication import Communication
from fedshift.theory.spectrum import Spectrum, eigenvalue_check

__all__ = ["Communication", "Spectrum", "eigenvalue_check"]
