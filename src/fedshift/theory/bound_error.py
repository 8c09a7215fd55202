"""How far a bound on the ratio is off if it is estimated from cells; the best number of cells.

The cells are those of `fedshift.core.bound`. "The paper" is Ramezani-Kebrya et al. (TMLR 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedshift.core.params import whole_number
from fedshift.theory.checks import number


@dataclass(frozen=True, kw_only=True)
class BoundError:
    r"""Order of the error in the ratio that comes from estimating its bound (paper's appendix).

    .. math:: K Δ \Big(M^{-1/d} + \sqrt{M / n^{tr}} + \sqrt{M / n^{te}}\Big)

    The paper prints K Δ (1/M + √(M/n_tr)). 1/M is the width of M cells on a line; in d dimensions
    they are M^(−1/d) wide. C̃, the estimate of C = 1/sup r, is a quotient of a training and a test
    mass. The test mass is estimated from rows too, which adds the third term. The terms are orders
    of magnitude. Their constants depend on the smoothness and the smallest value of the densities
    and are unknown. So use the terms only to choose M.

    Attributes
    ----------
    clients : int
        K, the number of clients.
    delta : float
        Δ, a bound on the losses |ℓ1| and |ℓ2|: `LossConstants.delta`.
    bins : int
        M, the number of cells.
    n_train : int
        Number of the client's training rows.
    n_test : int, optional
        Total number of test rows; None means infinitely many.
    dimension : int
        d, the number of columns.
    """

    clients: int
    delta: float
    bins: int
    n_train: int
    n_test: int | None = None
    dimension: int = 1

    def __post_init__(self) -> None:
        for name in ("clients", "bins", "n_train", "dimension"):
            whole_number(getattr(self, name), name)
        if self.n_test is not None:
            whole_number(self.n_test, "n_test")
        number(self.delta, "delta", least=0.0)

    @property
    def width(self) -> float:
        """K Δ M^(−1/d): error from averaging the ratio over cells."""
        return self.clients * self.delta * math.pow(self.bins, -1.0 / self.dimension)

    @property
    def train_noise(self) -> float:
        """K Δ √(M / n_tr): error from few training rows per cell."""
        return self.clients * self.delta * math.sqrt(self.bins / self.n_train)

    @property
    def test_noise(self) -> float:
        """K Δ √(M / n_te): error from few test rows per cell."""
        rows = math.inf if self.n_test is None else self.n_test
        return self.clients * self.delta * math.sqrt(self.bins / rows)

    @property
    def total(self) -> float:
        """Sum of the three terms."""
        return self.width + self.train_noise + self.test_noise

    @property
    def c_error(self) -> float:
        """The order of the error |C̃ − C|, an argument of `ratio_error_bound`."""
        return self.total / (self.clients * self.delta) if self.delta else 0.0

    @property
    def printed_total(self) -> float:
        """K Δ (1/M + √(M/n_tr)), the sum of the terms that the paper prints."""
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
