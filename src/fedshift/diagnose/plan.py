"""Who is compared with whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedshift.data.federation import ClientData
from fedshift.diagnose.classes import Classes
from fedshift.diagnose.held_out import IntArray
from fedshift.diagnose.two_sample import Budget, Side


@dataclass(frozen=True, eq=False)
class Planned:
    """A comparison before it was made."""

    site: str
    other: str
    source: Side
    target: Side

    @property
    def labelled(self) -> bool:
        """Whether both sides have labels."""
        return self.target.y is not None

    @property
    def classes(self) -> IntArray:
        """Class numbers of the source rows, which always have labels."""
        assert self.source.y is not None
        return self.source.y


def within(client: ClientData, classes: Classes) -> Planned:
    """A client's training rows against its test rows."""
    y, test_y = classes.of_client(client)
    return Planned(client.name, "its test rows", Side(client.x, y), Side(client.test_x, test_y))


def between(own: Sequence[Planned], *, rows: int, seed: int) -> list[Planned]:
    """Every site against the others, which give as many rows each; of two sites one."""
    if len(own) < 2:
        return []
    if len(own) == 2:
        a, b = sorted(own, key=lambda p: p.site)
        return [Planned(a.site, b.site, b.source, a.source)]
    budget = Budget(seed=seed)
    quota = -(-rows // (len(own) - 1))
    some = {
        p.site: p.source.take(budget.rng("quota", p.site).permutation(len(p.source))[:quota])
        for p in own
    }
    out = []
    for plan in own:
        others = [some[name] for name in sorted(some) if name != plan.site]
        x = np.concatenate([s.x for s in others])
        y = np.concatenate([s.y for s in others if s.y is not None])
        out.append(Planned(plan.site, "the other sites", Side(x, y), plan.source))
    return out
