"""Every random choice of a run, from one seed and no memory.

A choice is a hash of what it is for (seed, client, round, …), so any engine, on any device and
after any interruption, draws the same batches, participants and crops, and adding or reordering
clients changes nothing for the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array

Words = npt.NDArray[np.uint64]
Index = npt.NDArray[np.int64]

_STEP = np.uint64(0x9E3779B97F4A7C15)


def key(seed: int, *parts: str | int) -> np.uint64:
    """A 64-bit name of a stream of choices."""
    text = "\x1f".join(map(str, (seed, *parts)))
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))


def mix(words: Words) -> Words:
    """Scramble 64-bit words, each on its own, without collisions (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        z = words * np.uint64(1)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))


def words(name: np.uint64 | Words, *counters: int | Index) -> Words:
    """Random words at counters, which broadcast: ``words(k, round, arange(n))`` has shape (n,)."""
    with np.errstate(over="ignore"):
        out = np.asarray(name, dtype=np.uint64)
        for counter in counters:
            out = mix(out + _STEP * (np.asarray(counter).astype(np.uint64) + np.uint64(1)))
    return out


def uniform(name: np.uint64 | Words, *counters: int | Index) -> Float64Array:
    """Numbers in [0, 1), as `words`."""
    return np.asarray((words(name, *counters) >> np.uint64(11)) * 2.0**-53)


def permutation(name: np.uint64, counter: int, n: int) -> Index:
    """An order of 0 … n − 1."""
    return np.argsort(words(name, counter, np.arange(n)), kind="stable")


class Rows:
    """Which rows of a client make up a batch.

    Without weights the rows are shuffled and dealt epoch by epoch, so each is met once an epoch;
    batch b holds positions b·B … (b + 1)·B − 1 of the endless sequence. With weights every row
    is drawn with probability ∝ its weight, with replacement.

    Parameters
    ----------
    seed : int
    client : str
    n : int
        Rows of the client.
    batch_size : int
        May be larger than n.
    weight : float array (n,), optional
    """

    def __init__(
        self, seed: int, client: str, n: int, batch_size: int, weight: Float64Array | None = None
    ) -> None:
        self.n, self.batch_size = n, batch_size
        self._key = key(seed, "rows", client)
        self._steps = None if weight is None else np.cumsum(weight) / np.sum(weight)
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def batches(self, first: int, count: int) -> Index:
        """Rows of batches `first` … `first + count − 1`, shape (count, B)."""
        start = first * self.batch_size
        total = count * self.batch_size
        if self._steps is not None:
            u = uniform(self._key, np.arange(start, start + total))
            drawn = np.minimum(np.searchsorted(self._steps, u, side="right"), self.n - 1)
        else:
            parts = []
            while total:
                epoch, at = divmod(start, self.n)
                if epoch != self._epoch:
                    self._epoch, self._order = epoch, permutation(self._key, epoch, self.n)
                part = self._order[at : at + total]
                parts.append(part)
                start, total = start + len(part), total - len(part)
            drawn = np.concatenate(parts)
        return drawn.reshape(count, self.batch_size)


class Lottery:
    """Which m of K clients take part in a round, all equally likely."""

    def __init__(self, seed: int, clients: Sequence[str], count: int) -> None:
        self._keys = np.array([key(seed, "lottery", c) for c in clients], dtype=np.uint64)
        self.count = count

    def draw(self, first: int, count: int) -> Index:
        """Positions of the clients of `count` rounds, (count, m), each round's in order."""
        if self.count >= len(self._keys):
            return np.tile(np.arange(len(self._keys)), (count, 1))
        number = np.arange(first, first + count, dtype=np.uint64)[:, None]
        with np.errstate(over="ignore"):
            tickets = mix(self._keys + _STEP * (number + np.uint64(1)))
        return np.sort(np.argpartition(tickets, self.count, axis=1)[:, : self.count], axis=1)
