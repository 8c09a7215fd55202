"""Label shift by chance: label laws from a Dirichlet law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Rows
from fedshift.data.federation import Federation
from fedshift.data.shift.labels import Labels
from fedshift.data.shift.pool import Pool, per_client
from fedshift.errors import InputError


@dataclass(frozen=True)
class LabelDirichlet:
    """Label shift by chance: each client's train and test label laws are Dirichlet draws.

    q_k^tr ~ Dir(α 1), q_k^te ~ Dir(α_te 1), then rows drawn from them: the class of each row is an
    independent draw, so counts are multinomial, and the exact ratio is Σ_l q_l^te(y) / q_k^tr(y).
    Small α puts a client on few classes. When it fails: a target may then need classes a client
    has no row of, which no weights can make up for.

    Parameters
    ----------
    clients : int
    alpha : float
        Concentration of the train laws, and of the test laws unless `test_alpha` is given.
    train_rows, test_rows : int or one for each client
    classes : int
    test_alpha : float, optional
    short : {"error", "reuse"}
        If a class has too few rows to deal without replacement: raise, or let clients share its
        rows (see `Labels`).
    """

    clients: int
    alpha: float
    train_rows: int | Sequence[int]
    test_rows: int | Sequence[int]
    classes: int = 10
    test_alpha: float | None = None
    short: Literal["error", "reuse"] = "error"

    def __post_init__(self) -> None:
        per_client(self.train_rows, self.clients, "train_rows")
        per_client(self.test_rows, self.clients, "test_rows")
        for name, value in (("alpha", self.alpha), ("test_alpha", self.test_alpha)):
            if value is not None and not 0 < value < np.inf:
                raise InputError(f"{name} must be positive and finite; got {value}")
        if self.classes < 1:
            raise InputError(f"classes must be at least 1; got {self.classes}")

    def labels(self, *, seed: int) -> Labels:
        """The laws and counts that `split` with the same seed deals by."""
        return self._labels(np.random.default_rng(seed))

    def _labels(self, rng: np.random.Generator) -> Labels:
        tables, laws = [], []
        for alpha, rows, name in (
            (self.alpha, self.train_rows, "train_rows"),
            (
                self.alpha if self.test_alpha is None else self.test_alpha,
                self.test_rows,
                "test_rows",
            ),
        ):
            law = rng.dirichlet(np.full(self.classes, alpha), size=self.clients)
            laws.append(law)
            tables.append(rng.multinomial(per_client(rows, self.clients, name), law))
        return Labels(tables[0], tables[1], laws[0], laws[1], self.short)

    def split(
        self, x: Rows, y: npt.ArrayLike, test_x: Rows, test_y: npt.ArrayLike, *, seed: int
    ) -> Federation:
        """Draw laws and counts, then deal rows as `Labels.split` does.

        Raises
        ------
        InputError
            If a class runs out and `short` is "error".
        """
        rng = np.random.default_rng(seed)
        labels = self._labels(rng)
        return labels.deal(Pool.of(x, y, "train"), Pool.of(test_x, test_y, "test"), rng)
