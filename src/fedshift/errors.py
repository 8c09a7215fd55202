"""All errors and warnings of fedshift.

A message names the thing, what was needed, what was given and the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FLAGS = ContextVar("flags", default=False)


@contextmanager
def naming_flags() -> Iterator[None]:
    """Let `option` name flags: messages of the body are for a user of the command line."""
    token = _FLAGS.set(True)
    try:
        yield
    finally:
        _FLAGS.reset(token)


def option(name: str, value: object = "") -> str:
    """Return an option as the user of a message writes it: a keyword, or a flag in a command.

    Examples
    --------
    >>> option("test_share", 0.3)
    'test_share=0.3'
    >>> with naming_flags():
    ...     option("test_share", 0.3)
    '--test-share 0.3'
    """
    return f"--{name.replace('_', '-')} {value}".rstrip() if _FLAGS.get() else f"{name}={value}"


def install_hint(extra: str = "") -> str:
    """Return the command that installs an extra.

    No package index has a fedshift of ours, so the hint never names one: it installs the clone.
    """
    what = f"'.[{extra}]'" if extra else "."
    return f"in the clone of fedshift, run: pip install -c constraints.txt -e {what}"


class FedshiftError(Exception):
    """Base class of all errors of fedshift."""


class InputError(FedshiftError, ValueError):
    """Data or a parameter is not valid."""


class WeightsNotUsedError(FedshiftError, TypeError):
    """A learner accepted sample weights, but its fit did not use them."""


class DataNotFoundError(FedshiftError, FileNotFoundError):
    """A data set is in none of the folders that `fedshift.data.load` searches."""


class OutputError(FedshiftError, OSError):
    """A result cannot be written to its folder or file."""


class InUseError(OutputError):
    """Another process works in the folder."""


class UnknownName(InputError, KeyError):
    """A mapping of results has no entry of this name."""

    __str__ = Exception.__str__  # a KeyError puts its message in quotes


class TrainingDiverged(FedshiftError, ArithmeticError):
    """A loss became NaN or infinite."""


class CheckpointError(FedshiftError, ValueError):
    """A checkpoint belongs to another run or cannot be read."""


class FedshiftWarning(UserWarning):
    """Base class of all warnings of fedshift."""


class LowEffectiveSampleSize(FedshiftWarning):
    """A few rows carry nearly all of the weight."""


class ClippedWeights(FedshiftWarning):
    """The `clip` or `winsorise` limit of `Weighting` cut more than a few weights."""


class LowCoverage(FedshiftWarning):
    """Part of the target distribution lies where there are no source rows."""


class LargeMeanRatio(FedshiftWarning):
    """The mean ratio over the source exceeds the number of target distributions."""


class ConstantColumns(FedshiftWarning):
    """Columns have the same single value in source and target, so they carry no information."""


class DisjointSupport(FedshiftWarning):
    """Source and target do not overlap, so their ratio is not identified."""


class FewRows(FedshiftWarning):
    """A distribution has too few rows for the method."""


class RatioDirection(FedshiftWarning):
    """The mean log ratio is lower on target than on source rows; the two may be swapped."""


class PrecisionLoss(FedshiftWarning):
    """Integers too large for a float64 were rounded."""


class NotConverged(FedshiftWarning):
    """An optimiser stopped before it reached its tolerance."""


class NoBetterThanConstant(FedshiftWarning):
    """On held-out rows, a constant prediction is as good as the model."""


class UnscaledLabels(FedshiftWarning):
    """Numbers to predict are very large or small, so a model trained by gradients misses them."""


class NotResumable(FedshiftWarning):
    """Code of the user stands in no file, so a run cannot be resumed safely."""


class DamagedCheckpoint(FedshiftWarning):
    """A checkpoint is damaged; the previous checkpoint is used."""
