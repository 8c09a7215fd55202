"""Labels as users write them, and as numbers that a model is trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array
from fedshift.data.federation import ClientData, Federation
from fedshift.errors import InputError

#: returns labels for training, from a client's labels and their name
Change = Callable[[ClientData, npt.NDArray[Any], str], npt.NDArray[Any]]
#: numbers with more distinct values than this, and fewer rows a value, are not taken for classes
MOST_CLASSES, FEWEST_ROWS = 20, 5


def learn_classes(federation: Federation) -> npt.NDArray[Any]:
    """Return the sorted classes of the training labels of all clients.

    Raises
    ------
    InputError
        If there is one class only, labels mix text and numbers, or they are numbers to predict
        rather than classes.
    """
    for c in federation:
        c.check_labels()
    try:
        classes = np.unique(np.concatenate([np.unique(c.y) for c in federation]))
        values = np.array(classes.tolist())  # objects become numbers, where all are
    except TypeError as error:
        raise InputError(
            f"labels of all clients must be all text or all numbers; got both ({error}); "
            "convert them, for example with y.astype(str)"
        ) from None
    rows = sum(len(c.y) for c in federation)
    if len(classes) < 2:
        raise InputError(
            f"a classifier needs at least two rows and two classes; got {rows} rows of {classes}; "
            "check the labels of all clients"
        )
    many = len(classes) > MOST_CLASSES and rows < FEWEST_ROWS * len(classes)
    named = values.dtype.kind not in "iuf" or np.array_equal(values, np.arange(len(values)))
    if not named and (many or (values != np.round(values)).any()):
        raise InputError(
            f"labels of a classifier must be classes; got numbers with {len(classes)} different "
            f"values in {rows} rows, such as {values[0]}; take FederatedRegressor or "
            "loss='squared' to predict numbers, or y.astype(str) if they are classes"
        )
    return classes


def encode_classes(federation: Federation, classes: npt.NDArray[Any]) -> Federation:
    """Return the federation with the position of each label in `classes` as its label."""

    def encode(c: ClientData, y: npt.NDArray[Any], part: str) -> npt.NDArray[Any]:
        at = np.searchsorted(classes, y).clip(max=len(classes) - 1)
        unknown = classes[at] != y
        if unknown.any():
            raise InputError(
                f"client {c.name!r}: {part} must hold classes of the training labels, "
                f"{list(classes)}; got {y[np.argmax(unknown)]!r}; remove these rows"
            )
        return np.asarray(at, dtype=np.int64)

    return _relabelled(federation, encode)


def with_numbers(federation: Federation) -> Federation:
    """Return the federation with labels in float64, so whole numbers are not taken for classes."""

    def convert(c: ClientData, y: npt.NDArray[Any], part: str) -> npt.NDArray[Any]:
        try:
            if y.dtype.kind in "biufO":
                return np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError):
            pass
        raise InputError(
            f"client {c.name!r}: {part} must hold numbers; got {y[0]!r} ({y.dtype}); convert them, "
            "or take FederatedClassifier for classes"
        )

    return _relabelled(federation, convert)


def _relabelled(federation: Federation, change: Change) -> Federation:
    clients = []
    for c in federation:
        c.check_labels()
        y = change(c, c.y, "y")
        test_y = None if c.test_y is None else change(c, c.test_y, "test_y")
        clients.append(replace(c, y=y, test_y=test_y))
    truth = None if federation.truth is None else _Translated(federation)
    return Federation(tuple(clients), truth)


class _Translated:
    """Exact ratios of a federation with changed labels, from that with the original labels."""

    def __init__(self, federation: Federation) -> None:
        self._original = federation

    def log_ratio(self, federation: Federation, client: str, goal: str) -> Float64Array:
        """Log ratio at each training row of a client."""
        return self._original.exact_log_ratio(client, goal)

    def log_densities(self, federation: Federation, client: str) -> Float64Array:
        """Log densities of all training distributions at each training row of a client."""
        return self._original.exact_log_densities(client)
