"""Folders of site files with a known shift."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

COLUMNS = ["age", "sex", "pain", "pressure", "chol", "pulse", "ill"]


def write(
    folder: Path, name: str, part: str, rows: int, ill: float, seed: int, *, old: float = 0.0
) -> None:
    """One file: label shift if `ill` differs between parts, other rows if `old` does."""
    rng = np.random.default_rng([seed, *name.encode(), *part.encode()])
    y = rng.random(rows) < ill
    columns = [
        rng.normal(54 + 5 * y + old, 9).round(1),
        np.where(rng.random(rows) < 0.5 + 0.2 * y, "male", "female"),
        rng.choice(["typical", "atypical", "none"], rows),
        rng.normal(130 + 8 * y, 16).round(),
        np.where(rng.random(rows) < 0.05, "?", rng.normal(230 + 20 * y, 45).round().astype(str)),
        rng.normal(150 - 16 * y, 20).round(),
        np.where(y, "yes", "no"),
    ]
    path = folder / name / f"{part}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)
        out.writerows(zip(*columns, strict=True))


@pytest.fixture(scope="session")
def write_site() -> Callable[..., None]:
    """See `write`."""
    return write


@pytest.fixture(scope="session")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sites where the ill are rare in training and common in use."""
    folder = tmp_path_factory.mktemp("sites")
    for name, before, now in (("a", 0.2, 0.7), ("b", 0.3, 0.7), ("c", 0.25, 0.6), ("d", 0.4, 0.8)):
        write(folder, name, "train", 250, before, 0)
        write(folder, name, "test", 120, now, 0)
    return folder
