"""Counts that leave a site: hidden cells stay hidden, noise is what it claims to be."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from contextlib import suppress
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedshift.errors import InputError
from fedshift.privacy.accountant import Accountant
from fedshift.privacy.counts import Released, Releases, _coin, _hide, geometric, release_counts
from fedshift.privacy.policy import Privacy, Refused

OPEN = Privacy(min_rows=1, min_count=0)
tables = st.lists(st.integers(0, 60), min_size=2, max_size=8)


def test_without_thresholds_and_noise_the_table_is_as_it_is() -> None:
    out = release_counts([[3, 0], [1, 6]], policy=OPEN)
    assert out.counts.tolist() == [[3, 0], [1, 6]]
    assert not out.suppressed.any()
    assert out.shares.tolist() == [[0.3, 0.0], [0.1, 0.6]]
    assert math.isinf(out.epsilon)


def test_small_cells_are_hidden_and_the_distribution_is_of_what_is_shown() -> None:
    out = release_counts([50, 4, 4, 30], policy=Privacy())
    assert out.counts.tolist() == [50, 0, 0, 30]
    assert out.suppressed.tolist() == [False, True, True, False]
    assert out.shares.tolist() == [0.625, 0.0, 0.0, 0.375]
    assert repr(out) == "Released(80 rows in 2 of 4 cells; no noise)"


def test_a_single_hidden_cell_would_be_seen_by_subtraction() -> None:
    out = release_counts([50, 2, 30], policy=Privacy())  # 82 rows are known: 82 − 80 = 2
    assert out.counts.tolist() in ([50, 0, 0], [0, 0, 30])
    small = [release_counts([900, 2, 30], policy=Privacy(), rng=s).counts[2] for s in range(200)]
    assert 2 <= np.count_nonzero(small) <= 20  # rather a small one, but not always
    with pytest.raises(Refused, match="fewer, larger cells"):
        release_counts([97, 3], policy=Privacy())


def test_the_same_rows_hide_the_same_cells() -> None:
    """Two draws of one table would show what each of them hides."""

    def visible(table: list[int], secret: bytes) -> list[int]:
        return release_counts(table, policy=Privacy(), secret=secret).counts.tolist()  # type: ignore[no-any-return]

    table = [40, 2, 40, 40, 40]
    assert all(visible(table, b"ours") == visible(table, b"ours") for _ in range(20))
    assert len({tuple(visible(table, bytes([i]))) for i in range(40)}) == 4


@given(tables)
@settings(deadline=None)
def test_what_is_shown_is_true_and_large(table: list[int]) -> None:
    policy, counts = Privacy(min_rows=1), np.array(table)
    try:
        out = release_counts(counts, policy=policy)
    except Refused:
        return
    assert (out.counts[~out.suppressed] == counts[~out.suppressed]).all()
    assert (out.counts[~out.suppressed] >= policy.min_count).all()


def every_way(table: tuple[int, ...], least: int) -> set[tuple[bool, ...]]:
    """All sets of cells that can be hidden, whatever is drawn."""
    result, scripts = set(), [()]
    while scripts:
        script = scripts.pop()
        left = iter(script)

        def below(n: int, script: tuple[int, ...] = script, left: Any = left) -> int:
            drawn = next(left, None)
            if drawn is None:
                scripts.extend((*script, i) for i in range(n))
                raise StopAsyncIteration
            return int(drawn)

        with suppress(StopAsyncIteration):
            result.add(tuple(_hide(np.array(table), least, below).tolist()))
    return result


@pytest.mark.parametrize(
    ("least", "cells", "most"), [(2, 4, 9), (3, 3, 13), (3, 4, 10), (5, 3, 16)]
)
def test_no_hidden_cell_can_be_worked_out(least: int, cells: int, most: int) -> None:
    """Of all tables that give an answer, with the number of rows and the rule known as well."""
    fits = defaultdict(list)
    for table in itertools.product(range(most + 1), repeat=cells):
        if 0 < sum(table) <= most:
            for hidden in every_way(table, least):
                visible = tuple(-1 if h else t for t, h in zip(table, hidden, strict=True))
                fits[sum(table), visible].append(table)
    hiding = {answer: result for answer, result in fits.items() if -1 in answer[1]}
    assert len(hiding) > 20
    for (_, visible), result in hiding.items():
        for i in (i for i, value in enumerate(visible) if value < 0):
            values = {t[i] for t in result}
            if max(visible) < 0:  # refused: only the number of rows is revealed
                assert len(values) > 1
            else:
                assert values >= set(range(least))


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(Refused, match="at least 20 rows"):
        release_counts([10, 9], policy=Privacy())
    assert release_counts([10, 10], policy=Privacy()).total == 20


@pytest.mark.parametrize("bad", [[1.0, 2.0], [-1, 30], [], ["a"]])
def test_counts_must_be_counts(bad: list[object]) -> None:
    with pytest.raises(InputError, match="whole numbers"):
        release_counts(np.array(bad), policy=OPEN)


# -- noise -------------------------------------------------------------------------------------


def test_coin_by_enumeration() -> None:
    """P(true) = exp(−top / bottom), from the exact tree of the integers it draws."""
    top, bottom = 2, 3
    # it stops at k with chance Π_{j<k} (γ/j) (1 − γ/k), and is true for odd k
    gamma = Fraction(top, bottom)
    chance, reach = Fraction(0), Fraction(1)
    for k in range(1, 25):
        if k % 2:
            chance += reach * (1 - gamma / k)
        reach *= gamma / k
    assert float(chance) == pytest.approx(math.exp(-2 / 3), abs=1e-15)
    # and the code walks that tree
    for drawn in itertools.product(range(2), repeat=3):
        left = iter([*(0 if d else 10**9 for d in drawn), 10**9])
        expect = next((i for i, d in enumerate(drawn) if not d), 3) % 2 == 0
        assert _coin(top, bottom, lambda n, left=left: next(left)) == expect  # type: ignore[misc]


@pytest.mark.parametrize("epsilon", [Fraction(1, 3), Fraction(1), Fraction(5, 2)])
def test_geometric_distribution(epsilon: Fraction) -> None:
    rng, n = np.random.default_rng(0), 6000
    z = np.array([geometric(epsilon, lambda m: int(rng.integers(m))) for _ in range(n)])
    edge = int(4 / epsilon) + 1
    e = float(epsilon)
    values = np.arange(-edge, edge + 1)
    p = np.exp(-e * abs(values)) * math.tanh(e / 2)
    p[[0, -1]] += p[-1] * math.exp(-e) / (1 - math.exp(-e))
    calls = np.bincount(z.clip(-edge, edge) + edge, minlength=len(values))
    keep = p * n >= 5
    calls, p = np.append(calls[keep], calls[~keep].sum()), np.append(p[keep], p[~keep].sum())
    if p[-1] * n < 1e-9:
        calls, p = calls[:-1], p[:-1]
    assert chisquare(calls, n * p / p.sum()).pvalue > 1e-3


def test_noise_keeps_the_counts_whole_and_the_threshold_afterwards() -> None:
    policy = Privacy(epsilon_counts=0.5)
    runs = [release_counts([100, 50, 1], policy=policy, rng=s) for s in range(400)]
    assert all(r.counts.dtype == np.int64 for r in runs)
    first = np.array([r.counts[0] for r in runs])
    deviation = math.sqrt(2 * math.exp(-0.5)) / (1 - math.exp(-0.5))
    assert abs(first.mean() - 100) < 4 * deviation / 20
    assert first.std() == pytest.approx(deviation, rel=0.2)
    third = np.array([r.counts[2] for r in runs])
    assert third.max() >= 5  # noise decides what is shown
    assert third[third > 0].min() >= 5
    assert all(r.epsilon == 0.5 for r in runs)


def test_noise_has_the_promised_epsilon() -> None:
    """Frequencies of answers for neighbours differ by at most e^ε, and do reach it."""
    policy = Privacy(min_rows=1, min_count=0, epsilon_counts=1.0)
    rng = np.random.default_rng(1)
    n = 8000
    a = np.array([release_counts([80], policy=policy, rng=rng).total for _ in range(n)])
    b = np.array([release_counts([81], policy=policy, rng=rng).total for _ in range(n)])
    for v in range(78, 84):
        p, q = np.mean(a == v), np.mean(b == v)
        error = 4 * math.sqrt(1 / (n * p) + 1 / (n * q))
        assert abs(math.log(p / q)) <= 1.0 + error
        assert abs(abs(math.log(p / q)) - 1.0) < error


def test_epsilon_is_rounded_down_never_up() -> None:
    request = 0.1234567891
    out = release_counts([100], policy=Privacy(epsilon_counts=request), rng=0)
    assert out.epsilon == 0.123456
    with pytest.raises(InputError, match="at least"):
        release_counts([100], policy=Privacy(epsilon_counts=1e-9))
    books = Releases()
    with pytest.raises(InputError, match="at least"):
        books.answer("labels", "test", [100], policy=Privacy(epsilon_counts=1e-9))
    assert not books.tables


def test_a_seed_repeats_and_no_seed_does_not() -> None:
    policy = Privacy(epsilon_counts=0.01)
    seeded = [release_counts([9999] * 4, policy=policy, rng=3).counts.tolist() for _ in range(2)]
    assert seeded[0] == seeded[1]
    free = [release_counts([9999] * 4, policy=policy).counts.tolist() for _ in range(2)]
    assert free[0] != free[1]


# -- answers over time -------------------------------------------------------------------------


def test_the_same_question_gets_the_same_answer() -> None:
    books, policy, paid = Releases(), Privacy(epsilon_counts=0.5), []
    first = books.answer("labels", "test", [60, 60], policy=policy, spent=paid.append)
    again = books.answer("labels", "test", [60, 60], policy=policy, spent=paid.append)
    lower = books.answer("labels", "test", [60, 60], policy=Privacy(min_count=0))
    assert again is first
    assert lower is first
    assert paid == [0.5]


def test_a_second_table_of_a_distribution_needs_noise() -> None:
    books = Releases()
    books.answer("cells-1", "test", [60, 60], policy=Privacy())
    with pytest.raises(Refused, match=r"cells-1 of the test rows were released before.*difference"):
        books.answer("cells-2", "test", [61, 59], policy=Privacy())
    with pytest.raises(Refused):  # the first had none, so noise comes too late
        books.answer("cells-2", "test", [61, 59], policy=Privacy(epsilon_counts=1.0))
    assert books.answer("cells-2", "train", [61, 59], policy=Privacy()).total == 120


def test_a_table_without_noise_is_booked_as_such() -> None:
    books, account = Releases(), Accountant()
    ask = [60, 60]
    books.answer(
        "labels", "test", ask, policy=Privacy(epsilon_counts=0.5), spent=account.spend_counts
    )
    assert account.epsilon(1e-5) == 0.5
    books.answer("labels", "train", ask, policy=Privacy(), spent=account.spend_counts)
    assert math.isinf(account.epsilon(1e-5))


def test_a_second_table_with_noise_is_paid_for() -> None:
    books, paid = Releases(), []
    for what in ("cells-1", "cells-2"):
        books.answer(what, "test", [60, 60], policy=Privacy(epsilon_counts=1.0), spent=paid.append)
    assert paid == [1.0, 1.0]


def test_too_few_rows_may_become_enough() -> None:
    books = Releases()
    with pytest.raises(Refused, match="fewer rows"):
        books.answer("cells-1", "test", [1, 1], policy=Privacy())
    assert books.answer("cells-2", "test", [60, 60], policy=Privacy()).total == 120


def test_asking_again_until_the_noise_is_kind_gets_nothing() -> None:
    policy, books, paid = Privacy(min_count=60, epsilon_counts=0.1), Releases(), []
    for _ in range(200):
        with pytest.raises(Refused):
            books.answer("cells", "test", [20, 20], policy=policy, rng=0, spent=paid.append)
    assert paid == [0.1]
    back = Releases.from_record(json.loads(json.dumps(books.to_record())))
    with pytest.raises(Refused, match="second try"):
        back.answer("cells", "test", [20, 20], policy=policy)


def test_books_survive_a_restart() -> None:
    books = Releases()
    first = books.answer("labels", "test", [60, 3, 3], policy=Privacy())
    books.answer("labels", "train", [60, 30], policy=Privacy(epsilon_counts=1.0), rng=0)
    back = Releases.from_record(json.loads(json.dumps(books.to_record())))
    again = back.answer("labels", "test", [1, 1, 1], policy=Privacy())
    assert again.counts.tolist() == first.counts.tolist()
    assert back.to_record() == books.to_record()


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"counts": [1, 2], "suppressed": [False], "epsilon": None},
        {"counts": [1, 2], "suppressed": [False, True], "epsilon": None},
        {"counts": [0, 0], "suppressed": [False, False], "epsilon": None},
        {"counts": [0.5, 1], "suppressed": [False, False], "epsilon": None},
        {"counts": [-1, 3], "suppressed": [False, False], "epsilon": 1.0},
        {"counts": [1, 3], "suppressed": [False, False], "epsilon": "much"},
    ],
)
def test_what_cannot_be_a_release_is_not_read(record: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Released.from_record(record)
