"""What the tests of tables share: folders from a dict, and four hospitals of invented patients."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Folder = Callable[[Mapping[str, Any]], Path]

#: columns of UCI's files
NAMES = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"]
NAMES += ["thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"]
#: rows, share with disease, share missing by column
HOSPITALS: dict[str, tuple[int, float, dict[str, float]]] = {
    "cleveland": (303, 0.46, {"ca": 0.013, "thal": 0.007}),
    "hungarian": (294, 0.36, {"chol": 0.08, "slope": 0.65, "ca": 0.99, "thal": 0.9}),
    "switzerland": (123, 0.93, {"fbs": 0.61, "ca": 0.96, "thal": 0.42, "slope": 0.14}),
    "va": (200, 0.75, {"trestbps": 0.28, "slope": 0.51, "ca": 0.99, "thal": 0.83}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Write files: text, bytes, or a data frame (as Parquet); names ending in .gz are packed."""

    def write(files: Mapping[str, Any]) -> Path:
        for name, content in files.items():
            path = tmp_path / "sites" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if hasattr(content, "to_parquet"):
                content.to_parquet(path)
                continue
            raw = content.encode() if isinstance(content, str) else content
            path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return tmp_path / "sites"

    return write


def patients(site: str, n: int, rng: np.random.Generator) -> list[list[str]]:
    """Rows in the manner of the heart disease files: '?' for missing, num from 0 to 4."""
    _, share, gaps = HOSPITALS[site]
    sick = rng.random(n) < share
    num = np.where(sick, rng.integers(1, 5, n), 0)
    columns = {
        "age": rng.normal(52 + 4 * sick, 8).round(),
        "sex": (rng.random(n) < 0.6 + 0.2 * sick) * 1.0,
        "cp": np.where(sick & (rng.random(n) < 0.6), 4, rng.integers(1, 5, n)),
        "trestbps": rng.normal(130, 17, n).round(),
        "chol": np.zeros(n) if site == "switzerland" else rng.normal(245, 50, n).round(),
        "fbs": (rng.random(n) < 0.15) * 1.0,
        "restecg": rng.integers(0, 3, n),
        "thalach": rng.normal(155 - 15 * sick, 20).round(),
        "exang": (rng.random(n) < 0.2 + 0.4 * sick) * 1.0,
        "oldpeak": (rng.exponential(0.6 + sick, n)).round(1),
        "slope": rng.integers(1, 4, n),
        "ca": rng.integers(0, 4, n),
        "thal": rng.choice([3, 6, 7], n),
    }
    show = "{:.1f}" if site == "cleveland" else "{:g}"  # 63.0 at one hospital, 63 at the others
    cells = {
        k: ["?" if rng.random() < gaps.get(k, 0.0) else show.format(v) for v in c]
        for k, c in columns.items()
    }
    return [list(row) for row in zip(*cells.values(), map(str, num), strict=True)]


def heart_files(seed: int = 0, *, rows: int | None = None) -> dict[str, str]:
    """Files as the four hospitals', from a seed: 14 columns, commas, no header."""
    rng = np.random.default_rng(seed)
    return {
        f"processed.{site}.data": "\n".join(",".join(row) for row in patients(site, rows or n, rng))
        + "\n"
        for site, (n, _, _) in HOSPITALS.items()
    }


@pytest.fixture
def heart() -> Callable[..., dict[str, str]]:
    """The maker of the four hospitals' files; `NAMES` are their columns."""
    return heart_files


@pytest.fixture
def heart_names() -> list[str]:
    """The 14 columns of those files."""
    return NAMES
