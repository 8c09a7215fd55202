"""Shift builders that know their exact log ratio. They shift the train AND the test side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, Rows, as_rows
from fedshift.data.federation import ClientData, Federation, Goal
from fedshift.errors import InputError

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelLaws:
    """Label laws of every client; with separable classes they give the ratio exactly.

    r_k(y) = Σ_l p_l^te(y) / p_k^tr(y), and every client's test law counts once.
    """

    names: tuple[str, ...]
    train: Float64Array
    test: Float64Array

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Log ratio at every training row of a client, looked up by its label."""
        k = self.names.index(client)
        if goal == "all":
            target = self.test.sum(axis=0)
        else:
            target = self.test[self.names.index(client if goal == "own" else goal)]
        with np.errstate(divide="ignore"):
            table = np.log(target) - np.log(self.train[k])
        return np.asarray(table[federation[client].y])


@dataclass(frozen=True)
class Labels:
    """Label shift by count tables: how many rows of each class every client has.

    Attributes
    ----------
    train, test : int array (clients, classes)
    """

    train: Counts
    test: Counts

    def __post_init__(self) -> None:
        for side in ("train", "test"):
            table = np.asarray(getattr(self, side), dtype=np.int64)
            if table.ndim != 2 or (table < 0).any() or not table.sum(axis=1).all():
                raise InputError(
                    f"{side} must be a table (clients, classes) of counts ≥ 0, some in every row; "
                    f"got shape {table.shape}"
                )
            object.__setattr__(self, side, table)
        if self.train.shape != self.test.shape:
            raise InputError(
                f"train and test must have the same clients and classes; got {self.train.shape} "
                f"and {self.test.shape}"
            )

    @classmethod
    def one_class_each(
        cls, *, clients: int = 5, classes: int = 10, train: tuple[int, int], test: tuple[int, int]
    ) -> Labels:
        """Client k trains mostly on class ``classes − clients + k`` and is used mostly on class k.

        Parameters
        ----------
        train, test : (int, int)
            Rows of the main class and of each other class.
        """
        tables = []
        for (main, rest), first in ((train, classes - clients), (test, 0)):
            table = np.full((clients, classes), rest)
            table[np.arange(clients), first + np.arange(clients)] = main
            tables.append(table)
        return cls(*tables)

    @classmethod
    def paper(cls, name: str) -> Labels:
        """A label table of the paper (TMLR 2023) by name."""
        tables = {
            "five-clients": lambda: cls.one_class_each(train=(5862, 34), test=(977, 5)),
            "five-clients-cifar": lambda: cls.one_class_each(train=(4885, 28), test=(977, 5)),
            "two-clients": lambda: cls(
                np.array([[100] * 10, [39] * 5 + [3986] * 5]),
                np.array([[9] * 5 + [990] * 5, [990] * 5 + [9] * 5]),
            ),
        }
        if name not in tables:
            raise InputError(f"paper table must be one of {', '.join(tables)}; got {name!r}")
        return tables[name]()

    def split(
        self, x: Rows, y: npt.ArrayLike, test_x: Rows, test_y: npt.ArrayLike, *, seed: int
    ) -> Federation:
        """Deal rows to clients without replacement, train side from (x, y), test side from test.

        Raises
        ------
        InputError
            If a class has fewer rows than the table asks for.
        """
        rng = np.random.default_rng(seed)
        sides = []
        for side, rows, labels in (("train", x, y), ("test", test_x, test_y)):
            sides.append(_deal(getattr(self, side), rows, np.asarray(labels), side, rng))
        names = tuple(f"client-{k + 1}" for k in range(len(self.train)))
        clients = tuple(
            ClientData(name, *sides[0][k], *sides[1][k]) for k, name in enumerate(names)
        )
        laws = [t / t.sum(axis=1, keepdims=True) for t in (self.train, self.test)]
        return Federation(clients, LabelLaws(names, laws[0], laws[1]))


def _deal(
    table: Counts, x: Rows, y: npt.NDArray[np.int64], side: str, rng: np.random.Generator
) -> list[tuple[npt.NDArray[np.floating], npt.NDArray[np.int64]]]:
    rows = as_rows(x, name=f"{side} rows")
    picked: list[list[npt.NDArray[np.intp]]] = [[] for _ in table]
    for c in range(table.shape[1]):
        index = rng.permutation(np.flatnonzero(y == c))
        need = int(table[:, c].sum())
        if len(index) < need:
            raise InputError(
                f"class {c} needs {need} {side} rows; got {len(index)}; use smaller counts"
            )
        for k, part in enumerate(np.split(index[:need], np.cumsum(table[:, c])[:-1])):
            picked[k].append(part)
    out = []
    for parts in picked:
        index = rng.permutation(np.concatenate(parts))
        out.append((rows[index], y[index]))
    return out
