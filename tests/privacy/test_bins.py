"""The bound from counts: equal to the central one, then hidden cells and noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.bound import cell_masses, effective_rows, largest_ratio, tabulate
from fedshift.core.samples import Float64Array, Sample, read_pair
from fedshift.errors import InputError
from fedshift.privacy.bins import bound_from_counts
from fedshift.privacy.counts import Counts, Released, Releases, release_counts
from fedshift.privacy.policy import Privacy, Refused
from fedshift.ratio.bound import KMeansBound

OPEN = Privacy(min_rows=1, min_count=0)


def visible(*counts: int) -> Released:
    return Released(np.array(counts), np.zeros(len(counts), dtype=bool))


def nearest(rows: Float64Array, centres: Float64Array) -> npt.NDArray[np.intp]:
    return ((rows[:, None] - centres) ** 2).sum(-1).argmin(1)


def count(rows: Float64Array, centres: Float64Array) -> Counts:
    return np.bincount(nearest(rows, centres), minlength=len(centres)).astype(np.int64)


def distributions(seed: int = 0) -> tuple[Float64Array, dict[str, Float64Array]]:
    rng = np.random.default_rng(seed)
    source = rng.normal(size=(700, 2))
    return source, {
        "a": rng.normal([0.8, 0.0], size=(300, 2)),
        "b": rng.normal(size=(150, 2)) * 0.6,
    }


def central(source: Float64Array, targets: dict[str, Float64Array], centres: Float64Array) -> float:
    """Rows in one place, through `fedshift.core.bound` alone."""
    s, t, k, _ = read_pair(source, targets)

    def masses(sample: Sample) -> Float64Array:
        return cell_masses(nearest(sample.flat, centres), sample.weight, len(centres))

    table = tabulate(
        masses(s),
        masses(t),
        n_source=effective_rows(s),
        n_target=effective_rows(t),
        n_targets=k,
    )
    return largest_ratio(table, n_targets=k)


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_central_bound(seed: int) -> None:
    source, targets = distributions(seed)
    centres = np.random.default_rng(9).normal(size=(12, 2)) * 1.5
    sent = {n: release_counts(count(x, centres), policy=OPEN) for n, x in targets.items()}
    result = bound_from_counts(count(source, centres), sent)
    assert result == pytest.approx(central(source, targets, centres), rel=1e-12)
    assert result > 2


def test_equal_to_the_paper_s_bound_on_its_own_cells() -> None:
    """k-means of all rows, as one who holds them would cut; counts give the same number."""
    x = np.concatenate([np.random.default_rng(0).normal(size=(90, 1)) + m for m in (0, 20, 40)])
    source, target = x[::2], {"a": np.concatenate([x[1:120:2], x[181::2]])}
    paper = KMeansBound(3).fit(source=source, target=target)
    centres = np.array([[0.0], [20.0], [40.0]])
    result = bound_from_counts(count(source, centres), {"a": visible(*count(target["a"], centres))})
    assert result == pytest.approx(paper.bound_, rel=1e-12)


def test_by_hand() -> None:
    result = bound_from_counts([50, 30, 20], {"a": visible(10, 10, 80), "b": visible(4, 4, 2)})
    assert result == pytest.approx((0.8 + 0.2) / 0.2)
    assert bound_from_counts([50, 50], {"a": visible(50, 50)}) == 1.0


@given(
    st.lists(st.tuples(*[st.integers(0, 40)] * 3), min_size=2, max_size=6).filter(
        lambda rows: all(sum(c) for c in zip(*rows, strict=True))
    )
)
@settings(max_examples=60, deadline=None)
def test_distributions_of_the_bound(rows: list[tuple[int, int, int]]) -> None:
    s, a, b = (np.array(c) for c in zip(*rows, strict=True))
    result = bound_from_counts(s, {"a": visible(*a), "b": visible(*b)})
    assert result >= 2
    assert bound_from_counts(s, {"b": visible(*b), "a": visible(*a)}) == pytest.approx(result)
    assert bound_from_counts(s, {"a": visible(*3 * a), "b": visible(*b)}) == pytest.approx(result)


def test_hidden_cells_and_noise_cost_little_with_few_large_cells() -> None:
    rng = np.random.default_rng(0)
    edges = np.quantile(np.linspace(-3, 3, 601), np.arange(1, 8) / 8)
    source, target = (
        np.bincount(np.digitize(x, edges), minlength=8)
        for x in (rng.normal(size=4000), rng.normal(size=4000) * 0.7)
    )
    exact = bound_from_counts(source, {"a": visible(*target)})
    policy = Privacy(disclosure_level=3, epsilon_counts=0.5)
    for seed in range(20):
        sent = release_counts(target, policy=policy, rng=seed)
        assert bound_from_counts(source, {"a": sent}) == pytest.approx(exact, rel=0.1)


def test_noise_in_a_cell_of_few_source_rows_makes_no_bound() -> None:
    """2 source rows of 1000 and 100 target rows, as noise may have it, give a ratio of 50."""
    policy = Privacy(disclosure_level=3, min_count=0, epsilon_counts=1.0)
    sent = release_counts([900, 100], policy=policy, rng=0)
    assert bound_from_counts([998, 2], {"a": sent}) < 1.5
    assert bound_from_counts([998, 2], {"a": visible(900, 100)}) == pytest.approx(50.0)


def test_a_site_that_claims_noise_loses_its_own_say_alone() -> None:
    own, plain = [90, 10], visible(40, 60)
    loud = replace(plain, epsilon=1e-6)
    both = bound_from_counts(own, {"a": plain, "b": plain})
    assert both == pytest.approx(12.0)
    assert bound_from_counts(own, {"a": plain, "b": loud}) == pytest.approx(6.0)
    quiet = replace(plain, epsilon=1.0)  # 10 rows stand out from three deviations of 1.4
    assert bound_from_counts(own, {"a": plain, "b": quiet}) == pytest.approx(both)


def test_a_hidden_cell_counts_as_empty() -> None:
    sent = release_counts([60, 30, 2, 3], policy=Privacy())
    assert bound_from_counts([40, 40, 10, 10], {"a": sent}) == pytest.approx((60 / 90) / 0.4)


def test_cells_a_sliver_apart_are_another_question() -> None:
    """The differencing attack: the server moves an edge past one row and asks again."""
    x = np.sort(np.random.default_rng(0).normal(size=200))
    first, second = (
        np.bincount(np.digitize(x, [edge]), minlength=2)
        for edge in (x[100], np.nextafter(x[100], 9.0))
    )
    assert first[0] + 1 == second[0]  # it would work
    books, policy = Releases(), Privacy(disclosure_level=3)
    books.answer("cells 1", "test", first, policy=policy)
    with pytest.raises(Refused, match="could reveal single rows"):
        books.answer("cells 2", "test", second, policy=policy)
    assert books.answer("cells 1", "test", first, policy=policy).total == 200


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="'b' answered"):
        bound_from_counts([1, 2], {"a": visible(1, 2), "b": visible(1, 2, 3)})
    with pytest.raises(InputError, match="at least one site"):
        bound_from_counts([1, 2], {})
    for bad in ([0, 0], [0.5, 1.0], [-1, 2], [[1, 2]]):
        with pytest.raises(InputError, match="source must be whole counts"):
            bound_from_counts(np.array(bad), {"a": visible(1, 2)})


@pytest.mark.parametrize("counts", [[2**62] * 4, [2**62] * 3 + [0], [-5, 10, 5, 5], [0] * 4])
def test_counts_that_come_round_are_refused(counts: list[int]) -> None:
    with pytest.raises(InputError, match="counts of 'elm' must be"):
        bound_from_counts([5, 5, 5, 5], {"elm": visible(*counts)})
