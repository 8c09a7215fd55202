"""Bytes and rows that left or reached every client, by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedshift.core.params import whole_number
from fedshift.errors import InputError
from fedshift.federation.engine import Log
from fedshift.federation.task import Task


class Cost(NamedTuple):
    """Bytes that clients sent (`up`) and received (`down`), and rows that left them (`rows`)."""

    up: int = 0
    down: int = 0
    rows: int = 0


class Ledger(Mapping[tuple[str, str], Cost]):
    """Sums of bytes and rows by client and phase.

    A phase is the name of a step of a run, such as "train.model", "train.ratio", "share.pool" or
    "query.share". Only pairs of client and phase with a cost take memory, so clients that never
    take part take no memory. Ledgers of several parts of a run can be added with ``+``.

    Attributes
    ----------
    replies : Counter of client
        Number of replies that each client sent. `to_records` leaves it out.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.add("ward-3", "share.pool", up=3_072_000, rows=1000)
    >>> ledger.add("ward-3", "train.model", up=250_000, down=250_000)
    >>> ledger
    Ledger(1 client: 3.32 MB up, 250 kB down, 1,000 rows sent; most in share.pool)
    """

    def __init__(self) -> None:
        self._cost: dict[tuple[str, str], Cost] = {}
        self.replies: Counter[str] = Counter()

    def add(
        self,
        client: str,
        phase: str,
        *,
        up: int = 0,
        down: int = 0,
        rows: int = 0,
        replies: int = 1,
    ) -> None:
        """Add the bytes that one client sent and received in a phase, and the rows that left it.

        The client sent them in so many replies.

        Raises
        ------
        InputError
            If a number is negative or not whole.
        """
        for name, value in (("up", up), ("down", down), ("rows", rows)):
            whole_number(value, f"ledger: {name} of client {client!r} in phase {phase!r}", least=0)
        key, cost = (client, phase), Cost(int(up), int(down), int(rows))
        self._cost[key] = _sum([self[key], cost])
        self.replies[client] += replies

    def merge(self, other: Ledger) -> None:
        """Add all entries of another ledger."""
        for record in other.to_records():
            self.add(**record, replies=0)
        self.replies += other.replies

    def record_rounds(self, task: Task, log: Log, *, phase: str = "train.model") -> None:
        """Add the cost of the rounds in a log, for the clients that took part."""
        up, down, who = task.bytes_up(), task.bytes_down(), log.clients
        positions, at, counts = np.unique(who, return_inverse=True, return_counts=True)
        spared = np.zeros(len(positions), dtype=np.int64)
        if task.plan.broadcast is not None and len(who):
            repeats = _repeats(task, log).reshape(-1)
            spared = np.bincount(at.reshape(-1)[repeats], minlength=len(positions))
            spared = spared * (down - task.bytes_down(repeat=True))
        for position, count, less in zip(positions, counts, spared, strict=True):
            cost = {"up": int(count) * up, "down": int(count) * down - int(less)}
            self.add(task.names[position], phase, **cost, replies=int(count))

    def record_steps(self, clients: Iterable[str], *, steps: int, parameters: int) -> None:
        """Add the cost of training a ratio model without a `Plan`.

        In every step, each client sends a gradient and receives a model. Gradient and model have
        `parameters` float32 numbers each.
        """
        size = 4 * steps * parameters
        for client in clients:
            self.add(client, "train.ratio", up=size, down=size, replies=steps)

    @property
    def total(self) -> Cost:
        """Cost over all clients and phases."""
        return _sum(self._cost.values())

    def by_client(self) -> dict[str, Cost]:
        """Cost of each client over all phases."""
        return self._grouped(0)

    def by_phase(self) -> dict[str, Cost]:
        """Cost of each phase over all clients."""
        return self._grouped(1)

    def _grouped(self, part: int) -> dict[str, Cost]:
        out: dict[str, Cost] = {}
        for key, cost in self._cost.items():
            out[key[part]] = _sum([out.get(key[part], Cost()), cost])
        return out

    def __getitem__(self, key: tuple[str, str]) -> Cost:
        """Cost of a client in a phase; 0 if nothing was added for this pair."""
        return self._cost.get(key, Cost())

    def __contains__(self, key: object) -> bool:
        """Whether the pair of client and phase has a cost."""
        return key in self._cost

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Iterate over the pairs of client and phase that have a cost."""
        return iter(self._cost)

    def __len__(self) -> int:
        """Number of pairs of client and phase."""
        return len(self._cost)

    def __add__(self, other: Ledger) -> Ledger:
        """Return the sum of two ledgers as a new ledger."""
        out = Ledger()
        out.merge(self)
        out.merge(other)
        return out

    def __eq__(self, other: object) -> bool:
        """Whether both ledgers have the same costs, in any order."""
        return isinstance(other, Ledger) and self._cost == other._cost

    __hash__ = None  # type: ignore[assignment]  # mutable

    def to_records(self) -> list[dict[str, Any]]:
        """One dict for every client and phase, ready for JSON."""
        return [
            {"client": client, "phase": phase, **cost._asdict()}
            for (client, phase), cost in self._cost.items()
        ]

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> Ledger:
        """Make a ledger from the records that `to_records` returned.

        Raises
        ------
        InputError
            If a record has no client or no phase, or has an unknown key.
        """
        out = cls()
        for record in records:
            try:
                out.add(**record, replies=0)
            except TypeError:
                raise InputError(
                    "a ledger record must have the keys client, phase, up, down, rows; got "
                    f"{sorted(record)}"
                ) from None
        return out

    def __repr__(self) -> str:
        if not self._cost:
            return "Ledger(nothing sent)"
        k, total = len({client for client, _ in self._cost}), self.total
        phases = self.by_phase()
        most = max(phases, key=lambda p: phases[p].up + phases[p].down)
        return (
            f"Ledger({k:,} client{'s' * (k > 1)}: {human(total.up)} up, {human(total.down)} down, "
            f"{total.rows:,} rows sent; most in {most})"
        )


def _repeats(task: Task, log: Log) -> npt.NDArray[np.bool_]:
    """Who also took part in the round before, (rounds, m), and so receives a change only."""
    last = np.full_like(log.clients[:1], -1)
    if log.first:
        last[0] = task.participants(log.first - 1)
    before = np.concatenate([last, log.clients[:-1]])
    return np.asarray((log.clients[:, :, None] == before[:, None, :]).any(2))


def human(size: float) -> str:
    """Format a number of bytes, in powers of 1000.

    Examples
    --------
    >>> human(999), human(3_072_000), human(3.5e12)
    ('999 B', '3.07 MB', '3.5 TB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5:  # what rounds to 1000 takes the next unit
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} PB" if size < 999.5 else f"{size:,.0f} PB"


def _sum(costs: Iterable[Cost]) -> Cost:
    return Cost(*map(sum, zip(Cost(), *costs, strict=True)))
