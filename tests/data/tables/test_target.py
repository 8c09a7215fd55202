"""The label: classes of all sites' training rows, or a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedshift.data.tables import Sites
from fedshift.errors import InputError


def sites(*labels: list[Any], test: list[Any] | None = None, **settings: Any) -> Sites:
    """Sites with the given training labels; `test` are deployment labels of the first."""

    def rows(y: list[Any]) -> dict[str, list[Any]]:
        return {"x": list(range(len(y))), "y": y}

    rest = {"x": [0, 1]}
    return Sites.of(
        {
            f"s{i}": (rows(y), rows(test) if test is not None and i == 0 else rest)
            for i, y in enumerate(labels)
        },
        **settings,
    )


def codes(made: Sites) -> list[list[int]]:
    return [made.train[n].labels.tolist() for n in made.names]


@pytest.mark.parametrize(
    ("labels", "classes", "truth"),
    [
        ((["no", "yes"], ["yes", "maybe"]), ("maybe", "no", "yes"), [[1, 2], [2, 0]]),
        ((["No ", "YES"], ["yes", "no"]), ("No", "YES"), [[0, 1], [1, 0]]),
        (([0, 1], ["1.0", "0"]), (0, 1), [[0, 1], [1, 0]]),
        (([True, False], ["true", "false"]), ("False", "True"), [[1, 0], [1, 0]]),
        (([True, False], [0, 1]), (0, 1), [[1, 0], [0, 1]]),
        (([0.5, 1.5, 0.5, 1.5], [2, 2]), (0.5, 1.5, 2), [[0, 1, 0, 1], [2, 2]]),
        (([10, 9], [9, 10]), (9, 10), [[1, 0], [0, 1]]),
        ((["a", "A"], ["a", "a"]), ("A", "a"), [[1, 0], [1, 1]]),
    ],
)
def test_classes_are_those_of_all_training_rows(labels, classes, truth) -> None:
    made = sites(*labels)
    assert made.schema.target.classes == classes
    assert codes(made) == truth


@pytest.mark.parametrize(
    ("positive", "classes", "truth"),
    [
        (">0", ("<= 0", "> 0"), [[0, 1, 1, 1]]),
        ("≥ 2", ("< 2", ">= 2"), [[0, 0, 1, 1]]),
        (0, ("not 0", "0"), [[1, 0, 0, 0]]),
        ([1, "2"], ("not 1 or 2", "1 or 2"), [[0, 1, 1, 0]]),
    ],
)
def test_the_positive_class(positive, classes, truth) -> None:
    made = sites([0, 1, 2, 3], positive=positive)
    assert made.schema.target.classes == classes
    assert codes(made) == truth


def test_of_two_classes_the_positive_comes_second() -> None:
    assert sites(["well", "ill"], positive="ill").schema.target.classes == ("well", "ill")
    with pytest.raises(InputError, match="got 'Ill'; did you mean 'ill'"):
        sites(["well", "ill"], positive="Ill")
    assert sites(["TRUE", "FALSE"], positive=True).schema.target.classes[1] == "TRUE"
    assert sites(["well", "ill"], positive="well").schema.target.classes == ("ill", "well")


def test_labels_of_deployment() -> None:
    made = sites(["a", "b"], test=["b", "A", "c", None, "?"])
    assert made.deploy["s0"].labels.tolist() == [1, 0, -1, -1, -1]
    note = "Site 's0': 1 deployment row with a label that no training row has ('c'); used without"
    assert any(n.startswith(note) for n in made.notes)
    assert made.encode().federation[0].test_y is None
    made = sites([0, 1], test=[4, 0, "x"], positive=">0")  # a threshold knows numbers never met
    assert made.deploy["s0"].labels.tolist() == [1, 0, -1]


def test_test_labels_are_kept_only_if_all_are_known() -> None:
    rows = {"x": [1, 2, 3], "y": ["a", "b", "a"]}
    assert Sites.of({"s": (rows, rows)}).encode().federation[0].test_y.tolist() == [0, 1, 0]
    made = Sites.of({"s": (rows, rows), "t": (rows, {"x": [1]})}).encode()
    assert [c.test_y for c in made.federation] == [None, None]
    assert made.test_labels["s"].tolist() == [0, 1, 0]
    assert made.test_labels["t"].tolist() == [-1]


def test_training_rows_without_a_label_are_dropped_and_noted() -> None:
    made = sites(["a", None, "b", "NA", ""])
    assert codes(made) == [[0, 1]]
    assert made.train["s0"].columns["x"].tolist() == [0.0, 2.0]
    assert "Site 's0': left out 3 training rows without a usable label." in made.notes
    made = sites([0, 1, "unknown", "inf"])  # words among numbers are no classes
    assert made.schema.target.classes == (0, 1)
    assert codes(made) == [[0, 1]]


def test_markers_of_missing_labels() -> None:
    made = sites([0, 1, -9, 1], missing={"y": [-9]})
    assert made.schema.target.classes == (0, 1)


def test_regression() -> None:
    y = np.linspace(0.5, 9, 30)
    made = sites(list(y))
    assert made.schema.target.task == "regression"
    assert any("The task is regression, as label" in n for n in made.notes)
    encoded = made.encode()
    np.testing.assert_array_equal(encoded.federation[0].y, y)
    assert encoded.federation[0].y.dtype == np.float64
    assert encoded.classes == ()
    few = sites([1.5, 2, "x", 3], test=[2.5, "?"], task="regression")
    assert few.train["s0"].labels.tolist() == [1.5, 2.0, 3.0]
    np.testing.assert_array_equal(few.deploy["s0"].labels, [2.5, np.nan])
    assert sites([1.1, 2.2, 3.3]).schema.target.task == "regression"
    assert sites([1, 2, 3]).schema.target.task == "classification"
    assert sites(["1,5", "2,5", "7"], task="regression").train["s0"].labels.tolist() == [
        1.5,
        2.5,
        7,
    ]


@pytest.mark.parametrize(
    ("labels", "settings", "words"),
    [
        (["a", "a"], {}, "at least two classes in the training rows of all sites; got 'a' only"),
        ([1, 2], {"positive": ">0"}, "at least two classes.*positive='>0'"),
        ([None, "?"], {}, "every one is missing"),
        (["a", "b"], {"task": "regression"}, "must hold numbers for a regression; got 'a', 'b'"),
        (
            ["a", "b"],
            {"positive": "c"},
            "positive= must be a class of label 'y', which has 'a', 'b'",
        ),
        (["a", "b"], {"positive": ">0"}, "must hold numbers for positive='>0'"),
        ([1, 2], {"positive": 1, "task": "regression"}, "positive= needs classes"),
        ([f"name {i}" for i in range(40)], {}, "must have few classes; got 40 different texts"),
    ],
)
def test_labels_that_do_not_do(labels, settings, words) -> None:
    with pytest.raises(InputError, match=words):
        sites(labels, **settings)


def test_a_site_without_any_label() -> None:
    with pytest.raises(
        InputError, match="site 's1' must have training rows with a label; all 2 lack 'y'"
    ):
        sites(["a", "b"], [None, None])


def test_the_label_is_guessed_only_where_it_is_clear() -> None:
    rows = {"a": [1, 2, 3, 4], "Outcome": [0, 1, 0, 1]}
    made = Sites.of({"s": rows})
    assert made.schema.target.name == "Outcome"
    assert (
        "Column 'Outcome' is the label because of its name; set label= for another." in made.notes
    )
    with pytest.raises(
        InputError, match="no column name suggests it; columns that all training files have: a, b"
    ):
        Sites.of({"s": {"a": [1, 2], "b": [0, 1]}})
    with pytest.raises(InputError, match="'Outcome', 'y' could each be the label"):
        Sites.of({"s": rows | {"y": [1, 2, 3, 4]}})
    assert Sites.of({"s": rows | {"y": [1, 2, 3, 4]}}, drop=["y"]).schema.target.name == "Outcome"
    with pytest.raises(InputError, match="no column name suggests it"):
        Sites.of({"s": rows, "t": {"a": [1, 2]}})
    with pytest.raises(
        InputError, match="site 't' holds training rows and must have the label 'Out"
    ):
        Sites.of({"s": rows, "t": {"a": [1, 2]}}, label="Outcome")
