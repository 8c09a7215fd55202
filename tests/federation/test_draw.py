"""Random choices: known values, and distributions that keep clients, calls and rounds apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedshift.federation import draw

GOLDEN = 0x9E3779B97F4A7C15
SEEDS = st.integers(0, 2**32)


def test_mix_gives_the_published_values_of_splitmix64() -> None:
    states = (np.arange(1, 6, dtype=object) * GOLDEN + 1234567) % 2**64
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert draw.mix(states.astype(np.uint64)).tolist() == published
    first = draw.mix(np.array([GOLDEN], dtype=np.uint64))
    assert int(first[0]) == 0xE220A8397B1DCDAF  # seed 0


def test_words_are_a_chain_of_mixes() -> None:
    name = draw.key(3, "a")
    one = draw.mix(np.array([(int(name) + 8 * GOLDEN) % 2**64], dtype=np.uint64))
    assert draw.words(name, 7) == one[0]
    two = draw.mix(np.array([(int(one[0]) + GOLDEN) % 2**64], dtype=np.uint64))
    assert draw.words(name, 7, 0) == two[0]


def test_keys_differ_by_every_part_and_where_parts_end() -> None:
    names = [draw.key(0, "rows", "a"), draw.key(1, "rows", "a"), draw.key(0, "lottery", "a")]
    names += [draw.key(0, "rows", "b"), draw.key(0, "rowsa"), draw.key(0, "row", "sa")]
    assert len(set(map(int, names))) == len(names)
    assert draw.key(0, "rows", "a") == draw.key(0, "rows", "a")


def test_uniform_numbers_are_uniform() -> None:
    u = draw.uniform(draw.key(0, "u"), 5, np.arange(20_000))
    assert ((u >= 0) & (u < 1)).all()
    assert stats.kstest(u, "uniform").pvalue > 0.01
    lag = np.corrcoef(u[:-1], u[1:])[0, 1]
    assert abs(lag) < 4 / np.sqrt(len(u))


@given(SEEDS, st.integers(0, 50), st.integers(1, 300))
@settings(max_examples=50, deadline=None)
def test_a_permutation_is_one(seed: int, counter: int, n: int) -> None:
    order = draw.permutation(draw.key(seed, "p"), counter, n)
    assert sorted(order.tolist()) == list(range(n))


def test_permutations_of_three_are_equally_likely() -> None:
    name = draw.key(1, "p")
    code = [tuple(draw.permutation(name, i, 3).tolist()) for i in range(6000)]
    counts = [code.count(c) for c in sorted(set(code))]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 0.01


@given(SEEDS, st.integers(1, 40), st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_every_row_once_an_epoch(seed: int, n: int, batch_size: int) -> None:
    stream = draw.BatchRows(seed, "a", n, batch_size).batches(0, n).ravel()  # batch_size epochs
    epochs = stream.reshape(batch_size, n)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(n), (batch_size, 1)))
    if n > 20 and batch_size > 1:
        assert (epochs[0] != epochs[1]).any()


@given(
    SEEDS,
    st.integers(1, 30),
    st.integers(1, 40),
    st.lists(st.integers(0, 7), min_size=1, max_size=6),
    st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_batches_do_not_depend_on_how_they_are_asked_for(
    seed: int, n: int, batch_size: int, counts: list[int], weighted: bool
) -> None:
    weight = np.arange(1.0, n + 1) if weighted else None
    counts = [c + 1 for c in counts]
    whole = draw.BatchRows(seed, "a", n, batch_size, weight).batches(2, sum(counts))
    parts, first = [], 2
    one = draw.BatchRows(seed, "a", n, batch_size, weight)
    for count in counts:
        parts.append(one.batches(first, count))
        first += count
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    again = one.batches(2, 1)  # back in time
    np.testing.assert_array_equal(again, whole[:1])


def test_streams_of_clients_have_nothing_in_common() -> None:
    a, b = (draw.BatchRows(0, name, 1000, 1000).batches(0, 1)[0] for name in ("a", "b"))
    assert abs(stats.spearmanr(a, b).statistic) < 0.12
    other = draw.BatchRows(1, "a", 1000, 1000).batches(0, 1)[0]
    assert abs(stats.spearmanr(a, other).statistic) < 0.12


def test_weighted_rows_come_in_proportion_to_their_weight() -> None:
    weight = np.array([0.0, 1.0, 5.0, 0.0, 0.25, 3.75, 0.0])
    drawn = draw.BatchRows(0, "a", 7, 64, weight).batches(0, 1000).ravel()
    counts = np.bincount(drawn, minlength=7)
    assert (counts[weight == 0] == 0).all()
    some = weight > 0
    expected = weight[some] / weight.sum() * len(drawn)
    assert stats.chisquare(counts[some], expected).pvalue > 0.01


def test_a_row_without_weight_is_not_drawn_even_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "uniform", lambda name, at: np.zeros(len(at)))
    drawn = draw.BatchRows(0, "a", 3, 5, np.array([0.0, 1.0, 1.0])).batches(0, 1)
    assert (drawn == 1).all()


@given(SEEDS, st.integers(1, 30), st.integers(1, 40), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_lottery_draws_the_count_asked_for_whatever_the_order(
    seed: int, clients: int, count: int, number: int
) -> None:
    names = [f"c{k}" for k in range(clients)]
    drawn = draw.Lottery(seed, names, count).draw(number, 1)[0]
    assert len(set(drawn.tolist())) == len(drawn) == min(count, clients)
    assert (np.diff(drawn) > 0).all()
    turned = names[::-1]
    other = draw.Lottery(seed, turned, count).draw(number, 1)[0]
    assert {names[i] for i in drawn} == {turned[i] for i in other}


@given(SEEDS, st.integers(1, 20), st.integers(1, 25), st.integers(0, 2**40), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_rounds_drawn_together_are_rounds_drawn_alone(
    seed: int, clients: int, count: int, first: int, rounds: int
) -> None:
    lottery = draw.Lottery(seed, [f"c{k}" for k in range(clients)], count)
    together = lottery.draw(first, rounds)
    assert together.shape == (rounds, min(count, clients))
    for i in range(rounds):
        np.testing.assert_array_equal(together[i], lottery.draw(first + i, 1)[0])


def test_a_lottery_is_uniform_over_clients_and_pairs() -> None:
    lottery = draw.Lottery(0, [f"c{k}" for k in range(8)], 2)
    drawn = lottery.draw(0, 7000)
    # two of a draw exclude each other, so counts of clients vary less than a chi-square's
    assert stats.chisquare(np.bincount(drawn.ravel())).pvalue > 0.05
    pairs = np.bincount(drawn[:, 0] * 8 + drawn[:, 1])
    assert len(pairs[pairs > 0]) == 28
    assert stats.chisquare(pairs[pairs > 0]).pvalue > 0.01
    same = (drawn[1:] == drawn[:-1]).all(1).mean()
    assert abs(same - 1 / 28) < 4 * np.sqrt(1 / 28 / 7000)
