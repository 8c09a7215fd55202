"""List the comparisons of a diagnosis: within each site, and between sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedshift.core.params import check_numbers
from fedshift.data.federation import ClientData
from fedshift.diagnose.classes import Classes
from fedshift.diagnose.effect_size import IntArray
from fedshift.diagnose.two_sample import Budget, Side
from fedshift.errors import InputError


def check_options(alpha: float, smallest: float, rows: int, seed: int) -> None:
    """Raise unless the options of `diagnose` and `drift` are valid."""
    check_numbers(check_options, locals())
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie in (0, 1); got {alpha}; 0.05 is usual")
    if not 0.5 <= smallest < 1:
        raise InputError(f"smallest must be an AUC in [0.5, 1); got {smallest}")
    if rows < 50:
        raise InputError(f"rows must be at least 50; got {rows}; 5000 is usual")


@dataclass(frozen=True, eq=False)
class PlannedComparison:
    """The rows of a comparison, before any test."""

    site: str
    other: str
    source: Side
    target: Side

    @property
    def labelled(self) -> bool:
        """Whether both source and target rows have labels."""
        return self.target.y is not None

    @property
    def classes(self) -> IntArray:
        """Class numbers (n_source,) of the source rows, which always have labels."""
        assert self.source.y is not None
        return self.source.y


def within(client: ClientData, classes: Classes) -> PlannedComparison:
    """Plan the comparison of a client's training rows with its test rows."""
    y, test_y = classes.of_client(client)
    source, target = Side(client.x, y), Side(client.test_x, test_y)
    return PlannedComparison(client.name, "its test rows", source, target)


def between(own: Sequence[PlannedComparison], *, rows: int, seed: int) -> list[PlannedComparison]:
    """Plan to compare each site with all other sites together; two sites give one comparison.

    The other sites contribute equally many rows each, about `rows` in all.
    """
    if len(own) < 2:
        return []
    if len(own) == 2:
        a, b = sorted(own, key=lambda p: p.site)
        return [PlannedComparison(a.site, b.site, b.source, a.source)]
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
        out.append(PlannedComparison(plan.site, "the other sites", Side(x, y), plan.source))
    return out
