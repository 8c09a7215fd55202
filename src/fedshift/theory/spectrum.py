"""Eigenvalue check: whether training and test spectra are close enough for weights to help.

The condition is remark 1 after theorem 2 of Ramezani-Kebrya et al. (TMLR 2023), called "the paper"
from here on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedshift.core.by_name import ByName
from fedshift.core.samples import Float64Array, Rows
from fedshift.errors import InputError
from fedshift.theory.checks import matrix, number

#: reasons why the condition fails in a direction
REASONS = ("no training variance", "no test variance", "test variance too large")


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of the second moments E[x xᵀ], largest first, and the condition on them.

    Attributes
    ----------
    train, test : ndarray (d,)
        λ_i and λ'_i, the eigenvalues of training and test rows.
    ratio : ndarray (d,)
        √(λ'_i / λ_i); NaN where λ_i vanishes.
    limit : ndarray (d,)
        (1 + √(1 + 4 ξ_i)) / 2 with ξ_i = ridge / (ridge + μ_i), μ_i = n λ_i, for
        n training rows.
    holds : bool ndarray (d,)
        0 < ratio < limit; False where λ_i vanishes.
    vanishing : bool ndarray (d,)
        Whether λ_i is rounding error: at most a few machine epsilons of the largest eigenvalue.
    """

    train: Float64Array
    test: Float64Array
    ratio: Float64Array
    limit: Float64Array
    holds: npt.NDArray[np.bool_]
    vanishing: npt.NDArray[np.bool_]

    @property
    def n_holding(self) -> int:
        """Number of directions in which the condition holds."""
        return int(self.holds.sum())

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the condition fails in each direction; an empty string where it holds.

        A reason is "no training variance", "no test variance" or "test variance too large".
        """
        masks = (self.holds, self.vanishing, self.ratio == 0)
        return tuple(str(w) for w in np.select(masks, ("", *REASONS[:2]), default=REASONS[2]))

    @property
    def failing(self) -> dict[str, tuple[int, ...]]:
        """Directions in which the condition fails, by reason."""
        why = np.array(self.reasons)
        each = {r: tuple(int(i) for i in np.flatnonzero(why == r)) for r in REASONS}
        return {reason: where for reason, where in each.items() if where}

    @property
    def status(self) -> str:
        """The result in one sentence."""
        text = f"the eigenvalue condition holds in {self.n_holding} of {len(self.train)} directions"
        return "; ".join([text, *(f"{len(i)}: {why}" for why, i in self.failing.items())])

    def __repr__(self) -> str:
        return f"Spectrum({self.status})"


@dataclass(frozen=True, eq=False)
class Spectra(ByName[Spectrum]):
    """The eigenvalue check of every client.

    Attributes
    ----------
    clients : mapping of client to Spectrum
    """

    _entries, _key = "clients", "client"

    clients: Mapping[str, Spectrum]

    @property
    def _by_name(self) -> Mapping[str, Spectrum]:
        return self.clients

    @property
    def n_holding(self) -> int:
        """Number of directions in which the condition holds, over all clients."""
        return sum(s.n_holding for s in self.clients.values())

    @property
    def n(self) -> int:
        """Number of directions, over all clients."""
        return sum(len(s.train) for s in self.clients.values())

    @property
    def worst(self) -> str:
        """The client with the smallest share of directions in which the condition holds."""
        return min(self.clients, key=lambda k: float(self.clients[k].holds.mean()))

    @property
    def status(self) -> str:
        """The result in one sentence."""
        low = self.clients[self.worst]
        return (
            f"the eigenvalue condition holds in {self.n_holding} of {self.n} directions of "
            f"{len(self.clients)} clients; fewest at {self.worst!r}: {low.n_holding} of "
            f"{len(low.train)}"
        )

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dict per client for JSON: numbers of directions that hold and that fail."""
        return [
            {
                "client": name,
                "directions": len(s.train),
                "holding": s.n_holding,
                **{reason: len(s.failing.get(reason, ())) for reason in REASONS},
            }
            for name, s in self.clients.items()
        ]

    def __repr__(self) -> str:
        return f"Spectra({self.status})"


Pairing = Literal["rank", "direction"]


def eigenvalue_check(
    *, train: Rows, test: Rows, ridge: float = 1.0, pair: Pairing = "rank"
) -> Spectrum:
    r"""Compare the spectra of training and test rows (remark 1 after the paper's theorem 2).

    .. math:: \sqrt{λ'_i / λ_i} \in \Big(0, \tfrac{1 + \sqrt{1 + 4 ξ_i}}{2}\Big),
              \qquad ξ_i = \frac{ρ}{ρ + μ_i}, \quad μ_i = n λ_i

    λ_i and λ'_i are the eigenvalues of training and test rows, n is the number of training rows and
    ρ the ridge. Under this condition *some* weight meets the theorem's printed condition on weights
    (`fedshift.theory.printed_condition`). The check does not show which weight. It is not the
    density ratio, which never meets the printed condition in all directions. Besides, the printed
    condition is not sufficient for weights to help.

    Parameters
    ----------
    train, test : rows (n, …), (m, …)
        Rows are flattened to vectors and are not centred.
    ridge : float
        ρ, the strength of ridge regression (the paper's λ).
    pair : {"rank", "direction"}
        "rank" compares the i-th largest eigenvalues, as in the paper's figures. Such eigenvalues
        may belong to different directions. "direction" compares λ_i with the test rows' second
        moment along the same eigenvector v_i, v_iᵀ E[x xᵀ] v_i, as in the one-hot case.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(500, 3))
    >>> eigenvalue_check(train=x, test=0.5 * x)
    Spectrum(the eigenvalue condition holds in 3 of 3 directions)
    """
    number(ridge, "ridge", above=0.0)
    if pair not in ("rank", "direction"):
        raise InputError(f"pair must be 'rank' or 'direction'; got {pair!r}")
    n, moments = _second_moments(train, test)
    own, other = _eigenvalues(*moments, pair=pair)
    tiny = len(own) * np.finfo(np.float64).eps
    vanishing = own <= own[0] * tiny
    other = np.where(other <= other.max() * tiny, 0.0, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(vanishing, np.nan, np.sqrt(other / own))
    limit = (1.0 + np.sqrt(1.0 + 4.0 * ridge / (ridge + n * own))) / 2.0
    holds = np.nan_to_num(ratio, nan=np.inf) < limit
    return Spectrum(own, other, ratio, limit, holds & (ratio > 0), vanishing)


def eigenvalue_checks(
    *,
    train: Mapping[str, Rows],
    test: Mapping[str, Rows],
    ridge: float = 1.0,
    pair: Pairing = "rank",
) -> Spectra:
    """Run `eigenvalue_check` for every client, with its training rows and its own test rows.

    Parameters
    ----------
    train, test : mapping of client to rows
        ``federation.train`` and ``federation.test``.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> eigenvalue_checks(train={"a": x, "b": x}, test={"a": x, "b": x * [0.5, 9.0]})
    Spectra(the eigenvalue condition holds in 3 of 4 directions of 2 clients; fewest at 'b': 1 of 2)
    """
    if not train or set(train) != set(test):
        raise InputError(
            "train and test must have the same clients, at least one; got "
            f"{', '.join(map(str, train)) or 'none'} and {', '.join(map(str, test)) or 'none'}"
        )
    return Spectra(
        {
            name: eigenvalue_check(train=rows, test=test[name], ridge=ridge, pair=pair)
            for name, rows in train.items()
        }
    )


def _second_moments(train: Rows, test: Rows) -> tuple[int, tuple[Float64Array, Float64Array]]:
    """Number of training rows, and E[x xᵀ] of training and test rows."""
    x, z = matrix(train, "train"), matrix(test, "test")
    if x.shape[1] != z.shape[1]:
        raise InputError(
            f"train and test must have equally many columns; got {x.shape[1]} and {z.shape[1]}"
        )
    return len(x), (x.T @ x / len(x), z.T @ z / len(z))


def _eigenvalues(
    train: Float64Array, test: Float64Array, *, pair: Pairing
) -> tuple[Float64Array, Float64Array]:
    """Both spectra, largest training eigenvalue first; negative rounding errors become 0."""
    values, basis = np.linalg.eigh(train)
    along = np.linalg.eigvalsh(test) if pair == "rank" else np.sum(basis * (test @ basis), axis=0)
    return values[::-1].clip(min=0.0), along[::-1].clip(min=0.0)
