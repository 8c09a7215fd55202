"""Clients that lean on each other: every round enumerated, then laws of the two terms."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.errors import InputError
from fedshift.theory import best_lean, lean_variance

TRAIN = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
TEST = np.array([[0.1, 0.1, 0.8], [0.3, 0.3, 0.4], [0.5, 0.4, 0.1]])
LOSS = np.array([1.0, 0.2, 2.0])


def enumerated(train: np.ndarray, lean: float, m: int) -> tuple[float, float]:
    """Mean and variance of the objective over all rounds: m clients, one row each."""
    clients, states = train.shape
    powers = train**lean if lean else (train > 0).astype(float)
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


@pytest.mark.parametrize("lean", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_against_all_rounds(lean: float, m: int) -> None:
    mean, variance = enumerated(TRAIN, lean, m)
    found = lean_variance(TRAIN, TEST, lean=lean, loss=LOSS, participants=m)
    assert mean == pytest.approx((TEST @ LOSS).sum())  # unbiased, whatever the lean
    assert found.total == pytest.approx(variance)
    assert found.within > 0
    assert (found.between > 1e-12) == (m < 3 and lean > 0)


def test_a_client_without_a_state_leaves_it_to_the_others() -> None:
    train = np.array([[1.0, 0.0, 0.0], [0.2, 0.4, 0.4]])
    mean, variance = enumerated(train, 0.5, 2)
    assert mean == pytest.approx((TEST[:2] @ LOSS).sum())
    found = lean_variance(train, TEST[:2], lean=0.5, loss=LOSS)
    assert found.total == pytest.approx(variance)
    assert best_lean(train, TEST[:2], loss=LOSS) > 0
    with pytest.raises(InputError, match="some client has no probability in state 1; take lean"):
        lean_variance(train, TEST[:2], lean=0.0)
    with pytest.raises(InputError, match="no client has probability in state 2; merge"):
        lean_variance([[0.5, 0.5, 0], [0.5, 0.5, 0]], TEST[:2], lean=1.0)


def test_several_losses_add_and_rows_divide() -> None:
    parts = [lean_variance(TRAIN, TEST, lean=0.5, loss=row, participants=2) for row in np.eye(3)]
    whole = lean_variance(TRAIN, TEST, lean=0.5, participants=2)
    assert whole.total == pytest.approx(sum(p.total for p in parts))
    many = lean_variance(TRAIN, TEST, lean=0.5, participants=2, rows=[10, 10, 10])
    assert many.within == pytest.approx(whole.within / 10)
    assert many.between == pytest.approx(whole.between)  # no number of rows mends the draw


def test_the_papers_hundred_clients() -> None:
    """A round of five is least noisy with a lean between the ends; with all clients it is 1."""
    rare = 0.05 / 9
    train = np.repeat(np.where(np.eye(10) > 0, 0.95, rare), 10, axis=0)
    test = train[::-1]
    some = best_lean(train, test, rows=64, participants=5)
    assert 0.1 < some < 0.5
    assert best_lean(train, test, rows=64) == 1.0
    ends = [lean_variance(train, test, lean=b, rows=64, participants=5).total for b in (0, 1)]
    assert lean_variance(train, test, lean=some, rows=64, participants=5).total < 0.9 * min(ends)


laws = st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3).map(lambda v: np.array(v) / sum(v))


@given(st.lists(laws, min_size=2, max_size=4), st.floats(0, 1))
def test_all_clients_are_never_noisier_with_the_balance_heuristic_than_veach_allows(
    train: list[np.ndarray], lean: float
) -> None:
    """Var(β = 1) ≤ Var(any) + (1 − 1/K) μ², one row a client (Veach and Guibas 1995)."""
    p, k = np.array(train), len(train)
    q = TEST[[i % 3 for i in range(k)]]
    balance = lean_variance(p, q, lean=1.0, loss=LOSS).total
    other = lean_variance(p, q, lean=lean, loss=LOSS).total
    mean = float((q @ LOSS).sum())
    assert balance <= other + (1 - 1 / k) * mean**2 + 1e-9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train": [0.5, 0.5]}, r"train must have shape \(clients, states\); got \(2,\)"),
        ({"test": [[0.5, 0.5]] * 3}, "same clients and states"),
        ({"loss": [1.0]}, "loss must be finite numbers"),
        ({"participants": 4}, "participants must be 1 to 3; got 4"),
        ({"lean": 1.2}, "lean must be an exponent"),
        ({"rows": 0.0}, "rows"),
    ],
)
def test_wrong_input_is_named(change: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        lean_variance(**{"train": TRAIN, "test": TEST, "lean": 0.5, **change})
