r"""Bound on the error of an estimated ratio, term by term.

This is theorem 1 of Ramezani-Kebrya et al. (TMLR 2023), called "the paper" from here on. For client
k of K, let r̂ minimise the empirical non-negative risk max(0, Â) + B̂ over a class H. Here r* is
the member of H with the smallest true Bregman risk BD. ℓ1, f, A and B are those of
`fedshift.core.bregman`, and ℓ2 = C ℓ1 − f'. Â and B̂ are A and B computed from the rows.
`LossConstants` explains L1, L2, Δ and η. R is the Rademacher complexity of H. With probability at
least 1 − δ

.. math:: BD(\hat r) - BD(r^*) \le 8 L_1 R^{tr} + 8 (C L_1 + L_2) \sum_l R_l^{te} + Ψ

.. math:: Ψ = Δ \sqrt{8 \Big(\frac1{n^{tr}} + \sum_l \frac{(1 + C)^2}{n_l^{te}}\Big)
          \log\frac1δ}
          + 2 (1 + K C) Δ
          \exp\Big(\frac{-2 η^2}{Δ^2 / n^{tr} + \sum_l C^2 Δ^2 / n_l^{te}}\Big).

These are the constants of the proof. They hold for ℓ1 ≥ 0, which `fedshift.core.bregman` ensures.
(With the printed ℓ1 of LSIF, which is negative for ratios below one, the exponent of the last term
would have to be divided by four.) The
theorem in the paper's main text omits L2 and has C² instead of (1 + C)²; see
`printed_ratio_error_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import nn

from fedshift.core.bregman import Divergence
from fedshift.core.params import whole_number
from fedshift.core.samples import Rows, as_rows
from fedshift.errors import InputError
from fedshift.theory.checks import number, vector
from fedshift.theory.losses import LossConstants, loss_constants
from fedshift.theory.rademacher import MLPClass, radius


@dataclass(frozen=True, kw_only=True)
class RatioError:
    """Terms of the bound on one client's ratio error, and the inputs of the bound.

    Attributes
    ----------
    train_term : float
        8 L1 R_tr: how well the class can fit noise on the client's training rows.
    test_term : float
        8 (C L1 + L2) Σ_l R_te: how well the class can fit noise on all clients' test rows.
    deviation : float
        The part of Ψ that shrinks like 1/√n, from the randomness of the sample.
    bias : float
        The part of Ψ that shrinks exponentially: the bias that max(0, Â) causes in samples where
        Â < 0 although its mean is positive.
    bound_term : float
        2 K Δ |C̃ − C|, if C is replaced by an estimate C̃.
    delta : float
        The bound fails with at most this probability.
    losses : LossConstants
    n_train : int
    n_test : tuple of int
        One number per client.
    eta : float
        η, a lower limit of E[Â], which is used in `bias`.
    c_error : float
        |C̃ − C|.
    """

    train_term: float
    test_term: float
    deviation: float
    bias: float
    bound_term: float
    delta: float
    losses: LossConstants
    n_train: int
    n_test: tuple[int, ...]
    eta: float
    c_error: float = 0.0

    @property
    def clients(self) -> int:
        """K, the number of test distributions."""
        return len(self.n_test)

    @property
    def terms(self) -> dict[str, float]:
        """The terms by name; they sum to `total`."""
        names = ("train_term", "test_term", "deviation", "bias", "bound_term")
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> float:
        """The bound."""
        return sum(self.terms.values())

    @property
    def trivial(self) -> float:
        """2 (1 + K + K C) Δ: the difference of two risks never exceeds this value."""
        return 2.0 * (1.0 + self.clients * (1.0 + self.losses.c)) * self.losses.delta

    @property
    def vacuous(self) -> bool:
        """Whether the bound is at least `trivial`, and so holds for any ratio in the class."""
        return self.total >= self.trivial

    @property
    def status(self) -> str:
        """The result in one sentence."""
        largest = max(self.terms, key=lambda name: self.terms[name])
        words = (
            f"is vacuous: {self.total:.3g}, but no error exceeds {self.trivial:.3g}"
            if self.vacuous
            else f"is {self.total:.3g} with probability {1.0 - self.delta:.3g}"
        )
        share = self.terms[largest] / self.total if self.total else 0.0
        return f"the bound on the ratio's error {words}; the largest term is {largest}, {share:.0%}"

    def __repr__(self) -> str:
        terms = ", ".join(f"{name} {value:.3g}" for name, value in self.terms.items())
        return f"RatioError({self.total:.3g} = {terms})"


def ratio_error_bound(
    *,
    losses: LossConstants,
    train_complexity: float,
    test_complexity: npt.ArrayLike,
    n_train: int,
    n_test: int | Sequence[int],
    delta: float = 0.05,
    eta: float | None = None,
    c_error: float = 0.0,
) -> RatioError:
    r"""Bound on one client's ratio error with the constants of the proof (see the module).

    Parameters
    ----------
    losses : LossConstants
        See `loss_constants`.
    train_complexity : float
        R of the class on the client's training distribution, with `n_train` rows.
    test_complexity : array (K,)
        R on every client's test distribution.
    n_train : int
    n_test : int or K of them
        Number of rows of each distribution.
    delta : float
        Largest probability with which the bound fails.
    eta : float, optional
        η, the smallest E[Â] over all r in the class. The proof leaves its value open; by default it
        is `LossConstants.eta`.
    c_error : float
        |C̃ − C|, if `losses.c` is an estimate C̃. This error adds 2 K Δ |C̃ − C|, and the bias is
        computed for C̃ + |C̃ − C|, the largest possible C. `BoundError` gives the order of c_error.

    Examples
    --------
    >>> losses = loss_constants("lsif", low=0.5, high=4.0, c=0.25)
    >>> ratio_error_bound(
    ...     losses=losses, train_complexity=0.01, test_complexity=[0.01, 0.01],
    ...     n_train=10**6, n_test=10**6,
    ... )
    RatioError(0.7 = train_term 0.32, test_term 0.3, deviation 0.0795, bias 1.8e-46, bound_term 0)
    """
    r_test = vector(test_complexity, "test_complexity", least=0.0)
    k = len(r_test)
    n_train, n_tests = whole_number(n_train, "n_train"), _sizes(n_test, k)
    number(delta, "delta", above=0.0, below=1.0)
    extra = number(c_error, "c_error", least=0.0)
    if eta is None:
        eta = losses.eta(k, c=losses.c + extra)
    r_train = number(train_complexity, "train_complexity", least=0.0)
    return RatioError(
        train_term=8.0 * losses.l1 * r_train,
        test_term=8.0 * (losses.c * losses.l1 + losses.l2) * float(r_test.sum()),
        deviation=_deviation(losses, n_train, n_tests, delta),
        bias=_bias(losses, n_train, n_tests, number(eta, "eta", least=0.0), losses.c + extra),
        bound_term=2.0 * k * losses.delta * extra,
        delta=delta,
        losses=losses,
        n_train=n_train,
        n_test=n_tests,
        eta=eta,
        c_error=extra,
    )


def printed_ratio_error_bound(
    *,
    losses: LossConstants,
    train_complexity: float,
    test_complexity: npt.ArrayLike,
    n_train: int,
    n_test: int | Sequence[int],
    delta: float = 0.05,
) -> RatioError:
    r"""Theorem 1 as printed in the main text: an order of magnitude, with all constants set to one.

    .. math:: R^{tr} + C \sum_l R_l^{te} + \sqrt{Υ \log\tfrac1δ} + K C Δ e^{-1/Υ},
              \qquad Υ = Δ^2 \Big(\frac1{n^{tr}} + \frac{C^2 K}{n^{te}}\Big)

    The proof gives another result: Σ R_te has the factor C L1 + L2, and 1/n_te has (1 + C)². The
    test rows enter the risk through E_te f'(r) even if C is small. So under strong shift (small C)
    their noise remains, but in the printed formula it vanishes. Use `ratio_error_bound` instead.
    """
    base = ratio_error_bound(
        losses=losses,
        train_complexity=train_complexity,
        test_complexity=test_complexity,
        n_train=n_train,
        n_test=n_test,
        delta=delta,
    )
    c, size = losses.c, losses.delta
    upsilon = size**2 * (1.0 / n_train + sum(c**2 / n for n in base.n_test))
    return replace(
        base,
        train_term=float(train_complexity),
        test_term=c * float(np.sum(test_complexity)),
        deviation=math.sqrt(upsilon * math.log(1.0 / delta)),
        bias=base.clients * c * size * math.exp(-1.0 / upsilon) if upsilon else 0.0,
    )


def mlp_ratio_error_bound(
    network: nn.Module | MLPClass,
    *,
    train: Rows,
    test: Mapping[str, Rows],
    which: str | Divergence,
    low: float,
    high: float,
    c: float,
    delta: float = 0.05,
    c_error: float = 0.0,
) -> RatioError:
    """Bound for perceptrons that return log ratios, from Frobenius norms and the rows' norms.

    This is corollary 1 of the paper with explicit constants: R_tr and R_te are those of
    `MLPClass.complexity`. The largest norm in the sample replaces the largest possible norm.

    Parameters
    ----------
    network : Module or MLPClass
        Maps rows to log ratios; see `MLPClass.of`.
    train : rows (n, …)
        The client's training rows.
    test : mapping of client to rows
        Test rows of all clients whose distributions are in the ratio.
    which, low, high, c
        See `loss_constants`. Log ratios must be clipped to [log low, log high].
    """
    family = MLPClass.of(network) if isinstance(network, nn.Module) else network
    if not test:
        raise InputError("test must map at least one client to its rows; got none")
    sizes = [len(as_rows(rows, name=f"test of {name!r}")) for name, rows in test.items()]
    n = len(as_rows(train, name="train"))
    return ratio_error_bound(
        losses=loss_constants(which, low=low, high=high, c=c, of="log ratio"),
        train_complexity=family.complexity(n=n, radius=radius(train)),
        test_complexity=[
            family.complexity(n=m, radius=radius(rows))
            for m, rows in zip(sizes, test.values(), strict=True)
        ],
        n_train=n,
        n_test=sizes,
        delta=delta,
        c_error=c_error,
    )


@dataclass(frozen=True)
class AllClients:
    """Bound that holds for all clients at once (the paper's corollary 2, a union bound).

    Attributes
    ----------
    bounds : mapping of client to RatioError
    """

    bounds: Mapping[str, RatioError]

    def __post_init__(self) -> None:
        if not self.bounds:
            raise InputError("bounds must hold at least one client's RatioError; got none")
        if not self.delta < 1.0:
            raise InputError(
                f"the clients' delta must sum to less than one; got {self.delta:.3g}; divide "
                "delta by the number of clients"
            )

    @property
    def delta(self) -> float:
        """Σ_k δ_k: the bound fails with at most this probability."""
        return sum(bound.delta for bound in self.bounds.values())

    @property
    def worst(self) -> str:
        """The client with the largest bound."""
        return max(self.bounds, key=lambda name: self.bounds[name].total)

    @property
    def total(self) -> float:
        """Largest of the clients' bounds."""
        return self.bounds[self.worst].total

    @property
    def printed_total(self) -> float:
        """The corollary as printed. Each term uses its worst client, so it is at least `total`."""
        each = list(self.bounds.values())
        n = min(b.n_train for b in each)
        c = max(b.losses.c for b in each)
        worst = replace(each[0].losses, c=c, delta=max(b.losses.delta for b in each))
        n_test = max((b.n_test for b in each), key=lambda sizes: sum(1.0 / m for m in sizes))
        return (
            max(b.train_term * math.sqrt(b.n_train) for b in each) / math.sqrt(n)
            + max(b.test_term for b in each)
            + _deviation(worst, n, n_test, min(b.delta for b in each))
            + _bias(worst, n, n_test, min(b.eta for b in each), c + max(b.c_error for b in each))
            + max(b.bound_term for b in each)
        )

    @property
    def status(self) -> str:
        """The result in one sentence."""
        return (
            f"with probability {1.0 - self.delta:.3g} no client's ratio error is above "
            f"{self.total:.3g} (largest for {self.worst!r})"
        )

    def __repr__(self) -> str:
        return f"AllClients({len(self.bounds)} clients: {self.status})"


def _sizes(n_test: int | Sequence[int], clients: int) -> tuple[int, ...]:
    each = list(n_test) if isinstance(n_test, Sequence | np.ndarray) else [n_test] * clients
    if len(each) != clients:
        raise InputError(
            f"n_test must be one number, or one for each of {clients} distributions; got "
            f"{len(each)}"
        )
    return tuple(whole_number(n, "n_test") for n in each)


def _deviation(losses: LossConstants, n: int, n_test: Sequence[int], delta: float) -> float:
    spread = 1.0 / n + sum((1.0 + losses.c) ** 2 / m for m in n_test)
    return losses.delta * math.sqrt(8.0 * spread * math.log(1.0 / delta))


def _bias(losses: LossConstants, n: int, n_test: Sequence[int], eta: float, c: float) -> float:
    """2 (1 + K C) Δ times McDiarmid's bound on the probability that Â < 0."""
    spread = losses.delta**2 * (1.0 / n + sum(c**2 / m for m in n_test))
    often = math.exp(-2.0 * eta**2 / spread) if spread else 0.0
    return 2.0 * (1.0 + len(n_test) * c) * losses.delta * often
