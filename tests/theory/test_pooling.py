"""Partial pooling: every round enumerated, then properties of the two terms."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.errors import InputError
from fedshift.theory import best_pooling, pooling_variance

TRAIN = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
TEST = np.array([[0.1, 0.1, 0.8], [0.3, 0.3, 0.4], [0.5, 0.4, 0.1]])
LOSS = np.array([1.0, 0.2, 2.0])


def enumerated(train: np.ndarray, pooling: float, m: int) -> tuple[float, float]:
    """Mean and variance of the objective over all rounds: m clients, one row each."""
    clients, states = train.shape
    powers = train**pooling if pooling else (train > 0).astype(float)
    share = clients * powers / powers.sum(axis=0)
    chances, values = [], []
    groups = list(combinations(range(clients), m))
    for group in groups:
        for draw in product(range(states), repeat=m):
            pairs = list(zip(group, draw, strict=True))
            chance = np.prod([train[k, z] for k, z in pairs]) / len(groups)
            if chance > 0:
                sums = (
                    share[k, z] * TEST[: len(train), z].sum() / train[k, z] * LOSS[z]
                    for k, z in pairs
                )
                chances.append(chance)
                values.append(sum(sums) / m)
    mean = np.dot(chances, values)
    return float(mean), float(np.dot(chances, (np.array(values) - mean) ** 2))


@pytest.mark.parametrize("pooling", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_against_all_rounds(pooling: float, m: int) -> None:
    mean, variance = enumerated(TRAIN, pooling, m)
    result = pooling_variance(TRAIN, TEST, pooling=pooling, loss=LOSS, participants=m)
    assert mean == pytest.approx((TEST @ LOSS).sum())  # unbiased for any pooling
    assert result.total == pytest.approx(variance)
    assert result.within > 0
    assert (result.between > 1e-12) == (m < 3 and pooling > 0)


def test_a_client_without_a_state_leaves_it_to_the_others() -> None:
    train = np.array([[1.0, 0.0, 0.0], [0.2, 0.4, 0.4]])
    mean, variance = enumerated(train, 0.5, 2)
    assert mean == pytest.approx((TEST[:2] @ LOSS).sum())
    result = pooling_variance(train, TEST[:2], pooling=0.5, loss=LOSS)
    assert result.total == pytest.approx(variance)
    assert best_pooling(train, TEST[:2], loss=LOSS) > 0
    with pytest.raises(InputError, match="some client has probability 0 in state 1; raise pooling"):
        pooling_variance(train, TEST[:2], pooling=0.0)
    with pytest.raises(InputError, match="every client has probability 0 in state 2; merge"):
        pooling_variance([[0.5, 0.5, 0], [0.5, 0.5, 0]], TEST[:2], pooling=1.0)


def test_several_losses_add_and_rows_divide() -> None:
    parts = [
        pooling_variance(TRAIN, TEST, pooling=0.5, loss=row, participants=2) for row in np.eye(3)
    ]
    whole = pooling_variance(TRAIN, TEST, pooling=0.5, participants=2)
    assert whole.total == pytest.approx(sum(p.total for p in parts))
    many = pooling_variance(TRAIN, TEST, pooling=0.5, participants=2, rows=[10, 10, 10])
    assert many.within == pytest.approx(whole.within / 10)
    assert many.between == pytest.approx(whole.between)  # no number of rows mends the draw


def test_the_papers_hundred_clients() -> None:
    """A round of five is least noisy with a pooling between 0 and 1; with all clients it is 1."""
    rare = 0.05 / 9
    train = np.repeat(np.where(np.eye(10) > 0, 0.95, rare), 10, axis=0)
    test = train[::-1]
    some = best_pooling(train, test, rows=64, participants=5)
    assert 0.1 < some < 0.5
    assert best_pooling(train, test, rows=64) == 1.0
    ends = [pooling_variance(train, test, pooling=b, rows=64, participants=5).total for b in (0, 1)]
    assert pooling_variance(train, test, pooling=some, rows=64, participants=5).total < 0.9 * min(
        ends
    )


distributions = st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3).map(
    lambda v: np.array(v) / sum(v)
)


@given(st.lists(distributions, min_size=2, max_size=4), st.floats(0, 1))
def test_all_clients_are_never_noisier_with_the_balance_heuristic_than_veach_allows(
    train: list[np.ndarray], pooling: float
) -> None:
    """Var(β = 1) ≤ Var(any) + (1 − 1/K) μ², one row a client (Veach and Guibas 1995)."""
    p, k = np.array(train), len(train)
    q = TEST[[i % 3 for i in range(k)]]
    balance = pooling_variance(p, q, pooling=1.0, loss=LOSS).total
    other = pooling_variance(p, q, pooling=pooling, loss=LOSS).total
    mean = float((q @ LOSS).sum())
    assert balance <= other + (1 - 1 / k) * mean**2 + 1e-9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": [0.5, 0.5]}, r"train must have shape \(clients, states\); got \(2,\)"),
        ({"test": [[0.5, 0.5]] * 3}, "same clients and states"),
        ({"loss": [1.0]}, "loss must be finite numbers"),
        ({"participants": 4}, "participants must be 1 to 3; got 4"),
        ({"pooling": 1.2}, "pooling must be an exponent"),
        ({"rows": 0.0}, "rows"),
    ],
)
def test_wrong_input_is_named(change: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        pooling_variance(**{"train": TRAIN, "test": TEST, "pooling": 0.5, **change})
