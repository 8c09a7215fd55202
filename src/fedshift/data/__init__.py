"""Federations, where their data come from, and shifts whose ratio is known exactly."""

from __future__ import annotations

from fedshift.data.federation import ClientData, Federation
from fedshift.data.shift import Labels

__all__ = ["ClientData", "Federation", "Labels"]
