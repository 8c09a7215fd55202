"""Convert the labels of all sites to class numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.data.federation import ClientData, Federation
from fedshift.diagnose.effect_size import IntArray

#: numeric labels with more distinct values are cut into `GROUPS` groups at their quantiles
QUANTITY = 20
GROUPS = 4


@dataclass(frozen=True, eq=False)
class Classes:
    """The mapping from labels to class numbers, the same at every site.

    Attributes
    ----------
    names : tuple of str
        Class names by number.
    cuts : ndarray or None
        Quantiles at which numeric labels are cut; None if the labels are classes.
    """

    names: tuple[str, ...]
    cuts: npt.NDArray[np.float64] | None
    _values: npt.NDArray[Any]

    @classmethod
    def of(cls, federation: Federation) -> Classes:
        """Collect all labels; cut numeric labels of many values at quantiles of training labels."""
        train = [c.y for c in federation]
        every = [*train, *(c.test_y for c in federation if c.test_y is not None)]
        numbers = all(y.dtype.kind in "biuf" for y in every)
        values = np.unique(np.concatenate([y.astype(float if numbers else str) for y in every]))
        if numbers and len(values) > QUANTITY and any(y.dtype.kind == "f" for y in every):
            return cls._cut(np.concatenate([y.astype(np.float64) for y in train]), values)
        named = [f"{v:g}" if numbers else str(v) for v in values.tolist()]
        return cls(tuple(named), None, values)

    @classmethod
    def _cut(cls, train: npt.NDArray[np.float64], values: npt.NDArray[Any]) -> Classes:
        cuts = np.unique(np.quantile(train, np.arange(1, GROUPS) / GROUPS))
        edges = [f"{c:.3g}" for c in cuts]
        middle = [f"{a} to {b}" for a, b in pairwise(edges)]
        return cls((f"up to {edges[0]}", *middle, f"above {edges[-1]}"), cuts, values)

    def codes(self, y: npt.NDArray[Any]) -> IntArray:
        """Return class numbers (n,) of labels (n,)."""
        if self.cuts is not None:
            return np.searchsorted(self.cuts, np.asarray(y, dtype=np.float64))
        plain = y.astype(str) if self._values.dtype.kind == "U" else np.asarray(y, dtype=np.float64)
        return np.searchsorted(self._values, plain)

    def of_client(self, client: ClientData) -> tuple[IntArray, IntArray | None]:
        """Return class numbers of a client's training rows and of its test rows, or None."""
        return self.codes(client.y), None if client.test_y is None else self.codes(client.test_y)
