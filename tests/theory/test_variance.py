"""ERM against FTW-ERM without intra-client shift: every draw enumerated, and when either wins."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.errors import InputError
from fedshift.theory import ObjectiveVariance

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])
LOSS = np.array([1.0, 0.2, 2.0])


def enumerated(distributions: np.ndarray, loss: np.ndarray) -> tuple[float, float]:
    """Variances of both objectives over all draws of one state a client."""
    k, states = distributions.shape
    ratio = distributions.sum(axis=0) / distributions
    chance, erm, ftw = [], [], []
    for draw in product(range(states), repeat=k):
        each = list(enumerate(draw))
        chance.append(np.prod([distributions[c, z] for c, z in each]))
        erm.append(sum(loss[z] for _, z in each))
        ftw.append(sum(ratio[c, z] * loss[z] for c, z in each) / k)
    p, both = np.array(chance), np.array([erm, ftw])
    means = both @ p
    assert means[0] == pytest.approx(means[1])  # both are unbiased
    variances = ((both - means[:, None]) ** 2) @ p
    return float(variances[0]), float(variances[1])


@pytest.mark.parametrize("distributions", [[P, Q], [P, Q, [0.2, 0.5, 0.3]]])
def test_variances_against_all_draws(distributions: list) -> None:
    table = np.array(distributions)
    result = ObjectiveVariance.of_distributions(table, LOSS)
    assert (result.erm, result.ftw) == pytest.approx(enumerated(table, LOSS))


def test_the_papers_terms_for_two_clients() -> None:
    result = ObjectiveVariance.of_distributions([P, Q], LOSS)
    for k, (p, q) in enumerate(((P, Q), (Q, P))):
        own, other = p @ LOSS, q @ LOSS
        excess = q / p * LOSS - other
        tilde = p @ excess**2 + 2 * p @ ((LOSS - own) * excess)
        assert result.plain[k] == pytest.approx(p @ (LOSS - own) ** 2)
        assert result.extra[k] == pytest.approx(tilde)
    assert result.printed_condition == (3 * result.plain.sum() >= result.extra.sum())
    assert result.printed_condition == (result.ftw <= result.erm)
    assert not result.printed_condition
    assert "ERM is less noisy" in repr(result)


positive = st.floats(0.02, 1.0)


@st.composite
def distribution_tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    k, states = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    row = st.lists(positive, min_size=states, max_size=states)
    table = np.array(draw(st.lists(row, min_size=k, max_size=k)))
    loss = np.array(draw(st.lists(st.floats(-3, 3), min_size=states, max_size=states)))
    return table / table.sum(axis=1, keepdims=True), loss


@given(distribution_tables(), st.floats(1, 100))
def test_with_equal_rows_erm_is_never_noisier(case: tuple, rows: float) -> None:
    distributions, loss = case
    result = ObjectiveVariance.of_distributions(distributions, loss, rows=rows)
    m, a, k = distributions.sum(axis=0), distributions @ loss, len(distributions)
    gap = (
        m @ (loss**2 * (m * (1 / distributions).sum(axis=0) / k**2 - 1)) + a @ a - a.sum() ** 2 / k
    )
    assert gap >= -1e-9
    assert result.ftw - result.erm == pytest.approx(gap / rows, abs=1e-9)
    assert not result.helps
    if gap > 1e-6 * (1 + loss @ loss):
        assert not result.printed_condition


def test_the_condition_is_an_equality_where_the_distributions_agree() -> None:
    same = ObjectiveVariance.of_distributions([P, P], LOSS)
    assert same.printed_condition
    assert not same.helps
    assert same.ftw == pytest.approx(same.erm)
    assert "equally noisy" in same.status
    # the distributions need to agree only where there is a loss
    apart = ObjectiveVariance.of_distributions([[0.5, 0.3, 0.2], [0.5, 0.1, 0.4]], [1.0, 0.0, 0.0])
    assert apart.printed_condition


def test_a_small_client_can_borrow_from_a_large_one() -> None:
    distributions = np.array([[0.6, 0.4], [0.9, 0.1]])
    loss = np.array([0.0, 1.0])
    result = ObjectiveVariance.of_distributions(distributions, loss, rows=[10.0, 1000.0])
    assert result.helps
    assert not result.printed_condition  # which knows one row a client only
    # slow reference: means of random rows
    rng = np.random.default_rng(0)
    hits = np.stack(
        [rng.binomial(n, p[1], 200_000) / n for n, p in zip((10, 1000), distributions, strict=True)]
    )
    ratio = distributions.sum(axis=0)[1] / distributions[:, 1]
    assert result.erm == pytest.approx(hits.sum(axis=0).var(), rel=0.02)
    assert result.ftw == pytest.approx((ratio @ hits / 2).var(), rel=0.02)
    assert "FTW-ERM is less noisy" in result.status


def test_rows_of_samples_approach_the_distributions() -> None:
    rng = np.random.default_rng(1)
    draws = {"p": rng.choice(3, 100_000, p=P), "q": rng.choice(3, 100_000, p=Q)}
    ratio = {"p": (P + Q) / P, "q": (P + Q) / Q}
    sampled = ObjectiveVariance.of_rows(
        loss={k: LOSS[z] for k, z in draws.items()},
        ratio={k: ratio[k][z] for k, z in draws.items()},
    )
    exact = ObjectiveVariance.of_distributions([P, Q], LOSS)
    np.testing.assert_allclose(sampled.plain, exact.plain, rtol=0.02)
    np.testing.assert_allclose(sampled.extra, exact.extra, rtol=0.02)
    assert sampled.names == ("p", "q")


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="FTW-ERM is biased there"):
        ObjectiveVariance.of_distributions([[1.0, 0.0], [0.5, 0.5]], [1.0, 2.0])
    unused = ObjectiveVariance.of_distributions([[0.5, 0.5, 0.0], [0.4, 0.6, 0.0]], [1.0, 2.0, 9.0])
    assert unused.erm == pytest.approx(
        ObjectiveVariance.of_distributions([[0.5, 0.5], [0.4, 0.6]], [1, 2]).erm
    )
    with pytest.raises(InputError, match="at least two clients; got 1"):
        ObjectiveVariance.of_distributions([[0.5, 0.5]], [1.0, 2.0])
    with pytest.raises(InputError, match="ratio must have the same clients as loss, a, b; got a"):
        ObjectiveVariance.of_rows(loss={"a": [1.0], "b": [1.0]}, ratio={"a": [1.0]})
    with pytest.raises(InputError, match="distribution 1 must sum to one"):
        ObjectiveVariance.of_distributions([[0.5, 0.5], [0.5, 0.6]], [1.0, 2.0])
    with pytest.raises(InputError, match="shape"):
        ObjectiveVariance.of_distributions([0.5, 0.5], [1.0, 2.0])
