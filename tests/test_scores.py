"""Scores beside accuracy, and what the federation is worth to a site, on small real files."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedshift as fs
from fedshift.cli import main

OLD = Path(__file__).parent / "old_files" / "608c509"


@dataclass(frozen=True)
class Command:
    """What a command printed, and the record and page that it wrote."""

    text: str
    record: dict[str, Any]
    page: str


def write_rows(path: Path, rows: int, seed: int, *, sign: int = 1, task: str = "class") -> None:
    """Numbers, a text column and gaps; `sign` turns round how the label depends on them."""
    draw = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["delay", "wind", "weather", "state"][: 3 if task == "none" else 4])
        for _ in range(rows):
            delay, wind = draw.gauss(0, 1), draw.gauss(0, 1)
            weather = draw.choice(["rain", "sun", "snow"])
            z = sign * 2 * delay - (weather == "snow") + draw.gauss(0, 0.8) - 0.8
            label = [] if task == "none" else ["late" if z > 0 else "ok"]
            label = [f"{10 + 5 * z:.3f}"] if task == "number" else label
            gap = draw.random() < 0.05
            out.writerow(["" if gap else f"{delay:.3f}", f"{wind:.3f}", weather, *label])


def train(folder: Path, tasks: tuple[str, str], signs: dict[str, int], *flags: str) -> Command:
    """`fedshift train` for a site of each sign, and for a site with a dozen rows."""
    for k, (site, sign) in enumerate({**signs, "tiny": 1}.items()):
        n = 12 if site == "tiny" else 160
        write_rows(folder / "in" / site / "train.csv", n, k, sign=sign, task=tasks[0])
        write_rows(folder / "in" / site / "test.csv", n // 2, 50 + k, sign=sign, task=tasks[1])
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        arguments = ["train", str(folder / "in"), "--label", "state", "-o", str(folder / "out")]
        assert main([*arguments, *flags]) == 0
    record = json.loads((folder / "out" / "record.json").read_text(encoding="utf-8"))
    return Command(text.getvalue(), record, (folder / "out" / "report.html").read_text("utf-8"))


ODD = {"east": 1, "north": 1, "west": -1}


def majority(folder: Path, site: str) -> tuple[float, float]:
    """Share of the deployment rows with the most frequent training label; share of "late" rows."""
    labels = {}
    for part in ("train", "test"):
        with (folder / "in" / site / f"{part}.csv").open(encoding="utf-8") as file:
            labels[part] = [row["state"] for row in csv.DictReader(file)]
    most = max(("late", "ok"), key=labels["train"].count)
    return labels["test"].count(most) / len(labels["test"]), labels["test"].count("late")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("labelled")


@pytest.fixture(scope="module")
def labelled(folder: Path) -> Command:
    return train(folder, ("class", "class"), ODD)


def test_all_scores_are_printed_recorded_and_reported(labelled: Command, folder: Path) -> None:
    on_deployment, held_out = labelled.record["scores"]
    assert on_deployment["rows"] == "deployment rows"
    assert held_out["rows"] == "held-out training rows"
    for word in ("constant", "AUROC", "log loss", "Scores on deployment rows"):
        assert word in labelled.text
        assert word in labelled.page
    chosen = {row["client"]: row for row in labelled.record["evaluation"]["chosen"]}
    for row in on_deployment["federated"]:
        share, late = majority(folder, row["client"])
        assert row["constant"] == pytest.approx(share)
        assert (row["auc"] is None) == (late in (0, row["n"]))
        for name in ("accuracy", "auc", "loss", "constant"):  # the same model and rows
            assert chosen[row["client"]][name] == pytest.approx(row[name])
    assert [row["n"] for row in held_out["federated"]] == [160, 160, 12, 160]


def test_a_site_that_is_better_off_alone_comes_first(labelled: Command) -> None:
    text = " ".join(labelled.text.split())
    assert "training alone is better at 3 of 4 sites: west (federated log loss higher by" in text
    assert "too few rows to compare at 1" in text  # tiny
    west = labelled.record["scores"][0]["differences"]["west"]
    assert 0 < west["low"] < west["value"] < west["high"]  # federated minus alone
    alone = {row["client"]: row for row in labelled.record["scores"][0]["alone"]}
    federated = {row["client"]: row for row in labelled.record["scores"][0]["federated"]}
    assert "tiny" not in alone
    assert west["value"] == pytest.approx(federated["west"]["loss"] - alone["west"]["loss"])
    assert alone["west"]["auc"] > federated["west"]["auc"] + 0.2
    assert labelled.page.index("training alone is better") < labelled.page.index('id="effect"')


def test_training_says_that_it_is_for_one_machine(labelled: Command) -> None:
    replies = labelled.record["replies"]
    assert replies.keys() == {*ODD, "tiny"}
    sent = f"Simulation on one machine: each site sent {max(replies.values()):,} messages"
    assert min(replies.values()) > 50  # a message for every gradient
    assert sent in " ".join(labelled.text.split())
    assert sent in labelled.page
    assert "fedshift deploy" in " ".join(labelled.text.split())


def test_without_labels_of_deployment_rows_held_out_rows_are_named(tmp_path: Path) -> None:
    found = train(tmp_path, ("class", "none"), {"east": 1, "north": 1})
    (part,) = found.record["scores"]
    assert part["rows"] == "held-out training rows"
    assert "Scores on held-out training rows" in found.text
    assert "Scores on held-out training rows" in found.page
    assert "deployment rows, beyond noise" not in found.text
    assert "training alone is better at no site" in found.text  # all sites are alike
    assert {row["client"] for row in part["alone"]} == {"east", "north"}


def test_regression_has_r2_and_mae(tmp_path: Path) -> None:
    found = train(tmp_path, ("number", "number"), ODD)
    for word in ("R²", "MAE", "constant", "federated MSE higher by"):
        assert word in " ".join(found.text.split())
    part = found.record["scores"][0]
    alone = {row["client"]: row for row in part["alone"]}
    for row in part["federated"]:
        assert row["r2"] <= 1
        assert 0 < row["mae"] <= row["mse"] ** 0.5
    west = next(row for row in part["federated"] if row["client"] == "west")
    assert west["mse"] - alone["west"]["mse"] == pytest.approx(part["differences"]["west"]["value"])
    assert alone["west"]["mse"] < alone["west"]["constant"] < west["mse"]


def test_a_site_with_one_class_trains_nothing_alone_and_has_no_auroc() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 80, 2)), rng.integers(0, 2, size=(3, 80))
    x[..., 0] += 2 * y
    clients = {k: (x[i, :60], y[i, :60], x[i, 60:], y[i, 60:]) for i, k in enumerate("ab")}
    ones = np.ones(80, dtype=int)
    clients["one"] = (x[2, :60], ones[:60], x[2, 60:], ones[60:])
    outcome = fs.fit_tables(fs.Federation.of(clients))
    for part in outcome.scores:
        assert {score.client for score in part.alone} == {"a", "b"}
        assert part.federated["one"].auc is None
        assert part.federated["one"].constant == 1.0
    assert outcome.evaluation is not None
    assert outcome.evaluation.mean_of("auc") == pytest.approx(
        np.mean([outcome.evaluation[k].auc for k in "ab"])
    )


def test_arrays_have_all_scores_too() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=(2, 120))
    x = rng.normal(size=(2, 120, 2)) + y[..., None]
    clients = fs.Federation.of(
        {f"c{k}": (x[k, :80], y[k, :80], x[k, 80:], y[k, 80:]) for k in range(2)}
    )
    plan = fs.FedSGD(iterations=30, lr=1e-2, batch_size=16)
    fitted = fs.FederatedClassifier(objective="erm", model="linear", plan=plan).fit(clients)
    scores = fitted.evaluate(clients)
    assert scores == fitted.outcome_.evaluation
    for k, row in enumerate(scores.rows):
        assert row.constant == np.mean(y[k, 80:] == np.bincount(y[k, :80]).argmax())
        assert row.auc is not None
        assert 0.5 < row.auc <= 1  # three classes: one against the others
    assert "AUROC" in repr(scores)


def test_compare_shows_all_scores_and_reads_runs_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = ["--method", "ERM", "--seeds", "0", "--set", "plan.iterations=20"]
    assert main(["run", "smoke/digits", "--out", str(tmp_path), *fast]) == 0
    assert "AUROC" in capsys.readouterr().out
    assert main(["compare", str(tmp_path)]) == 0
    head, _, row, *_ = capsys.readouterr().out.splitlines()[2:]
    assert row.split()[0] == "ERM"
    for name in ("constant", "AUROC", "log loss"):
        assert row[head.index(name) : head.index(name) + len(name)].strip()[-1].isdigit()
    assert main(["compare", str(OLD / "pack.jsonl")]) == 0
    old = capsys.readouterr().out
    assert "log loss" in old
    assert "constant" not in old  # which these runs did not record
