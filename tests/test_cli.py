"""The command line, as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedshift import cli, demo


def test_demo_estimates_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["demo", "--out", str(tmp_path), "--seed", "0"]) == 0
    printed = capsys.readouterr().out
    assert "client-5" in printed
    rows = json.loads((tmp_path / "demo.json").read_text())
    assert len(rows) == 10
    auto = [r for r in rows if r["estimator"] == "Auto"]
    assert np.mean([r["correlation"] for r in auto]) > 0.8
    assert np.mean([r["error"] for r in auto]) < 0.6 * auto[0]["constant"]
    assert (tmp_path / "ratios.svg").read_text().lstrip().startswith("<?xml")


def test_exact_against_itself_is_perfect() -> None:
    fed = demo.digits_federation(seed=1)
    exact = fed.exact_log_ratio("client-1")
    row = demo.compare("client-1", "exact", exact, exact)
    assert row.correlation == pytest.approx(1.0)
    assert row.error == pytest.approx(0.0)


def test_no_place_to_write_is_one_clear_line(tmp_path: Path, capsys, monkeypatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    monkeypatch.setattr(demo, "estimate", lambda fed, **_: {})
    assert cli.main(["demo", "--out", str(blocked)]) == 1
    assert "fedshift: cannot write" in capsys.readouterr().err


def test_version_and_unknown_command(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out.startswith("fedshift ")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["fly"])
