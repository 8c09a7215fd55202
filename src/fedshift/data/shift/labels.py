"""Label shift: clients differ in how often each class occurs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, Rows
from fedshift.data.federation import Federation, Goal
from fedshift.data.shift.pool import (
    Index,
    Int64Array,
    Pool,
    assemble,
    class_labels,
    client_names,
)
from fedshift.errors import InputError

#: what to do when a class has too few rows
Short = Literal["error", "shrink", "reuse"]


@dataclass(frozen=True, eq=False)
class LabelLaws:
    """Label laws of every client; where p(x | y) is shared they give the joint ratio exactly.

    r_k(x, y) = Σ_l p_l^te(y) / p_k^tr(y), and every client's test law counts once. If the classes
    are separable (y is a function of x) this is the ratio of p(x) too, the paper's proposition on
    target shift. −∞ where no target law has the class; never +∞, as a training row's class has a
    positive train law.

    Attributes
    ----------
    train, test : ndarray (clients, classes)
        Each row sums to one.
    """

    names: tuple[str, ...]
    train: Float64Array
    test: Float64Array

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Log ratio at every training row of a client, looked up by its label."""
        goals = [self.names.index(name) for name in federation.goal_names(client, goal)]
        with np.errstate(divide="ignore"):  # log 0 of either law, see above
            target = np.log(self.test[goals].sum(axis=0))
            source = np.log(self.train[self.names.index(client)])
        y = federation[client].y
        return np.asarray(target[y] - source[y])

    def log_laws(self, federation: Federation, client: str) -> Float64Array:
        """Log p_j(y) of all clients' training laws at the training rows of one, (n, K)."""
        laws = self.train[[self.names.index(c.name) for c in federation]]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(laws[:, federation[client].y]).T)


@dataclass(frozen=True, eq=False)
class Labels:
    """Label shift by count tables: how many rows of each class every client has.

    p(x | y) stays the same, so the exact ratio is Σ_l p_l^te(y) / p_k^tr(y) (see `LabelLaws`).

    Parameters
    ----------
    train, test : int array (clients, classes)
        Rows of each class.
    train_law, test_law : array (clients, classes), optional
        The laws the counts are a rounding or a draw of; the exact ratio is then theirs. By default
        the laws are the counts' own shares, so that weighting a client's label histogram gives the
        target histogram to the last digit.
    short : {"error", "shrink", "reuse"}
        If a class has fewer rows than its column asks for: raise; shrink the whole table of that
        side by one factor until it fits, no positive count below one (as the paper's
        CIFAR-10 table is 5/6 of its Fashion-MNIST table); or let clients share that class's
        rows, each drawing its own without replacement where the class has enough for it.

    Examples
    --------
    >>> Labels.paper("five-clients")
    Labels(5 clients, 10 classes, 30840 train + 5110 test rows)
    """

    train: Int64Array
    test: Int64Array
    train_law: Float64Array | None = None
    test_law: Float64Array | None = None
    short: Short = "error"

    def __post_init__(self) -> None:
        for side in ("train", "test"):
            object.__setattr__(self, side, _table(getattr(self, side), side))
        if self.train.shape != self.test.shape:
            raise InputError(
                f"train and test must have the same clients and classes; got {self.train.shape} "
                f"and {self.test.shape}"
            )
        for side in ("train", "test"):
            law = getattr(self, f"{side}_law")
            if law is not None:
                law = _law(law, getattr(self, side), f"{side}_law")
                object.__setattr__(self, f"{side}_law", law)
        if self.short not in ("error", "shrink", "reuse"):
            raise InputError(f"short must be 'error', 'shrink' or 'reuse'; got {self.short!r}")
        if self.short == "shrink" and (self.train_law is not None or self.test_law is not None):
            raise InputError(
                "short='shrink' rounds counts, which would part them from the laws given; "
                "use 'error' or 'reuse', or leave the laws out"
            )

    def __repr__(self) -> str:
        clients, classes = self.train.shape
        return (
            f"Labels({clients} clients, {classes} classes, {self.train.sum()} train + "
            f"{self.test.sum()} test rows)"
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
        if not 1 <= clients <= classes:
            raise InputError(
                f"clients must be 1 to {classes}, one main class each; got {clients}; "
                "give a table of your own instead"
            )
        tables = []
        for (main, rest), first in ((train, classes - clients), (test, 0)):
            table = np.full((clients, classes), rest)
            table[np.arange(clients), first + np.arange(clients)] = main
            tables.append(table)
        return cls(tables[0], tables[1])

    @classmethod
    def paper(cls, name: str) -> Labels:
        """A label table of the paper (TMLR 2023, appendix on target shift) by name.

        ==========================  ==================================================
        ``five-clients``            Fashion-MNIST, 5862 and 34; test 977 and 5
        ``five-clients-cifar``      CIFAR-10, 4885 and 28; test 977 and 5
        ``two-clients``             Fashion-MNIST, unequal sizes
        ``hundred-clients-cifar``   CIFAR-10, 10 label laws, each shared by 10 clients
        ==========================  ==================================================

        The first three shrink on smaller sets, such as digits (see `short`).

        The paper gives the hundred clients' laws, 95 % of one class and 5/9 % of every other, but
        no counts. 500 train and 100 test rows a client use each image of CIFAR-10 exactly once;
        5 % of them does not divide by nine, so a client has 2 or 3 (test: 0 or 1) rows of a rare
        class, in turn, and the exact ratio is that of the laws.
        """
        tables = {
            "five-clients": lambda: _shrinking(cls.one_class_each(train=(5862, 34), test=(977, 5))),
            "five-clients-cifar": lambda: _shrinking(
                cls.one_class_each(train=(4885, 28), test=(977, 5))
            ),
            "two-clients": lambda: cls(
                np.array([[100] * 10, [39] * 5 + [3986] * 5]),
                np.array([[9] * 5 + [990] * 5, [990] * 5 + [9] * 5]),
                short="shrink",
            ),
            "hundred-clients-cifar": _hundred,
        }
        if name not in tables:
            raise InputError(f"paper table must be one of {', '.join(tables)}; got {name!r}")
        return tables[name]()

    def split(
        self, x: Rows, y: npt.ArrayLike, test_x: Rows, test_y: npt.ArrayLike, *, seed: int
    ) -> Federation:
        """Deal rows to clients without replacement, train side from (x, y), test side from test.

        Parameters
        ----------
        x, test_x : rows (n, ...), (m, ...)
            uint8 images become float32 in [0, 1].
        y, test_y : class numbers (n,), (m,)

        Raises
        ------
        InputError
            If a label is not a class of the table, or a class has fewer rows than the table asks
            for and `short` is "error".
        """
        rng = np.random.default_rng(seed)
        return self.deal(Pool.of(x, y, "train"), Pool.of(test_x, test_y, "test"), rng)

    def deal(self, train: Pool, test: Pool, rng: np.random.Generator) -> Federation:
        """What `split` does, with checked rows and a generator in use."""
        sides, laws = [], []
        for side, pool in (("train", train), ("test", test)):
            counts, law = getattr(self, side), getattr(self, f"{side}_law")
            y = class_labels(pool.y, counts.shape[1], side)
            if self.short == "shrink":
                counts = _shrunk(counts, np.bincount(y, minlength=counts.shape[1]), side)
            indices = _deal(counts, y, side, rng, reuse=self.short == "reuse")
            sides.append([(pool.take(i), y[i]) for i in indices])
            laws.append(counts / counts.sum(axis=1, keepdims=True) if law is None else law)
        names = client_names(len(self.train))
        return Federation(assemble(names, *sides), LabelLaws(names, laws[0], laws[1]))


def _table(counts: npt.ArrayLike, name: str) -> Int64Array:
    table = np.asarray(counts)
    if (
        table.dtype.kind not in "iu"
        or table.ndim != 2
        or not table.size
        or (table < 0).any()
        or not table.sum(axis=1).all()
    ):
        raise InputError(
            f"{name} must be a table (clients, classes) of whole counts ≥ 0, some in every row; "
            f"got shape {table.shape}, dtype {table.dtype}"
        )
    return table.astype(np.int64)


def _law(law: npt.ArrayLike, counts: Int64Array, name: str) -> Float64Array:
    q = np.asarray(law, dtype=np.float64)
    if q.shape != counts.shape or not (q >= 0).all() or not np.allclose(q.sum(axis=-1), 1.0):
        raise InputError(
            f"{name} must have a row of probabilities for each client, shape {counts.shape}, each "
            f"summing to one; got shape {q.shape}"
        )
    if (counts[q == 0] > 0).any():
        raise InputError(f"{name} must be positive wherever the counts are; got zeros there")
    return q


def _shrinking(labels: Labels) -> Labels:
    return Labels(labels.train, labels.test, short="shrink")


def _hundred() -> Labels:
    """Group g of ten clients trains mostly on class g and is used mostly on class 9 − g."""
    group, turn = np.divmod(np.arange(100), 10)
    sides = []
    for main, rows in ((group, 500), (9 - group, 100)):
        # the j-th class after the main one; the same pattern by j in all groups fills each class
        after = (np.arange(10) - main[:, None]) % 10
        rare = rows // 20
        whole, extra = divmod(rare, 9)
        # `extra` of nine rare classes get one row more, and over the clients of a group in turn
        more = (after - 1 - turn[:, None] * extra) % 9 < extra
        counts = np.where(after == 0, rows - rare, whole + more)
        sides.append((counts, np.where(after == 0, 0.95, 0.05 / 9)))
    return Labels(sides[0][0], sides[1][0], sides[0][1], sides[1][1])


def _shrunk(counts: Int64Array, have: Int64Array, side: str) -> Int64Array:
    """The table times the largest factor at which every class has rows enough."""
    need = counts.sum(axis=0)
    if (need <= have).all():
        return counts
    if ((counts > 0).sum(axis=0) > have).any():
        c = int(np.argmax((counts > 0).sum(axis=0) - have))
        raise InputError(
            f"class {c} needs one {side} row for each of {(counts[:, c] > 0).sum()} clients; got "
            f"{have[c]}; use fewer clients"
        )
    used = need > 0
    factor = float((have[used] / need[used]).min())
    while True:
        table = np.where(counts > 0, np.maximum(1, np.rint(counts * factor)), 0).astype(np.int64)
        if (table.sum(axis=0) <= have).all():
            return table
        factor *= 0.999  # rounding up rare classes took a little more than the factor allows


def _deal(
    counts: Int64Array, y: Int64Array, side: str, rng: np.random.Generator, *, reuse: bool
) -> list[Index]:
    """Rows of each client, shuffled."""
    picked: list[list[Index]] = [[] for _ in counts]
    for c, column in enumerate(counts.T):
        index = rng.permutation(np.flatnonzero(y == c))
        need = int(column.sum())
        if len(index) >= need:
            parts = np.split(index[:need], np.cumsum(column)[:-1])
        elif reuse and len(index):
            parts = [rng.choice(index, int(n), replace=bool(n > len(index))) for n in column]
        else:
            raise InputError(
                f"class {c} needs {need} {side} rows; got {len(index)}; use smaller counts, or "
                "short='reuse' to let clients share rows"
            )
        for mine, part in zip(picked, parts, strict=True):
            mine.append(part)
    return [rng.permutation(np.concatenate(parts)) for parts in picked]
