"""Weights only where shift type, overlap and held-out rows speak for them; estimates are marked."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedshift as fs
from fedshift.cli import main


def write(path: Path, head: Sequence[str], columns: Sequence[Any]) -> None:
    """A table with text columns and about 5 % empty cells in its first column."""
    rng = np.random.default_rng(len(columns[0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    first = ["" if rng.random() < 0.05 else f"{v:.1f}" for v in columns[0]]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *zip(first, *columns[1:], strict=True)])


def visits(rows: int, start: float, rng: np.random.Generator) -> tuple[Any, ...]:
    """Age, sex, day of the visit and pain, which has a season, over 100 days from a day on."""
    age, day = rng.normal(60, 10, rows), rng.uniform(start, start + 100, rows)
    sex = rng.choice(["female", "male"], rows)
    season = 12 * np.sin(2 * np.pi * day / 150)
    return age, sex, day.round(1), (40 + 0.1 * age + season + rng.normal(0, 3, rows)).round(2)


@dataclass(frozen=True)
class Run:
    """What `fedshift train` printed and wrote."""

    printed: str
    folder: Path
    record: dict[str, Any]


def train(
    sites: Path, label: str, out: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> Run:
    """Run `fedshift train`."""
    assert main(["train", str(sites), "--label", label, "-o", str(out), *more]) == 0
    return Run(capsys.readouterr().out, out, json.loads((out / "record.json").read_text()))


@pytest.mark.filterwarnings("ignore::fedshift.errors.FedshiftWarning")  # of the named ratio
def test_deployment_rows_after_all_training_rows_get_no_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(3)
    for clinic in ("harbour", "hill"):
        for part, start in (("train", 0.0), ("deploy", 100.0)):
            columns = visits(150, start, rng)
            write(
                tmp_path / "sites" / clinic / f"{part}.csv",
                ("age", "sex", "visit day", "pain"),
                columns,
            )
    run = train(tmp_path / "sites", "pain", tmp_path / "run", capsys)
    assert run.record["shift_type"] == "covariate"
    assert run.record["outside"] > 0.5
    assert run.record["choice"] == "erm"
    line = next(line for line in " ".join(run.printed.split()).splitlines() if "kept erm" in line)
    assert re.search(r"covariate: \d\d% of the deployment rows look like no training row", line)
    options = ("--objective", "fitw", "--ratio", "logistic")
    run = train(tmp_path / "sites", "pain", tmp_path / "by-name", capsys, *options)
    line = next(line for line in " ".join(run.printed.split()).splitlines() if "took given" in line)
    assert re.match(r"took given against the diagnosis \(\d\d% of the deployment rows", line)
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert re.search(r"Use the weighted model .{,30}, against the diagnosis: \d\d% of the", page)


def test_weights_against_the_diagnosis_only_by_name() -> None:
    rng = np.random.default_rng(0)
    parts = {}
    for clinic in ("harbour", "hill"):
        (age, _, day, pain), (old, _, later, after) = (visits(150, s, rng) for s in (0.0, 100.0))
        parts[clinic] = (np.c_[age, day], pain, np.c_[old, later], after)
    clinics = fs.Federation.of(parts)
    assert fs.fit_tables(clinics).choice == "erm"
    assert fs.fit_tables(clinics, objective="ftw").choice == "erm"
    late = {c.name: 0.1 * c.x[:, 1] for c in clinics}  # the later, the more weight
    late = {n: r - np.log(np.mean(np.exp(r)) / 2) for n, r in late.items()}
    for name, outcome in (
        ("given", fs.fit_tables(clinics, ratio=late)),
        ("covariate", fs.fit_tables(clinics, gated=False)),
    ):
        why = r"\(\d\d% of the deployment rows look like no training row\)"
        assert re.match(f"took {name} against the diagnosis {why}: ", outcome.status)
        assert outcome.to_dict()["gate"]["objection"].endswith("no training row")
        assert outcome.before is not None
        assert outcome.evaluation is not None
        assert outcome.evaluation.mean > 2 * outcome.before.mean


def write_wards(
    folder: Path, part: str, ill: float, *, rows: int = 250, older: float = 0.0, seed: int = 0
) -> None:
    """Two wards; `ill` is the share of the ill, and rows may be `older`."""
    for ward in ("elm", "oak"):
        rng = np.random.default_rng([seed, *ward.encode(), *part.encode()])
        y = rng.random(rows) < ill
        columns = (
            rng.normal(55 + older + 8 * y, 6),
            np.where(rng.random(rows) < 0.4 + 0.2 * y, "cough", "none"),
            rng.normal(130 + 30 * y, 12).round(),
            np.where(y, "ill", "well"),
        )
        head = ("age", "symptom", "pressure", "state")
        keep = len(head) - (part == "deploy")  # labels of deployment rows are unknown
        write(folder / ward / f"{part}.csv", head[:keep], columns[:keep])


@pytest.mark.parametrize("shift", ["label", "covariate"])
def test_estimated_label_distributions_are_shown_only_under_label_shift(
    shift: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wards(tmp_path / "sites", "train", 0.25)
    now = {"label": {"ill": 0.7}, "covariate": {"ill": 0.25, "older": 6.0}}[shift]
    write_wards(tmp_path / "sites", "deploy", **now)
    run = train(tmp_path / "sites", "state", tmp_path / "run", capsys)
    assert run.record["shift_type"] == shift
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    write_wards(tmp_path / "new", "deploy", 0.05, older=15.0, rows=400, seed=1)
    assert main(["diagnose", str(tmp_path / "new"), "--since", str(run.folder)]) == 0
    since = capsys.readouterr().out
    assert "re-estimate" in since
    shown = shift == "label"
    assert (
        "label distribution of the deployment rows, estimated" in " ".join(run.printed.split())
    ) == shown
    assert ("deployment (estimate)" in page) == shown
    assert ("Estimated class proportions changed by" in since) == shown
    assert ("New weight of each class, estimated under label shift" in since) == shown
    if not shown:
        assert run.record["label_distributions"] is None
        assert fs.load(run.folder).labels is None
        return
    estimates = run.record["label_distributions"]
    labels = fs.load(run.folder).labels
    assert estimates["estimated"] == ["test"]
    assert labels is not None
    for ward, q in estimates["test"].items():
        assert labels.test[ward].tolist() == q
        ill = q[labels.classes.index("ill")]
        assert ill == pytest.approx(0.7, abs=0.12)
        assert f"{ward}: label distribution of the deployment rows, estimated" in " ".join(
            run.printed.split()
        )
        assert f"ill {ill:.0%}" in " ".join(run.printed.split())
        assert f"about {ill:.0%} in deployment" in page
