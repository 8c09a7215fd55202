"""What it costs that the bound on the ratio is counted in cells, and how many cells to take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedshift.theory.checks import count, number


@dataclass(frozen=True, kw_only=True)
class BoundError:
    r"""The order of what an estimated bound on the ratio costs (the paper's appendix on it).

    .. math:: K Δ \Big(M^{-1/d} + \sqrt{M / n^{tr}} + \sqrt{M / n^{te}}\Big)

    The paper prints K Δ (1/M + √(M/n_tr)). 1/M is the width of M cells on a line; in d dimensions
    they are M^(−1/d) wide. And C̃ is a quotient, whose test side is counted from rows too. These
    are orders, with constants (smoothness and least density) unknown: use them to choose M.

    Attributes
    ----------
    clients : int
        K.
    delta : float
        Δ of the losses.
    bins : int
        M.
    n_train : int
    n_test : int, optional
        Test rows in all; None: infinitely many.
    dimension : int
        d.
    """

    clients: int
    delta: float
    bins: int
    n_train: int
    n_test: int | None = None
    dimension: int = 1

    def __post_init__(self) -> None:
        for name in ("clients", "bins", "n_train", "dimension"):
            count(getattr(self, name), name)
        if self.n_test is not None:
            count(self.n_test, "n_test")
        number(self.delta, "delta", least=0.0)

    @property
    def width(self) -> float:
        """K Δ M^(−1/d): cells average the ratio away."""
        return self.clients * self.delta * math.pow(self.bins, -1.0 / self.dimension)

    @property
    def train_noise(self) -> float:
        """K Δ √(M / n_tr): few training rows in a cell."""
        return self.clients * self.delta * math.sqrt(self.bins / self.n_train)

    @property
    def test_noise(self) -> float:
        """K Δ √(M / n_te): few test rows in a cell."""
        rows = math.inf if self.n_test is None else self.n_test
        return self.clients * self.delta * math.sqrt(self.bins / rows)

    @property
    def total(self) -> float:
        """Sum of the three."""
        return self.width + self.train_noise + self.test_noise

    @property
    def c_error(self) -> float:
        """The order of |C̃ − C|, for `ratio_error_bound`."""
        return self.total / (self.clients * self.delta) if self.delta else 0.0

    @property
    def printed_total(self) -> float:
        """K Δ (1/M + √(M/n_tr)), as printed."""
        return self.clients * self.delta / self.bins + self.train_noise

    @property
    def best_bins(self) -> int:
        """The M with the smallest `total`."""
        rows = math.inf if self.n_test is None else self.n_test
        noise = math.sqrt(1.0 / self.n_train) + math.sqrt(1.0 / rows)
        power = 1.0 / self.dimension
        best = math.pow(2.0 * power / noise, 1.0 / (power + 0.5))  # where the derivative vanishes
        sides = {max(1, math.floor(best)), max(1, math.ceil(best))}
        return min(sides, key=lambda m: replace(self, bins=m).total)

    def __repr__(self) -> str:
        return (
            f"BoundError({self.total:.3g} = width {self.width:.3g}, train_noise "
            f"{self.train_noise:.3g}, test_noise {self.test_noise:.3g}; best M {self.best_bins})"
        )
