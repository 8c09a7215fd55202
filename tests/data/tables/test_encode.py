"""From sites to numbers, without a look at test labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedshift.data.tables import Encoded, Encoder, Sites
from fedshift.data.tables.encode import rare_below
from fedshift.errors import InputError


def frame(n: int, seed: int) -> pd.DataFrame:
    """Rows with numbers, gaps, words, rare words and a label."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.2, np.nan, rng.normal(50, 9, n)),
            "dose": rng.exponential(3, n),
            "ward": rng.choice(["a", "b", "c", "rare"], n, p=[0.5, 0.3, 0.195, 0.005]),
            "smoker": rng.choice(["no", "yes", "?"], n),
            "y": rng.choice(["ill", "well"], n),
        }
    )


@pytest.fixture(scope="module")
def encoded() -> Encoded:
    return Sites.of(
        {"s": (frame(300, 1), frame(50, 2)), "t": (frame(100, 3), frame(60, 4))}
    ).encode()


def test_numbers_are_those_of_the_pooled_training_rows(encoded: Encoded) -> None:
    pooled = pd.concat([frame(300, 1), frame(100, 3)])
    column = list(encoded.columns).index
    mean, sd = pooled["age"].mean(), pooled["age"].std(ddof=0)
    for client, test in zip(encoded.federation, (frame(50, 2), frame(60, 4)), strict=True):
        truth = ((test["age"] - mean) / sd).fillna(0.0)
        np.testing.assert_allclose(client.test_x[:, column("age")], truth, atol=1e-12)
        np.testing.assert_array_equal(client.test_x[:, column("age missing")], test["age"].isna())
        for word in ("a", "b", "c"):
            truth = test["ward"] == word
            np.testing.assert_array_equal(client.test_x[:, column(f"ward={word}")], truth)


def test_columns_and_the_features_they_are_made_of(encoded: Encoded) -> None:
    rare = (pd.concat([frame(300, 1), frame(100, 3)])["ward"] == "rare").sum()
    assert 0 < rare < rare_below(400)
    assert dict(encoded.columns) == {
        "age": "age",
        "age missing": "age",
        "dose": "dose",
        "ward=a": "ward",
        "ward=b": "ward",
        "ward=c": "ward",
        "ward=(other)": "ward",
        "smoker=no": "smoker",
        "smoker=yes": "smoker",
        "smoker missing": "smoker",
    }
    assert encoded.federation.columns == tuple(encoded.columns)
    assert encoded.classes == ("ill", "well")
    assert any(
        "Column 'ward': 1 of 4 values are rare ('rare') and share the column (other)." in n
        for n in encoded.notes
    )


def test_repr_and_task(encoded: Encoded) -> None:
    assert (
        repr(encoded)
        == "Encoded(2 clients, 4 features as 10 columns, classification, test labels known)"
    )
    assert repr(encoded.encoder) == "Encoder(4 features to 10 columns)"


def bits(made: Encoded) -> list[bytes]:
    parts = [a.tobytes() for c in made.federation for a in (c.x, c.y, c.test_x)]
    return [*parts, json.dumps(made.encoder.to_dict()).encode(), repr(made.sums).encode()]


LABELS = st.sampled_from(["ill", "well", "ILL", "?", "", "unknown", "other", "1", "1,5", "inf"])


@given(st.lists(LABELS, min_size=50, max_size=50))
@settings(max_examples=40, deadline=None)
def test_test_labels_change_no_encoded_bit(labels: list[str]) -> None:
    train, deploy = frame(80, 1), frame(50, 2)
    plain = Sites.of({"s": (train, deploy), "t": (deploy, train)}).encode()
    other = Sites.of({"s": (train, deploy.assign(y=labels)), "t": (deploy, train)}).encode()
    none = Sites.of({"s": (train, deploy.drop(columns="y")), "t": (deploy, train)}).encode()
    assert bits(plain) == bits(other) == bits(none)


@given(st.lists(LABELS, min_size=30, max_size=30))
@settings(max_examples=40, deadline=None)
def test_nor_where_the_test_rows_are_a_share_of_one_file(labels: list[str]) -> None:
    rows = frame(100, 5).assign(x=range(100))
    plain = Sites.of({"s": rows})
    used = plain.deploy["s"].columns["x"].astype(int)
    assert len(used) == 30
    changed = rows.copy()
    changed.loc[used, "y"] = labels
    assert bits(plain.encode()) == bits(Sites.of({"s": changed}).encode())


def test_the_same_bits_from_files_and_from_memory(folder, encoded: Encoded) -> None:
    root = folder(
        {
            "s/train.csv": frame(300, 1).to_csv(index=False),
            "s/test.parquet": frame(50, 2),
            "t/train.parquet": frame(100, 3).sample(frac=1, axis=1, random_state=0),
            "t/deploy.tsv.gz": frame(60, 4).to_csv(index=False, sep="\t"),
        }
    )
    assert bits(Sites.read(root).encode()) == bits(encoded)


def test_encoder_survives_json(tmp_path: Path, encoded: Encoded) -> None:
    again = Encoder.from_dict(json.loads(json.dumps(encoded.encoder.to_dict())))
    assert again.to_dict() == encoded.encoder.to_dict()
    rows = frame(60, 4)
    np.testing.assert_array_equal(again.encode(rows).x, encoded.federation["t"].test_x)
    encoded.encoder.save(tmp_path / "e.json")
    loaded = Encoder.load(tmp_path / "e.json").encode(rows)
    np.testing.assert_array_equal(loaded.x, encoded.federation["t"].test_x)
    np.testing.assert_array_equal(loaded.labels, encoded.federation["t"].test_y)


@pytest.mark.parametrize("broken", [{}, [], None, {"kind": "other"}, {"schema": 1}])
def test_what_is_no_encoder(tmp_path: Path, encoded: Encoded, broken: Any) -> None:
    with pytest.raises(InputError, match="an encoder must be what Encoder"):
        Encoder.from_dict(broken)
    table = encoded.encoder.to_dict()
    for key in ("kind", "schema", "codes"):
        with pytest.raises(InputError):
            Encoder.from_dict({k: v for k, v in table.items() if k != key})
    for bad in ("x", float("nan"), None):
        codes = [{**table["codes"][0], "mean": bad}]
        with pytest.raises(InputError):
            Encoder.from_dict({**table, "codes": codes})
    table["codes"][0]["feature"] = "gone"
    with pytest.raises(InputError, match=r"name must be one of .*got 'gone'"):
        Encoder.from_dict(table)
    (tmp_path / "e.json").write_text("{")
    with pytest.raises(InputError, match="must hold an encoder as JSON"):
        Encoder.load(tmp_path / "e.json")


def test_new_rows(encoded: Encoded) -> None:
    column = list(encoded.columns).index
    rows = {
        "Ward": ["new", "a", "A"],
        "smoker": ["maybe", None, "YES"],
        "dose": ["1e99", "x", 3],
        "extra": [1, 2, 3],
    }
    batch = encoded.encoder.encode(rows, site="u")
    assert batch.x[:, column("ward=(other)")].tolist() == [1, 0, 0]
    assert batch.x[:, column("ward=a")].tolist() == [0, 1, 1]
    assert batch.x[
        0, [column("smoker=no"), column("smoker=yes"), column("smoker missing")]
    ].tolist() == [0, 0, 0]
    assert batch.x[:, column("smoker missing")].tolist() == [0, 1, 0]
    assert batch.x[:, column("dose")].tolist()[:2] == [1000.0, 0.0]
    assert batch.x[:, column("age missing")].tolist() == [1, 1, 1]
    assert batch.labels.tolist() == [-1, -1, -1]
    notes = " ".join(batch.notes)
    for words in (
        "columns 'extra' are ignored, as training lacks them",
        "columns 'age' are absent; treated as missing",
        "column 'ward': 1 row with a value that no training row has ('new'); encoded as rare.",
        "column 'smoker': 1 row with a value that no training row has ('maybe'); encoded as zeros.",
        "column 'dose': 1 row more than 1000 standard deviations from the training mean; clipped.",
        "Site 'u', column 'dose': 1 of 3 deployment rows with no usable number ('x'",
        "column 'dose': 1 row without a value; filled with the training mean",
    ):
        assert words in notes
    assert repr(batch) == f"EncodedRows(3 rows, 10 columns, {len(batch.notes)} notes)"


def test_new_files(folder, encoded: Encoded) -> None:
    new = frame(20, 9).drop(columns="y")
    text = new.to_csv(index=False)
    truth = encoded.encoder.encode(new).x
    root = folder({"s/deploy.csv": text, "t/test.parquet": new, "t/train.csv": "not,read\n"})
    found = encoded.encoder.read(root)
    assert sorted(found) == ["s", "t"]
    for batch in found.values():
        np.testing.assert_array_equal(batch.x, truth)
    (root / "u.csv").write_text(text)
    assert list(encoded.encoder.read(root / "u.csv")) == ["u"]
    (root / "v.csv").write_text(new.assign(site=["s"] * 5 + ["t"] * 15).to_csv(index=False))
    assert list(encoded.encoder.read(root / "v.csv")) == ["v"]
    with pytest.raises(InputError, match="needs a deployment file; got training files only"):
        encoded.encoder.read(folder({"w/train.csv": text}) / "w")


def test_new_rows_with_a_site_column(folder) -> None:
    rows = frame(90, 6).assign(site=["s", "t", "u"] * 30)
    encoder = Sites.read(folder({"all.csv": rows.to_csv(index=False)})).encode().encoder
    found = encoder.read(folder({"new/batch.csv": rows.to_csv(index=False)}) / "new")
    assert {k: len(v) for k, v in found.items()} == {"s": 30, "t": 30, "u": 30}


def test_columns_that_say_nothing_are_left_out() -> None:
    rows = {
        "k": [7.1] * 6,
        "w": ["v"] * 6,
        "x": [1, 2, 3, 4, 5, 6],
        "g": [None, 2] * 3,
        "y": [0, 1] * 3,
    }
    made = Sites.of({"s": (rows, rows), "t": (rows, rows | {"k": [1, 2, 3, 4, 5, 6]})}).encode()
    assert dict(made.columns) == {"x": "x", "g missing": "g"}
    for name in ("k", "w"):
        assert f"Column {name!r} is left out: it hardly varies in the training rows." in made.notes
    with pytest.raises(InputError, match="a column that varies in the training rows; got 'k'"):
        Sites.of({"s": {"k": [1] * 9, "y": [0, 1, 1] * 3}}).encode()


@given(
    st.lists(st.floats(-1e100, 1e100), min_size=4, max_size=12),
    st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=4),
)
@example(train=[0.0, 0.0, 0.0, 8e-162], test=[0.0])  # its squares underflow
@example(train=[0.0, 0.0, 0.0, 5e-324], test=[1.0])
@settings(max_examples=150, deadline=None)
def test_no_number_is_too_large_or_too_alike(train: list[float], test: list[float]) -> None:
    rows = {"v": train, "x": [*range(len(train))], "y": [i % 2 for i in range(len(train))]}
    made = Sites.of({"s": (rows, {"v": test, "x": [*range(len(test))]})}).encode()
    (client,) = made.federation
    for x in (client.x, client.test_x):
        assert np.isfinite(x.astype(np.float32)).all()
        assert np.abs(x).max() <= 1000
    if "v" in made.columns:
        assert client.x[:, 0].mean() == pytest.approx(0.0, abs=1e-3)
        assert client.x[:, 0].std() == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("unit", [1e-305, 8e-162, 1e-102, 1.0, 1e98])
def test_scaled_numbers_are_the_same_in_any_unit(unit: float) -> None:
    def table(numbers: list[float]) -> dict[str, list[Any]]:
        return {"v": numbers, "x": [1, 2, 3], "y": [0, 1, 0]}

    s, t = [-unit, unit, None], [3 * unit, unit, unit]  # mean of the five is unit, sd √1.6 units
    new = {"v": [unit, 2 * unit], "x": [1, 2]}
    made = Sites.of({n: (table(v), new) for n, v in {"s": s, "t": t}.items()})
    encoded = made.encode()
    (code,) = (c for c in encoded.encoder.codes if c.feature == "v")
    assert code.mean == pytest.approx(unit, rel=1e-12)
    assert code.sd == pytest.approx(np.sqrt(1.6) * unit, rel=1e-12)
    np.testing.assert_allclose(encoded.federation["s"].x[:2, 0], [-2 / np.sqrt(1.6), 0], atol=1e-9)
    np.testing.assert_allclose(
        encoded.federation["t"].test_x[:, 0], [0, 1 / np.sqrt(1.6)], atol=1e-9
    )
    # one more number leaves a site only where the squares of a column are out of range
    assert encoded.sums["s"].numbers == 1 + 4 * 2 + 2 * 3 + (unit < 1e-100)


def test_a_single_gap_gets_no_column() -> None:
    rows = {"a": [None, 2, 3, 4], "x": [1, 2, 3, 5], "y": [0, 1, 0, 1]}
    made = Sites.of({"s": (rows, rows)}).encode()
    assert list(made.columns) == ["a", "x"]
    assert any("1 row without a value; filled with" in n for n in made.notes)


def test_names_of_columns_never_clash() -> None:
    rows = {"a": [None, 2, None, 4], "a missing": [1, 2, 3, 5], "y": [0, 1, 0, 1]}
    made = Sites.of({"s": (rows, rows)}).encode()
    assert list(made.columns.items()) == [
        ("a", "a"),
        ("a missing", "a"),
        ("a missing'", "a missing"),
    ]


def test_what_left_the_sites_suffices(encoded: Encoded) -> None:
    pooled = pd.concat([frame(300, 1), frame(100, 3)])
    left = encoded.sums
    assert left["s"].rows == 300
    assert left["s"].present["age"] == frame(300, 1)["age"].notna().sum()
    total = sum(t.sums["dose"] for t in left.values()) / sum(
        t.present["dose"] for t in left.values()
    )
    assert total == pytest.approx(pooled["dose"].mean())
    assert left["t"].levels["ward"] == frame(100, 3)["ward"].value_counts().to_dict()
    assert left["s"].classes == ("ill", "well")
    for sums in left.values():
        assert sums.up == 8 * sums.numbers + sum(len(w) + 1 for w in sums.words)
    small, large = (
        Sites.of({"s": (frame(n, 1), frame(9, 2))}).encode().sums["s"] for n in (300, 3000)
    )
    assert small.numbers == large.numbers  # sums do not grow with the rows
    assert (
        repr(left["s"])
        == f"ColumnSums({left['s'].numbers} numbers and 8 words, {left['s'].up} bytes)"
    )
