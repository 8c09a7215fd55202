"""From a folder of site files to a decision, with the real parts."""

from __future__ import annotations

import csv
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from fedshift.cli import main
from fedshift.errors import InputError
from fedshift.outcome import load
from fedshift.report.build import build_report
from fedshift.sites import examine, since, train
from fedshift.sites.flow import Trained


@pytest.fixture(scope="module")
def trained(shifted: Path) -> Trained:
    return train(shifted, label="ill")


def test_label_shift_is_detected_named_and_corrected(trained: Trained) -> None:
    assert {s.status for s in trained.examined.diagnosis.sites} == {"shift"}
    assert {s.shift_type.name for s in trained.examined.diagnosis.sites} == {"label"}
    assert trained.outcome.choice == "label"
    before, after = trained.outcome.before, trained.outcome.evaluation
    assert before is not None
    assert after is not None
    assert after.mean > before.mean + 0.1


def test_test_labels_change_nothing_but_the_evaluation(
    trained: Trained, shifted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sites"
    shutil.copytree(shifted, folder)
    for path in folder.glob("*/test.csv"):  # the other class everywhere
        text = path.read_text()
        text = text.replace(",yes\n", ",?\n").replace(",no\n", ",yes\n").replace(",?\n", ",no\n")
        path.write_text(text)
    other = train(folder, label="ill")
    for name, p in trained.outcome.model.state_dict().items():
        assert torch.equal(p, other.outcome.model.state_dict()[name])
    assert trained.outcome.gate.to_dict() == other.outcome.gate.to_dict()
    assert trained.outcome.forecast.to_records() == other.outcome.forecast.to_records()
    assert trained.outcome.before is not None
    assert other.outcome.before is not None
    assert trained.outcome.before.mean != other.outcome.before.mean


def test_without_test_labels_there_is_no_evaluation(shifted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sites"
    shutil.copytree(shifted, folder)
    for path in folder.glob("*/test.csv"):
        with path.open(newline="") as file:
            rows = [row[:-1] for row in csv.reader(file)]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    other = train(folder, label="ill")
    assert other.outcome.evaluation is None
    assert other.to_dict()["evaluation"] is None
    assert other.outcome.choice == "label"
    assert "<html" in build_report(other.to_dict())


def test_what_is_saved_is_the_model(trained: Trained, tmp_path: Path) -> None:
    trained.save(tmp_path / "run")
    run = load(tmp_path / "run")
    x = trained.examined.encoded.federation["a"].test_x
    rows = torch.as_tensor(x, dtype=torch.float64)
    assert torch.equal(run.model(rows), trained.outcome.model(rows))
    np.testing.assert_array_equal(run.reference["a"], x)
    assert json.loads((tmp_path / "run" / "record.json").read_text()) == json.loads(
        json.dumps(run.record)
    )
    table = pyarrow.parquet.read_table(tmp_path / "run" / "weights" / "a.parquet")
    weights = trained.outcome.sample_weights()["a"]
    np.testing.assert_allclose(table["sample_weight"].to_numpy(), weights)
    y = trained.examined.encoded.federation["a"].y
    assert weights[y == 1].mean() > 2 * weights[y == 0].mean()  # the ill were too rare


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fedshift train"):
        load(tmp_path)


def test_new_rows_of_the_same_distribution_keep_the_weights(
    trained: Trained, shifted: Path, tmp_path: Path, write_site: Callable[..., None]
) -> None:
    trained.save(tmp_path / "run")
    new = tmp_path / "new"
    for name, ill in (("a", 0.7), ("b", 0.7)):
        write_site(new, name, "test", 200, ill, 5)
    result = since(new, tmp_path / "run")
    assert result.drift.verdict == "keep the weights"
    assert [s.site for s in result.drift.sites] == ["a", "b"]
    assert since(new, shifted, label="ill").drift.verdict == "keep the weights"


def test_new_rows_of_another_distribution_need_new_weights(
    trained: Trained, tmp_path: Path, write_site: Callable[..., None]
) -> None:
    trained.save(tmp_path / "run")
    new = tmp_path / "new"
    write_site(new, "a", "test", 400, 0.05, 5)
    write_site(new, "b", "test", 200, 0.7, 5)
    result = since(new, tmp_path / "run")
    assert result.drift.verdict == "re-estimate"
    assert result.drift["a"].verdict == "re-estimate"
    assert result.drift["b"].verdict == "keep the weights"
    labels = result.drift["a"].labels
    assert labels is not None
    ill = labels.classes.index("yes")
    assert labels.before[ill] > 0.5  # where it started
    assert labels.now[ill] < 0.2
    before = trained.outcome.marginals
    assert before is not None
    assert result.class_weights is not None
    other = result.drift["b"].labels
    assert other is not None
    new = {"a": labels.now, "b": other.now}
    now = [new.get(site, shares) for site, shares in before.test.items()]
    expected = np.mean(now, axis=0) / before.source
    np.testing.assert_allclose(list(result.class_weights.values()), expected)
    assert "New weight of each class" in result.sentences()[-1]


def test_since_needs_a_site_in_common(
    trained: Trained, tmp_path: Path, write_site: Callable[..., None]
) -> None:
    trained.save(tmp_path / "run")
    write_site(tmp_path / "new", "elsewhere", "test", 50, 0.5, 0)
    with pytest.raises(InputError, match="elsewhere"):
        since(tmp_path / "new", tmp_path / "run")


# -- what real folders are like --------------------------------------------------------------------


def test_awkward_sites_end_cleanly_and_soon(
    tmp_path: Path, write_site: Callable[..., None]
) -> None:
    folder = tmp_path / "sites"
    for name in ("north", "south"):
        write_site(folder, name, "train", 300, 0.3, 1)
        write_site(folder, name, "test", 150, 0.5, 1)
    write_site(folder, "tiny", "train", 5, 0.5, 1)
    write_site(folder, "tiny", "test", 5, 0.5, 1)
    write_site(folder, "healthy", "train", 60, 0.0, 1)  # one class
    write_site(folder, "healthy", "test", 30, 0.0, 1)
    write_site(folder, "narrow", "train", 100, 0.4, 1)
    write_site(folder, "narrow", "test", 60, 0.4, 1)
    for path in (folder / "narrow").glob("*.csv"):  # a column missing, one constant
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        drop, flat = rows[0].index("chol"), rows[0].index("pulse")
        for row in rows[1:]:
            row[flat] = "70"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([r[:drop] + r[drop + 1 :] for r in rows])
    begin = time.perf_counter()
    trained = train(folder, label="ill")
    page = build_report(trained.to_dict())
    assert time.perf_counter() - begin < 60
    assert trained.examined.diagnosis["tiny"].status == "inconclusive"
    assert any("chol" in note for note in trained.to_dict()["notes"])
    assert len(page.encode()) < 3_000_000


def test_numbers_to_predict(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "sites"
    for name in ("a", "b"):
        for part, centre in (("train", 0.0), ("deploy", 1.0)):
            x = rng.normal(centre, 1, (300, 2))
            y = x[:, 0] ** 2 + rng.normal(0, 0.1, 300)
            path = folder / name / f"{part}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = "\n".join(f"{a:.3f},{b:.3f},{c:.3f}" for (a, b), c in zip(x, y, strict=True))
            path.write_text(f"u,v,size\n{rows}\n")
    trained = train(folder, label="size", model="linear")
    assert trained.examined.encoded.task == "regression"
    before, after = trained.outcome.before, trained.outcome.evaluation
    assert before is not None
    assert after is not None
    assert after.mean <= before.mean + 1e-9
    trained.save(tmp_path / "run")
    assert load(tmp_path / "run").labels is None


def test_a_record_of_looking_only_makes_a_page(shifted: Path) -> None:
    record = examine(shifted, label="ill").to_dict()
    assert record["schema"] == "fedshift.sites/1"
    assert "gate" not in record
    assert "<html" in build_report(json.loads(json.dumps(record)))


# -- the command line ------------------------------------------------------------------------------


def test_one_command_from_files_to_report(
    shifted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    write_site: Callable[..., None],
) -> None:
    out = tmp_path / "run"
    assert main(["train", str(shifted), "--label", "ill", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert "took label" in text
    assert "0 rows sent" in text
    page = (out / "report.html").read_text()
    assert main(["report", str(out), "-o", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text() == page
    write_site(tmp_path / "new", "a", "test", 400, 0.05, 5)
    assert main(["diagnose", str(tmp_path / "new"), "--since", str(out)]) == 0
    assert "re-estimate" in capsys.readouterr().out


def test_diagnose_writes_a_record_or_a_page(shifted: Path, tmp_path: Path) -> None:
    for name in ("d.json", "d.html"):
        command = ["diagnose", str(shifted), "--label", "ill", "-o", str(tmp_path / name)]
        assert main(command) == 0
    assert json.loads((tmp_path / "d.json").read_text())["diagnosis"]["sites"]
    assert (tmp_path / "d.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["diagnose", "nowhere"], "nowhere"),
        (["report", "nowhere"], "fedshift train"),
        (["report", "{sites}/a/train.csv"], "train.csv: a record of sites must be a file with a"),
        (["report", "nowhere", "-o", "x.json"], "--output must end in .html"),
        (["train", "{sites}", "--label", "wage"], "wage"),
        (["diagnose", "{sites}", "--label", "ill", "-o", "x.pdf"], ".json or .html"),
    ],
)
def test_mistakes_are_named(
    command: list[str], text: str, shifted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(sites=shifted) for word in command]) != 0
    assert text in capsys.readouterr().err
