"""Do the eigenvalues of training and test data lie near enough for weighting to help?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, Rows, as_rows
from fedshift.errors import InputError


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of the second moments E[x xᵀ], largest first, and the condition on them.

    Attributes
    ----------
    train, test : ndarray (d,)
        λ_i and λ'_i.
    ratio : ndarray (d,)
        √(λ'_i / λ_i); NaN where λ_i vanishes.
    limit : ndarray (d,)
        (1 + √(1 + 4 ξ_i)) / 2 with ξ_i = ridge / (ridge + μ_i), μ_i = n λ_i.
    holds : bool ndarray (d,)
        0 < ratio < limit, False where λ_i vanishes.
    vanishing : bool ndarray (d,)
        λ_i is rounding: no more than a few machine epsilons of the largest.
    """

    train: Float64Array
    test: Float64Array
    ratio: Float64Array
    limit: Float64Array
    holds: npt.NDArray[np.bool_]
    vanishing: npt.NDArray[np.bool_]

    @property
    def n_holding(self) -> int:
        """Directions in which the condition holds."""
        return int(self.holds.sum())

    def __repr__(self) -> str:
        d, gone = len(self.train), int(self.vanishing.sum())
        return (
            f"Spectrum(the condition holds for {self.n_holding} of {d} directions; {gone} vanish)"
        )


def eigenvalue_check(*, train: Rows, test: Rows, ridge: float = 1.0) -> Spectrum:
    r"""Compare the spectra of training and test rows (remark 1 after the paper's theorem 2).

    .. math:: \sqrt{λ'_i / λ_i} \in \Big(0, \tfrac{1 + \sqrt{1 + 4 ξ_i}}{2}\Big),
              \qquad ξ_i = \frac{λ}{λ + μ_i}

    It is the condition under which *some* weight meets the printed bound of the theorem. It says
    nothing about which weight, and the printed bound itself is not sufficient.

    Parameters
    ----------
    train, test : rows (n, …), (m, …)
        Flattened; not centred.
    ridge : float
        λ of ridge regression.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(500, 3))
    >>> eigenvalue_check(train=x, test=0.5 * x)
    Spectrum(the condition holds for 3 of 3 directions; 0 vanish)
    """
    if not 0 < ridge < np.inf:
        raise InputError(f"ridge must be a positive number; got {ridge!r}")
    sides = []
    for name, rows in (("train", train), ("test", test)):
        x = as_rows(rows, name=name)
        sides.append(x.reshape(len(x), -1).astype(np.float64, copy=False))
    if sides[0].shape[1] != sides[1].shape[1]:
        raise InputError(
            f"train and test must have as many columns; got {sides[0].shape[1]} and "
            f"{sides[1].shape[1]}"
        )
    own, other = (np.linalg.eigvalsh(x.T @ x / len(x))[::-1].clip(min=0.0) for x in sides)
    vanishing = own <= own[0] * len(own) * np.finfo(np.float64).eps
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(vanishing, np.nan, np.sqrt(other / own))
    limit = (1.0 + np.sqrt(1.0 + 4.0 * ridge / (ridge + len(sides[0]) * own))) / 2.0
    holds = np.nan_to_num(ratio, nan=np.inf) < limit
    return Spectrum(own, other, ratio, limit, holds & (ratio > 0), vanishing)
