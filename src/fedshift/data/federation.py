"""Clients and the federation they form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import (
    Float64Array,
    FloatArray,
    Rows,
    as_rows,
    column_names,
    same_names,
)
from fedshift.errors import InputError

#: "all": the sum over every client's test law; "own": the client's own; or a client's name
Goal = str


@dataclass(frozen=True)
class ClientData:
    """What one client has (x, y) and what its model will be used on (test_x).

    Attributes
    ----------
    name : str
    x : ndarray (n, ...)
    y : ndarray (n,)
    test_x : ndarray (m, ...)
        Unlabelled rows of the law met in use.
    test_y : ndarray (m,), optional
        Only ever used to evaluate, never to estimate ratios or choose models.
    columns : tuple of str, optional
        Names of the columns, where rows came as a data frame.
    """

    name: str
    x: FloatArray
    y: npt.NDArray[Any]
    test_x: FloatArray
    test_y: npt.NDArray[Any] | None = None
    columns: tuple[str, ...] | None = None

    @classmethod
    def of(cls, name: str, x: Rows, y: Any, test_x: Rows, test_y: Any = None) -> ClientData:
        """A client from anything array-like, checked; data frames must agree on their columns."""
        rows = as_rows(x, name=f"client {name!r}: x")
        tests = as_rows(test_x, name=f"client {name!r}: test_x")
        if tests.shape[1:] != rows.shape[1:]:
            raise InputError(
                f"client {name!r}: test_x must have rows of shape {rows.shape[1:]}, as x; "
                f"got {tests.shape[1:]}"
            )
        names, test_names = _columns(x), _columns(test_x)
        same_names(names, test_names, f"client {name!r}: test_x", of="x")
        labels = np.asarray(y)
        test_labels = None if test_y is None else np.asarray(test_y)
        for part, label, n in (("y", labels, len(rows)), ("test_y", test_labels, len(tests))):
            if label is not None and label.shape != (n,):
                raise InputError(
                    f"client {name!r}: {part} must hold one label a row, shape ({n},); "
                    f"got {label.shape}"
                )
        made = cls(name, rows, labels, tests, test_labels, names or test_names)
        made.check_labels()
        return made

    def check_labels(self) -> None:
        """Raise if a label, of training or test rows, is missing: None, NaN or the like."""
        for part, labels in (("y", self.y), ("test_y", self.test_y)):
            missing = None if labels is None else _missing(labels)
            if missing is not None and missing.any():
                row = int(np.argmax(missing))
                raise InputError(
                    f"client {self.name!r}: {part} must have a label for every row; "
                    f"{int(missing.sum())} are missing, the first in row {row}; drop those rows"
                    + (" or leave test_y out" if part == "test_y" else "")
                )

    def __repr__(self) -> str:
        return f"ClientData({self.name!r}, n={len(self.x)}, test n={len(self.test_x)})"


def _columns(x: Rows) -> tuple[str, ...] | None:
    names = column_names(x)
    return None if names is None else tuple(map(str, names))


def _missing(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
    """Labels that are None or do not equal themselves; None where there can be no such."""
    if labels.dtype.kind == "O":
        same = [False if v is None else v == v for v in labels]  # of pandas.NA it is pandas.NA
        return np.array([not isinstance(s, bool | np.bool_) or not s for s in same])
    return np.asarray(labels != labels) if labels.dtype.kind in "fcmM" else None


class Truth(Protocol):
    """Exact log ratios, known to whoever built the shift."""

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Log ratio at every training row of `client`."""

    def log_laws(self, federation: Federation, client: str) -> Float64Array:
        """Log densities (n, K) of all clients' training laws at the training rows of `client`.

        Up to a term that may differ from row to row.
        """


@dataclass(frozen=True)
class Federation:
    """Clients in a fixed order, each with a name of its own.

    Attributes
    ----------
    clients : tuple of ClientData
    truth : Truth, optional
        Present if the shift was made by a builder that knows it.
    """

    clients: tuple[ClientData, ...]
    truth: Truth | None = None

    def __post_init__(self) -> None:
        if not self.clients:
            raise InputError("a federation needs at least one client; got none")
        names = [c.name for c in self.clients]
        twice = sorted(n for n, count in Counter(names).items() if count > 1)
        if twice:
            raise InputError(f"clients need names of their own; got {twice} more than once")
        if {"all", "own"} & set(names):
            raise InputError(
                "a client must not be called 'all' or 'own', which are goals; rename it"
            )
        for c in self.clients:
            if c.x.shape[1:] != self.clients[0].x.shape[1:]:
                raise InputError(
                    f"client {c.name!r} must have rows of shape {self.clients[0].x.shape[1:]}, as "
                    f"client {names[0]!r}; got {c.x.shape[1:]}"
                )
        first = next((c for c in self.clients if c.columns is not None), self.clients[0])
        for c in self.clients:
            same_names(first.columns, c.columns, f"client {c.name!r}", of=f"client {first.name!r}")

    @classmethod
    def of(cls, clients: Mapping[str, Sequence[Any]]) -> Federation:
        """A federation from ``{name: (x, y, test_x)}`` or ``{name: (x, y, test_x, test_y)}``."""
        if not isinstance(clients, Mapping):
            raise InputError(
                "clients must be a mapping, {name: (x, y, test_x)}; got "
                f"{type(clients).__name__}; give every client a name"
            )
        made = []
        for name, parts in clients.items():
            tuples = isinstance(parts, tuple | list)
            if not tuples or len(parts) not in (3, 4):
                raise InputError(
                    f"client {name!r}: needs (x, y, test_x) or (x, y, test_x, test_y); got "
                    + (f"{len(parts)} parts" if tuples else type(parts).__name__)
                )
            made.append(ClientData.of(str(name), *parts))
        return cls(tuple(made))

    def __len__(self) -> int:
        """Number of clients."""
        return len(self.clients)

    def __iter__(self) -> Iterator[ClientData]:
        """The clients in order."""
        return iter(self.clients)

    def __getitem__(self, key: int | str) -> ClientData:
        """A client by position or name."""
        if isinstance(key, int):
            return self.clients[key]
        for c in self.clients:
            if c.name == key:
                return c
        raise InputError(f"no client {key!r}; there are {[c.name for c in self.clients]}")

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns, the same at every client that knows them."""
        return next((c.columns for c in self.clients if c.columns is not None), None)

    @property
    def train(self) -> Mapping[str, FloatArray]:
        """Training rows by client."""
        return {c.name: c.x for c in self.clients}

    @property
    def test(self) -> Mapping[str, FloatArray]:
        """Unlabelled test rows by client."""
        return {c.name: c.test_x for c in self.clients}

    def targets(self, client: str, goal: Goal = "all") -> Mapping[str, FloatArray]:
        """The test laws a goal sums over, as `fit(target=...)` takes them."""
        return {name: self[name].test_x for name in self.goal_names(client, goal)}

    def goal_names(self, client: str, goal: Goal = "all") -> tuple[str, ...]:
        """Names of the clients whose test laws a goal sums over, for training on `client`."""
        own = self[client].name
        if goal == "all":
            return tuple(c.name for c in self.clients)
        return (own if goal == "own" else self[goal].name,)

    def exact_log_ratio(self, client: str, goal: Goal = "all") -> Float64Array:
        """True log ratio at the training rows of a client.

        Raises
        ------
        InputError
            If the federation was not made by a builder that knows its ratios.
        """
        return self._known().log_ratio(self, client, goal)

    def exact_log_laws(self, client: str) -> Float64Array:
        """Log densities (n, K) of all clients' training laws at the training rows of one.

        Columns in the order of the clients; up to a term that may differ from row to row.

        Raises
        ------
        InputError
            If the federation was not made by a builder that knows its laws.
        """
        truth = self._known()
        if not hasattr(truth, "log_laws"):
            raise InputError(
                f"{type(truth).__name__} tells ratios but not training laws; give it log_laws, or "
                "take lean 0"
            )
        return truth.log_laws(self, client)

    def _known(self) -> Truth:
        if self.truth is None:
            raise InputError(
                "this federation's ratios are not known; estimate them with fedshift.ratio, or "
                "build it with a shift of fedshift.data"
            )
        return self.truth


class Shift(Protocol):
    """What makes a federation of labelled train and test rows."""

    def split(
        self, x: Rows, y: npt.ArrayLike, test_x: Rows, test_y: npt.ArrayLike, *, seed: int
    ) -> Federation:
        """Deal rows to clients."""


def federation(clients: Sequence[ClientData]) -> Federation:
    """A federation whose ratios are not known."""
    return Federation(tuple(clients))
