r"""Variances of the FTW-ERM and ERM objectives if no client has a shift within itself.

That is, each client's test distribution equals its own training distribution.

ERM is empirical risk minimisation. FTW-ERM is the importance-weighted ERM of Ramezani-Kebrya et al.
(TMLR 2023), called "the paper" from here on.

The training and test distribution of client k is p_k, and these distributions differ between
clients. ERM, Σ_k ℓ(z_k), and FTW-ERM, (1/K) Σ_k r_k(z_k) ℓ(z_k) with r_k = Σ_l p_l / p_k, both have
mean Σ_k E_k ℓ. With one row z_k per client and σ_k² = Var_k(ℓ), their variances are (the paper's
section on no intra-client shift, for K = 2)

.. math:: \sum_k σ_k^2 \qquad\text{and}\qquad \frac{1}{K^2} \sum_k (σ_k^2 + \tildeσ_k^2),
          \quad \tildeσ_k^2 = \mathrm{Var}_k(r_k ℓ) - σ_k^2,

so the variance of FTW-ERM is at most that of ERM if and only if Σ σ̃² ≤ (K² − 1) Σ σ². For two
clients this is the paper's condition 3(σ_P² + σ_Q²) ≥ σ̃_P² + σ̃_Q². The paper does not analyse
when the condition holds. With equal numbers of rows, the variance of FTW-ERM is *never* the smaller
one. The two are equal only if all distributions agree wherever ℓ ≠ 0. With m = Σ p_k and one row
per client, the variance of FTW-ERM minus that of ERM is

.. math:: \int m\,ℓ^2 \Big(\frac{m}{K^2} \sum_k \frac1{p_k} - 1\Big)
          + \sum_k a_k^2 - \frac1K \Big(\sum_k a_k\Big)^2, \qquad a_k = E_k ℓ,

and neither part is ever negative, by the inequality of arithmetic and harmonic mean and the
Cauchy-Schwarz inequality. With
unequal numbers of rows n_k per client, FTW-ERM can have the smaller variance: small clients then
benefit from large ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, as_numbers
from fedshift.errors import InputError
from fedshift.theory.checks import distribution, vector

#: tolerance for rounding in comparisons
SLACK = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class ObjectiveVariance:
    """Variances of the ERM and FTW-ERM objectives for one model, by client.

    Attributes
    ----------
    names : tuple of str
    plain : ndarray (K,)
        σ_k²: variance of the loss of one row.
    extra : ndarray (K,)
        σ̃_k² = Var_k(r_k ℓ) − σ_k².
    rows : ndarray (K,)
        n_k, the number of rows of each client.
    """

    names: tuple[str, ...]
    plain: Float64Array
    extra: Float64Array
    rows: Float64Array

    @classmethod
    def of_distributions(
        cls, distributions: npt.ArrayLike, loss: npt.ArrayLike, *, rows: npt.ArrayLike = 1.0
    ) -> ObjectiveVariance:
        """Compute exact variances from distributions (K, J) on J states and their losses (J,).

        Examples
        --------
        >>> ObjectiveVariance.of_distributions([[0.8, 0.2], [0.2, 0.8]], [1.0, 0.0])
        ObjectiveVariance(ERM 0.32, FTW-ERM 1.06: ERM is less noisy)
        """
        table = as_numbers(distributions, "distributions")
        if table.ndim != 2 or not len(table):
            raise InputError(f"distributions must have shape (clients, states); got {table.shape}")
        p = np.stack([distribution(row, f"distribution {k}") for k, row in enumerate(table)])
        value = vector(loss, "loss", length=p.shape[1])
        if (p == 0).any() and (p[:, (p == 0).any(axis=0)] > 0).any():
            raise InputError(
                "all clients must have probability above 0 in the same states; got zeros; "
                "FTW-ERM is biased there; merge or drop these states"
            )
        names = [str(k) for k in range(len(p))]
        with np.errstate(invalid="ignore"):
            ratio = np.nan_to_num(p.sum(axis=0) / p)  # states that no client has get weight 0
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
        """Estimate variances from losses and ratios at every client's rows.

        Parameters
        ----------
        loss : mapping of client to (n,)
        ratio : mapping of client to (n,)
            r_k = Σ_l p_l / p_k. The sum includes the client's own distribution.
        probability : mapping of client to (n,), optional
            Probabilities of the rows; by default all are equal.
        rows : mapping of client to float, optional
            n_k, the number of rows of each client; by default one, as in the paper.
        """
        names = tuple(loss)
        for what, each in (("ratio", ratio), ("probability", probability), ("rows", rows)):
            if each is not None and set(each) != set(names):
                raise InputError(
                    f"{what} must have the same clients as loss, {', '.join(names)}; got "
                    f"{', '.join(map(str, each))}"
                )
        if len(names) < 2:
            raise InputError(f"loss must have at least two clients; got {len(names)}")
        plain, weighted = [], []
        for name in names:
            value = vector(loss[name], f"loss of {name!r}")
            n = len(value)
            r = vector(ratio[name], f"ratio of {name!r}", length=n, least=0.0)
            p = np.full(n, 1.0 / n)
            if probability is not None:
                p = distribution(probability[name], f"probability of {name!r}", length=n)
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
        """Variance of the ERM objective, Σ σ_k² / n_k."""
        return float((self.plain / self.rows).sum())

    @property
    def ftw(self) -> float:
        """Variance of the FTW-ERM objective, Σ (σ_k² + σ̃_k²) / (K² n_k)."""
        return float(((self.plain + self.extra) / self.rows).sum() / len(self.names) ** 2)

    @property
    def printed_condition(self) -> bool:
        """(K² − 1) Σ σ² ≥ Σ σ̃²: the paper's condition, for one row per client."""
        most = (len(self.names) ** 2 - 1) * float(self.plain.sum())
        return float(self.extra.sum()) <= most * (1.0 + SLACK) + SLACK * SLACK

    @property
    def helps(self) -> bool:
        """Whether FTW-ERM has the smaller variance, beyond rounding."""
        return self.ftw < self.erm * (1.0 - SLACK)

    @property
    def status(self) -> str:
        """The result in one sentence."""
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
