"""Updates to one: exact sums where all are honest, bounded harm where one is not."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedshift.defence.robust import RULES, AggregationRule, Robust, check_update, combine
from fedshift.errors import InputError
from fedshift.federation.aggregate import sum_of

PLAIN = Robust(clip=None)


def updates(seed: int, count: int, size: int = 30, dtype: torch.dtype = torch.float32) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=g, dtype=torch.float64).to(dtype)


@given(st.integers(0, 1000), st.integers(1, 9), st.booleans())
@settings(max_examples=40, deadline=None)
def test_plain_mean_is_the_reference_sum_bit_for_bit(seed: int, m: int, double: bool) -> None:
    u = updates(seed, m, dtype=torch.float64 if double else torch.float32)
    part = np.random.default_rng(seed).uniform(0, 3, m)
    out, report = combine(list(u), part, PLAIN)
    assert torch.equal(out, sum_of(part, list(u)))
    assert report.clipped == []
    assert report.left_out == {}
    assert math.isinf(report.bound)
    assert torch.equal(out, combine(u, part, PLAIN)[0])


def test_clipping_that_clips_nobody_changes_no_bit() -> None:
    u = updates(3, 5)
    part = np.array([0.3, 0.0, 2.0, 1.0, 0.7])
    out, report = combine(list(u), part, Robust(multiple=100.0))
    assert torch.equal(out, sum_of(part, list(u)))
    assert math.isfinite(report.bound)


def test_an_inflated_update_counts_as_at_most_so_many_median_ones() -> None:
    u = updates(0, 5)
    honest, _ = combine(list(u), np.ones(5), PLAIN)
    u[4] *= 1000
    hostile, report = combine(list(u), np.ones(5), Robust(multiple=2.0), names=list("abcde"))
    norms = sorted(float(v.norm()) for v in u)
    assert report.bound == pytest.approx(2 * norms[2])
    assert report.clipped == ["e"]
    step = float((hostile - honest).norm())
    assert step <= report.bound + float(u[4].norm()) / 1000 + 1e-4


def test_one_of_two_cannot_move_the_bound() -> None:
    u = torch.tensor([[1.0, 0.0], [0.0, 1e9]])
    out, report = combine(u, [1, 1], Robust(multiple=2.0))
    assert report.bound == pytest.approx(2.0)
    torch.testing.assert_close(out, torch.tensor([1.0, 2.0]))


def test_who_sends_nothing_does_not_stop_the_others() -> None:
    u = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    out, report = combine(u, np.ones(4))
    assert torch.equal(out, u[0])
    assert report.clipped == []
    still, report = combine(torch.zeros(3, 2), np.ones(3))
    assert torch.equal(still, torch.zeros(2))
    assert math.isinf(report.bound)


def test_two_have_no_median() -> None:
    assert Robust().among(2) == Robust(clip=None)
    assert Robust().among(3) == Robust()
    assert Robust(clip=2.0).among(2) == Robust(clip=2.0)


def test_a_length_can_be_given() -> None:
    u = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    out, report = combine(u, [1, 1], Robust(clip=1.0))
    torch.testing.assert_close(out, torch.tensor([0.6 + 0.3, 0.8 + 0.4]))
    assert report.clipped == ["0"]


def test_under_target_shift_only_clipping_keeps_every_client() -> None:
    """Each client is the only one that moves its coordinate: rules by vote forget them all."""
    u = torch.eye(5)
    total, report = combine(u, np.ones(5))
    assert torch.equal(total, torch.ones(5))
    assert report.clipped == []
    for rule in ("median", "trimmed-mean"):
        assert torch.equal(combine(u, np.ones(5), Robust(rule=rule))[0], torch.zeros(5))


def test_not_finite_is_left_out_and_the_step_keeps_its_length() -> None:
    u = updates(1, 4)
    broken = u.clone()
    broken[2, 7] = math.nan
    out, report = combine(broken, [1.0, 2.0, 3.0, 4.0], PLAIN)
    expected = sum_of(np.array([1.0, 2.0, 4.0]), [u[0], u[1], u[3]]) * 10 / 7
    torch.testing.assert_close(out, expected)
    assert report.left_out == {"2": "not finite"}
    with pytest.raises(InputError, match=r"must be usable; got none \(0: not finite; 1: "):
        combine(torch.full((2, 3), math.inf), [1, 1])


def test_a_client_that_counts_nothing_has_no_say_in_the_median() -> None:
    u = torch.tensor([[1.0], [1.0], [100.0], [100.0], [100.0]])
    _, report = combine(u, [1, 1, 0, 0, 0], Robust(multiple=1.0))
    assert report.bound == pytest.approx(1.0)
    assert set(report.left_out) == {"2", "3", "4"}


def brute_median(values: list[float], weights: list[float]) -> float:
    """A minimiser of Σ w |v − a|; the middle of the interval where there is one."""
    cost = {a: sum(w * abs(v - a) for v, w in zip(values, weights, strict=True)) for a in values}
    best = min(cost.values())
    flat = [a for a, c in cost.items() if c <= best + 1e-9]
    return (min(flat) + max(flat)) / 2


@given(st.integers(0, 1000), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_median_minimises_absolute_distance(seed: int, m: int) -> None:
    u = updates(seed, m, 6, torch.float64)
    part = np.random.default_rng(seed).integers(1, 4, m).astype(float)
    out, _ = combine(u, part, Robust(rule="median", clip=None))
    truth = [brute_median(u[:, j].tolist(), part.tolist()) for j in range(6)]
    torch.testing.assert_close(out / part.sum(), torch.tensor(truth, dtype=torch.float64))


def test_trimmed_mean_by_hand() -> None:
    u = torch.tensor([[1.0], [2.0], [3.0], [4.0], [1000.0]])
    robust = Robust(rule="trimmed-mean", trim=0.2, clip=None)
    assert combine(u, np.ones(5), robust)[0].item() == pytest.approx(5 * 3.0)
    # weights go with the clients: of 2, 3, 4 the second counts double
    assert combine(u, [1, 2, 1, 1, 1], robust)[0].item() == pytest.approx(6 * 11 / 4)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("clip", ["median", None])
def test_order_does_not_matter_and_scale_passes_through(
    rule: AggregationRule, clip: str | None
) -> None:
    u = updates(5, 5, 12, torch.float64)
    part = np.array([1.0, 2.0, 0.5, 1.0, 3.0])
    robust = Robust(rule=rule, clip=clip)  # type: ignore[arg-type]
    out, _ = combine(u, part, robust)
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 17):
        again, _ = combine(u[list(order)], part[list(order)], robust)
        torch.testing.assert_close(again, out)
    torch.testing.assert_close(combine(u, 7 * part, robust)[0], 7 * out)
    torch.testing.assert_close(combine(7 * u, part, robust)[0], 7 * out)


@pytest.mark.parametrize("rule", RULES)
def test_equal_updates_come_out_as_they_are(rule: AggregationRule) -> None:
    u = updates(2, 1).expand(5, -1)
    out, _ = combine(u, np.full(5, 0.2), Robust(rule=rule))
    torch.testing.assert_close(out, u[0])


@given(st.floats(1, 1e30), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_harm_is_bounded_whatever_is_sent(size: float, seed: int) -> None:
    u = updates(seed, 5, dtype=torch.float64)
    u[0] = size * u[0]
    for rule in RULES:
        out, report = combine(u, np.full(5, 0.2), Robust(rule=rule, multiple=2.0))
        assert float(out.norm()) <= report.bound + 1e-9
        assert report.bound <= 2 * float(u[1:].norm(dim=1).max()) + 1e-9


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (np.zeros(3, np.float32), None),
        (torch.ones(3), None),
        (np.zeros((3, 1), np.float32), r"shape \(3, 1\) where \(3,\)"),
        (np.zeros(3, np.int64), "type int64"),
        (np.array(["a", "b", "c"], dtype=object), "type object"),
        (torch.zeros(3, dtype=torch.float16), "type float16"),
        (np.array([1, np.inf, np.nan]), "2 of 3 numbers not finite"),
        (np.array([0.0, 3e9, 4e9]), r"norm 5e\+09 above the limit 1e\+09"),
        (np.array([1e300, 1e300, 0.0]), "norm inf above"),
        ([0.0, 0.0, 0.0], "list where an array"),
    ],
)
def test_check_update(vector: object, reason: str | None) -> None:
    problem = check_update(vector, 3, 1e9)  # type: ignore[arg-type]
    if reason is None:
        assert problem is None
    else:
        assert problem is not None
        assert re.search(reason, problem)


@pytest.mark.parametrize(
    "wrong",
    [{"rule": "medain"}, {"clip": "mean"}, {"clip": 0.0}, {"trim": 0.5}],
)
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Robust(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("u", "part", "words"),
    [
        (torch.ones(2, 3), [1.0], "one number per update"),
        (torch.ones(2, 3), [1.0, -1.0], "≥ 0"),
        (torch.ones(2, 3), [0.0, 0.0], "not all 0"),
        ([torch.ones(2), torch.ones(3)], [1.0, 1.0], "one length"),
    ],
)
def test_bad_input_is_named(u: Tensor, part: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        combine(u, part)
