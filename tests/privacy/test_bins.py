"""The bound from counts: equal to the central one, then hidden cells and noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.bound import cell_masses, effective_rows, largest_ratio, tabulate
from fedshift.core.samples import Float64Array, Sample, read_pair
from fedshift.errors import InputError
from fedshift.privacy.bins import CentreCells, ScoreCells, bound_from_counts
from fedshift.privacy.counts import Released, Releases, release_counts
from fedshift.privacy.policy import Privacy, Refused
from fedshift.ratio.bound import KMeansBound

OPEN = Privacy(min_rows=1, min_count=0)


def laws(seed: int = 0) -> tuple[Float64Array, dict[str, Float64Array]]:
    rng = np.random.default_rng(seed)
    source = rng.normal(size=(700, 2))
    return source, {
        "a": rng.normal([0.8, 0.0], size=(300, 2)),
        "b": rng.normal(size=(150, 2)) * 0.6,
    }


def central(source: Float64Array, targets: dict[str, Float64Array], cells: CentreCells) -> float:
    """Rows in one place, through `fedshift.core.bound` alone."""
    s, t, k, _ = read_pair(source, targets)

    def masses(sample: Sample) -> Float64Array:
        near = ((sample.flat[:, None] - cells.centres) ** 2).sum(-1).argmin(1)
        return cell_masses(near, sample.weight, len(cells))

    table = tabulate(
        masses(s),
        masses(t),
        n_source=effective_rows(s),
        n_target=effective_rows(t),
        n_laws=k,
        smoothing=0.5,
    )
    return largest_ratio(table, min_count=3, upper=True, n_laws=k)


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_central_bound(seed: int) -> None:
    source, targets = laws(seed)
    cells = CentreCells.of(np.random.default_rng(9).normal(size=(400, 2)) * 1.5, 12)
    told = {n: release_counts(cells.counts(x), policy=OPEN) for n, x in targets.items()}
    found = bound_from_counts(
        cells.counts(source), told, min_count=3, smoothing=0.5, confidence=0.95
    )
    assert found.bound == pytest.approx(central(source, targets, cells), rel=1e-12)
    assert found.hidden == 0.0


def test_equal_to_the_paper_s_bound_on_its_own_cells() -> None:
    """k-means of all rows, as one who holds them would cut; counts give the same number."""
    x = np.concatenate([np.random.default_rng(0).normal(size=(90, 1)) + m for m in (0, 20, 40)])
    source, target = x[::2], {"a": np.concatenate([x[1:120:2], x[181::2]])}
    paper = KMeansBound(3).fit(source=source, target=target)
    cells = CentreCells(np.array([[0.0], [20.0], [40.0]]))
    found = bound_from_counts(cells.counts(source), {"a": cells.counts(target["a"])})
    assert found.bound == pytest.approx(paper.bound_, rel=1e-12)


def test_by_hand() -> None:
    found = bound_from_counts([50, 30, 20], {"a": [10, 10, 80], "b": [4, 4, 2]})
    assert found.bound == pytest.approx((0.8 + 0.2) / 0.2)
    assert found.n_laws == 2
    assert bound_from_counts([50, 50], {"a": [50, 50]}, cap=3.0).bound == 1.0
    assert bound_from_counts([99, 1], {"a": [1, 99]}, cap=3.0).bound == 3.0


@given(
    st.lists(st.tuples(*[st.integers(0, 40)] * 3), min_size=2, max_size=6).filter(
        lambda rows: all(sum(c) for c in zip(*rows, strict=True))
    )
)
@settings(max_examples=60, deadline=None)
def test_laws_of_the_bound(rows: list[tuple[int, int, int]]) -> None:
    s, a, b = (np.array(c) for c in zip(*rows, strict=True))
    found = bound_from_counts(s, {"a": a, "b": b})
    assert found.bound >= 2
    assert bound_from_counts(s, {"b": b, "a": a}).bound == pytest.approx(found.bound)
    assert bound_from_counts(s, {"a": 3 * a, "b": b}).bound == pytest.approx(found.bound)


def test_hidden_cells_and_noise_cost_little_with_few_large_cells() -> None:
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=4000), rng.normal(size=4000) * 0.7
    cells = ScoreCells.of(np.linspace(-3, 3, 601), 8)
    exact = bound_from_counts(cells.counts(source), {"a": cells.counts(target)}).bound
    policy = Privacy(rung=3, epsilon_counts=0.5)
    for seed in range(20):
        told = release_counts(cells.counts(target), policy=policy, rng=seed)
        own = release_counts(cells.counts(source), policy=policy, rng=100 + seed)
        assert bound_from_counts(own, {"a": told}).bound == pytest.approx(exact, rel=0.1)


def test_a_noisy_source_count_of_a_nearly_empty_cell_makes_no_bound() -> None:
    """2 source rows, as noise may have it, of 1000 would give a ratio of 50."""
    policy = Privacy(rung=3, min_count=0, epsilon_counts=1.0)
    told = release_counts([900, 100], policy=policy, rng=0)
    found = bound_from_counts([998, 2], {"a": told})
    assert found.bound < 1.5
    assert bound_from_counts([998, 2], {"a": told}, min_count=1).bound > 40


def test_a_site_that_claims_noise_loses_its_own_say_alone() -> None:
    own, plain = [90, 10], Released(np.array([40, 60]), np.zeros(2, dtype=bool))
    loud = replace(plain, epsilon=1e-6)
    both = bound_from_counts(own, {"a": plain, "b": plain}).bound
    assert both == pytest.approx(12.0)
    assert bound_from_counts(own, {"a": plain, "b": loud}).bound == pytest.approx(6.0)
    quiet = replace(plain, epsilon=1.0)  # 10 rows stand out from three deviations of 1.4
    assert bound_from_counts(own, {"a": plain, "b": quiet}).bound == pytest.approx(both)


def test_suppression_is_counted() -> None:
    told = release_counts([60, 30, 2, 3], policy=Privacy())
    found = bound_from_counts([40, 40, 10, 10], {"a": told})
    assert found.hidden == 0.25
    assert "25% of the counts hidden" in repr(found)


def test_cells_a_sliver_apart_are_another_question() -> None:
    """The differencing attack: the server moves an edge past one row and asks again."""
    x = np.sort(np.random.default_rng(0).normal(size=200))
    first = ScoreCells(np.array([x[100]]))
    second = ScoreCells(np.array([np.nextafter(x[100], 9.0)]))
    assert first.counts(x)[0] + 1 == second.counts(x)[0]  # it would work
    books, policy = Releases(), Privacy(rung=3)
    books.answer(first.digest, "test", first.counts(x), policy=policy)
    with pytest.raises(Refused, match="subtracted"):
        books.answer(second.digest, "test", second.counts(x), policy=policy)
    again = ScoreCells(first.edges.copy())
    assert books.answer(again.digest, "test", again.counts(x), policy=policy).total == 200


def test_every_row_is_in_one_cell() -> None:
    rng = np.random.default_rng(0)
    score = np.append(rng.normal(size=500), [-np.inf, np.inf])
    cells = ScoreCells.of(rng.normal(size=300), 7)
    counts = cells.counts(score)
    assert counts.sum() == 502
    assert len(counts) == len(cells) == 7
    centres = CentreCells.of(rng.normal(size=(60, 2, 3)), 5, seed=1)
    assert centres.counts(rng.normal(size=(80, 2, 3))).sum() == 80
    assert centres.digest != cells.digest
    assert len(ScoreCells.of(np.zeros(50), 7)) == 2  # equal edges are one


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="rising"):
        ScoreCells(np.array([1.0, 1.0]))
    with pytest.raises(InputError, match="scores"):
        ScoreCells(np.array([1.0])).counts([np.nan])
    with pytest.raises(InputError, match="centres"):
        CentreCells(np.zeros((0, 2)))
    with pytest.raises(InputError, match="2 columns"):
        CentreCells(np.zeros((1, 2))).counts(np.zeros((3, 4)))
    with pytest.raises(InputError, match="at least as many points"):
        CentreCells.of(np.zeros((3, 1)), 4)
    with pytest.raises(InputError, match="'b' answered"):
        bound_from_counts([1, 2], {"a": [1, 2], "b": [1, 2, 3]})
    with pytest.raises(InputError, match="at least one site"):
        bound_from_counts([1, 2], {})
    for bad in ([0, 0], [0.5, 1.0], [-1, 2], [[1, 2]]):
        with pytest.raises(InputError, match="'source'"):
            bound_from_counts(np.array(bad), {"a": [1, 2]})


@pytest.mark.parametrize("counts", [[2**62] * 4, [2**62] * 3 + [0], [-5, 10, 5, 5], [0] * 4])
def test_counts_that_come_round_are_refused(counts: list[int]) -> None:
    told = Released(np.array(counts), np.zeros(4, dtype=bool))
    with pytest.raises(InputError, match="counts of 'elm' must be"):
        bound_from_counts([5, 5, 5, 5], {"elm": told})
