"""One file to cells."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.data.tables.read import read_table
from fedshift.data.tables.settings import TableSettings
from fedshift.data.tables.text_table import TextTable
from fedshift.errors import InputError


def cells(table: TextTable) -> dict[str, list[str]]:
    return {k: [c.levels[i] for i in c.codes] for k, c in table.columns.items()}


def read(
    tmp_path: Path, content: str | bytes, name: str = "t.csv", **settings: object
) -> TextTable:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_table(path, TableSettings.of(settings), name=name)


TRUTH = {"age": ["40", "50"], "name": ["a, b", "é"], "y": ["", "1"]}


@pytest.mark.parametrize(
    "content",
    [
        'age,name,y\n40,"a, b",\n50,é,1\n',
        'age , name,y \r\n 40 , "a, b" ,\r\n50,é , 1\r\n\r\n',
        "\ufeffage;name;y\n40;a, b;\n50;é;1",
        "age\tname\ty\n40\ta, b\t\n50\té\t1\n",
        "age|name|y\n40|a, b|\n50|é|1\n",
        'age,name,y,\n40,"a, b",,\n50,é,1,\n'.replace("y,\n", "y\n"),
        "age;name;y\r40;a, b;\r50;é;1\r",
        "age;name;y\n40;a, b;\n;;\n50;é;1\x1a",
    ],
)
def test_one_truth_many_spellings(tmp_path: Path, content: str) -> None:
    assert cells(read(tmp_path, content)) == TRUTH


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    content = 'age,name,y\n40,"a, b",\n50,é,1\n'.encode(encoding)
    table = read(tmp_path, content)
    assert cells(table) == TRUTH
    assert bool(table.notes) == (encoding in ("cp1252", "latin-1"))
    assert cells(read(tmp_path, gzip.compress(content, mtime=0), "t.csv.gz")) == TRUTH
    assert (
        cells(read(tmp_path, gzip.compress(content, mtime=0))) == TRUTH
    )  # packed without saying so


def test_bytes_of_no_encoding_but_latin(tmp_path: Path) -> None:
    table = read(tmp_path, b"a,b\n\x81,1\n")  # no character in Windows-1252
    assert cells(table)["a"] == ["\x81"]


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    table = read(tmp_path, 'a,b\n1,"two\nlines"\n\n,\n3,4\n')
    assert table.lines.tolist() == [3, 6]
    assert table.notes == ("t.csv: left out 1 row without content, the first in line 5.",)


def test_separated_by_spaces(tmp_path: Path) -> None:
    table = read(tmp_path, '18.0  8\t307.0   "buick skylark"\n 15.0 8 ?  "x y" \n', "auto.data")
    assert cells(table)["column 4"] == ["buick skylark", "x y"]
    assert not table.has_header
    assert table.notes == (
        "auto.data has no header; its columns are 'column 1', …; names= renames them.",
    )


def test_headers(tmp_path: Path) -> None:
    assert list(read(tmp_path, "0,1,2\n5,6,7\n").columns) == ["0", "1", "2"]
    assert list(read(tmp_path, ",Na,K\n1,2,3\n").columns) == ["unnamed 1", "Na", "K"]
    assert not read(tmp_path, "a,5,?\nb,6,7\n").has_header
    assert not read(tmp_path, "e,x\ne,y\np,x\n").has_header  # words that are met again below
    assert read(tmp_path, "1990,1991,y\n1,2,3\n", header=True).has_header
    assert not read(tmp_path, "a,b\nc,d\n", header=False).has_header


def test_names_of_files_without_a_header(tmp_path: Path) -> None:
    names = ["age", "sex", "num"]
    assert list(read(tmp_path, "40,1,0\n", names=names).columns) == names
    assert cells(read(tmp_path, "Num,age,sex\n0,40,1\n", names=names))["Num"] == ["0"]
    other = read(tmp_path, "X1,X2,X3\n40,1,0\n", names=names)  # numbered by another hand
    assert cells(other) == {"age": ["40"], "sex": ["1"], "num": ["0"]}
    assert other.notes == ("t.csv: the header (X1, X2, X3) is replaced by names=.",)
    assert len(read(tmp_path, "a,b,c\nd,e,f\n", names=names)) == 2
    assert len(read(tmp_path, "a,b,c\nd,e,f\n", names=names, header=True)) == 1
    test = read(tmp_path, "40,1\n", names=names, label="num")  # rows to be predicted
    assert cells(test) == {"age": ["40"], "sex": ["1"]}
    with pytest.raises(InputError, match=r"one name per column of t.csv, 4; got 3"):
        read(tmp_path, "40,1,0,9\n", names=names)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b" \n\n ", "it is empty"),
        (b"\xef\xbb\xbf", "it is empty"),
        (b"a,b\n", "must hold rows; got a header only"),
        (b"a,b\n1,2\n3\n", "line 3: a row must have 2 cells, like the first row; got 1"),
        (b"a,b\n1,2\n3,4,5\n", "line 3: a row must have 2 cells.*got 3"),
        (b"a,b,a\n1,2,3\n", "'a' more than once, at \\[1, 3\\]"),
        (b'a,b\n1,"2\n3,4\n5,6\n', "a quote must be closed"),
        (b"a,b\n1,\x00\x01\n", "bytes that are not text"),
        (bytes(range(256)), "bytes that are not text"),
        (b"\xff\xfea\x00\xd8", "bytes that are not text"),
        (b"PAR1....", "a Parquet file; rename"),
        (b"PK\x03\x04....", "Excel"),
        (b"\x1f\x8b\x08junk", "whole gzip file"),
        (gzip.compress(b"a,b\n1,2\n" * 100, mtime=0)[:-12], "whole gzip file"),
        (b"a,b\n" + b"x" * 200_000 + b",1\n", "field larger than field limit"),
    ],
)
def test_what_is_no_table(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith("t.csv")


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path)


def test_more_rows_than_a_block(tmp_path: Path) -> None:
    n = 140_001
    table = read(tmp_path, "a,b\n" + "".join(f"{i},{i % 3}\n" for i in range(n)))
    assert len(table) == n
    assert cells(table)["a"][-1] == str(n - 1)
    assert table.columns["b"].levels == ("0", "1", "2")


def test_parquet_of_all_types(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "i": pd.array([1, None, 3], dtype="Int64"),
            "f": [0.1, np.nan, 1e300],
            "b": [True, False, None],
            "s": ["a ", None, "a"],
            "c": pd.Categorical(["x", "y", None]),
            "d": pd.to_datetime(["2020-01-01", None, "2020-01-02 12:00"], format="mixed"),
            "n": [None, None, None],
        },
        index=[5, 6, 9],
    )
    table = TextTable.of(frame, "memory")
    frame.to_parquet(tmp_path / "t.parquet")
    packed = read_table(tmp_path / "t.parquet")
    assert cells(packed) == {
        "i": ["1", "", "3"],
        "f": ["0.1", "", "1e+300"],
        "b": ["true", "false", ""],
        "s": ["a", "", "a"],
        "c": ["x", "y", ""],
        "d": ["2020-01-01 00:00:00.000000", "", "2020-01-02 12:00:00.000000"],
        "n": ["", "", ""],
    }
    assert list(table.columns) == list(packed.columns)
    assert cells(table)["i"] == ["1", "", "3"]


@given(st.lists(st.floats(allow_infinity=False, allow_nan=False), min_size=1, max_size=20))
@settings(max_examples=50)
def test_parquet_keeps_every_bit(tmp_path_factory, values: list[float]) -> None:
    path = tmp_path_factory.mktemp("bits") / "t.parquet"
    pq.write_table(pa.table({"f": values}), path)
    assert [float(c) for c in cells(read_table(path))["f"]] == values


def test_nested_columns_are_left_out(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"a": [1, 2], "l": [[1], [2]], "z": [b"\xff", b"a"]}), tmp_path / "t.pq"
    )
    table = read_table(tmp_path / "t.pq", name="t.pq")
    assert list(table.columns) == ["a"]
    assert table.notes[0].startswith("t.pq: column 'l' is left out: its type, list<")


def test_parquet_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": range(1000)}), path)
    whole = path.read_bytes()
    for broken in (b"", b"a,b\n1,2\n", whole[:-20], whole[:50] + b"\xff" * 60 + whole[110:]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="must be a whole Parquet file"):
            read_table(path)
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), path)
    with pytest.raises(InputError, match="got 0 rows and 1 columns"):
        read_table(path)
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), path)
    with pytest.raises(InputError, match="more than once"):
        read_table(path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install -c constraints\.txt -e '\.\[tables\]'"):
        read_table(path)


def test_tables_from_memory() -> None:
    for rows in (pa.table({"a": [1, None]}), {"a": [1, None]}, pd.DataFrame({"a": [1, None]})):
        assert cells(TextTable.of(rows, "m"))["a"] in (["1", ""], ["1.0", "nan"])
    for rows, words in (
        ([1, 2], "data frame or a dict"),
        ({"a": [1], "b": [1, 2]}, "equal length"),
        ({"a": []}, "at least one row"),
        ({}, "at least one row"),
        ({"a": "text"}, "one value per row"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "more than once"),
    ):
        with pytest.raises(InputError, match=words):
            TextTable.of(rows, "m")
