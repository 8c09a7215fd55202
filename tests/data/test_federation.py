"""Federations and label shift by counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedshift.data import ClientData, Federation, Labels
from fedshift.errors import InputError


def pool(n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(n) % 10)
    return y[:, None] + 0.1 * rng.normal(size=(n, 1)), y


@pytest.fixture
def fed() -> Federation:
    shift = Labels.one_class_each(clients=3, classes=10, train=(60, 2), test=(40, 3))
    return shift.split(*pool(), *pool(), seed=0)


def test_counts_are_what_was_asked_for(fed: Federation) -> None:
    assert [len(c.x) for c in fed] == [78] * 3
    assert (np.bincount(fed[0].y, minlength=10) == [2] * 7 + [60] + [2] * 2).all()
    assert (np.bincount(fed["client-3"].test_y, minlength=10)[2]) == 40
    rows = np.concatenate([c.x[:, 0] for c in fed])
    assert len(np.unique(rows)) == len(rows)  # no row dealt twice


def test_exact_ratio_is_the_ratio_of_label_distributions(fed: Federation) -> None:
    for goal, target in (
        ("all", sum(np.bincount(c.test_y, minlength=10) / 67 for c in fed)),
        ("own", np.bincount(fed[1].test_y, minlength=10) / 67),
        ("client-3", np.bincount(fed[2].test_y, minlength=10) / 67),
    ):
        truth = target / (np.bincount(fed[1].y, minlength=10) / 78)
        found = np.exp(fed.exact_log_ratio("client-2", goal))
        np.testing.assert_allclose(found, truth[fed[1].y])
    # the mean of the ratio over training rows is the number of test distributions
    assert np.exp(fed.exact_log_ratio("client-1")).mean() == pytest.approx(3.0)
    assert list(fed.targets("client-2", "own")) == ["client-2"]
    assert list(fed.targets("client-2")) == ["client-1", "client-2", "client-3"]


def test_paper_tables() -> None:
    five = Labels.paper("five-clients")
    assert five.train.sum(axis=0).tolist() == [170] * 5 + [5862 + 4 * 34] * 5
    assert five.test[0].tolist() == [977] + [5] * 9
    two = Labels.paper("two-clients")
    assert two.train.sum(axis=1).tolist() == [1000, 20125]
    assert Labels.paper("five-clients-cifar").train.max() == 4885
    with pytest.raises(InputError, match="five-clients, five-clients-cifar"):
        Labels.paper("six")


def test_same_seed_same_federation() -> None:
    shift = Labels.one_class_each(clients=2, train=(20, 1), test=(20, 1))
    a, b, c = (shift.split(*pool(), *pool(), seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(a[0].x, b[0].x)
    assert not np.array_equal(a[0].x, c[0].x)


def test_bad_federations_are_named() -> None:
    good = ClientData.of("a", np.ones((3, 2)), [0, 1, 0], np.ones((2, 2)))
    assert repr(good) == "ClientData('a', n=3, test n=2)"
    with pytest.raises(InputError, match="at least one client"):
        Federation(())
    with pytest.raises(InputError, match=r"\['a'\] more than once"):
        Federation((good, good))
    with pytest.raises(InputError, match=r"client must be one of .*got 'z'"):
        Federation((good,))["z"]
    with pytest.raises(InputError, match="exact ratios need a federation made by"):
        Federation((good,)).exact_log_ratio("a")
    with pytest.raises(InputError, match=r"client 'b': y must hold one label per row"):
        ClientData.of("b", np.ones((3, 2)), [0], np.ones((2, 2)))
    with pytest.raises(InputError, match="test_x must have rows of shape"):
        ClientData.of("b", np.ones((3, 2)), [0, 1, 0], np.ones((2, 3)))
    other = ClientData.of("b", np.ones((3, 1)), [0, 1, 0], np.ones((2, 1)))
    with pytest.raises(InputError, match="client 'b' must have rows of shape"):
        Federation((good, other))


def test_frames_must_agree_on_columns_and_arrays_cannot_say() -> None:
    frame = pd.DataFrame({"age": [1.0, 2.0], "lab": [3.0, 4.0], "bmi": [5.0, 6.0]})
    turned, rows = frame[["lab", "age", "bmi"]], frame.to_numpy()
    fed = Federation.of({"r": (rows, [0, 1], rows), "a": (frame, [0, 1], frame)})
    assert (fed[0].columns, fed["a"].columns) == (None, ("age", "lab", "bmi"))
    assert fed.columns == ClientData.of("b", rows, [0, 1], frame).columns == fed["a"].columns
    assert Federation.of({"r": (rows, [0, 1], rows)}).columns is None
    columns = r" \['age', 'lab', 'bmi'\], in the same order"
    got = r"got .*\['lab', 'age', 'bmi'\]; use df\[columns\]"
    with pytest.raises(
        InputError, match=f"'b': test_x must have the same columns as x{columns}; {got}"
    ):
        ClientData.of("b", frame, [0, 1], turned)
    with pytest.raises(
        InputError, match=f"'b' must have the same columns as client 'a'{columns}; {got}"
    ):
        Federation((fed[0], fed[1], ClientData.of("b", turned, [0, 1], turned)))
    with pytest.raises(InputError, match=r"misses \['bmi'\], adds \['mass'\]"):
        ClientData.of("b", frame, [0, 1], frame.rename(columns={"bmi": "mass"}))


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([(1, 2, 3)], r"must be a dict, \{name: \(x, y, test_x\)\}; got list"),
        ({"a": None}, r"client 'a' must be \(x, y, test_x\) .*; got NoneType"),
        ({"a": np.zeros((3, 2))}, "client 'a' must be .*; got ndarray"),
        ({"a": (1, 2)}, "client 'a' must be .*; got 2 parts"),
    ],
)
def test_what_is_no_federation_is_named(clients: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Federation.of(clients)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_missing_labels_are_named(missing: Any) -> None:
    rows, labels = np.ones((3, 2)), pd.Series(["no", missing, "yes"], dtype=object)
    with pytest.raises(InputError, match=r"client 'a': y must have a label .*got 1 missing.*row 1"):
        ClientData.of("a", rows, labels, rows)
    with pytest.raises(InputError, match=r"test_y must have a label .* leave test_y out"):
        ClientData.of("a", rows, [0, 1, 0], rows, labels)
    with pytest.raises(InputError, match="got 2 missing, the first in row 0"):
        ClientData.of("a", rows, [np.nan, 1.0, np.nan], rows)
    client = ClientData.of("a", rows, np.array([np.str_("no"), "yes", 3], dtype=object), rows)
    assert len(client.y) == 3


def test_bad_tables_are_named() -> None:
    with pytest.raises(InputError, match="class 0 needs 900 train rows; got 300"):
        Labels(np.full((1, 10), 900), np.ones((1, 10), int)).split(*pool(), *pool(), seed=0)
    with pytest.raises(InputError, match="same clients"):
        Labels(np.ones((1, 2), int), np.ones((2, 2), int))
    with pytest.raises(InputError, match="counts ≥ 0"):
        Labels(np.array([[-1, 2]]), np.ones((1, 2), int))
