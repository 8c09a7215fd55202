"""Clients and the federation they form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, FloatArray, Rows, as_rows
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
    """

    name: str
    x: FloatArray
    y: npt.NDArray[Any]
    test_x: FloatArray
    test_y: npt.NDArray[Any] | None = None

    @classmethod
    def of(cls, name: str, x: Rows, y: Any, test_x: Rows, test_y: Any = None) -> ClientData:
        """A client from anything array-like, checked."""
        rows = as_rows(x, name=f"client {name!r}: x")
        tests = as_rows(test_x, name=f"client {name!r}: test_x")
        if tests.shape[1:] != rows.shape[1:]:
            raise InputError(
                f"client {name!r}: test_x must have rows of shape {rows.shape[1:]}, as x; "
                f"got {tests.shape[1:]}"
            )
        labels = np.asarray(y)
        test_labels = None if test_y is None else np.asarray(test_y)
        for part, label, n in (("y", labels, len(rows)), ("test_y", test_labels, len(tests))):
            if label is not None and label.shape != (n,):
                raise InputError(
                    f"client {name!r}: {part} must hold one label a row, shape ({n},); "
                    f"got {label.shape}"
                )
        return cls(name, rows, labels, tests, test_labels)

    def __repr__(self) -> str:
        return f"ClientData({self.name!r}, n={len(self.x)}, test n={len(self.test_x)})"


class Truth(Protocol):
    """Exact log ratios, known to whoever built the shift."""

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Log ratio at every training row of `client`."""


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

    @classmethod
    def of(cls, clients: Mapping[str, Sequence[Any]]) -> Federation:
        """A federation from ``{name: (x, y, test_x)}`` or ``{name: (x, y, test_x, test_y)}``."""
        made = []
        for name, parts in clients.items():
            if len(parts) not in (3, 4):
                raise InputError(
                    f"client {name!r}: needs (x, y, test_x) or (x, y, test_x, test_y); got "
                    f"{len(parts)} parts"
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
        if self.truth is None:
            raise InputError(
                "this federation's ratios are not known; estimate them with fedshift.ratio, or "
                "build it with a shift of fedshift.data"
            )
        return self.truth.log_ratio(self, client, goal)


class Shift(Protocol):
    """What makes a federation of labelled train and test rows."""

    def split(
        self, x: Rows, y: npt.ArrayLike, test_x: Rows, test_y: npt.ArrayLike, *, seed: int
    ) -> Federation:
        """Deal rows to clients."""


def federation(clients: Sequence[ClientData]) -> Federation:
    """A federation whose ratios are not known."""
    return Federation(tuple(clients))
