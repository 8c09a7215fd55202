"""Shift builders. They shift the train AND the test side, and know their exact log ratio.

=================  ==============================================  =============================
builder            what differs between clients and sides          exact ratio
=================  ==============================================  =============================
`Labels`           label counts, p(x | y) shared                   of label laws
`LabelDirichlet`   label laws drawn at random                      of label laws
`CovariateTilt`    p(x) tilted along a direction, p(y | x) shared  of p(x)
`GaussianShift`    synthetic Gaussian x, p(y | x) shared           of p(x)
`ColourFlip`       how often colour and label agree: p(y | x)      of p(x, y), or of p(x)
`BySite`           whatever a table's sites differ in              not known
=================  ==============================================  =============================
"""

from __future__ import annotations

from fedshift.data.shift.colour import ColourFlip
from fedshift.data.shift.dirichlet import LabelDirichlet
from fedshift.data.shift.gaussian import GaussianShift, LinearOutcome, LogisticOutcome
from fedshift.data.shift.labels import Labels
from fedshift.data.shift.site import BySite
from fedshift.data.shift.tilt import CovariateTilt

__all__ = [
    "BySite",
    "ColourFlip",
    "CovariateTilt",
    "GaussianShift",
    "LabelDirichlet",
    "Labels",
    "LinearOutcome",
    "LogisticOutcome",
]
