"""Shared rows: honest pools pass, hostile and broken ones are named."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.core.samples import FloatArray
from fedshift.data.federation import Federation
from fedshift.defence import pool
from fedshift.defence.neighbours import PoolDistances, distances, plane
from fedshift.defence.pool import PoolDefence, clean_pool, evened
from fedshift.demo import digits_federation
from fedshift.errors import InputError

Pools = dict[str, FloatArray]


@pytest.fixture(scope="module")
def digits() -> Federation:
    return digits_federation(seed=0)


def attacked(federation: Federation, rows: FloatArray) -> Pools:
    return {**federation.test, "client-5": rows}


def tables(seed: int, clients: int = 5, n: int = 150) -> Pools:
    """Columns of very different units, a little shift."""
    rng = np.random.default_rng(seed)
    unit = np.array([1.0, 1e5, 1e-3])
    return {
        f"c{k}": unit * (rng.normal(0, 0.5, 3) + rng.normal(size=(n, 3))) for k in range(clients)
    }


@pytest.mark.parametrize("seed", range(5))
def test_honest_pools_of_one_class_each_pass_untouched(seed: int) -> None:
    federation = digits_federation(seed=seed)
    for reference in (None, *(c.x for c in federation)):
        rows, report = clean_pool(
            federation.test, PoolDefence(bounds=(0.0, 1.0)), reference=reference
        )
        assert report.left_out == {}
        assert report.compared
        for name, x in federation.test.items():
            np.testing.assert_array_equal(rows[name], x)


@pytest.mark.parametrize("seed", range(10))
def test_honest_tables_pass(seed: int) -> None:
    _, report = clean_pool(tables(seed))
    assert report.left_out == {}


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_a_pool_aimed_at_one_record(digits: Federation, noise: float) -> None:
    rng = np.random.default_rng(1)
    victim = digits["client-1"].x[5]
    rows, report = clean_pool(
        attacked(digits, victim + noise * rng.normal(size=(82, 8, 8)).astype(np.float32))
    )
    assert list(report.left_out) == ["client-5"]
    assert "rows too close together" in report.left_out["client-5"]
    assert list(rows) == ["client-1", "client-2", "client-3", "client-4"]


def test_copies_hidden_among_honest_rows(digits: Federation) -> None:
    own = digits["client-5"].test_x
    mixed = np.concatenate([own[:40], np.repeat(digits["client-1"].x[5:6], 42, axis=0)])
    _, report = clean_pool(attacked(digits, mixed))
    assert "near-copies" in report.left_out["client-5"]


def test_what_everybody_repeats_is_no_copy() -> None:
    """Tables of a few categories are full of equal rows, at every client."""
    rng = np.random.default_rng(0)
    pools = {f"c{k}": rng.integers(0, 2, (200, 3)).astype(float) for k in range(4)}
    _, report = clean_pool(pools)
    assert report.left_out == {}


def test_far_garbage(digits: Federation) -> None:
    rng = np.random.default_rng(2)
    _, report = clean_pool(attacked(digits, rng.normal(50, 10, (82, 8, 8))))
    assert "82 of 82 rows far outside the others' range" in report.left_out["client-5"]
    _, report = clean_pool(attacked(digits, rng.uniform(0, 1, (82, 8, 8))))
    assert "far from all other pools" in report.left_out["client-5"]


def test_reference_rows_show_what_a_pool_weighs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As wide as the others, but about a place where the client that cleans has a single row."""
    rng = np.random.default_rng(3)
    pools = {f"c{k}": rng.normal(size=(200, 4)) for k in range(4)}
    pools["bad"] = 4.0 + rng.normal(size=(200, 4))
    reference = np.concatenate([rng.normal(size=(399, 4)), np.full((1, 4), 4.0)])
    monkeypatch.setattr(pool, "FAR", 1e3)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "INFLUENCE", 1e3)
        _, report = clean_pool(pools, reference=reference)
        assert report.left_out == {}
    _, report = clean_pool(pools, reference=reference)
    assert list(report.left_out) == ["bad"]
    assert "raises the weights of a few rows only" in report.left_out["bad"]
    # one row of 400: √400 times as uneven as one that speaks of all alike
    value = report.clients["bad"].influence
    assert value is not None
    assert 5 < value < 20


def test_bad_rows_are_dropped_and_a_client_full_of_them_left_out(digits: Federation) -> None:
    some = digits["client-5"].test_x.copy()
    some[3, 0, 0] = math.nan
    some[4, 0, 0] = 1.5
    rows, report = clean_pool(attacked(digits, some), PoolDefence(bounds=(0.0, 1.0)))
    assert len(rows["client-5"]) == len(some) - 2
    assert report.clients["client-5"].dropped == {"not finite": 1, "outside [0, 1]": 1}
    assert report.clients["client-5"].rows == len(some) - 2
    some[: len(some) * 2 // 3] = math.inf
    _, report = clean_pool(attacked(digits, some))
    assert "rows not finite" in report.left_out["client-5"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (np.zeros((5, 7, 8)), "rows of shape (7, 8) where (8, 8)"),
        (np.zeros(5), "rows of shape () where (8, 8)"),
        (np.full((5, 8, 8), "x"), "where numbers are needed"),
        (np.full((5, 8, 8), None), "type object"),
        (np.zeros((1, 8, 8)), "1 usable rows"),
    ],
)
def test_schema(digits: Federation, rows: FloatArray, reason: str) -> None:
    clean, report = clean_pool(attacked(digits, rows))
    assert reason in report.left_out["client-5"]
    assert len(clean) == 4


def test_quotas_are_equal(digits: Federation) -> None:
    many = np.concatenate([digits["client-5"].test_x, digits["client-5"].x])
    rows, report = clean_pool(attacked(digits, many), seed=3)
    assert len(many) > 82
    assert report.quota == 82
    assert {len(x) for x in rows.values()} == {82}
    assert report.clients["client-5"].dropped == {"above the quota": len(many) - 82}
    again, _ = clean_pool(dict(reversed(attacked(digits, many).items())), seed=3)
    np.testing.assert_array_equal(again["client-5"], rows["client-5"])
    _, report = clean_pool(digits.test, PoolDefence(quota=10))
    assert {v.rows for v in report.clients.values()} == {10}


def test_two_clients_cannot_be_compared() -> None:
    pools = {"a": np.zeros((5, 2)), "b": np.ones((5, 2))}
    rows, report = clean_pool(pools)
    assert len(rows) == 2
    assert not report.compared
    assert "needs at least 4 clients" in repr(report)
    with pytest.raises(InputError, match="at least one shared pool must be usable"):
        clean_pool({"a": np.full((5, 2), math.nan)})


@pytest.mark.parametrize("clients", [3, 4, 5])
def test_one_hostile_pool_never_drives_the_honest_out(clients: int) -> None:
    """At the edge of what the others would allow, so that its own range reaches far."""
    rng = np.random.default_rng(0)
    pools = {f"h{i}": rng.normal(size=(300, 4)) for i in range(clients - 1)}
    honest = set(pools)
    low = np.median([p.min(axis=0) for p in pools.values()], axis=0)
    high = np.median([p.max(axis=0) for p in pools.values()], axis=0)
    edge = high + 1.9 * (high - low)
    for bad in (
        edge + 0.01 * rng.normal(size=(300, 4)),
        rng.choice([-12.0, 12.0], size=(300, 4)) + rng.normal(size=(300, 4)),
    ):
        clean, report = clean_pool({**pools, "bad": bad})
        assert honest <= set(clean)
        assert report.compared == (clients > 3)
        assert ("bad" in clean) == (clients == 3)


def test_one_of_two_cannot_cut_the_other_s_pool() -> None:
    rng = np.random.default_rng(0)
    clean, report = clean_pool({"a": rng.normal(size=(300, 4)), "b": rng.normal(size=(2, 4))})
    assert report.quota == 300
    assert len(clean["a"]) == 300


def test_nobody_knows_beforehand_which_rows_are_looked_at() -> None:
    rng = np.random.default_rng(0)
    pools = {f"h{i}": rng.normal(size=(1500, 3)) for i in range(4)}
    bad = 0.5 + 0.001 * rng.normal(size=(1500, 3))
    guess = np.random.default_rng([0, zlib.crc32(b"bad")]).choice(1500, 1000, replace=False)
    bad[guess] = rng.normal(size=(1000, 3))
    assert clean_pool({**pools, "bad": bad}, seed=0)[1].left_out == {}
    assert list(clean_pool({**pools, "bad": bad})[1].left_out) == ["bad"]


def test_pools_of_unequal_size_count_alike() -> None:
    rng = np.random.default_rng(0)
    pools = {name: rng.normal(size=(n, 2)) for name, n in {"a": 500, "b": 60, "c": 3}.items()}
    rows = evened(pools)
    assert {n: len(x) for n, x in rows.items()} == {"a": 500, "b": 500, "c": 30}
    np.testing.assert_array_equal(rows["a"], pools["a"])
    _, times = np.unique(rows["b"], axis=0, return_counts=True)
    assert set(times) == {8, 9}
    assert len(times) == 60
    np.testing.assert_array_equal(evened(pools)["b"], rows["b"])


@given(st.integers(0, 100), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_distances_against_brute_force(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(7, d)), rng.normal(1e3, 1, size=(5, d))
    truth = np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2))
    np.testing.assert_allclose(distances(a, b), truth, rtol=1e-9)
    lie = PoolDistances({"a": a, "b": b}, b[:2])
    np.testing.assert_allclose(lie.nearest_other("a"), truth.min(axis=1), rtol=1e-9)
    np.testing.assert_allclose(lie.nearest_other("a", "b"), truth[:, :2].min(axis=1), rtol=1e-9)
    own = np.sqrt(((a[:, None] - a[None]) ** 2).sum(axis=2)) + np.diag(np.full(7, np.inf))
    np.testing.assert_allclose(lie.nearest_own["a"], own.min(axis=1), rtol=1e-6)


def test_influence_counts_the_rows_a_pool_speaks_of() -> None:
    reference = np.arange(100.0)[:, None] * 100
    lie = PoolDistances(
        {"one": reference[:1], "ten": reference[:10], "none": reference[:1] - 1e6}, reference
    )
    assert lie.influence("one", 1.0) == pytest.approx(10.0)
    assert lie.influence("ten", 1.0) == pytest.approx(math.sqrt(10))
    assert lie.influence("none", 1.0) == 0.0


def test_columns_are_brought_to_one_unit() -> None:
    for x in plane(tables(0)).values():
        assert 0.5 < x.std(axis=0).min() < x.std(axis=0).max() < 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"bounds": (1.0, 0.0)},
        {"quota": 0},
    ],
)
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        PoolDefence(**wrong)  # type: ignore[arg-type]
    assert PoolDefence(bounds=[0.0, 1.0]).bounds == (0.0, 1.0)  # type: ignore[arg-type]
