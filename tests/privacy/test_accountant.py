"""What was spent: closed forms, brute force, and another library."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from fedshift.errors import InputError
from fedshift.federation.draw import BatchRows
from fedshift.privacy.accountant import (
    ORDERS,
    Accountant,
    Spent,
    Stream,
    gaussian_epsilon,
    pure_renyi,
    renyi_to_epsilon,
)

# -- closed forms ------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_gaussian_by_integration(mu: float, delta: float) -> None:
    """δ(ε) is the mass of P above e^ε Q, for N(μ, 1) against N(0, 1)."""
    epsilon = gaussian_epsilon(mu**2, delta)
    start = epsilon / mu + mu / 2  # the densities' ratio is e^ε here
    mass, _ = quad(
        lambda x: norm.pdf(x - mu) - math.exp(epsilon - x * x / 2) / math.sqrt(2 * math.pi),
        start,
        start + 40,
        epsabs=1e-16,
        points=[start + 0.5, start + 2],
    )
    if epsilon == 0:
        assert 2 * norm.cdf(mu / 2) - 1 <= delta
    else:
        assert mass == pytest.approx(delta, rel=1e-4)


def test_gaussian_limits() -> None:
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_epsilon(1e-14, 1e-5) == 0.0
    assert math.isfinite(gaussian_epsilon(1e6, 1e-5))  # hardly private, but a number


def test_uses_of_a_gaussian_compose_as_less_noise() -> None:
    many, one = Accountant(), Accountant()
    many.spend_epochs(noise=4.0, rows=100, batch=10, steps=160)  # 16 epochs
    one.spend_epochs(noise=1.0, rows=100, batch=100)
    assert many.epsilon(1e-5) == pytest.approx(one.epsilon(1e-5), rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 5.0])
def test_pure_is_randomised_response(epsilon: float) -> None:
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    for order in (1.01, 1.5, 2.0, 7.0, 40.0):
        moment = p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)
        result = pure_renyi(epsilon, np.array([order]))[0]
        assert result == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)
        assert result <= min(epsilon, order * epsilon**2 / 2) * (1 + 1e-9)


def test_renyi_conversion_is_above_the_exact_curve_but_near() -> None:
    for mu in (0.2, 1.0, 3.0):
        by_renyi = renyi_to_epsilon(ORDERS * mu**2 / 2, ORDERS, 1e-5)
        exact = gaussian_epsilon(mu**2, 1e-5)
        assert exact <= by_renyi <= 1.15 * exact


# -- composition -------------------------------------------------------------------------------


def test_a_few_counts_add_and_many_compose_better() -> None:
    few, many = Accountant(), Accountant()
    few.spend_counts(0.5, releases=2)
    assert few.epsilon(1e-5) == pytest.approx(1.0)
    many.spend_counts(0.05, releases=1000)
    assert many.epsilon(1e-5) < 0.25 * 50


def test_counts_and_gradients_together() -> None:
    books = Accountant()
    books.spend_epochs(noise=2.0, rows=100, batch=100)
    alone = books.epsilon(1e-5)
    books.spend_counts(0.3)
    assert alone < books.epsilon(1e-5) <= alone + 0.3


def test_without_noise_epsilon_is_infinite_and_said_so() -> None:
    gradients, counts = Accountant(), Accountant()
    gradients.spend_epochs(noise=0.0, rows=10, batch=10)
    counts.spend_counts(math.inf)
    for books in (gradients, counts):
        assert math.isinf(books.epsilon(1e-5))
        assert "ε = inf" in repr(books)
        back = Accountant.from_record(json.loads(json.dumps(books.to_record(), allow_nan=False)))
        assert math.isinf(back.epsilon(1e-5))


@given(
    st.lists(
        st.tuples(st.floats(0.3, 10), st.integers(1, 20), st.floats(0.01, 2)),
        min_size=1,
        max_size=3,
    ),
    st.floats(1e-9, 1e-2),
)
@settings(max_examples=25, deadline=None)
def test_distributions_of_spending(entries: list[tuple[float, int, float]], delta: float) -> None:
    forth, back = Accountant(), Accountant()
    before = 0.0
    for noise, steps, epsilon in entries:
        forth.spend(Spent(what="train.ratio", kind="gaussian", noise=noise, uses=steps))
        forth.spend_counts(epsilon)
        assert forth.epsilon(delta) >= before * (1 - 1e-9)  # more is never cheaper
        before = forth.epsilon(delta)
    for noise, steps, epsilon in reversed(entries):
        back.spend_counts(epsilon)
        for _ in range(steps):
            back.spend(Spent(what="train.ratio", kind="gaussian", noise=noise))
    assert back.epsilon(delta) == pytest.approx(before, rel=1e-9)  # order is irrelevant
    assert forth.epsilon(delta / 10) >= before
    record = json.loads(json.dumps(forth.to_record()))
    assert Accountant.from_record(record).epsilon(delta) == before


# -- epochs ------------------------------------------------------------------------------------


@given(
    st.integers(1, 30),
    st.integers(1, 45),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=8),
    st.integers(0, 3),
)
@settings(max_examples=200, deadline=None)
def test_no_row_is_in_more_batches_than_were_paid_for(
    n: int, batch: int, calls: list[tuple[int, int]], seed: int
) -> None:
    """Batches as a client cuts them, skipped and made again at will."""
    rows, stream = BatchRows(seed, "a", n, batch), Stream(rows=n, batch=batch, noise=1.0)
    times = np.zeros(n, dtype=int)
    for first, steps in calls:
        stream = stream.on(first, steps)
        for b in rows.batches(first, steps):
            times[np.unique(b)] += 1
    assert times.max() <= stream.uses


@pytest.mark.parametrize(("n", "batch", "epochs"), [(60, 20, 3), (60, 60, 4), (7, 1, 2)])
def test_whole_epochs_are_paid_exactly(n: int, batch: int, epochs: int) -> None:
    steps = epochs * n // batch
    at_once = Stream(rows=n, batch=batch, noise=1.0).on(0, steps)
    singly = Stream(rows=n, batch=batch, noise=1.0)
    for step in range(steps):
        singly = singly.on(step, 1)
    assert at_once == singly
    assert at_once.uses == epochs


def test_a_client_that_sits_out_pays_for_the_epochs_it_met() -> None:
    follows, skips = Accountant(), Accountant()
    for number in (0, 10, 20):
        follows.spend_epochs(noise=1.0, rows=100, batch=10)
        skips.spend_epochs(noise=1.0, rows=100, batch=10, first=number)
    assert follows.spent[0].uses == 1
    assert skips.spent[0].uses == 3


def test_a_batch_made_again_is_paid_again() -> None:
    books = Accountant()
    books.spend_epochs(noise=1.0, rows=100, batch=10, first=4)
    books.spend_epochs(noise=1.0, rows=100, batch=10, first=4)
    assert books.spent[0].uses == 2


def test_another_training_needs_another_name() -> None:
    books = Accountant()
    books.spend_epochs(noise=1.0, rows=100, batch=10)
    for other in ({"rows": 90}, {"batch": 5}, {"noise": 2.0}):
        with pytest.raises(InputError, match="a new name as what="):
            books.spend_epochs(**({"noise": 1.0, "rows": 100, "batch": 10} | other))  # type: ignore
    books.spend_epochs(noise=2.0, rows=90, batch=5, what="train.ratio/2")
    assert len(books.spent) == 2


def test_a_restart_goes_on_with_the_epoch() -> None:
    books = Accountant()
    books.spend_epochs(noise=1.0, rows=100, batch=10, steps=3)
    back = Accountant.from_record(json.loads(json.dumps(books.to_record())))
    back.spend_epochs(noise=1.0, rows=100, batch=10, steps=7)
    assert back.spent[0].uses == 1
    back.spend_epochs(noise=1.0, rows=100, batch=10)
    assert back.spent[0].uses == 2


def test_a_record_of_the_last_version_is_read() -> None:
    entry = {"what": "a", "kind": "gaussian", "noise": 2.0, "epsilon": 0.0, "q": 1.0, "uses": 3}
    books = Accountant.from_record({"spent": [entry], "streams": {}})
    assert books.spent == [Spent(what="a", kind="gaussian", noise=2.0, uses=3)]
    with pytest.raises(InputError, match="kind must be gaussian or pure"):
        Accountant.from_record({"spent": [entry | {"kind": "poisson"}], "streams": {}})


# -- bad input ---------------------------------------------------------------------------------


def test_bad_input_is_named() -> None:
    books = Accountant()
    assert repr(books) == "Accountant(nothing spent)"
    assert books.epsilon(1e-5) == 0.0
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(InputError, match="delta"):
            books.epsilon(delta)
    with pytest.raises(InputError, match="noise"):
        Spent(what="a", kind="gaussian", noise=-1.0)
    with pytest.raises(InputError, match="epsilon"):
        books.spend_counts(math.nan)
    with pytest.raises(InputError, match="rows"):
        books.spend_epochs(noise=1.0, rows=0, batch=1)
    with pytest.raises(InputError, match="kind"):
        Spent(what="a", kind="other")
    for record in ({}, {"spent": [{"epsilon": 1, "who": 2}], "streams": {}}, {"spent": 3}):
        with pytest.raises(InputError, match="record"):
            Accountant.from_record(record)
    assert not books.spent


# -- another library ---------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "uses"), [(1.0, 1), (3.0, 20), (0.8, 3)])
def test_epochs_as_dp_accounting(noise: float, uses: int) -> None:
    dp = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    pld = pytest.importorskip("dp_accounting.pld")
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise), uses)
    theirs = pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    books = Accountant()
    books.spend_epochs(noise=noise, rows=50, batch=25, steps=2 * uses)
    assert books.epsilon(1e-5) == pytest.approx(theirs, rel=2e-3)


def test_counts_are_never_below_the_tight_composition() -> None:
    dp = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    pld = pytest.importorskip("dp_accounting.pld")
    event = dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1 / 0.2), 40)
    theirs = pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    books = Accountant()
    books.spend_counts(0.2, releases=40)
    assert theirs <= books.epsilon(1e-5) <= 1.4 * theirs


def test_what_left_bare_is_never_forgotten() -> None:
    books = Accountant()
    assert not books.noisy
    books.spend_bare("train.ratio")
    assert not books.noisy
    assert books.epsilon(1e-5) == math.inf
    books.spend_counts(0.5)
    assert books.noisy
    again = Accountant.from_record(json.loads(json.dumps(books.to_record())))
    assert again.noisy
    assert again.epsilon(1e-5) == math.inf
