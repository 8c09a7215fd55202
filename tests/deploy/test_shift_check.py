"""A look at a site's rows: the kind of shift is named, and ratios that suit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedshift.cli import main
from fedshift.deploy.agreement import Agreement
from fedshift.deploy.shift_check import check_shift
from fedshift.experiments.recipe import Recipe

ROWS = 900


def rows(kind: str) -> dict[str, Any]:
    """Ten clouds in 64 dimensions; in use classes, inputs or nothing moved."""
    rng = np.random.default_rng(0)
    centre = 0.6 * rng.normal(size=(10, 64))
    distribution = np.array([0.28, 0.28, 0.1, 0.1, 0.04, 0.04, 0.04, 0.04, 0.04, 0.04])

    def drawn(p: Any, move: float) -> tuple[Any, Any]:
        y = rng.choice(10, ROWS, p=p)
        x = centre[y] + rng.normal(size=(ROWS, 64)) + move
        return x.reshape(ROWS, 1, 8, 8), y

    x, y = drawn(distribution, 0.0)
    test_x, test_y = drawn(
        distribution[::-1] if kind == "label" else distribution, 0.5 * (kind == "inputs")
    )
    return {"x": x, "y": y, "test_x": test_x, "test_y": test_y}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    Agreement.of(Recipe.load("smoke/flower"), clients=3).write(tmp_path / "task.toml")
    told = 'client = "client-1"\ntask = "task.toml"\nstate = "state"\nrows = "rows.npz"\n'
    (tmp_path / "site.toml").write_text(told)
    return tmp_path / "site.toml"


KINDS = {
    "label": ("shift type: label:", "ratio kind 'federated-mlls'", "the task has 'multi-source'"),
    "inputs": ("shift type: covariate:", "ratio kind 'multi-source'", "the task has this kind"),
    "nothing": ("shift type: none:", "ratio kind 'multi-source'", "the task has this kind"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_is_named_and_ratios_that_suit_it(
    kind: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(site.parent / "rows.npz", **rows(kind))
    assert main(["deploy", "check", str(site)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("client-1: 900 training rows, 900 test rows\n")
    for words in KINDS[kind]:
        assert words in said
    assert not (site.parent / "state").exists()  # a check leaves nothing behind


def test_labels_of_test_rows_change_nothing(site: Path) -> None:
    own = rows("label")
    np.savez(site.parent / "rows.npz", **own)
    found = check_shift(site)
    np.savez(site.parent / "rows.npz", **{**own, "test_y": own["test_y"][::-1]})
    assert check_shift(site) == found


def test_rows_that_cannot_be_read_are_named(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "check", str(site)]) == 1
    assert "rows.npz must be an .npz file" in capsys.readouterr().err
