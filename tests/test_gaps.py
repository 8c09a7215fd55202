"""Columns with missing cells: which of them the diagnosis names, on files and by commands."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fedshift as fs
from fedshift import cli

WARDS = ("north", "south", "east")


def rows(count: int, seed: int, *, dose: float = 0.0, lost: float = 0.2) -> list[dict[str, Any]]:
    """Made-up patients. A fifth of all numbers and words is missing; `dose` moves one column."""
    draw = random.Random(seed)

    def gap(value: Any, share: float = 0.2) -> Any:
        return "" if draw.random() < share else value

    out = []
    for _ in range(count):
        age = round(draw.gauss(50, 12), 3)
        out.append(
            {
                "age": gap(age),
                "weight": gap(round(draw.gauss(75, 9), 4)),
                "dose": gap(round(draw.gauss(1 + dose, 1), 4)),
                "pulse": gap(draw.randint(60, 90), lost),
                "ward": gap(draw.choice(WARDS)),
                "outcome": "yes" if age + draw.gauss(0, 10) > 50 else "no",
            }
        )
    return out


def write(path: Path, table: Sequence[dict[str, Any]], *, drop: Sequence[str] = ()) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        names = [k for k in table[0] if k not in drop]
        out = csv.DictWriter(file, names, extrasaction="ignore")
        out.writeheader()
        out.writerows(table)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sites. At "a", dose moves by 0.8 standard deviations, and more of pulse is missing."""
    sites = tmp_path / "sites"
    write(sites / "a.train.csv", rows(400, 1))
    write(sites / "a.test.csv", rows(400, 2, dose=0.8, lost=0.4), drop=["outcome"])
    write(sites / "b.train.csv", rows(400, 3))
    write(sites / "b.test.csv", rows(400, 4), drop=["outcome"])
    return sites


def diagnosed(*words: object) -> dict[str, Any]:
    out = Path(str(words[0])).parent / "record.json"
    assert cli.main(["diagnose", *map(str, words), "-o", str(out)]) == 0
    record: dict[str, Any] = json.loads(out.read_text())
    return record


def test_diagnose_names_what_shifted_and_counts_gaps_apart(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = diagnosed(folder, "--label", "outcome", "--verbose")["diagnosis"]["sites"]
    assert [c["name"] for c in a["columns"]] == ["dose", "pulse (missing)"]
    dose, pulse = a["columns"]
    assert dose["distance"] == pytest.approx(0.31, abs=0.06)  # 2 Φ(0.4) − 1, of the values alone
    assert dose["difference"] == pytest.approx(0.74, abs=0.15)
    assert pulse["distance"] == pytest.approx(0.2, abs=0.06)
    assert b["columns"] == []
    shown = capsys.readouterr().out
    assert "Largest change: dose (distance 0." in " ".join(shown.split())


def test_a_column_with_gaps_in_new_rows_only_is_compared_by_its_values(folder: Path) -> None:
    new = folder.parent / "new"
    for name, seed in (("a", 12), ("b", 14)):
        table = rows(400, seed, dose=0.8 if name == "a" else 0.0, lost=0.4 if name == "a" else 0.2)
        for i, row in enumerate(table):
            row["outcome"] = ""
            row["weight"] = "" if i % 5 < 3 else row["weight"]
        write(new / f"{name}.csv", table)
    sites = diagnosed(new, "--since", folder, "--label", "outcome")["drift"]["sites"]
    assert [[c["name"] for c in s["columns"]] for s in sites] == [["weight (missing)"]] * 2


def test_no_gaps_in_training_many_in_deployment() -> None:
    def sites(lost: float) -> dict[str, Any]:
        whole = [r | {"dose": r["dose"] or 1.5} for r in rows(300, 5)]
        new = [r | ({"dose": ""} if i % 10 < 10 * lost else {}) for i, r in enumerate(whole)]
        parts = ({k: [r[k] for r in part] for k in part[0]} for part in (whole, new))
        return {"a": tuple(parts)}

    encoded = fs.Sites.of(sites(0.5), label="outcome").encode()
    diagnosis = fs.diagnose.diagnose(encoded.federation, features=encoded.columns)
    assert [c.name for c in diagnosis["a"].columns] == ["dose (missing)"]
    assert diagnosis["a"].columns[0].distance == pytest.approx(0.5)


def test_a_column_that_no_deployment_file_has_is_left_out_and_said(folder: Path) -> None:
    for name in ("a", "b"):
        write(folder / f"{name}.test.csv", rows(200, 9), drop=["dose", "outcome"])
    sites = fs.Sites.read(folder, label="outcome")
    assert "dose" not in sites.schema.names
    note = "Column 'dose' is left out: no deployment file has it, so a model cannot use it."
    assert note in sites.notes
    write(folder / "a.test.csv", [r | {"dose": ""} for r in rows(200, 9)], drop=["outcome"])
    assert any("'dose' is left out: it is empty" in n for n in fs.Sites.read(folder).notes)


def test_a_column_that_one_site_lacks_in_deployment_stays(folder: Path) -> None:
    write(folder / "b.test.csv", rows(400, 4), drop=["dose", "outcome"])
    assert "dose" in fs.Sites.read(folder, label="outcome").schema.names
    record = diagnosed(folder, "--label", "outcome")
    b = record["diagnosis"]["sites"][1]
    assert [c["name"] for c in b["columns"]] == ["dose (missing)"]
    assert any("'dose' is not in b.test.csv" in n for n in fs.Sites.read(folder).notes)


def test_since_leaves_out_and_names_a_column_that_no_new_file_has(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = folder.parent / "new"
    write(new / "a.csv", rows(400, 21, dose=0.8, lost=0.4), drop=["age", "outcome"])
    write(new / "b.csv", rows(400, 24), drop=["age", "outcome"])
    drift = diagnosed(new, "--since", folder, "--label", "outcome")["drift"]
    assert drift["verdict"] == "keep the weights"
    assert [s["columns"] for s in drift["sites"]] == [[], []]
    sentence = "The new rows have no value of column 'age', left out of the comparison"
    assert sentence in capsys.readouterr().out
    assert any(text.startswith(sentence) for text in drift["sentences"])
    for name in ("a", "b"):
        write(new / f"{name}.csv", [{"other": 1}] * 20)
    assert cli.main(["diagnose", str(new), "--since", str(folder), "--label", "outcome"]) == 1
    assert "got no value in any of them" in capsys.readouterr().err
