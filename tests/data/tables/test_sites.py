"""From folders to sites: layouts, hospitals, and everything a real folder may hold."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedshift.data.tables import Sites
from fedshift.errors import InputError

A = "age,sex,y\n40,f,0\n50,m,1\n60,f,1\n45,m,0\n"
B = "sex,y,age\nm,1,70\nf,0,30\nm,0,33\n"
B_TEST = "age,sex,y\n71,m,1\n31,f,0\n"


def ages(made: Sites) -> dict[str, tuple[list[float], list[float]]]:
    return {
        n: (made.train[n].columns["age"].tolist(), made.deploy[n].columns["age"].tolist())
        for n in made.names
    }


TRUTH = {
    "a": ([40.0, 50.0, 60.0, 45.0], [40.0, 50.0, 60.0, 45.0]),
    "b": ([70.0, 30.0, 33.0], [71.0, 31.0]),
}


def table(text: str, **more: Any) -> pd.DataFrame:
    lines = [line.split(",") for line in text.split()]
    return pd.DataFrame(lines[1:], columns=lines[0]).assign(**more)


def both(part: str | None = None) -> dict[str, str]:
    """One table of both sites, or of one part of them, with a site and a split column."""
    frames = [
        table(text, hospital=site, split=name)
        for site, name, text in (
            ("a", "train", A),
            ("a", "test", A),
            ("b", "Train", B),
            ("b", "deploy", B_TEST),
        )
        if part is None or (name.lower() == "train") == (part == "train")
    ]
    frame = pd.concat(frames)
    return (frame if part is None else frame.drop(columns="split")).to_csv(index=False)


@pytest.mark.parametrize(
    "files",
    [
        {
            "a/train.csv": A,
            "a/test.csv": A,
            "b/train.tsv": B.replace(",", "\t"),
            "b/deploy.csv.gz": B_TEST,
        },
        {"a.train.csv": A, "a_test.csv": A, "b_train.csv": B, "b.deploy.csv": B_TEST},
        {
            "a/train.parquet": table(A),
            "a/test.csv": A,
            "b/train.csv": B,
            "b/test.parquet": table(B_TEST),
        },
        {"all.csv": both()},
        {"train.csv": both("train"), "test.csv": both("test")},
    ],
)
def test_one_truth_in_every_layout(folder, files: dict[str, Any]) -> None:
    made = Sites.read(folder(files), label="y")
    assert ages(made) == TRUTH
    assert made.schema.names == ("age", "sex")
    assert made.deploy["b"].labels.tolist() == [1, 0]
    x = made.encode().federation
    assert x.columns == ("age", "sex=f", "sex=m")
    assert x["b"].test_y.tolist() == [1, 0]


def test_a_file_by_itself(folder) -> None:
    root = folder({"all.csv": both(), "fedshift.toml": 'label = "y"\nsite = "hospital"'})
    assert ages(Sites.read(root / "all.csv")) == TRUTH


def test_a_file_for_each_site_gives_a_seeded_share(folder) -> None:
    rows = "x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(100))
    root = folder({"north.csv": rows, "south.csv": rows})
    made = Sites.read(root)
    assert [len(made.train[n]) for n in made.names] == [70, 70]
    for n in made.names:
        both_parts = [*made.train[n].columns["x"], *made.deploy[n].columns["x"]]
        assert sorted(both_parts) == list(range(100))
    assert not np.array_equal(made.deploy["north"].columns["x"], made.deploy["south"].columns["x"])
    assert any(
        "Sites north, south without deployment rows: 30% of their rows, drawn with seed 0" in n
        for n in made.notes
    )
    again, other = Sites.read(root), Sites.read(root, seed=1, test_share=0.5)
    np.testing.assert_array_equal(
        made.deploy["north"].columns["x"], again.deploy["north"].columns["x"]
    )
    assert len(other.deploy["north"]) == 50
    (root / "east.csv").write_text(rows)  # another site changes nothing for the others
    more = Sites.read(root)
    np.testing.assert_array_equal(
        made.deploy["north"].columns["x"], more.deploy["north"].columns["x"]
    )


def test_four_hospitals(folder, heart, heart_names) -> None:
    root = folder(heart())
    made = Sites.read(
        root, names=heart_names, label="num", positive=">0", categorical=["cp", "thal"]
    )
    assert made.names == ("cleveland", "hungarian", "switzerland", "va")
    assert made.schema.target.classes == ("<= 0", "> 0")
    assert len(made.schema.features) == 13
    assert made.schema["thal"].levels == ("3", "6", "7")  # 3.0 at one hospital
    assert np.isnan(made.train["va"].columns["ca"]).mean() > 0.9
    assert not np.isnan(made.train["cleveland"].columns["age"]).any()
    encoded = made.encode()
    for c in encoded.federation:
        assert np.isfinite(c.x).all()
        assert np.isfinite(c.test_x).all()
        assert set(c.y) <= {0, 1}
    assert encoded.columns["ca missing"] == "ca"
    assert "age missing" not in encoded.columns
    pooled = np.concatenate([c.x for c in encoded.federation])
    where = list(encoded.columns).index("age")
    assert abs(pooled[:, where].mean()) < 1e-12
    assert pooled[:, where].std() == pytest.approx(1.0)


def test_four_hospitals_need_a_label(folder, heart) -> None:
    with pytest.raises(
        InputError, match=r"label= must name the column to predict.*column 1, column 2"
    ):
        Sites.read(folder(heart(rows=20)))
    made = Sites.read(folder({}), label="column 14", positive=">0")
    assert len(made.names) == 4


def test_zero_as_missing_where_declared(folder, heart, heart_names) -> None:
    root = folder(heart())
    made = Sites.read(root, names=heart_names, label="num", missing={"chol": [0]})
    assert np.isnan(made.train["switzerland"].columns["chol"]).all()
    assert not np.isnan(made.train["switzerland"].columns["fbs"]).all()


@pytest.mark.parametrize("small", ["x,y\n1,0\n2,0\n3,0\n4,0\n5,0\n", "x,y\n7,1\n7,0\n"])
def test_a_small_site_or_one_with_one_class_or_constants(folder, small: str) -> None:
    big = "x,z,y\n" + "".join(f"{i},5,{i % 2}\n" for i in range(40))
    made = Sites.read(folder({"big.csv": big, "small.csv": small}))
    encoded = made.encode()
    assert len(encoded.federation["small"].x) + len(encoded.federation["small"].test_x) in (2, 5)
    assert "Column 'z' is not in small.csv; its values there are missing." in made.notes


def test_columns_in_other_order_and_case(folder) -> None:
    made = Sites.read(folder({"a.csv": A, "b.csv": "Sex,Y, AGE\nm,1,70\nf,0,30\n", "c.csv": A}))
    assert made.schema.names == ("age", "sex")
    assert {*made.train["b"].columns["age"], *made.deploy["b"].columns["age"]} == {70.0, 30.0}
    assert "Column 'AGE' of b.csv is read as 'age', its name in other files." in made.notes


def test_columns_that_differ_by_case_in_one_file_stay_apart(folder) -> None:
    made = Sites.read(
        folder({"a.csv": "k,K,y\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n", "b.csv": "k,y\n1,0\n2,1\n"})
    )
    assert made.schema.names == ("k", "K")


def test_weights_are_kept(folder) -> None:
    rows = "x,w,y\n1,0.5,0\n2,2,1\n3,0,?\n4,1,1\n"
    made = Sites.read(folder({"a/train.csv": rows, "a/test.csv": "x\n1\n"}), weights="w")
    assert made.train["a"].weights.tolist() == [0.5, 2.0, 1.0]  # the unlabelled row is dropped
    encoded = made.encode()
    assert encoded.weights["a"].tolist() == [0.5, 2.0, 1.0]
    assert list(encoded.columns) == ["x"]
    for bad in ("-1", "", "heavy", "inf"):
        root = folder({"a/train.csv": rows.replace("2,2,1", f"2,{bad},1")})
        with pytest.raises(InputError, match=r"a/train.csv, line 3: weights column 'w' must be"):
            Sites.read(root, weights="w")


@pytest.mark.parametrize(
    ("files", "settings", "words"),
    [
        ({"a.csv": A}, {}, "must have a site column"),
        ({"a/test.csv": A, "b/train.csv": B}, {}, "site 'a' must have a train file"),
        ({"test.csv": A}, {}, "the folder must have a train file"),
        (
            {"t.csv": "site,x,y\na,1,0\n,2,1\n"},
            {},
            "t.csv, line 3: column 'site', the site, must not be empty",
        ),
        (
            {"t.csv": "site,x,y\na,1,0\nb,2,1\n"},
            {},
            "site 'a' must have at least two rows, for training and deployment; got 1",
        ),
        (
            {"t.csv": "site,split,x,y\na,train,1,0\na,val,2,1\n"},
            {"split": "split"},
            "line 3.*must be train, test or deploy; got 'val'",
        ),
        (
            {"t.csv": "site,split,x,y\na,train,1,0\na,test,1,0\nb,test,2,1\n"},
            {},
            "site 'b' must have training rows; got 1 deployment row only",
        ),
        (
            {"train.csv": "site,x,y\na,1,0\na,2,1\n", "test.csv": "x\n1\n"},
            {"site": "site"},
            "test.csv must have the site column 'site'",
        ),
        ({"a.csv": A, "b.csv": "1,f,3\n"}, {}, "b.csv has none and a.csv has one"),
        (
            {"a.data": "1,2,3\n4,5,6\n", "b.data": "1,2\n3,4\n"},
            {},
            "equally many columns; a.data has 3, b.data has 2",
        ),
        ({"a.csv": A, "b.csv": B}, {"weights": "age", "label": "sex"}, ""),
        ({"a.csv": A, "b.csv": "age,y\n1,0\n2,1\n"}, {"weights": "sex"}, "weights column 'sex'"),
        ({"a.csv": A, "b.csv": B}, {"split": "sex"}, "must be train, test or deploy; got 'f'"),
        ({"all.csv": A, "own.csv": A}, {}, "must not be called 'all' or 'own'"),
    ],
)
def test_folders_that_do_not_do(folder, files, settings, words: str) -> None:
    root = folder(files)
    if not words:
        assert Sites.read(root, **settings).encode().weights is not None
        return
    with pytest.raises(InputError, match=words):
        Sites.read(root, **settings).encode()


def test_a_column_that_repeats_the_site_is_left_out(folder) -> None:
    made = Sites.read(
        folder(
            {
                "a.csv": A.replace("\n", ",A\n").replace("y,A", "y,site"),
                "b.csv": B.replace("\n", ",B\n").replace("age,B", "age,site"),
            }
        )
    )
    assert made.schema.names == ("age", "sex")
    assert "Column 'site' is left out: it has one value in each file." in made.notes


def test_sites_ignore_case_and_sort_naturally(folder) -> None:
    train = "site,x,y\n" + "".join(f"Ward-{w},{i},{i % 2}\n" for w in (10, 9) for i in range(4))
    test = "site,x\nward-9,1\nward-10,2\n"
    assert Sites.read(folder({"train.csv": train, "test.csv": test})).names == ("Ward-9", "Ward-10")


def test_sites_in_memory() -> None:
    frame = table(A)
    made = Sites.of({"a": (frame, frame), "b": (table(B), table(B_TEST))}, label="y")
    assert ages(made) == TRUTH
    assert (
        repr(made)
        == "Sites(2 sites, 7 train + 6 deployment rows, 2 features, label 'y': 0, 1; 0 notes)"
    )
    for bad, words in (([], "must be a dict"), ({"a": (frame,)}, "got 1 parts")):
        with pytest.raises(InputError, match=words):
            Sites.of(bad)


def test_a_thousand_rows_at_four_sites_take_less_than_two_seconds(
    folder, heart, heart_names
) -> None:
    root = folder(heart(rows=1000))
    Sites.read(root, names=heart_names, label="num")  # imports are not what is timed
    start = time.process_time()
    Sites.read(root, names=heart_names, label="num", positive=">0").encode()
    assert time.process_time() - start < 2


def test_tables_are_light_to_import() -> None:
    code = "import sys, fedshift.data.tables; print(set(sys.modules) & {'pandas', 'pyarrow'})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
