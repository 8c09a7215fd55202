"""Random choices of a run: all are computed from one seed, without a generator's state.

A choice is a hash of its name: the seed, the kind of choice, the client, the round and so on. So
every engine draws the same batches, participants and crops, on every device and also after an
interruption. Adding or reordering clients does not change the choices of the other clients.
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
    """Return the 64-bit key of a sequence of random choices, named by the seed and the parts."""
    text = "\x1f".join(map(str, (seed, *parts)))
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))


def mix(words: Words) -> Words:
    """Scramble each 64-bit word; different words stay different (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        z = words * np.uint64(1)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))


def words(name: np.uint64 | Words, *counters: int | Index) -> Words:
    """Return random 64-bit words for a key (`name`) and counters.

    Counters broadcast as numpy arrays do: ``words(k, round, arange(n))`` has shape (n,).
    """
    with np.errstate(over="ignore"):
        out = np.asarray(name, dtype=np.uint64)
        for counter in counters:
            out = mix(out + _STEP * (np.asarray(counter).astype(np.uint64) + np.uint64(1)))
    return out


def uniform(name: np.uint64 | Words, *counters: int | Index) -> Float64Array:
    """Return random numbers, uniform in [0, 1), in the shape that `words` returns."""
    return np.asarray((words(name, *counters) >> np.uint64(11)) * 2.0**-53)


def permutation(name: np.uint64, counter: int, n: int) -> Index:
    """Return the numbers 0 … n − 1 in random order."""
    return np.argsort(words(name, counter, np.arange(n)), kind="stable")


class BatchRows:
    """The rows of a client's batches.

    Without weights, the rows are shuffled anew for every epoch, so each row occurs once per epoch.
    The shuffled epochs, one after the other, form an endless sequence. With batch size B, batch b
    is the rows at positions b·B … (b + 1)·B − 1 of this sequence. With weights, rows are drawn with
    replacement, with probabilities proportional to the weights.

    Parameters
    ----------
    seed : int
    client : str
    n : int
        Number of rows of the client.
    batch_size : int
        May be larger than n.
    weight : float array (n,), optional
        Weights of the rows.
    """

    def __init__(
        self, seed: int, client: str, n: int, batch_size: int, weight: Float64Array | None = None
    ) -> None:
        self.n, self.batch_size = n, batch_size
        self._key = key(seed, "rows", client)
        self._steps = None if weight is None else np.cumsum(weight) / np.sum(weight)
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def batches(self, first: int, count: int) -> Index:
        """Return positions of the rows of batches `first` … `first + count − 1`, (count, B)."""
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
    """Draws m of all clients for every round; all subsets of m clients are equally likely.

    Parameters
    ----------
    seed : int
    clients : sequence of str
        Names of all clients.
    count : int
        Number m of clients that are drawn for each round.
    """

    def __init__(self, seed: int, clients: Sequence[str], count: int) -> None:
        self._keys = np.array([key(seed, "lottery", c) for c in clients], dtype=np.uint64)
        self.count = count

    def draw(self, first: int, count: int) -> Index:
        """Return positions of the m clients of each of `count` rounds, sorted, (count, m).

        The first of these rounds has number `first`.
        """
        if self.count >= len(self._keys):
            return np.tile(np.arange(len(self._keys)), (count, 1))
        number = np.arange(first, first + count, dtype=np.uint64)[:, None]
        with np.errstate(over="ignore"):
            tickets = mix(self._keys + _STEP * (number + np.uint64(1)))
        return np.sort(np.argpartition(tickets, self.count, axis=1)[:, : self.count], axis=1)
