"""What a cell can mean."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.data.tables.cells import (
    comma_style,
    day,
    has_thousands,
    is_missing,
    join,
    number,
    numbers,
    one_spelling,
    plain,
    with_point,
)

ODD = ["", "inf", "-inf", "Infinity", "nan", "-nan", "1_0", "1e400", "+.5", "-", "٣", "1 2", "?"]


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e99, max_value=1e99))
def test_every_number_reads_back(value: float) -> None:
    assert number(repr(value)) == value


@pytest.mark.parametrize(
    "text", ["", "1,5", "1_000", "٣", "0x10", "nan", "1 2", "--1", "1e", "high"]
)
def test_what_is_no_number(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize("text", ["inf", "-Infinity", "1e101", "-1e400", "9" * 5000])
def test_what_is_too_large_to_use(text: str) -> None:
    assert math.isnan(number(text) or 0.0)


@pytest.mark.parametrize("text", ["", "?", "NA", "n/a", "NaN", "null", "<NA>", "#N/A"])
def test_usual_markers_of_missing(text: str) -> None:
    assert is_missing(text)


def test_other_markers_must_be_declared() -> None:
    assert not is_missing("-9")
    assert is_missing("-9.00", ["-9"])
    assert is_missing("refused", ["refused"])
    assert not is_missing("none")  # a word of its own: no pain, no drug


@given(st.lists(st.one_of(st.text(max_size=4), st.floats().map(str), st.sampled_from(ODD))))
def test_many_numbers_at_once_are_those_one_by_one(texts: list[str]) -> None:
    values, which = numbers(texts)
    slow = [number(t) for t in texts]
    assert which.tolist() == [v is not None for v in slow]
    np.testing.assert_array_equal(values, np.array(slow, dtype=np.float64))


@given(st.dates(min_value=dt.date(1, 1, 1)))
def test_dates_are_days(date: dt.date) -> None:
    truth = (date - dt.date(1970, 1, 1)).days
    assert day(date.isoformat(), "ymd") == truth
    assert day(f"{date.day}.{date.month}.{date.year:04d}", "dmy") == truth
    assert day(f"{date.month}/{date.day}/{date.year:04d}", "mdy") == truth


def test_times_and_zones() -> None:
    assert day("1970-01-01T06:00:00Z", "ymd") == 0.25
    assert day("1970-01-01 06:00:00.000000+0600", "ymd") == 0.0
    assert day("1970-01-01 06:00 -06:00", "ymd") == 0.5
    for text in ("1970-02-30", "1970-01-01 25:00", "1970-1", "70-01-01", "12"):
        assert day(text, "ymd") is None


def test_decimal_commas() -> None:
    assert comma_style(["1,5", "?", "-", "3"]) == "sure"
    assert comma_style(["0,125"]) == "sure"  # no thousand begins with 0
    assert comma_style(["1,234", "12"]) == "unsure"
    assert comma_style(["1,5", "a", "b", "c"]) == "none"
    assert comma_style(["1.5", "1,5"]) == "none"
    assert [with_point(t) for t in ("1,5", "-,5e3", "a,b")] == ["1.5", "-.5e3", "a,b"]
    assert has_thousands("1,234,567.5")
    assert not has_thousands("1,23")


def test_one_spelling_keeps_apart_what_one_file_tells_apart() -> None:
    assert one_spelling([["A", "b"], ["a", "B"], ["a"]]) == {"A": "a", "a": "a", "b": "b", "B": "b"}
    assert one_spelling([["A", "a"], ["a"]]) == {"A": "A", "a": "a"}


def test_words() -> None:
    assert [plain(t) for t in ("1.0", "-3.", "1.50", "a  b", "01")] == [
        "1",
        "-3",
        "1.50",
        "a b",
        "01",
    ]
    assert join(range(10), 3) == "0, 1, 2 and 7 more"
    assert len(join(["x" * 500])) == 60
