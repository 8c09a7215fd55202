"""Samples: what reaches an estimator, whatever was passed in."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedshift.core.samples import Sample, as_rows, column_names, fold_of, read_pair, row_hash
from fedshift.errors import ConstantColumns, DisjointSupport, InputError, PrecisionLoss

tables = arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.integers(1, 3)),
    elements=st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.5]),
)


@given(tables)
def test_inverse_gives_the_rows_back(x: np.ndarray) -> None:
    s = Sample.of(x)
    np.testing.assert_array_equal(s.x[s.inverse], x)
    assert s.weight.sum() == pytest.approx(1.0)
    counts = np.unique(x + 0.0, axis=0, return_counts=True)[1]
    assert len(s) == len(x) // np.gcd.reduce(counts)


@given(tables, st.integers(0, 9))
def test_blind_to_order_and_duplication(x: np.ndarray, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(x))
    a, b, c = Sample.of(x), Sample.of(x[order]), Sample.of(np.concatenate([x, x]))
    for other in (b, c):
        np.testing.assert_array_equal(a.x, other.x)
        np.testing.assert_allclose(a.weight, other.weight)


def test_each_distribution_counts_once() -> None:
    s = Sample.of(np.zeros((10, 1)), np.ones((1, 1)))
    np.testing.assert_allclose(s.weight, [0.5, 0.5])
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(6, 1)), rng.normal(size=(4, 1))
    one, other = Sample.of(a, b), Sample.of(b, np.concatenate([a, a]))
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_allclose(one.weight, other.weight)
    np.testing.assert_array_equal(one.x[one.inverse], np.concatenate([a, b]))
    same = Sample.of(a, a)
    np.testing.assert_array_equal(same.x, Sample.of(a).x)


def test_values_that_occur_more_often_stay_so() -> None:
    s = Sample.of(np.repeat([0.0, 1.0], [600, 200])[:, None])
    assert len(s) == 4
    assert s.mean(s.x[:, 0].astype(float)) == pytest.approx(0.25)


def test_hash_spreads_small_integers() -> None:
    x = np.stack(np.meshgrid(*[np.arange(16.0)] * 4), axis=-1).reshape(-1, 4)
    assert len(np.unique(row_hash(x))) == len(x)
    assert len(np.unique(row_hash(x) & np.uint64(0xFFF))) > 3500  # low bits too


def test_hash_ignores_float_type() -> None:
    x = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(row_hash(x), row_hash(x.astype(np.float32)))


def test_folds_are_even() -> None:
    assert np.ptp(np.bincount(fold_of(11, 3))) == 1


def test_types_are_kept_or_widened() -> None:
    assert as_rows(np.zeros((2, 1), np.float32), name="x").dtype == np.float32
    assert as_rows(np.zeros((2, 1)), name="x").dtype == np.float64
    assert as_rows(np.zeros((2, 1), np.uint8), name="x").dtype == np.float64
    assert as_rows(torch.zeros(2, 3, dtype=torch.bfloat16), name="x").dtype == np.float32
    assert as_rows([1, 2, 3], name="x").shape == (3, 1)
    squared = as_rows(np.array([[200]], np.uint8), name="x") ** 2
    assert squared == 40_000  # no integer overflow


def test_images_keep_their_shape() -> None:
    s, _, _, shape = read_pair(*np.random.default_rng(0).random((2, 9, 2, 3)))
    assert shape == (2, 3)
    assert s.flat.shape == (9, 6)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([[1.0, np.nan]], r"got nan in row 0, column 1; drop or impute"),
        ([[1.0], [np.inf]], r"got inf in row 1"),
        (np.zeros((0, 2)), r"at least one row"),
        (np.zeros((2, 0)), r"one column"),
        ([["a", "b"]], r"encode text"),
        (np.array([["1", None]], dtype=object), r"(finite|numbers)"),
        ([[1.0, 2.0], [3.0]], r"ragged"),
        (3.0, r"single value"),
        (np.zeros((2, 2), dtype=complex), r"real numbers"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), r"dates"),
    ],
)
def test_bad_rows_are_named(bad, words: str) -> None:
    with pytest.raises(InputError, match=words):
        as_rows(bad, name="source")


def test_rows_are_contiguous_without_a_copy_where_they_are() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert as_rows(rows, name="x") is rows
    for turned in (rows[:, ::-1], rows[::-1], rows.T, pd.DataFrame(rows)[[2, 1, 0]]):
        got = as_rows(turned, name="x")
        assert got.flags.c_contiguous
        assert got.dtype == np.float32
        np.testing.assert_array_equal(torch.from_numpy(got), np.asarray(turned))


def test_rounded_integers_warn() -> None:
    with pytest.warns(PrecisionLoss, match="identifiers"):
        as_rows(np.array([[2**60 + 1]]), name="x")


def test_pairs_must_match() -> None:
    good = np.arange(6.0).reshape(3, 2)
    with pytest.raises(InputError, match=r"target.*same shape as source \(2,\); got \(1,\)"):
        read_pair(good, good[:, :1])
    with pytest.raises(InputError, match="target must have at least 2 rows; got 1"):
        read_pair(good, good[:1])
    with pytest.raises(InputError, match="empty mapping"):
        read_pair(good, {})
    with pytest.raises(InputError, match=r"target\['ward-3'\] must be finite"):
        read_pair(good, {"ward-3": good * np.nan})


def test_frames_must_agree_on_columns() -> None:
    frame = pd.DataFrame({"age": [1.0, 2.0, 3.0], "dose": [0.1, 0.4, 0.2]})
    read_pair(frame, frame)
    with pytest.raises(InputError, match="orders them otherwise"):
        read_pair(frame, frame[["dose", "age"]])
    with pytest.raises(InputError, match=r"misses \['age'\], adds \['sex'\]"):
        read_pair(frame, {"ward": frame.rename(columns={"age": "sex"})})
    pyarrow = pytest.importorskip("pyarrow")
    assert column_names(pyarrow.table({"age": [1.0], "dose": [0.1]})) == ["age", "dose"]
    assert column_names(np.zeros((1, 2))) is None


def test_constant_and_disjoint_columns_are_named() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(20, 3)), rng.normal(size=(20, 3))
    a[:, 1] = b[:, 1] = 7.0
    with pytest.warns(ConstantColumns, match="columns 1 hold a single value"):
        read_pair(a, b)
    with pytest.raises(InputError, match="every column"):
        read_pair(np.ones((3, 2)), np.ones((3, 2)))
    b = rng.normal(size=(20, 3)) + np.array([0, 0, 100.0])
    with pytest.warns(DisjointSupport, match="columns 2 every target value lies outside"):
        read_pair(rng.normal(size=(20, 3)), b)
