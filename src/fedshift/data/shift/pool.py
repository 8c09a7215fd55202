"""Helpers of all shift builders: the pool of rows, class labels, client names and row counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedshift.core.samples import Array, FloatArray, Rows, as_rows
from fedshift.data.federation import ClientData
from fedshift.errors import InputError

Int64Array = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Pool:
    """Labelled rows that a builder assigns to clients. Nothing is copied until `take`.

    Attributes
    ----------
    x : ndarray (n, ...)
        Floats, or uint8 images of at least three axes, which `take` scales to [0, 1].
    y : ndarray (n,)
    """

    x: Array
    y: Array

    @classmethod
    def of(cls, x: Rows, y: npt.ArrayLike, name: str) -> Pool:
        """Return a pool of checked rows and labels; `name` names them in errors."""
        if isinstance(x, torch.Tensor) and x.dtype == torch.uint8:
            x = x.detach().cpu().numpy()
        images = isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim > 2 and x.size > 0
        rows = np.asarray(x) if images else as_rows(x, name=f"{name} rows")
        labels = np.asarray(y)
        if labels.shape != (len(rows),):
            raise InputError(
                f"{name} labels must be one per row, shape ({len(rows)},); got {labels.shape}"
            )
        return cls(rows, labels)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.y)

    def take(self, index: Index | slice) -> FloatArray:
        """Return some rows; uint8 images become float32 in [0, 1], without a float64 copy."""
        rows = self.x[index]
        if rows.dtype == np.uint8:
            return np.divide(rows, np.float32(255), dtype=np.float32)
        return rows


def class_labels(y: Array, classes: int, name: str) -> Int64Array:
    """Return labels as int64 class numbers from 0 to classes − 1."""
    if y.dtype.kind not in "biuf" or (y.dtype.kind == "f" and not (y == np.floor(y)).all()):
        raise InputError(
            f"{name} labels must be class numbers from 0 to {classes - 1}; got {y.dtype} values "
            f"such as {y[:1].tolist()}; number the classes with np.unique(y, return_inverse=True)"
        )
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise InputError(
            f"{name} labels must lie in 0 to {classes - 1}, as the shift has {classes} classes; "
            f"got {y.min()} to {y.max()}; renumber the labels or give the shift more classes"
        )
    return y.astype(np.int64)


def client_names(clients: int) -> tuple[str, ...]:
    """Return the names client-1, client-2, …"""
    return tuple(f"client-{k + 1}" for k in range(clients))


def per_client(value: int | Sequence[int] | Int64Array, clients: int, name: str) -> Int64Array:
    """Return a number of rows for each client (clients,), from one number or a sequence."""
    rows = np.asarray(value)
    if (
        rows.dtype.kind not in "iu"
        or rows.shape not in ((), (clients,))
        or not (rows > 0).all()
        or clients < 1
    ):
        raise InputError(
            f"{name} must be a positive whole number, or one per client ({clients}); got {value!r}"
        )
    return np.broadcast_to(rows, (clients,)).astype(np.int64)


def assemble(
    names: Sequence[str],
    train: Sequence[tuple[FloatArray, Any]],
    test: Sequence[tuple[FloatArray, Any]],
) -> tuple[ClientData, ...]:
    """Return clients, each from the (rows, labels) of its training side and of its test side.

    `Pool.of` has checked these rows and labels.
    """
    return tuple(ClientData(name, *train[k], *test[k]) for k, name in enumerate(names))
