r"""Clients without shift of their own: is FTW-ERM's objective less noisy than ERM's?

Client k trains on the law it is used on, p_k, and the laws differ between clients. ERM, Σ_k ℓ(z_k),
and FTW-ERM, (1/K) Σ_k r_k(z_k) ℓ(z_k) with r_k = Σ_l p_l / p_k, both have mean Σ_k E_k ℓ. With one
row z_k a client and σ_k² = Var_k(ℓ), their variances are (the paper's section on no intra-client
shift, for K = 2)

.. math:: \sum_k σ_k^2 \qquad\text{and}\qquad \frac{1}{K^2} \sum_k (σ_k^2 + \tildeσ_k^2),
          \quad \tildeσ_k^2 = \mathrm{Var}_k(r_k ℓ) - σ_k^2,

so FTW-ERM has the smaller one if and only if Σ σ̃² ≤ (K² − 1) Σ σ²; for two clients that is the
paper's 3(σ_P² + σ_Q²) ≥ σ̃_P² + σ̃_Q². The paper says no more about when that holds. The answer is:
*never*, but with equality where all laws agree wherever ℓ ≠ 0. For with m = Σ p_k the difference is

.. math:: \int m\,ℓ^2 \Big(\frac{m}{K^2} \sum_k \frac1{p_k} - 1\Big)
          + \sum_k a_k^2 - \frac1K \Big(\sum_k a_k\Big)^2, \qquad a_k = E_k ℓ,

and both parts are never negative (arithmetic against harmonic mean; Cauchy and Schwarz). With n_k
rows a client and unequal n_k it can hold: small clients then borrow from large ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array
from fedshift.errors import InputError
from fedshift.theory.checks import law, vector

#: rounding that equality is granted
SLACK = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class ObjectiveVariance:
    """Variances of the ERM and FTW-ERM objectives at one model, client by client.

    Attributes
    ----------
    names : tuple of str
    plain : ndarray (K,)
        σ_k²: variance of the loss of one row.
    extra : ndarray (K,)
        σ̃_k² = Var_k(r_k ℓ) − σ_k².
    rows : ndarray (K,)
        n_k.
    """

    names: tuple[str, ...]
    plain: Float64Array
    extra: Float64Array
    rows: Float64Array

    @classmethod
    def of_laws(
        cls, laws: npt.ArrayLike, loss: npt.ArrayLike, *, rows: npt.ArrayLike = 1.0
    ) -> ObjectiveVariance:
        """From laws (K, m) on m states and the loss (m,) in each, exactly.

        Examples
        --------
        >>> ObjectiveVariance.of_laws([[0.8, 0.2], [0.2, 0.8]], [1.0, 0.0])
        ObjectiveVariance(ERM 0.32, FTW-ERM 1.06: ERM is less noisy)
        """
        table = np.asarray(laws, dtype=np.float64)
        if table.ndim != 2:
            raise InputError(f"laws must have shape (clients, states); got {table.shape}")
        p = np.stack([law(row, f"law {k}") for k, row in enumerate(table)])
        value = vector(loss, "loss", length=p.shape[1])
        if (p == 0).any() and (p[:, (p == 0).any(axis=0)] > 0).any():
            raise InputError(
                "every client must have some probability wherever another has; got zeros; "
                "FTW-ERM is biased there"
            )
        names = [str(k) for k in range(len(p))]
        with np.errstate(invalid="ignore"):
            ratio = np.nan_to_num(p.sum(axis=0) / p)  # states that no client meets count nothing
        return cls.of_rows(
            loss=dict.fromkeys(names, value),
            ratio=dict(zip(names, ratio, strict=True)),
            probability=dict(zip(names, p, strict=True)),
            rows=dict(zip(names, vector(rows, "rows", length=len(p), above=0.0), strict=True)),
        )

    @classmethod
    def of_rows(
        cls,
        *,
        loss: Mapping[str, npt.ArrayLike],
        ratio: Mapping[str, npt.ArrayLike],
        probability: Mapping[str, npt.ArrayLike] | None = None,
        rows: Mapping[str, float] | None = None,
    ) -> ObjectiveVariance:
        """From losses and ratios at every client's rows.

        Parameters
        ----------
        loss : mapping of client to (n,)
        ratio : mapping of client to (n,)
            r_k = Σ_l p_l / p_k, the client's own law included.
        probability : mapping of client to (n,), optional
            Of the rows; equal by default.
        rows : mapping of client to float, optional
            n_k; one each by default, as in the paper.
        """
        names = tuple(loss)
        for what, given in (("ratio", ratio), ("probability", probability), ("rows", rows)):
            if given is not None and set(given) != set(names):
                raise InputError(
                    f"{what} must have the clients of loss, {', '.join(names)}; got "
                    f"{', '.join(map(str, given))}"
                )
        if len(names) < 2:
            raise InputError(f"there must be at least two clients; got {len(names)}")
        plain, weighted = [], []
        for name in names:
            value = vector(loss[name], f"loss of {name!r}")
            n = len(value)
            r = vector(ratio[name], f"ratio of {name!r}", length=n, least=0.0)
            p = np.full(n, 1.0 / n)
            if probability is not None:
                p = law(probability[name], f"probability of {name!r}", length=n)
            plain.append(_variance(value, p))
            weighted.append(_variance(r * value, p))
        sizes = [1.0] * len(names) if rows is None else [rows[name] for name in names]
        return cls(
            names=names,
            plain=np.array(plain),
            extra=np.array(weighted) - np.array(plain),
            rows=vector(sizes, "rows", above=0.0),
        )

    @property
    def erm(self) -> float:
        """Σ σ_k² / n_k."""
        return float((self.plain / self.rows).sum())

    @property
    def ftw(self) -> float:
        """Σ (σ_k² + σ̃_k²) / (K² n_k)."""
        return float(((self.plain + self.extra) / self.rows).sum() / len(self.names) ** 2)

    @property
    def printed_condition(self) -> bool:
        """(K² − 1) Σ σ² ≥ Σ σ̃²: the paper's condition, one row a client whatever `rows` says."""
        most = (len(self.names) ** 2 - 1) * float(self.plain.sum())
        return float(self.extra.sum()) <= most * (1.0 + SLACK) + SLACK * SLACK

    @property
    def helps(self) -> bool:
        """FTW-ERM has the smaller variance, beyond rounding."""
        return self.ftw < self.erm * (1.0 - SLACK)

    @property
    def status(self) -> str:
        """One sentence."""
        even = abs(self.ftw - self.erm) <= SLACK * self.erm
        who = (
            "both are equally noisy"
            if even
            else f"{'FTW-ERM' if self.helps else 'ERM'} is less noisy"
        )
        return f"ERM {self.erm:.3g}, FTW-ERM {self.ftw:.3g}: {who}"

    def __repr__(self) -> str:
        return f"ObjectiveVariance({self.status})"


def _variance(values: Float64Array, p: Float64Array) -> float:
    return float(p @ (values - p @ values) ** 2)
