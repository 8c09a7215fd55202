"""The rows of each client, and the federation that the clients form."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, FloatArray, Rows, as_rows, column_names, same_names
from fedshift.errors import InputError

#: the test distributions in the target: "all" sums over every client, "own" takes the client's
#: own, and a client's name takes that client's
Goal = str
#: clients that the table of a printed federation shows
SHOWN = 12
#: where to go with a data frame that has text or missing values
ADVICE = "; fs.train and fs.fit_tables take fs.Sites.of({site: (train_df, deploy_df)}, label=…)"


@dataclass(frozen=True)
class ClientData:
    """One client: labelled training rows (x, y) and the rows its model will be used on (test_x).

    `ClientData.of` converts and checks its input; this constructor only stores.

    Attributes
    ----------
    name : str
    x : ndarray (n, ...)
        Training rows.
    y : ndarray (n,)
        Labels of the training rows.
    test_x : ndarray (m, ...)
        Unlabelled rows of the test (deployment) distribution.
    test_y : ndarray (m,), optional
        Labels of `test_x`, used only for evaluation: no ratio and no choice of model depends on
        them.
    columns : tuple of str, optional
        Column names, if the rows came as a data frame.
    drawn : int, optional
        Checksum of `test_x` when a shift builder attached exact ratios (`Federation.truth`).
    """

    name: str
    x: FloatArray
    y: npt.NDArray[Any]
    test_x: FloatArray
    test_y: npt.NDArray[Any] | None = None
    columns: tuple[str, ...] | None = None
    drawn: int | None = None

    @classmethod
    def of(cls, name: str, x: Rows, y: Any, test_x: Rows, test_y: Any = None) -> ClientData:
        """Return a client from array-likes, checked.

        Parameters
        ----------
        name : str
        x, test_x : array, tensor or data frame (n, ...), (m, ...)
        y : array-like (n,)
        test_y : array-like (m,), optional

        Raises
        ------
        InputError
            If `x` and `test_x` differ in the shape of a row or in their column names, there
            is not exactly one label per row, or a label is missing.

        Examples
        --------
        >>> ClientData.of("north", [[40.0], [50.0]], [0, 1], [[60.0]])
        ClientData('north', n=2, test n=1)
        """
        rows = as_rows(x, name=f"client {name!r}: x", advice=ADVICE)
        tests = as_rows(test_x, name=f"client {name!r}: test_x", advice=ADVICE)
        if tests.shape[1:] != rows.shape[1:]:
            raise InputError(
                f"client {name!r}: test_x must have rows of shape {rows.shape[1:]}, like x; "
                f"got {tests.shape[1:]}"
            )
        names, test_names = _columns(x), _columns(test_x)
        same_names(names, test_names, f"client {name!r}: test_x", of="x")
        labels = np.asarray(y)
        test_labels = None if test_y is None else np.asarray(test_y)
        for part, label, n in (("y", labels, len(rows)), ("test_y", test_labels, len(tests))):
            if label is not None and label.shape != (n,):
                raise InputError(
                    f"client {name!r}: {part} must hold one label per row, shape ({n},); "
                    f"got {label.shape}"
                )
        client = cls(name, rows, labels, tests, test_labels, names or test_names)
        client.check_labels()
        return client

    def check_labels(self) -> None:
        """Raise `InputError` if `y` or `test_y` holds a missing label, such as None or NaN."""
        for part, labels in (("y", self.y), ("test_y", self.test_y)):
            missing = None if labels is None else _missing(labels)
            if missing is not None and missing.any():
                row = int(np.argmax(missing))
                raise InputError(
                    f"client {self.name!r}: {part} must have a label for every row; "
                    f"got {int(missing.sum())} missing, the first in row {row}; drop those rows"
                    + (" or leave test_y out" if part == "test_y" else "")
                )

    def __repr__(self) -> str:
        return f"ClientData({self.name!r}, n={len(self.x)}, test n={len(self.test_x)})"


def _columns(x: Rows) -> tuple[str, ...] | None:
    names = column_names(x)
    return None if names is None else tuple(map(str, names))


def _missing(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
    """Return a mask of missing labels: None, or unequal to themselves. None: no label can be."""
    if labels.dtype.kind == "O":
        same = [False if v is None else v == v for v in labels]  # pandas.NA == pandas.NA is NA
        return np.array([not isinstance(s, bool | np.bool_) or not s for s in same])
    return np.asarray(labels != labels) if labels.dtype.kind in "fcmM" else None


class Truth(Protocol):
    """Exact density ratios of a federation, supplied by the shift builder that made it."""

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Return the log ratio (n,), target over source, at the training rows of `client`."""

    def log_densities(self, federation: Federation, client: str) -> Float64Array:
        """Return log densities (n, K) of the training distributions of all K clients.

        The densities are evaluated at the training rows of `client`. Each row of the result is
        known only up to an additive constant, the same in all columns. The constant cancels in
        partial pooling.
        """


@dataclass(frozen=True)
class Federation:
    """Clients in a fixed order, each with a unique name.

    Iterate over it, take `len` of it, and index it by position or by name.

    Attributes
    ----------
    clients : tuple of ClientData
        All have rows of one shape, and the same column names where they have names.
    truth : Truth, optional
        The exact density ratios, if a shift builder made the federation.

    Raises
    ------
    InputError
        If there is no client, two clients share a name, a client is called "all" or "own", or the
        clients' rows differ in shape or columns.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> def client(shift):
    ...     x = rng.normal(size=(100, 2))
    ...     return x, x[:, 0] > 0, rng.normal(shift, 1, size=(50, 2))
    >>> federation = Federation.of({"north": client(0.0), "south": client(1.0)})
    >>> federation["south"]
    ClientData('south', n=100, test n=50)
    """

    clients: tuple[ClientData, ...]
    truth: Truth | None = None

    def __post_init__(self) -> None:
        if not self.clients:
            raise InputError("a federation must have at least one client; got none")
        names = [c.name for c in self.clients]
        repeats = sorted(n for n, count in Counter(names).items() if count > 1)
        if repeats:
            raise InputError(f"clients must have unique names; got {repeats} more than once")
        if {"all", "own"} & set(names):
            raise InputError(
                "a client must not be called 'all' or 'own', the names of two targets; rename it"
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
        if self.truth is not None:  # exact ratios hold for these rows only
            marked = (replace(c, drawn=c.drawn or _checksum(c.test_x)) for c in self.clients)
            object.__setattr__(self, "clients", tuple(marked))

    @classmethod
    def of(cls, clients: Mapping[str, Sequence[Any]]) -> Federation:
        """Return a federation from a dict of tuples, one per client.

        Parameters
        ----------
        clients : mapping of name to (x, y, test_x) or (x, y, test_x, test_y)
            See `ClientData.of` for the parts.

        Raises
        ------
        InputError
            If a client's tuple does not have three or four parts, or its arrays do not fit
            together.
        """
        if not isinstance(clients, Mapping):
            raise InputError(
                "clients must be a dict, {name: (x, y, test_x)}; got "
                f"{type(clients).__name__}; give every client a name"
            )
        members = []
        for name, parts in clients.items():
            tuples = isinstance(parts, tuple | list)
            if not tuples or len(parts) not in (3, 4):
                raise InputError(
                    f"client {name!r} must be (x, y, test_x) or (x, y, test_x, test_y); got "
                    + (f"{len(parts)} parts" if tuples else type(parts).__name__)
                )
            members.append(ClientData.of(str(name), *parts))
        return cls(tuple(members))

    def __repr__(self) -> str:
        """Return a table of the first clients with their numbers of rows."""
        k, shape = len(self), self.clients[0].x.shape[1:]
        head = f"Federation of {k} client{'s' * (k > 1)}, rows of shape {shape}"
        lines = [f"  {'client':<30}  training rows  test rows  test labels"]
        for c in self.clients[:SHOWN]:
            name = c.name[:29] + "…" * (len(c.name) > 29)
            labels = "no" if c.test_y is None else "yes"
            lines.append(f"  {name:<30}  {len(c.x):>13,}  {len(c.test_x):>9,}  {labels:>11}")
        return "\n".join([head, *lines, *[f"  and {k - SHOWN} more"] * (k > SHOWN)])

    def __len__(self) -> int:
        """Number of clients."""
        return len(self.clients)

    def __iter__(self) -> Iterator[ClientData]:
        """Iterate over the clients in order."""
        return iter(self.clients)

    def __getitem__(self, key: int | str) -> ClientData:
        """Return a client by position or name."""
        if isinstance(key, int):
            return self.clients[key]
        for c in self.clients:
            if c.name == key:
                return c
        raise InputError(f"client must be one of {[c.name for c in self.clients]}; got {key!r}")

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Column names, or None if no client has them."""
        return next((c.columns for c in self.clients if c.columns is not None), None)

    @property
    def train(self) -> Mapping[str, FloatArray]:
        """Training rows (n, ...) by client name."""
        return {c.name: c.x for c in self.clients}

    @property
    def test(self) -> Mapping[str, FloatArray]:
        """Unlabelled test rows (m, ...) by client name."""
        return {c.name: c.test_x for c in self.clients}

    def targets(self, client: str, goal: Goal = "all") -> Mapping[str, FloatArray]:
        """Return the test rows that a client targets, by client, as `fit(target=...)` takes them.

        Parameters
        ----------
        client : str
            The client that trains.
        goal : str
            "all" targets the sum of the test distributions of all clients. "own" targets the
            test distribution of `client` itself. The name of another client targets the test
            distribution of that other client.
        """
        return {name: self[name].test_x for name in self.goal_names(client, goal)}

    def goal_names(self, client: str, goal: Goal = "all") -> tuple[str, ...]:
        """Return the names of the clients in the target; see `targets` for the parameters."""
        own = self[client].name
        if goal == "all":
            return tuple(c.name for c in self.clients)
        return (own if goal == "own" else self[goal].name,)

    def exact_log_ratio(self, client: str, goal: Goal = "all") -> Float64Array:
        """Return the exact log ratio (n,) at the training rows of a client.

        For client k it is log Σ_l p_l^te − log p_k^tr. Here p_k^tr is the training density of
        client k, p_l^te is the test density of client l, and l runs over the clients in the
        target (see `targets`).

        Raises
        ------
        InputError
            If no shift builder made the federation: real data have no known ratio. Or if clients
            were renamed, or the target's test rows changed, after the shift builder drew them.
        """
        truth = self._require_truth(client)
        for name in self.goal_names(client, goal):
            if _checksum(self[name].test_x) != self[name].drawn:
                raise InputError(
                    f"client {name!r}: exact ratios need the test rows that the shift builder "
                    "drew; got other rows; change rows before the builder's split, or estimate "
                    "the ratios with fedshift.ratio"
                )
        return truth.log_ratio(self, client, goal)

    def exact_log_densities(self, client: str) -> Float64Array:
        """Return log densities (n, K) of all K clients' training distributions.

        The densities are evaluated at the n training rows of `client`. Columns follow the order
        of the clients. Each row is known only up to an additive constant, the same in all columns.
        The constant cancels in partial pooling.

        Raises
        ------
        InputError
            If no shift builder made the federation, or the builder knows ratios only.
        """
        truth = self._require_truth(client)
        if not hasattr(truth, "log_densities"):
            raise InputError(
                "partial pooling needs the training distributions; "
                f"{type(truth).__name__} has no log_densities; add the method or set pooling=0"
            )
        return truth.log_densities(self, client)

    def _require_truth(self, client: str) -> Truth:
        """Return the exact ratios; raise if there are none, or they do not know the clients."""
        _ = self[client]  # raises for an unknown client
        if self.truth is None:
            raise InputError(
                "exact ratios need a federation made by a shift builder of fedshift.data; got one "
                "made otherwise; estimate the ratios with fedshift.ratio"
            )
        names = [c.name for c in self.clients]
        known = getattr(self.truth, "names", names)
        if unknown := [n for n in names if n not in known]:
            raise InputError(
                f"exact ratios need the clients of the shift builder, {list(known)}; got "
                f"{unknown}; keep their names"
            )
        return self.truth


def check_federation(federation: object, who: str) -> None:
    """Raise unless the argument of the function `who` is a federation."""
    if not isinstance(federation, Federation):
        raise InputError(
            f"{who} needs a fedshift.Federation; got {type(federation).__name__}; make one "
            "with Federation.of({name: (x, y, test_x)}); then score(federation) and "
            "fs.cross_validate(estimator, federation, grid) do what scikit-learn's functions of "
            f"(X, y) do{ADVICE}"
        )


def _checksum(x: FloatArray) -> int:
    """Return a checksum of rows, the same for float32 and float64; never 0."""
    return zlib.crc32(np.ascontiguousarray(x, dtype=np.float32).data.cast("B")) or 1


class Shift(Protocol):
    """A shift builder: makes a federation from labelled training and test rows."""

    def split(
        self, x: Rows, y: npt.ArrayLike, test_x: Rows, test_y: npt.ArrayLike, *, seed: int
    ) -> Federation:
        """Return a federation that assigns the rows to clients at random, by `seed`."""
