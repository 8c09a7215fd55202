"""Weights as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from fedshift.errors import InputError, OutputError
from fedshift.outcome.weights import write_sample_weights


def test_a_file_a_site_with_rows_and_weights(tmp_path: Path) -> None:
    w = np.array([0.5, 1.0, 1.5])
    found = write_sample_weights(
        tmp_path / "out",
        {"ward 3": w, "b/1": np.array([1.0, 2.0])},
        {"ward 3": {"row": ["x", "y", "z"]}, "b/1": {"row": [7, 9]}},
    )
    assert {p.name for p in found.values()} == {"ward 3.parquet", "b_1.parquet"}
    table = parquet.read_table(found["ward 3"]).to_pydict()
    assert table == {"row": ["x", "y", "z"], "sample_weight": [0.5, 1.0, 1.5]}
    assert parquet.read_table(found["b/1"])["row"].to_pylist() == [7, 9]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["b_1.parquet", "ward 3.parquet"]


def test_bad_input_is_named(tmp_path: Path) -> None:
    one = np.array([1.0])
    with pytest.raises(InputError, match="same file name"):
        write_sample_weights(tmp_path, {"a/b": one, "a:b": one}, {})
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        write_sample_weights(tmp_path / "file", {"a": one}, {"a": {"row": [0]}})


def test_without_pyarrow_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedshift.outcome.weights.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"-e '\.\[tables\]'"):
        write_sample_weights(tmp_path, {}, {})
