"""Every error and warning fedshift raises, in one small tree.

A message names the thing, what was needed, what was got and the next step.
"""

from __future__ import annotations


class FedshiftError(Exception):
    """Root of all errors raised by fedshift."""


class InputError(FedshiftError, ValueError):
    """Data or a parameter cannot be used as given."""


class WeightsNotUsedError(FedshiftError, TypeError):
    """A learner took the sample weights but they did not reach its fit."""


class DataNotFoundError(FedshiftError, FileNotFoundError):
    """A named data set is neither in the data folder nor at the usual places."""


class OutputError(FedshiftError, OSError):
    """A result cannot be written where it was asked for."""


class TrainingDiverged(FedshiftError, ArithmeticError):
    """A loss became NaN or infinite."""


class CheckpointError(FedshiftError, ValueError):
    """A checkpoint does not belong to this run or cannot be read."""


class FedshiftWarning(UserWarning):
    """Root of all warnings given by fedshift."""


class LowEffectiveSampleSize(FedshiftWarning):
    """A few rows carry nearly all of the weight."""


class ClippedWeights(FedshiftWarning):
    """More weights than a handful were cut by a clip or a winsorising quantile."""


class LowCoverage(FedshiftWarning):
    """Part of the target law lies where there are no source rows to weight."""


class ConstantColumns(FedshiftWarning):
    """Columns that hold one value in source and target alike carry no information."""


class DisjointSupport(FedshiftWarning):
    """Source and target do not overlap, so their ratio is not identified."""


class FewRows(FedshiftWarning):
    """A law has too few rows for the method asked for."""


class RatioDirection(FedshiftWarning):
    """The log ratio is not higher on the target than on the source."""


class PrecisionLoss(FedshiftWarning):
    """Integers too large for a float64 were rounded."""


class NotConverged(FedshiftWarning):
    """An optimiser stopped before its tolerance was met."""


class UnscaledColumns(FedshiftWarning):
    """Columns of very different scale, which a model trained by gradients learns badly from."""


class DamagedCheckpoint(FedshiftWarning):
    """A checkpoint does not read whole; the one before it is taken."""


__all__ = [
    "CheckpointError",
    "ClippedWeights",
    "ConstantColumns",
    "DamagedCheckpoint",
    "DataNotFoundError",
    "DisjointSupport",
    "FedshiftError",
    "FedshiftWarning",
    "FewRows",
    "InputError",
    "LowCoverage",
    "LowEffectiveSampleSize",
    "NotConverged",
    "OutputError",
    "PrecisionLoss",
    "RatioDirection",
    "TrainingDiverged",
    "UnscaledColumns",
    "WeightsNotUsedError",
]
