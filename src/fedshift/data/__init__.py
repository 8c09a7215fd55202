"""Federations, data sets by name, and shift builders whose density ratios are known exactly."""

from __future__ import annotations

from fedshift.data.federation import ClientData as ClientData
from fedshift.data.federation import Federation as Federation
from fedshift.data.shift import ColourFlip as ColourFlip
from fedshift.data.shift import CovariateTilt as CovariateTilt
from fedshift.data.shift import GaussianShift as GaussianShift
from fedshift.data.shift import LabelDirichlet as LabelDirichlet
from fedshift.data.shift import Labels as Labels
from fedshift.data.shift import LinearOutcome as LinearOutcome
from fedshift.data.shift import LogisticOutcome as LogisticOutcome
from fedshift.data.sources import Images as Images
from fedshift.data.sources import available as available
from fedshift.data.sources import load as load
