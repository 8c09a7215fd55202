"""Who looks like whom: how well any two laws of a federation can be told apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedshift.core.samples import Float64Array
from fedshift.data.federation import Federation
from fedshift.diagnose.encode import encode, features
from fedshift.diagnose.held_out import RIDGES, CrossFit, auc_and_error, folds_of
from fedshift.diagnose.two_sample import Budget

#: rows of all laws together, and fewest of one
TOTAL, LEAST = 12_000, 50
#: rows of one law
MOST = 1000


@dataclass(frozen=True, eq=False)
class ShiftMap:
    """Held-out AUC of every two laws; ½ means that they cannot be told apart.

    Attributes
    ----------
    names : tuple of str
        "site: training", "site: test", site after site.
    auc : ndarray (2K, 2K)
        Symmetric, ½ on the diagonal.
    """

    names: tuple[str, ...]
    auc: Float64Array

    def __repr__(self) -> str:
        i, j = np.unravel_index(int(np.argmax(self.auc)), self.auc.shape)
        return (
            f"ShiftMap({len(self.names)} laws, {self.names[i]} and {self.names[j]} furthest apart, "
            f"AUC {self.auc[i, j]:.2f})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "names": list(self.names),
            "auc": [[round(v, 4) for v in r] for r in self.auc.tolist()],
        }


def shift_map(federation: Federation, *, seed: int = 0) -> ShiftMap:
    """Tell all training and test laws apart at once and read off every pair.

    One cross-fitted ridge classifier gives a score for every law; the difference of two scores
    ranks the rows of those two laws. Effect sizes only: no p-values, so small differences of small
    samples mean nothing here.
    """
    laws = [
        (f"{c.name}: {side}", x)
        for c in federation
        for side, x in (("training", c.x), ("test", c.test_x))
    ]
    most = min(MOST, max(LEAST, TOTAL // len(laws)))
    budget = Budget(seed=seed)
    some = [x[budget.rng("map", name).permutation(len(x))[:most]] for name, x in laws]
    law = np.repeat(np.arange(len(laws)), [len(x) for x in some])
    z = encode(np.concatenate(some), seed=seed).z
    auc = np.full((len(laws), len(laws)), 0.5)
    if z.shape[1]:
        values = features(z, seed=seed, pairs=6).values
        fold = folds_of(law, seed=seed)
        fit = CrossFit.of(values, np.eye(len(laws))[law], fold)
        score = fit.predict(values, len(RIDGES) // 2)
        for i in range(len(laws)):
            for j in range(i):
                mine = (law == i) | (law == j)
                found, _ = auc_and_error(score[mine, i] - score[mine, j], law[mine] == i)
                auc[i, j] = auc[j, i] = max(0.5, found)
    return ShiftMap(tuple(name for name, _ in laws), auc)
