"""Federations, where their data come from, and shifts whose ratio is known exactly."""

from __future__ import annotations

from fedshift.data.federation import ClientData, Federation, federation
from fedshift.data.shift import (
    BySite,
    ColourFlip,
    CovariateTilt,
    GaussianShift,
    LabelDirichlet,
    Labels,
    LinearOutcome,
    LogisticOutcome,
)
from fedshift.data.sources import Images, available, load

__all__ = [
    "BySite",
    "ClientData",
    "ColourFlip",
    "CovariateTilt",
    "Federation",
    "GaussianShift",
    "Images",
    "LabelDirichlet",
    "Labels",
    "LinearOutcome",
    "LogisticOutcome",
    "available",
    "federation",
    "load",
]
