"""Thousands of bad tables: each ends in a finite federation or in an error that can be read."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.data.tables import Encoded, Encoder, Sites
from fedshift.data.tables.delimited import decode
from fedshift.errors import InputError

#: as with hypothesis, FEDSHIFT_FUZZ=1 searches further
BATCHES, EACH = 10, 1000 if os.environ.get("FEDSHIFT_FUZZ") else 300

#: what cells of bad tables hold
NASTY = (
    *("", " ", "?", "NA", "n/a", "null", "nan", "None", "-", ".", "-9", "inf", "-inf", "1e400"),
    *("1e100", "-1e99", "1e-320", "0", "-0.0", "1.0", "01", "1,5", "1,234", "1.234,5", "1 000"),
    *("12%", ">5", "high", "True", "FALSE", "yes", "é", "\u00a0", "日本", "٣", "a" * 300, "1_0"),
    *("2020-01-01", "2020-02-30", "01/02/2020", "31.12.1999", "12:30", "2020-01-01T00:00:00Z"),
    *("=1+1", "'x'", "a;b", "a,b", "a\tb", 'say "hi"', "two\nlines", "\\", "#", "_", "all", "own"),
    *("9" * 400, "0x1F", "1e5", "-", "--", "[1]", "{}", "\u200b", "ß", "SS", "İ", "i"),
)
KINDS: tuple[Callable[[random.Random], str], ...] = (
    lambda r: str(r.randint(-3, 60)),
    lambda r: f"{r.gauss(50, 10):.2f}",
    lambda r: f"{r.gauss(0, 1):.3f}".replace(".", ","),
    lambda r: r.choice(("a", "b", "C", "c ")),
    lambda r: f"2020-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}",
    lambda r: f"{r.randint(1, 28)}/{r.randint(1, 12)}/2021",
    lambda r: f"patient {r.random()}",
    lambda r: r.choice(("true", "false", "0", "1")),
    lambda r: "7",
    lambda r: "?",
    lambda r: r.choice(NASTY),
)
LABELS: tuple[Callable[[random.Random], str], ...] = (
    *[lambda r: r.choice("01")] * 4,
    lambda r: r.choice(("yes", "no", "No")),
    lambda r: f"{r.gauss(0, 1):.3f}",
    lambda r: r.choice("01234?"),
    lambda r: "1",
    lambda r: r.choice(NASTY),
)
HEADS = ("age", "Age", " sex", "chol", "x 1", "id", "hospital", "w", "", "col", "num", "é", "part")


class Maker:
    """One folder of bad tables, from a seed."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        count = self.r.choice((1, 1, 2, 3, 3, 4))
        self.heads = self.r.sample(HEADS, count) if self.r.random() < 0.97 else ["a", "a"]
        self.kinds = [self.r.choice(KINDS) for _ in self.heads]
        self.label = self.r.choice(LABELS)
        self.name = self.r.choice(("y", "y", "y", "label", "Outcome", "z"))
        self.noise = self.r.choice((0.0, 0.0, 0.02, 0.2))
        self.damage = self.r.random() < 0.25

    def table(self, part: str, site: str | None = None, split: bool = False) -> list[list[str]]:
        """A header and rows."""
        r = self.r
        n = r.choice((0, 1, 2, 3, 5)) if r.random() < 0.1 else r.randint(4, 25)
        labelled = part != "test" or r.random() < 0.6
        head = [*self.heads, *([self.name] if labelled else [])]
        if r.random() < 0.05:
            head = head[1:] or ["y"]
        if r.random() < 0.1:
            r.shuffle(head)
        head += (["site"] if site else []) + (["split"] if split else [])
        rows = [[self.cell(h) for h in head] for _ in range(n)]
        for row in rows:
            if site:
                row[head.index("site")] = r.choice(site)
            if split:
                row[head.index("split")] = r.choice(("train", "train", "test", "deploy"))
        return [head, *rows]

    def cell(self, head: str) -> str:
        if self.r.random() < self.noise:
            return self.r.choice(NASTY)
        if head == self.name:
            return self.label(self.r)
        return self.kinds[self.heads.index(head)](self.r) if head in self.heads else "1"

    def content(self, rows: list[list[str]], name: str) -> bytes:
        """A file's bytes, often damaged."""
        r = self.r
        if name.endswith(".parquet"):
            made = self.parquet(rows)
        else:
            made = self.text(rows, r.choice(",,,,;;\t|") if not name.endswith(".tsv") else "\t")
        if self.damage and r.random() < 0.5:
            made = self.damaged(made)
        return gzip.compress(made, 1) if name.endswith(".gz") and r.random() < 0.95 else made

    def text(self, rows: list[list[str]], separator: str) -> bytes:
        r = self.r

        def show(cell: str) -> str:
            risky = any(c in cell for c in (separator, '"', "\n"))
            return '"' + cell.replace('"', '""') + '"' if risky and r.random() < 0.99 else cell

        bare = r.random() < 0.03
        lines = [separator.join(map(show, row)) for row in (rows[1:] if bare else rows)]
        text = r.choice(("\n", "\n", "\r\n", "\r")).join(lines) + r.choice(("", "\n", "\n\n"))
        encoding = r.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"))
        return text.encode(encoding, errors="replace")

    def parquet(self, rows: list[list[str]]) -> bytes:
        r, (head, *body) = self.r, rows
        arrays = []
        for j in range(len(head)):
            cells: list[Any] = [row[j] if row[j] != "?" else None for row in body]
            kind = r.choice(("text", "number", "list", "bytes", "category", "null"))
            try:
                if kind == "number":
                    cells = [None if c is None else float(c) for c in cells]
                if kind == "category":
                    cells = [c or "" for c in cells]
                arrays.append(
                    pa.array([[c] for c in cells])
                    if kind == "list" and r.random() < 0.2
                    else pa.array(cells).dictionary_encode()
                    if kind == "category"
                    else pa.nulls(len(cells))
                    if kind == "null" and r.random() < 0.2
                    else pa.array(cells)
                )
            except (ValueError, pa.ArrowException):
                arrays.append(pa.array(cells, pa.string()))
        sink = io.BytesIO()
        pq.write_table(pa.table(arrays, names=head), sink, compression="none")
        return sink.getvalue()

    def damaged(self, made: bytes) -> bytes:
        r, at = self.r, self.r.randrange(len(made) + 1)
        ways: tuple[Callable[[], bytes], ...] = (
            lambda: made[:at],
            lambda: made[:at] + r.randbytes(r.choice((1, 1, 4, 60))) + made[at:],
            lambda: made[:at] + b"," + made[at:],
            lambda: made[:at] + b'"' + made[at:],
            lambda: made[:at] + b"\n" + made[at:],
            lambda: made[:at] + b"\x00" + made[at + 1 :],
            lambda: r.randbytes(r.randrange(80)),
            lambda: b"",
            lambda: made.splitlines(keepends=True)[0] if made else b"",
            lambda: b"PK\x03\x04" + made,
            lambda: made + b"\n\n,,,\n",
            lambda: gzip.compress(made)[:-5],
        )
        return r.choice(ways)()

    def files(self) -> dict[str, bytes]:
        r = self.r
        sites = r.sample(("north", "south", "ward-2", "ward-10", "all", "é"), r.randint(1, 3))
        if r.random() < 0.9 and "all" in sites:
            sites[sites.index("all")] = "west"
        kind = r.choice((".csv", ".csv", ".csv.gz", ".tsv", ".parquet", ".data"))
        layout = r.choice(("folders", "folders", "flat", "whole", "one", "two"))
        plan: dict[str, list[list[str]]] = {}
        for site in sites:
            for part in ("train", r.choice(("test", "deploy"))):
                if layout == "folders":
                    plan[f"{site}/{part}{kind}"] = self.table(part)
                elif layout == "flat":
                    plan[f"{site}{r.choice('._-')}{part}{kind}"] = self.table(part)
            if layout == "whole":
                plan[site + kind] = self.table("train")
        names = "".join(s[0] for s in sites)
        if layout == "one":
            plan["data" + kind] = self.table("train", names, split=r.random() < 0.5)
        elif layout == "two":
            plan |= {f"{p}{kind}": self.table(p, names) for p in ("train", "test")}
        made = {name: self.content(rows, name) for name, rows in plan.items()}
        if r.random() < 0.1:
            made["notes.txt"] = b"hello"
        if r.random() < 0.05:
            choices = (b'label = "y"', b"seed = 3", b"[missing]\nage = [0]", b"lbl = 1", b"\xff")
            made["fedshift.toml"] = r.choice(choices)
        return made

    def settings(self) -> dict[str, Any]:
        r = self.r
        out: dict[str, Any] = {"label": self.name} if r.random() < 0.85 else {}
        column = r.choice([*self.heads, "age", "none"])
        more: tuple[dict[str, Any], ...] = (
            {"categorical": [column]},
            {"numeric": [column]},
            {"drop": [column]},
            {"missing": ["-9", 7]},
            {"positive": r.choice((">0", "yes", 1, "<= 2"))},
            {"task": r.choice(("classification", "regression"))},
            {"weights": column},
            {"names": [*self.heads, self.name]},
            {"header": r.random() < 0.5},
            {"test_share": r.choice((0.01, 0.5, 0.99))},
            {"site": "site"},
            {"lable": "y"},
        )
        for _ in range(r.choice((0, 0, 0, 0, 1, 2))):
            out |= r.choice(more)
        return out


def check(made: Encoded) -> None:
    """What every federation must be."""
    width = len(made.columns)
    assert width >= 1
    for c in made.federation:
        assert len(c.x) >= 1
        assert len(c.test_x) >= 1
        for x in (c.x, c.test_x):
            assert x.dtype == np.float64
            assert x.shape == (len(x), width)
            assert np.isfinite(x.astype(np.float32)).all()
        known = made.test_labels[c.name]
        assert len(known) == len(c.test_x)
        if made.task == "regression":
            assert np.isfinite(c.y).all()
        else:
            assert len(made.classes) >= 2
            assert c.y.dtype == np.int64
            assert set(c.y) <= set(range(len(made.classes)))
            assert set(known) <= set(range(-1, len(made.classes)))
        if c.test_y is not None:
            assert np.isfinite(c.test_y).all()
            assert made.task == "regression" or c.test_y.min() >= 0
        if made.weights is not None:
            assert (made.weights[c.name] >= 0).all()
            assert len(made.weights[c.name]) == len(c.x)
    assert all(isinstance(n, str) and n.endswith(".") for n in made.notes)


def outcome(root: Path, seed: int) -> str:
    maker = Maker(seed)
    for name, content in maker.files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    try:
        sites = Sites.read(root, **maker.settings())
        made = sites.encode()
    except InputError as error:
        said = str(error)
        return "error" if 15 < len(said) < 3000 else f"an error of {len(said)} characters"
    check(made)
    if seed % 5 == 0:  # the encoder that was saved makes the same numbers
        again = Encoder.from_dict(json.loads(json.dumps(made.encoder.to_dict())))
        for c in made.federation:
            batch = again.encode(sites.deploy[c.name], site=c.name)
            np.testing.assert_array_equal(batch.x, c.test_x)
    return "clean"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_bad_tables(tmp_path: Path, batch: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(batch * EACH, (batch + 1) * EACH):
        root = tmp_path / str(seed)
        root.mkdir()
        try:
            seen[outcome(root, seed)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        shutil.rmtree(root)
    assert seen.total() == EACH
    # neither all fine nor all broken, or the generator would prove little
    assert min(seen["clean"], seen["error"]) > EACH // 4


CELLS = st.one_of(
    st.none(), st.text(max_size=8), st.floats(), st.integers(), st.booleans(), st.dates()
)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_cells_in_memory(data: st.DataObject) -> None:
    def rows() -> dict[str, list[Any]]:
        n = data.draw(st.integers(1, 6))
        cells = st.lists(CELLS, min_size=n, max_size=n)
        return {k: data.draw(cells) for k in ("a", "b", "y")}

    try:
        made = Sites.of({"s": (rows(), rows()), "t": rows()}, label="y").encode()
    except InputError:
        return
    check(made)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes(content: bytes) -> None:
    try:
        text, _ = decode(content, "t.csv")
    except InputError:
        return
    assert isinstance(text, str)
