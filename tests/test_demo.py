"""The demonstration, whole: what the README's first command promises."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedshift import demo


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    text = io.StringIO()
    demo.run(out, console=Console(file=text, width=80))
    (out / "said.txt").write_text(text.getvalue(), encoding="utf-8")
    return out


def test_estimated_ratios_beat_plain_training_by_more_than_the_interval(folder: Path) -> None:
    gain = json.loads((folder / "demo.json").read_text())["gain"]
    assert gain["mean"] > 1.96 * gain["standard_error"] > 0


def test_the_order_of_methods(folder: Path) -> None:
    found = json.loads((folder / "demo.json").read_text())["methods"]
    mean = {name: row["mean"] for name, row in found.items()}
    assert mean["FTW exact"] > mean["FITW exact"] > mean["ERM"]
    assert mean["FTW estimated, any shift"] > mean["ERM"]
    assert mean["FTW estimated, label shift"] > mean["FTW exact"] - 0.02
    assert mean["FTW exact"] < 1.0


def test_the_default_is_told_with_its_reason(folder: Path) -> None:
    choice = json.loads((folder / "demo.json").read_text())["choice"]
    assert choice["method"] == "FTW estimated, label shift"
    said = " ".join((folder / "said.txt").read_text().split())
    assert f"federated-auto chose {choice['reason']}" in said


def test_no_row_leaves_a_client(folder: Path) -> None:
    found = json.loads((folder / "demo.json").read_text())["methods"]
    for row in found.values():
        assert all(line["rows"] == 0 for line in row["ledger"])


def test_tables_and_plots_are_there(folder: Path) -> None:
    said = (folder / "said.txt").read_text()
    assert "client-5" in said
    assert "FTW" in said
    assert "…" not in said  # nothing is cut off at eighty columns
    for name in ("accuracy.svg", "ratios.svg"):
        assert (folder / name).read_text().lstrip().startswith("<?xml")
