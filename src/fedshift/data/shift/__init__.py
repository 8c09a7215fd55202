"""Shift builders: they make federations whose exact density ratios are known.

Each client has a training side and a test side, and a builder shifts both.

=================  ==============================================  =============================
builder            what differs between clients and sides          exact ratio
=================  ==============================================  =============================
`Labels`           label counts, p(x | y) shared                   of label distributions
`LabelDirichlet`   label distributions drawn at random             of label distributions
`CovariateTilt`    p(x) tilted along a direction, p(y | x) shared  of p(x)
`GaussianShift`    synthetic Gaussian x, p(y | x) shared           of p(x)
`ColourFlip`       p(y | x): how often colour and label agree      of p(x, y), or of p(x)
=================  ==============================================  =============================
"""

from __future__ import annotations

from fedshift.data.shift.colour import ColourFlip as ColourFlip
from fedshift.data.shift.dirichlet import LabelDirichlet as LabelDirichlet
from fedshift.data.shift.gaussian import GaussianShift as GaussianShift
from fedshift.data.shift.gaussian import LinearOutcome as LinearOutcome
from fedshift.data.shift.gaussian import LogisticOutcome as LogisticOutcome
from fedshift.data.shift.labels import Labels as Labels
from fedshift.data.shift.tilt import CovariateTilt as CovariateTilt
