"""Label shift: clients differ in how often each class occurs, not in p(x | y)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, Rows
from fedshift.data.federation import Federation, Goal
from fedshift.data.shift.pool import Index, Int64Array, Pool, assemble, class_labels, client_names
from fedshift.errors import InputError

#: what to do when a class has too few rows
Short = Literal["error", "shrink", "reuse"]


@dataclass(frozen=True, eq=False)
class LabelDistributions:
    """Exact ratios under label shift, from the label distributions of every client.

    p(x | y) is shared, so the ratio of client k is r_k(x, y) = Σ_l p_l^te(y) / p_k^tr(y). Here
    p_k^tr is the training label distribution of client k, p_l^te is the test label distribution of
    client l, and l runs over the clients in the target, all with equal weight. If y is a function
    of x, this is also the ratio of p(x) (proposition on target shift in Ramezani-Kebrya et al.,
    TMLR 2023).

    The log ratio is −∞ where no target distribution has the class. It is never +∞, because the
    class of a training row has positive probability in training.

    Attributes
    ----------
    names : tuple of str
        Client names.
    train, test : ndarray (clients, classes)
        p_k^tr(y) and p_k^te(y); each row sums to one.
    """

    names: tuple[str, ...]
    train: Float64Array
    test: Float64Array

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Return the log ratio (n,) at the training rows of a client, by their labels."""
        goals = [self.names.index(name) for name in federation.goal_names(client, goal)]
        with np.errstate(divide="ignore"):  # log 0 is −∞, see the class
            target = np.log(self.test[goals].sum(axis=0))
            source = np.log(self.train[self.names.index(client)])
        y = self._labels(federation, client)
        return np.asarray(target[y] - source[y])

    def log_densities(self, federation: Federation, client: str) -> Float64Array:
        """Return log p_j^tr(y) (n, K) of all K clients j at the training rows of `client`."""
        shares = self.train[[self.names.index(c.name) for c in federation]]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(shares[:, self._labels(federation, client)]).T)

    def _labels(self, federation: Federation, client: str) -> Int64Array:
        return class_labels(federation[client].y, self.train.shape[1], f"client {client!r}:")


@dataclass(frozen=True, eq=False)
class Labels:
    """Label shift from tables that count the rows of each class at each client.

    p(x | y) is shared, so the exact ratio depends on label distributions only and needs no model of
    x. `LabelDistributions` gives its formula.

    Parameters
    ----------
    train, test : int array (clients, classes)
        Number of rows of each class.
    train_distribution, test_distribution : array (clients, classes), optional
        Label distributions p_k^tr(y) and p_k^te(y), if the counts are rounded or drawn from them.
        The exact ratio then uses these distributions. By default the exact ratio uses the shares of
        the counts, and a client's weighted label histogram equals the target histogram exactly.
    short : {"error", "shrink", "reuse"}
        What to do if a class has fewer rows than its column of the table assigns.

        - "error": raise an error.
        - "shrink": multiply that side's whole table by one factor so that it fits; a positive
          count stays at least 1. For example, the CIFAR-10 table of `paper` is the Fashion-MNIST
          table times 5/6.
        - "reuse": let clients share the rows of that class. A client gets a row twice only if
          the class has fewer rows than the client alone needs.

    Raises
    ------
    InputError
        If a table does not hold whole counts ≥ 0 or has a row of zeros, the two tables differ in
        shape, a distribution does not fit its table, or `short="shrink"` is used together with a
        distribution.

    Examples
    --------
    Two clients, two classes: the second client trains mostly on class 1 and is used on class 0.

    >>> from fedshift.data import Labels
    >>> shift = Labels(train=[[50, 50], [10, 90]], test=[[20, 20], [30, 10]])
    >>> shift
    Labels(2 clients, 2 classes, 200 train + 80 test rows)
    >>> rows = [[0.0]] * 300, [0, 1] * 150
    >>> federation = shift.split(*rows, *rows, seed=0)
    >>> own = federation.exact_log_ratio("client-2", "own")  # log(.75 / .1) and log(.25 / .9)
    >>> sorted({round(float(v), 2) for v in own})
    [-1.28, 2.01]

    A table of Ramezani-Kebrya et al. (TMLR 2023):

    >>> Labels.paper("five-clients")
    Labels(5 clients, 10 classes, 30840 train + 5110 test rows)
    """

    train: Int64Array
    test: Int64Array
    train_distribution: Float64Array | None = None
    test_distribution: Float64Array | None = None
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
            distribution = getattr(self, f"{side}_distribution")
            if distribution is not None:
                distribution = _distribution(
                    distribution, getattr(self, side), f"{side}_distribution"
                )
                object.__setattr__(self, f"{side}_distribution", distribution)
        if self.short not in ("error", "shrink", "reuse"):
            raise InputError(f"short must be 'error', 'shrink' or 'reuse'; got {self.short!r}")
        if self.short == "shrink" and (
            self.train_distribution is not None or self.test_distribution is not None
        ):
            raise InputError(
                "short='shrink' changes the counts, so they would no longer follow "
                "train_distribution and test_distribution; use 'error' or 'reuse', or omit these"
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
        """Return tables in which each client has a main class in training and another in the test.

        Client k (from 0) trains mostly on class ``classes − clients + k`` and is tested mostly on
        class k.

        Parameters
        ----------
        clients, classes : int
            At most as many clients as classes.
        train, test : (int, int)
            Rows of the main class, and of each other class.
        """
        if not 1 <= clients <= classes:
            raise InputError(
                f"clients must be 1 to {classes}, one main class each; got {clients}; "
                "pass count tables to Labels instead"
            )
        tables = []
        for (main, rest), first in ((train, classes - clients), (test, 0)):
            table = np.full((clients, classes), rest)
            table[np.arange(clients), first + np.arange(clients)] = main
            tables.append(table)
        return cls(tables[0], tables[1])

    @classmethod
    def paper(cls, name: str) -> Labels:
        """Return a table of Ramezani-Kebrya et al. (TMLR 2023, appendix on target shift) by name.

        ==========================  ===============================================================
        ``five-clients``            Fashion-MNIST; rows of the main class and of each other class:
                                    5862 and 34 in training, 977 and 5 in the test
        ``five-clients-cifar``      CIFAR-10; rows of the main class and of each other class:
                                    4885 and 28 in training, 977 and 5 in the test
        ``two-clients``             Fashion-MNIST; one client has many more rows than the other
        ``hundred-clients-cifar``   CIFAR-10; 10 label distributions, each shared by 10 clients
        ==========================  ===============================================================

        The first three tables use ``short="shrink"``, so they fit smaller sets, such as digits.

        For the hundred clients the paper gives distributions but no counts: 95 % of one class and
        5/9 % of each of the nine others. Here each client has 500 training and 100 test rows, which
        uses each image of CIFAR-10 once. Because 5 % of 500 (or of 100) rows cannot be split
        equally among nine classes, a client has 2 or 3 training rows (test rows: 0 or 1) of a rare
        class. The exact ratio uses the distributions, not the counts.

        Raises
        ------
        InputError
            If there is no table of that name.
        """
        tables = {
            "five-clients": lambda: replace(
                cls.one_class_each(train=(5862, 34), test=(977, 5)), short="shrink"
            ),
            "five-clients-cifar": lambda: replace(
                cls.one_class_each(train=(4885, 28), test=(977, 5)), short="shrink"
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
        """Return a federation: assign each client as many rows of each class as its table says.

        Training rows come from (x, y), test rows from (test_x, test_y). No row is used twice,
        unless `short` is "reuse".

        Parameters
        ----------
        x, test_x : rows (n, ...), (m, ...)
            uint8 images become float32 in [0, 1].
        y, test_y : class numbers (n,), (m,)
        seed : int
            Chooses which rows of a class a client gets.

        Raises
        ------
        InputError
            If a label is not a class of the table, or a class has fewer rows than the table needs
            and `short` is "error".
        """
        rng = np.random.default_rng(seed)
        return self.assign(Pool.of(x, y, "train"), Pool.of(test_x, test_y, "test"), rng)

    def assign(self, train: Pool, test: Pool, rng: np.random.Generator) -> Federation:
        """Return what `split` returns, from pools of rows and a random generator."""
        sides, shares = [], []
        for side, pool in (("train", train), ("test", test)):
            counts, distribution = getattr(self, side), getattr(self, f"{side}_distribution")
            y = class_labels(pool.y, counts.shape[1], side)
            if self.short == "shrink":
                counts = _shrink(counts, np.bincount(y, minlength=counts.shape[1]), side)
            indices = _assign(counts, y, side, rng, reuse=self.short == "reuse")
            sides.append([(pool.take(i), y[i]) for i in indices])
            shares.append(
                counts / counts.sum(axis=1, keepdims=True) if distribution is None else distribution
            )
        names = client_names(len(self.train))
        return Federation(assemble(names, *sides), LabelDistributions(names, shares[0], shares[1]))


def _table(counts: npt.ArrayLike, name: str) -> Int64Array:
    table = np.asarray(counts)
    if table.dtype.kind not in "iu" or table.ndim != 2 or not table.size:
        raise InputError(
            f"{name} must be a table (clients, classes) of whole counts; got shape {table.shape}, "
            f"dtype {table.dtype}"
        )
    if len(wrong := table[(table < 0).any(axis=1) | (table.sum(axis=1) == 0)]):
        raise InputError(f"{name} must be counts ≥ 0, some above 0 for each client; got {wrong[0]}")
    return table.astype(np.int64)


def _distribution(distribution: npt.ArrayLike, counts: Int64Array, name: str) -> Float64Array:
    q = np.asarray(distribution, dtype=np.float64)
    if q.shape != counts.shape:
        raise InputError(f"{name} must have the shape of the counts, {counts.shape}; got {q.shape}")
    if len(wrong := q[~((q >= 0).all(axis=1) & np.isclose(q.sum(axis=1), 1.0))]):
        raise InputError(f"{name} must have rows of probabilities with sum one; got {wrong[0]}")
    if (counts[q == 0] > 0).any():
        raise InputError(f"{name} must be positive wherever the counts are; got 0 there")
    return q


def _hundred() -> Labels:
    """Return the table in which group g of ten clients trains on class g, tested on 9 − g."""
    group, turn = np.divmod(np.arange(100), 10)
    sides = []
    for main, rows in ((group, 500), (9 - group, 100)):
        # the j-th class after the main one: one pattern by j for all groups fills each class
        after = (np.arange(10) - main[:, None]) % 10
        rare = rows // 20
        whole, extra = divmod(rare, 9)
        # `extra` of nine rare classes get one more row, in turn over the clients of a group
        more = (after - 1 - turn[:, None] * extra) % 9 < extra
        counts = np.where(after == 0, rows - rare, whole + more)
        sides.append((counts, np.where(after == 0, 0.95, 0.05 / 9)))
    return Labels(sides[0][0], sides[1][0], sides[0][1], sides[1][1])


def _shrink(counts: Int64Array, have: Int64Array, side: str) -> Int64Array:
    """Return the table times the largest factor at which every class has enough rows."""
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
        factor *= 0.999  # rounding rare classes up needs a little more than the factor allows


def _assign(
    counts: Int64Array, y: Int64Array, side: str, rng: np.random.Generator, *, reuse: bool
) -> list[Index]:
    """Return the row numbers of each client, shuffled."""
    indices: list[list[Index]] = [[] for _ in counts]
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
        for mine, part in zip(indices, parts, strict=True):
            mine.append(part)
    return [rng.permutation(np.concatenate(parts)) for parts in indices]
