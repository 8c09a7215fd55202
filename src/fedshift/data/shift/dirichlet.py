"""Label shift with random label distributions, drawn from a Dirichlet distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedshift.core.params import one_of, positive, whole
from fedshift.core.samples import Rows
from fedshift.data.federation import Federation
from fedshift.data.shift.labels import Labels
from fedshift.data.shift.pool import Pool, per_client


@dataclass(frozen=True)
class LabelDirichlet:
    """Label shift: each client's training and test label distributions are Dirichlet draws.

    Client k draws its training label distribution p_k^tr(y) from Dir(α, …, α) and its test label
    distribution p_k^te(y) from Dir(α_te, …, α_te). The class of each row is an independent draw
    from its label distribution, so the counts of the classes are multinomial. p(x | y) is shared,
    so the exact ratio is Σ_l p_l^te(y) / p_k^tr(y), summed over the clients l in the target.

    A small α gives each client few classes. If a client then has no row of a class in the target,
    weighting fails: no weight can replace the lacking rows.

    Parameters
    ----------
    clients : int
    alpha : float
        Concentration α of the training distributions, above 0. Below 1 a client has few classes;
        with large values all classes are nearly equally frequent.
    train_rows, test_rows : int or sequence of int, one per client
        Number of rows.
    classes : int
    test_alpha : float, optional
        Concentration α_te of the test distributions; `alpha` by default.
    short : {"error", "reuse"}
        What to do if a class has fewer rows than the clients need: raise an error, or let clients
        share its rows (see `Labels`).

    Raises
    ------
    InputError
        If a concentration is not positive and finite, or a number of rows or classes is below 1.

    Examples
    --------
    >>> from fedshift.data import load
    >>> shift = LabelDirichlet(clients=3, alpha=0.5, train_rows=100, test_rows=50)
    >>> federation = load("digits").split(shift, seed=0)
    >>> federation["client-1"], federation.exact_log_ratio("client-1").shape
    (ClientData('client-1', n=100, test n=50), (100,))
    """

    clients: int
    alpha: float
    train_rows: int | Sequence[int]
    test_rows: int | Sequence[int]
    classes: int = 10
    test_alpha: float | None = None
    short: Literal["error", "reuse"] = "error"

    def __post_init__(self) -> None:
        whole(self, "clients")
        one_of(self, "short", ("error", "reuse"))
        per_client(self.train_rows, self.clients, "train_rows")
        per_client(self.test_rows, self.clients, "test_rows")
        positive(self, "alpha")
        if self.test_alpha is not None:
            positive(self, "test_alpha")
        whole(self, "classes")

    def labels(self, *, seed: int) -> Labels:
        """Return the label distributions and counts that `split` uses with the same seed."""
        return self._labels(np.random.default_rng(seed))

    def _labels(self, rng: np.random.Generator) -> Labels:
        tables, distributions = [], []
        for alpha, rows, name in (
            (self.alpha, self.train_rows, "train_rows"),
            (
                self.alpha if self.test_alpha is None else self.test_alpha,
                self.test_rows,
                "test_rows",
            ),
        ):
            distribution = rng.dirichlet(np.full(self.classes, alpha), size=self.clients)
            distributions.append(distribution)
            tables.append(rng.multinomial(per_client(rows, self.clients, name), distribution))
        return Labels(tables[0], tables[1], distributions[0], distributions[1], self.short)

    def split(
        self, x: Rows, y: npt.ArrayLike, test_x: Rows, test_y: npt.ArrayLike, *, seed: int
    ) -> Federation:
        """Return a federation: draw label distributions and counts, then assign rows.

        Rows are assigned as in `Labels.split`.

        Parameters
        ----------
        x, test_x : rows (n, ...), (m, ...)
            uint8 images become float32 in [0, 1].
        y, test_y : class numbers (n,), (m,)
        seed : int

        Raises
        ------
        InputError
            If a label is not one of `classes`, or a class has too few rows and `short` is "error".
        """
        rng = np.random.default_rng(seed)
        labels = self._labels(rng)
        return labels.assign(Pool.of(x, y, "train"), Pool.of(test_x, test_y, "test"), rng)
