"""What a column is, by the training rows of all sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedshift.data.tables import Sites
from fedshift.errors import InputError

MANY = [str(v / 4) for v in range(60)]


def sites(*columns: list[Any], **settings: Any) -> Sites:
    """Sites with the given cells in column c, and enough else to be a table."""

    def rows(c: list[Any]) -> dict[str, list[Any]]:
        n = len(c)
        return {"c": c, "x": [i % 7 for i in range(n)], "y": [i % 2 for i in range(n)]}

    made = {f"s{i}": (rows(c), rows(c)) for i, c in enumerate(columns)}
    return Sites.of(made, label="y", **settings)


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        (([1, 2, 3], ["1.5", "?", "3"]), "numeric"),
        (([1, 2, 3], ["7", "8", "9.5"]), "numeric"),
        (([1, 2] * 9, [1, 2] * 9), "numeric"),  # few levels, but not declared
        ((["a", "b", "a"], ["b", "a", "b"]), "categorical"),
        (([1, 2] * 9, ["low", "high"] * 3), "categorical"),  # codes at one site, words elsewhere
        (([*MANY], ["low", "high"] * 4), "numeric"),  # measurements at one
        (([*MANY, "high"],), "numeric"),
        ((["12", "n/a", "high", "12", "high"],), "categorical"),
        ((["true", "false"] * 2,), "categorical"),
        ((["True", "False"], [0, 1]), "numeric"),
        ((["2020-01-01", "2021-05-06"], ["2020-02-03", "?"]), "date"),
        ((["31.12.2020", "01.02.2021"],), "date"),
        ((["31/12/2020", "01/02/2021"],), "date"),
        ((["none", 1.5, "-", 2.5, "unknown"],), "numeric"),
        ((["none", "mild", "none", "mild"],), "categorical"),
        ((["inf", 1, 2],), "numeric"),
        ((["1e200", 1, 2],), "numeric"),
    ],
)
def test_kinds(columns, kind: str) -> None:
    assert sites(*columns).schema["c"].kind == kind


def test_declared_kinds_win() -> None:
    assert sites([1, 2, 3, 3], categorical=["c"]).schema["c"].levels == ("1", "2", "3")
    made = sites(["a", "b", "5", "5"], numeric="c")
    np.testing.assert_array_equal(made.train["s0"].columns["c"], [np.nan, np.nan, 5, 5])
    with pytest.raises(InputError, match="'c' is declared numeric and must hold numbers; got 'a'"):
        sites(["a", "b"], numeric=["c"])


def test_unusable_cells_are_missing_and_noted() -> None:
    made = sites([*MANY, "high", "inf"])
    values = made.train["s0"].columns["c"]
    np.testing.assert_array_equal(values[:60], [float(v) for v in MANY])
    assert np.isnan(values[60:]).all()
    note = (
        "Site 's0', column 'c': 2 of 62 training rows with no usable number ('high', 'inf', first "
        "in site 's0', train, row 61); treated as missing."
    )
    assert note in made.notes


def test_values_are_the_same_however_written() -> None:
    made = sites([1, 2, 3], ["1.0", " 2", "3e0"])
    for name in made.names:
        assert made.train[name].columns["c"].tolist() == [1.0, 2.0, 3.0]
    made = sites(["1", "2", "2", "1"], [1.0, 2.0, 2.0, 1.0], categorical=["c"])
    assert made.schema["c"].levels == ("1", "2")


def test_spellings_of_a_word() -> None:
    made = sites(["Male", "Female"] * 2, ["male", "female"] * 2, ["MALE", "Female "] * 2)
    assert made.schema["c"].levels == ("Female", "Male")
    assert set(made.train["s1"].columns["c"]) == {"Male", "Female"}
    assert (
        "Column 'c': 'male' is taken as another spelling of 'Male', as no site uses both."
        in made.notes
    )
    assert sites(["A", "a"] * 4, ["a", "a"]).schema["c"].levels == ("A", "a")


def test_dates_are_days() -> None:
    made = sites(["1970-01-02", "1970-01-03"], ["1970-01-01 12:00", "?"])
    assert made.train["s0"].columns["c"].tolist() == [1.0, 2.0]
    np.testing.assert_array_equal(made.train["s1"].columns["c"], [0.5, np.nan])
    assert "Column 'c' holds dates; read as days since 1970." in made.notes
    mostly = sites([f"{d}/1/1970" for d in (*[7] * 19, 13)])  # one tells the order of all
    assert mostly.train["s0"].columns["c"].tolist() == [6.0] * 19 + [12.0]
    american = sites(["12/31/1970", "01/02/1970"])
    assert american.train["s0"].columns["c"].tolist() == [364.0, 1.0]


def reason(made: Sites) -> str:
    assert "c" not in made.schema.names
    assert any(n.startswith("Column 'c' is left out: ") for n in made.notes)
    return made.schema.dropped["c"]


def test_columns_that_are_no_features() -> None:
    assert "may begin with the day or the month" in reason(sites(["01/02/2020", "03/04/2020"]))
    assert "missing in every training row" in reason(sites(["?", "", None], ["NA", "null", "nan"]))
    assert "has a different text" in reason(sites([f"p{i}" for i in range(9)]))
    rows = {"patient_id": [17, 4, 99], "c": [1, 2, 3], "y": [0, 1, 0]}
    made = Sites.of({"s": (rows, rows)})
    why = "its name and values suggest a row number; declare it numeric to use it"
    assert made.schema.dropped == {"patient_id": why}


def test_columns_dropped_by_the_settings() -> None:
    made = sites([1, 2, 3], drop=["c"])
    assert made.schema.dropped == {"c": "set by drop="}
    assert made.schema.names == ("x",)


def test_a_number_that_may_mean_missing_is_pointed_out() -> None:
    note = "Column 'c' is -9 in 25% of its training rows and has no other negative number; if -9"
    assert any(n.startswith(note) and "means missing" in n for n in sites([-9, 1, 2, 3]).notes)
    for fine in ([-9, -2, 1, 2], [-7, 1, 2, 3], [-9, *range(99)]):
        assert not any("means missing" in n for n in sites(fine).notes)
    assert not any("means missing" in n for n in sites([-9, 1, 2, 3], missing=-9).notes)


def test_thousands_separators_are_not_guessed() -> None:
    with pytest.raises(
        InputError, match=r"row 2, column 'c': the comma of a number must not be ambiguous.*'1,234'"
    ):
        sites(["12", "1,234", "7"])
    assert sites(["12", "1,234", "12"], categorical=["c"]).schema["c"].kind == "categorical"


def test_decimal_commas_follow_the_file(folder) -> None:
    root = folder(
        {
            "a.csv": "c;d;y\n1,5;1,234;0\n2,5;2,345;1\n3;3;1\n4;4;0\n",
            "b.csv": "c,d,y\n1.5,3,0\n2,4,1\n",
        }
    )
    made = Sites.read(root, test_share=0.25)
    values = np.concatenate([made.train["a"].columns["d"], made.deploy["a"].columns["d"]])
    assert sorted(values) == [1.234, 2.345, 3.0, 4.0]
    assert "a.csv: columns 'c', 'd' are read with a decimal comma." in made.notes


def test_kinds_depend_on_training_rows_alone() -> None:
    train = {"c": ["1.5", "2.5", "3.5", "4"], "y": [0, 1, 0, 1]}
    deploy = {"c": ["high", "low", "2", "?"], "new": [1, 2, 3, 4]}
    made = Sites.of({"s": (train, deploy)})
    np.testing.assert_array_equal(made.deploy["s"].columns["c"], [np.nan, np.nan, 2, np.nan])
    assert any(
        "2 of 4 deployment rows with no usable number ('high', 'low'" in n for n in made.notes
    )
    assert "Column 'new' is left out: no training file has it." in made.notes


def test_nothing_to_learn_from() -> None:
    with pytest.raises(
        InputError, match=r"a column to learn from besides the label 'y'; got 'c' \(it is missing"
    ):
        Sites.of({"s": {"c": ["?"] * 9, "y": [0, 1, 1] * 3}})
    with pytest.raises(InputError, match="got none"):
        Sites.of({"s": {"y": [0, 1, 1] * 3}})
