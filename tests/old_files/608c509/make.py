"""Writes the files beside it, with the code at commit 608c509.

From a worktree of that commit, whose `src` is on PYTHONPATH:

    git worktree add ../at-608c509 608c509
    PYTHONPATH=../at-608c509/src OMP_NUM_THREADS=1 python tests/old_files/608c509/make.py

The tables are made up and seeded. They have a column of text, a column with gaps and, in the folder
`linear`, another share of the ill in deployment than in training (label shift). In `perceptron`
and `regression` the deployment rows are older (covariate shift); those of one site in `perceptron`
have no labels. Nothing shifts between the sites of these two. `runs` are the methods
of `digits.toml`, two of them with `lean`, and `pack.jsonl` is the same runs, packed.

What is not read again is removed.
"""

from __future__ import annotations

import csv
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from fedshift.cli import main

HERE = Path(__file__).resolve().parent
UNREAD = ("report.html", "checkpoints", "summary.*", "tensorboard")
COLUMNS = ("age", "ward", "dose", "pulse", "label")


def write(path: Path, rows: int, *, ill: float = 0.4, old: float = 0.0, task: str) -> None:
    """One file of a site."""
    rng = np.random.default_rng([608, *path.as_posix().encode()])
    y = rng.random(rows) < ill
    age = rng.normal(50 + old, 8, rows) + 6 * y * (task == "linear")
    if task == "perceptron":  # no linear model is right
        y = (np.abs(age - 52) > 7) ^ (rng.random(rows) < 0.05)
    dose = rng.exponential(2, rows) + y
    words = rng.choice(["north wing", "south wing", "day clinic"], rows)
    pulse = rng.normal(80 - 8 * y, 9).round()
    label = np.where(y, "ill", "well")
    if task == "regression":
        label = (0.5 * age + 3 * dose + rng.normal(0, 2, rows)).round(1).astype(str)
    if path.match("perceptron/oak/deploy.csv"):
        label[:] = ""  # so it cannot be known whether labels follow as before
    gaps = np.where(rng.random(rows) < 0.1, "", dose.round(2).astype(str))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        out.writerows(zip(age.round(1), words, gaps, pulse, label, strict=True))


def run(*arguments: str) -> None:
    """A command of fedshift, which must end well."""
    if main(list(arguments)):
        sys.exit(f"fedshift {' '.join(arguments)} failed")


def make() -> None:
    """All of it, in a temporary folder and with relative paths, then copied here."""
    for task, model in (("linear", "linear"), ("perceptron", "mlp"), ("regression", "linear")):
        for site, shift in (("elm", 0.3), ("oak", 0.5)):
            sites = Path("sites") / task
            write(sites / site / "train.csv", 150, task=task, ill=shift - 0.15)
            write(
                sites / site / "deploy.csv",
                80,
                task=task,
                ill=shift + 0.35 if task == "linear" else shift - 0.15,
                old=0.0 if task == "linear" else 8.0,
            )
        run("train", sites.as_posix(), "--label", "label", "--model", model, "-o", task)
    shutil.copy(HERE / "digits.toml", "digits.toml")
    run("run", "digits.toml", "--out", "runs")
    run("pack", "runs", "-o", "pack.jsonl")
    for name in UNREAD:
        for path in [*Path().glob(f"**/{name}")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("linear", "perceptron", "regression", "runs"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        shutil.copytree(name, HERE / name)
    shutil.copy("pack.jsonl", HERE / "pack.jsonl")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make()
