"""Files written at commit 608c509 stay readable: `tests/old_files/608c509/make.py` made them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedshift import load
from fedshift.cli import main

OLD = Path(__file__).parent / "old_files" / "608c509"


def printed(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """What `fedshift compare` prints of a folder or a file."""
    assert main(["compare", str(path), *more]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["runs", "pack.jsonl"])
def test_compare_reads_runs_and_packs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(OLD / name, capsys, "--format", "markdown")
    assert "Digits, five clients, in small" in page  # from recipe.toml
    rows = [[c.strip() for c in line.split("|")] for line in page.splitlines() if "|" in line]
    cells = {frozenset(row) for row in rows}
    results = [json.loads(p.read_text()) for p in sorted(OLD.glob("runs/digits/*/*/result.json"))]
    assert len(results) == 5
    for result in results:
        accuracies = [c["accuracy"] for c in result["clients"]]
        figures = {f"{v:.4f}"[1:] for v in (result["mean"], min(accuracies), max(accuracies))}
        assert any(figures <= row for row in cells), f"{result['method']}: {figures}"
    assert rows[2][1] == "ERM"


def test_a_pack_holds_what_its_runs_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(OLD / "runs"), "-o", str(tmp_path / "again.jsonl")]) == 0
    capsys.readouterr()
    assert printed(tmp_path / "again.jsonl", capsys) == printed(OLD / "pack.jsonl", capsys)


@pytest.mark.parametrize(
    ("name", "shift"),
    [("linear", "label"), ("perceptron", "covariate"), ("regression", "covariate")],
)
def test_report_reads_trained_folders(name: str, shift: str, tmp_path: Path) -> None:
    assert main(["report", str(OLD / name), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    record = json.loads((OLD / name / "record.json").read_text())
    assert f"<title>{record['title']}" in page
    measured = record["evaluation"]  # None where not all deployment rows have labels
    for row in measured["chosen"] if measured else record["expected"]:
        site = row["client" if measured else "site"]
        figure = f"{row['accuracy']:.1%}" if "accuracy" in row else f"{row['mse']:.3g}"
        assert re.search(rf"<bdi>{site}</bdi>.*?<span>{figure}<", page)
    for site, weights in record["weights"].items():
        assert re.search(rf"<bdi>{site}</bdi>.*?<span>{round(weights['ess'])}<", page)
    level = max(e["rung"] for e in record["ledger"] if e["up"] or e["rows"])
    assert f"highest disclosure level {level} of 5" in page
    assert ("deployment (estimate)" in page) == (shift == "label")
    badges = re.findall(r"</svg>((?:label|covariate)[a-z ]*)</span>", page)
    assert badges
    assert all(b.startswith(shift) for b in badges)


@pytest.mark.parametrize("name", ["linear", "perceptron", "regression"])
def test_load_reads_trained_folders(name: str) -> None:
    folder = OLD / name
    found = load(folder)
    assert found.record == json.loads((folder / "record.json").read_text())
    saved = load_file(folder / "model.safetensors")
    parameters = found.model.state_dict()
    assert parameters.keys() == saved.keys()
    assert all(torch.equal(parameters[k], v) for k, v in saved.items())
    rows = load_file(folder / "reference.safetensors")
    assert sorted(found.reference) == sorted(rows) == ["elm", "oak"]
    for site, x in rows.items():
        np.testing.assert_array_equal(found.reference[site], x.numpy())
    new = {"age": [50, 61], "ward": ["north wing", "?"], "dose": ["", "2.5"], "pulse": [80, 71]}
    x = torch.as_tensor(found.predictor.encoder.encode(new).x)
    assert x.shape == (2, rows["elm"].shape[1])
    assert torch.isfinite(found.model(x)).all()


def test_load_reads_label_distributions() -> None:
    labels = load(OLD / "linear").labels
    assert labels is not None
    saved = json.loads((OLD / "linear" / "labels.json").read_text())
    assert list(labels.classes) == saved["classes"] == ["ill", "well"]
    np.testing.assert_array_equal(labels.source, saved["source"])
    assert sorted(labels.test) == ["elm", "oak"]
    for site, share in saved["test"].items():
        np.testing.assert_array_equal(labels.test[site], share)
    assert labels.calibration.temperature == saved["temperature"]
    np.testing.assert_array_equal(labels.calibration.bias, saved["bias"])
    parameters = labels.model.state_dict()
    unweighted = load_file(OLD / "linear" / "erm.safetensors")
    assert all(torch.equal(parameters[k], v) for k, v in unweighted.items())
    assert load(OLD / "regression").labels is None


def test_load_reads_perceptrons_and_recipe_runs() -> None:
    found = load(OLD / "perceptron")
    saved = load_file(OLD / "perceptron" / "model.safetensors")
    assert all(torch.equal(v, saved[k]) for k, v in found.model.state_dict().items())
    assert load(OLD / "perceptron").labels is not None
    rows = {"age": [50, 61], "ward": ["north wing", "?"], "dose": ["", "2.5"], "pulse": [80, 71]}
    assert set(found.predict(rows)) <= {"ill", "well"}
    digits = load(OLD / "runs" / "digits" / "ERM" / "seed-0")
    assert digits.predict_proba(np.zeros((3, 64))).shape == (3, 10)


@pytest.mark.parametrize("name", ["linear", "perceptron", "regression"])
def test_predict_and_since_read_trained_folders(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new").mkdir()
    table = "age,ward,dose,pulse\n" + "50,north wing,,80\n61,Süd,2.5,71\n" * 10
    (tmp_path / "new" / "elm.csv").write_text(table, encoding="utf-8")
    assert main(["predict", str(OLD / name), str(tmp_path / "new" / "elm.csv")]) == 0
    out, error = capsys.readouterr()
    assert len(out.splitlines()) == 21
    assert "ward=Süd" in out
    assert "Süd" in error
    assert main(["diagnose", str(tmp_path / "new"), "--since", str(OLD / name)]) == 0
