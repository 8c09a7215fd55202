"""The ratio-error bound, held against every sample of a small discrete problem."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from torch import nn

from fedshift.core.bregman import divergence
from fedshift.errors import InputError
from fedshift.theory import (
    AllClients,
    LossConstants,
    MLPClass,
    RatioError,
    loss_constants,
    mlp_ratio_error_bound,
    printed_ratio_error_bound,
    rademacher_complexity,
    ratio_error_bound,
)

LEVELS = (0.5, 1.0, 2.0, 3.5)
#: all functions from two states to four levels
CLASS = np.array(list(product(LEVELS, repeat=2)))
TEST = (0.7, 0.4)  # two test distributions: probability of state 0
LOW, HIGH = LEVELS[0], LEVELS[-1]


def lsif(z: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
    return z**2 / 2, c * z**2 / 2 - z


def ukl(z: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
    return z, c * z - np.log(z)


LOSSES = {"lsif": lsif, "ukl": ukl}


@dataclass
class Enumerated:
    """All outcomes of n_train rows of one distribution and n_test rows of each of two others.

    risk[o, f] is the empirical non-negative risk of function f in outcome o, a[o, f] its first
    part before the clamp, p[o] the probability, true[f] the Bregman risk.
    """

    name: str
    c: float
    train: float = 0.45
    n_train: int = 6
    n_test: int = 5

    def __post_init__(self) -> None:
        first, second = LOSSES[self.name](CLASS, self.c)  # (functions, states)
        self.sizes = sizes = (self.n_train, self.n_test, self.n_test)
        counts = np.array(list(product(*(range(n + 1) for n in sizes))))
        self.distributions = distributions = (self.train, *TEST)
        self.p = math.prod(
            binom.pmf(counts[:, i], n, q)
            for i, (n, q) in enumerate(zip(sizes, distributions, strict=True))
        )
        share = counts / np.array(sizes)
        self.a, self.b = self.parts(share, first, second)
        self.risk = np.maximum(0.0, self.a) + self.b
        a, b = self.parts(np.array([distributions]), first, second)
        self.true_a, self.true = a[0], (a + b)[0]
        self.share, self.first = share, first

    def parts(self, share: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple:
        def mean(values: np.ndarray, i: int) -> np.ndarray:
            state0 = share[:, i, None]
            return state0 * values[:, 0] + (1 - state0) * values[:, 1]

        a = mean(first, 0) - self.c * (mean(first, 1) + mean(first, 2))
        return a, mean(second, 1) + mean(second, 2)

    def complexity(self, distribution: float, n: int) -> float:
        """R_n of the class: the mean of the empirical one over all samples."""
        values = [CLASS[:, [0] * k + [1] * (n - k)] for k in range(n + 1)]
        each = [rademacher_complexity(v).value for v in values]
        return float(np.dot(binom.pmf(range(n + 1), n, distribution), each))

    def bound(self, *, delta: float = 0.05, **options: float) -> RatioError:
        return ratio_error_bound(
            losses=loss_constants(self.name, low=LOW, high=HIGH, c=self.c),
            train_complexity=self.complexity(self.train, self.n_train),
            test_complexity=[self.complexity(distribution, self.n_test) for distribution in TEST],
            n_train=self.n_train,
            n_test=self.n_test,
            delta=delta,
            **options,
        )

    def deviation(self) -> np.ndarray:
        """sup_r |B̂D⁺ − E B̂D⁺| in every outcome."""
        return np.abs(self.risk - self.p @ self.risk).max(axis=1)

    def excess(self) -> np.ndarray:
        """BD(r̂) − BD(r*) in every outcome."""
        return self.true[self.risk.argmin(axis=1)] - self.true.min()


def slow_complexity(distribution: float, n: int) -> float:
    total = 0.0
    for sample in product((0, 1), repeat=n):
        chance = distribution ** sample.count(0) * (1 - distribution) ** sample.count(1)
        values = CLASS[:, list(sample)]
        each = [np.abs(values @ np.array(s)).max() for s in product((-1, 1), repeat=n)]
        total += chance * float(np.mean(each)) / n
    return total


# sup r = max(1.1 / .45, .9 / .55) = 2.44, so C may be up to .409
problems = pytest.mark.parametrize(
    "problem",
    [
        Enumerated("lsif", 0.4),
        Enumerated("lsif", 0.1, n_train=7, n_test=3),
        Enumerated("ukl", 0.4),
        Enumerated("ukl", 0.2, train=0.6, n_train=3, n_test=6),
    ],
    ids=lambda p: f"{p.name}-{p.c}",
)


@problems
def test_complexity_terms_bound_the_mean_deviation(problem: Enumerated) -> None:
    bound = problem.bound()
    mean = float(problem.p @ problem.deviation())
    assert mean <= (bound.train_term + bound.test_term) / 2
    # the terms by hand: every ordered sample, every sign pattern, slopes of ℓ1 and ℓ2 at the ends
    z = np.array([LOW, HIGH])
    slope1, slope2 = (
        (z, problem.c * z - 1) if problem.name == "lsif" else (z / z, problem.c - 1 / z)
    )
    l1, l2 = np.abs(slope1).max(), np.abs(slope2).max()
    r = [slow_complexity(q, n) for q, n in zip(problem.distributions, problem.sizes, strict=True)]
    assert bound.train_term == pytest.approx(8 * l1 * r[0])
    assert bound.test_term == pytest.approx(8 * (problem.c * l1 + l2) * (r[1] + r[2]))


@problems
@pytest.mark.parametrize("delta", [0.5, 0.1, 0.01, 1e-4])
def test_deviation_term_bounds_the_tail(problem: Enumerated, delta: float) -> None:
    far = problem.deviation() - problem.p @ problem.deviation()
    assert problem.p[far > problem.bound(delta=delta).deviation / 2].sum() <= delta


@problems
def test_deviation_term_is_mcdiarmid_of_the_largest_single_changes(problem: Enumerated) -> None:
    """Replace one row everywhere: no change of the risk is above those the proof assumes."""
    shape = (problem.n_train + 1, problem.n_test + 1, problem.n_test + 1, len(CLASS))
    grid = problem.risk.reshape(shape)
    losses = problem.bound().losses
    allowed = (
        2 * losses.delta / problem.n_train,
        *[2 * (1 + problem.c) * losses.delta / problem.n_test] * 2,
    )
    for axis, most in enumerate(allowed):
        assert np.abs(np.diff(grid, axis=axis)).max() <= most + 1e-12
    squares = problem.n_train * allowed[0] ** 2 + 2 * problem.n_test * allowed[1] ** 2
    reference = 2 * math.sqrt(squares * math.log(1 / 0.05) / 2)
    assert problem.bound().deviation == pytest.approx(reference)


@problems
def test_bias_term_bounds_the_bias(problem: Enumerated) -> None:
    margin = float(problem.true_a.min())
    assert 0 < problem.bound().eta <= margin  # the margin that the proof leaves open
    bias = np.abs(problem.p @ problem.risk - problem.true).max()
    sharp = problem.bound(eta=margin)
    assert 0 < bias <= sharp.bias / 2 <= problem.bound().bias / 2
    # and the probability in it is McDiarmid's bound on that of the clamp
    losses, k = sharp.losses, 2
    often = sharp.bias / (2 * (1 + k * problem.c) * losses.delta)
    assert (problem.p @ (problem.a < 0)).max() <= often
    squares = losses.delta**2 / problem.n_train + k * (problem.c * losses.delta) ** 2 / (
        problem.n_test
    )
    assert often == pytest.approx(math.exp(-2 * margin**2 / squares))


@problems
@pytest.mark.parametrize("delta", [0.5, 0.05])
def test_the_whole_bound_holds(problem: Enumerated, delta: float) -> None:
    bound = problem.bound(delta=delta)
    assert problem.p[problem.excess() > bound.total].sum() <= delta
    assert problem.excess().max() <= bound.trivial
    assert bound.total == pytest.approx(sum(bound.terms.values()))
    assert bound.vacuous  # so few rows say nothing
    assert "is vacuous" in bound.status


@pytest.mark.parametrize("c_error", [0.05, 0.3])
@pytest.mark.parametrize("name", LOSSES)
def test_estimated_bound_term(name: str, c_error: float) -> None:
    """Mean risks with C̃ and with C differ by at most K Δ |C̃ − C|, in both readings of ℓ2."""
    right, wrong = Enumerated(name, 0.4), Enumerated(name, 0.4 + c_error)
    bound = wrong.bound(c_error=c_error)
    most = 2 * bound.losses.delta * c_error
    assert bound.bound_term == pytest.approx(2 * most)
    for second in (wrong.b, right.b):  # ℓ2 with C̃, or with C
        gap = wrong.p @ (np.maximum(0.0, wrong.a) + second) - right.p @ right.risk
        assert 0 < np.abs(gap).max() <= most
    # the bias is taken at the largest C that C̃ may stand for
    losses, c = bound.losses, 0.4 + 2 * c_error
    spread = losses.delta**2 * (1 / right.n_train + 2 * c**2 / right.n_test)
    by_hand = 2 * (1 + 2 * c) * losses.delta * math.exp(-2 * 0.1**2 / spread)
    assert wrong.bound(c_error=c_error, eta=0.1).bias == pytest.approx(by_hand)
    assert bound.eta == losses.eta(2, c=c) <= losses.eta(2)
    assert replace(bound, bound_term=0.0).total < bound.total


def test_the_printed_order_misses_the_noise_of_test_rows() -> None:
    """With small C and many training rows it says the error is tiny; two test rows are few."""
    k = 1000
    truth = np.array([0.9, 0.1]) / 0.5
    n_test, c = 2, 1e-3
    counts = np.arange(n_test + 1)
    share = np.stack([counts, n_test - counts], axis=1) / n_test
    first, second = lsif(CLASS, c)
    a = first.mean(axis=1) - c * share @ first.T  # training distribution known: n_train is huge
    risk = np.maximum(0.0, a) + share @ second.T
    true = first.mean(axis=1) - CLASS @ np.array([0.9, 0.1])
    excess = true[risk.argmin(axis=1)] - true.min()
    losses = loss_constants("lsif", low=LOW, high=HIGH, c=c)
    options = {
        "losses": losses,
        "train_complexity": 0.0,
        "test_complexity": [CLASS.max()],
        "n_train": k * k,
        "n_test": n_test,
    }
    printed = printed_ratio_error_bound(**options)
    chance = binom.pmf(counts, n_test, 0.9)
    assert truth.max() < 1 / c
    assert chance[excess > 5 * printed.total].sum() > 0.1  # δ is .05
    assert chance[excess > ratio_error_bound(**options).total].sum() == 0


def test_the_printed_order_term_by_term() -> None:
    losses = LossConstants(l1=1.0, l2=1.0, delta=0.5, floor=0.1, c=0.25)
    printed = printed_ratio_error_bound(
        losses=losses, train_complexity=0.3, test_complexity=[0.2, 0.1], n_train=10, n_test=[5, 20]
    )
    upsilon = 0.25 * (1 / 10 + 0.0625 / 5 + 0.0625 / 20)
    assert printed.train_term == 0.3
    assert printed.test_term == pytest.approx(0.25 * 0.3)
    assert printed.deviation == pytest.approx(math.sqrt(upsilon * math.log(20)))
    assert printed.bias == pytest.approx(2 * 0.25 * 0.5 * math.exp(-1 / upsilon))


def test_many_rows_say_something_and_the_largest_term_is_named() -> None:
    losses = loss_constants("lsif", low=0.5, high=4.0, c=0.25)
    bound = ratio_error_bound(
        losses=losses, train_complexity=0.01, test_complexity=[0.02], n_train=10**6, n_test=10**6
    )
    assert not bound.vacuous
    assert "is train_term" in bound.status
    wider = replace(bound, bias=9.0)
    assert "is bias" in wider.status


# constants of the losses


@pytest.mark.parametrize("of", ["ratio", "log ratio"])
def test_loss_constants_in_closed_form(of: str) -> None:
    low, high, c = 0.25, 3.0, 0.3
    scale = (lambda z: z) if of == "log ratio" else (lambda z: 1.0)
    z = np.linspace(low, high, 20_001)
    slopes = {  # ℓ1' = z f'', ℓ2' = (Cz − 1) f''
        "lsif": (z, c * z - 1),
        "ukl": (np.ones_like(z), c - 1 / z),
        "lr": (1 / (1 + z), (c * z - 1) / (z * (1 + z))),
        "robust": (1.5 * z**0.5, 1.5 * (c * z - 1) * z**-0.5),
    }
    for name, (first, second) in slopes.items():
        result = loss_constants(name, low=low, high=high, c=c, of=of)  # type: ignore[arg-type]
        assert result.l1 == pytest.approx(np.abs(first * scale(z)).max(), rel=1e-6)
        assert result.l2 == pytest.approx(np.abs(second * scale(z)).max(), rel=1e-6)


@given(st.floats(0.05, 0.9), st.floats(1.1, 9.0), st.sampled_from(["lsif", "ukl", "lr", "robust"]))
def test_losses_stay_within_their_constants(low: float, high: float, name: str) -> None:
    c = 0.9 / high
    result = loss_constants(name, low=low, high=high, c=c)
    d = divergence(name)
    r = torch.linspace(low, high, 301, dtype=torch.float64)
    first = d.l1(r.log())
    second = c * first - d.df(r.log())
    slack = 1 + 1e-9
    assert float(first.abs().max()) <= result.delta * slack
    assert float(second.max() - second.min()) / 2 <= result.delta * slack
    assert float(first.min()) == pytest.approx(result.floor, rel=1e-9)
    for loss, lipschitz in ((first, result.l1), (second, result.l2)):
        assert float((loss.diff() / r.diff()).abs().max()) <= lipschitz * (1 + 1e-5)
    shifted = replace(d, df=lambda s: d.df(s) + 7.0)  # f' is known up to a constant only
    assert loss_constants(shifted, low=low, high=high, c=c).delta == pytest.approx(result.delta)


def test_pu_has_constants_below_its_limit() -> None:
    assert loss_constants("pu", low=0.1, high=3.0, c=0.3).l1 == pytest.approx(0.3 / (1 - 0.9))
    with pytest.raises(InputError, match="below 1/C"):
        loss_constants("pu", low=0.1, high=4.0, c=0.3)


# the form for perceptrons


def test_mlp_bound_is_the_bound_with_frobenius_complexities() -> None:
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    train, a, b = (rng.normal(size=(n, 3)) for n in (50, 30, 40))
    result = mlp_ratio_error_bound(
        net, train=train, test={"a": a, "b": b}, which="lsif", low=0.2, high=5.0, c=0.15
    )
    weights = [p.detach().double().numpy() for p in net.parameters()]
    norms = math.sqrt((weights[0] ** 2).sum() + (weights[1] ** 2).sum() + 1) * math.sqrt(
        (weights[2] ** 2).sum() + (weights[3] ** 2).sum()
    )
    r = [
        math.sqrt(1 + (x**2).sum(axis=1).max())
        * (math.sqrt(4 * math.log(2)) + 1)
        * norms
        / math.sqrt(len(x))
        for x in (train, a, b)
    ]
    # in log r: ℓ1 = e²ˢ/2 has slope z², ℓ2 = C e²ˢ/2 − eˢ has slope Cz² − z
    slope1, slope2 = 25.0, max(1 / (4 * 0.15), abs(0.15 * 25 - 5))
    assert result.train_term == pytest.approx(8 * slope1 * r[0])
    assert result.test_term == pytest.approx(8 * (0.15 * slope1 + slope2) * (r[1] + r[2]), rel=1e-6)
    assert result.n_test == (30, 40)
    same = mlp_ratio_error_bound(
        MLPClass.of(net),
        train=train, test={"a": a, "b": b}, which="lsif", low=0.2, high=5.0, c=0.15,
    )  # fmt: skip
    assert same == result


# all clients at once


def test_union_bound_over_two_clients() -> None:
    """Two clients share their test rows; the chance that either is unlucky is at most Σ δ."""
    one, two = Enumerated("lsif", 0.4), Enumerated("lsif", 0.3, train=0.6)
    deltas = (0.2, 0.1)
    together = AllClients({"one": one.bound(delta=deltas[0]), "two": two.bound(delta=deltas[1])})
    assert together.delta == pytest.approx(0.3)
    n, m = one.n_train + 1, (one.n_test + 1) ** 2
    lucky = []
    for problem, bound in zip((one, two), together.bounds.values(), strict=True):
        far = problem.deviation() - problem.p @ problem.deviation()
        lucky.append((far <= bound.deviation / 2).reshape(n, m))
    # joint distribution: own training rows, common test rows
    tests = one.p.reshape(n, m).sum(axis=0)
    own = [p.p.reshape(n, m).sum(axis=1) for p in (one, two)]
    both = np.einsum("i,j,m,im,jm->", *own, tests, *(x.astype(float) for x in lucky))
    assert 1 - both <= together.delta
    worst = max(b.total for b in together.bounds.values())
    assert together.total == worst == together.bounds[together.worst].total
    assert repr(together.worst) in together.status
    assert together.printed_total >= together.total


sizes = st.integers(1, 10_000)


@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 0.5), sizes, sizes, st.floats(0.01, 0.2), st.floats(0, 1),
            st.floats(0, 0.3),
        ),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_the_printed_union_is_never_smaller(clients: list) -> None:
    bounds = {}
    for i, (c, n, m, delta, complexity, c_error) in enumerate(clients):
        bounds[str(i)] = ratio_error_bound(
            losses=loss_constants("ukl", low=0.1, high=2.0, c=c),
            train_complexity=complexity,
            test_complexity=[complexity, 2 * complexity],
            n_train=n,
            n_test=[m, 2 * m],
            delta=delta,
            c_error=c_error,
        )
    union = AllClients(bounds)
    assert union.printed_total >= union.total * (1 - 1e-12)


def test_sizes_may_come_from_numpy() -> None:
    losses = loss_constants("lsif", low=0.5, high=2.0, c=0.3)
    good = {"losses": losses, "train_complexity": 0.1, "test_complexity": [0.1, 0.1], "n_train": 9}
    plain = ratio_error_bound(**good, n_test=7)
    assert ratio_error_bound(**good, n_test=np.int64(7)) == plain
    assert ratio_error_bound(**good, n_test=np.array([7, 7])) == plain


def test_bad_input_is_named() -> None:
    losses = loss_constants("lsif", low=0.5, high=2.0, c=0.3)
    good = {
        "losses": losses, "train_complexity": 0.1, "test_complexity": [0.1, 0.1],
        "n_train": 10, "n_test": 10,
    }  # fmt: skip
    for change, words in (
        ({"delta": 0.0}, "delta must be a number above 0 and below 1; got 0.0"),
        ({"n_train": 0}, "n_train must be a whole number of at least 1"),
        ({"n_test": [1, 2, 3]}, "one for each of 2 distributions; got 3"),
        ({"test_complexity": [0.1, -1.0]}, "test_complexity must be of at least 0; got -1.0"),
        ({"c_error": -0.1}, "c_error"),
    ):
        with pytest.raises(InputError, match=words.replace("(", r"\(")):
            ratio_error_bound(**{**good, **change})
    with pytest.raises(InputError, match=r"sum to less than one; got 1\.2"):
        AllClients({str(i): ratio_error_bound(**good, delta=0.4) for i in range(3)})
    with pytest.raises(InputError, match="at least one client"):
        AllClients({})
    with pytest.raises(InputError, match="high must be a number above 2"):
        loss_constants("lsif", low=2.0, high=1.0, c=0.1)
    with pytest.raises(InputError, match="'ratio' or 'log ratio'"):
        loss_constants("lsif", low=1.0, high=2.0, c=0.1, of="odds")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one client"):
        mlp_ratio_error_bound(
            MLPClass(norms=(1.0,)), train=[[1.0]], test={}, which="lsif", low=1.0, high=2.0, c=0.1
        )
