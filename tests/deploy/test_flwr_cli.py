"""Flower's commands: their flags, their files, and what is said where they are missing."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift.deploy import flwr_cli
from fedshift.deploy.errors import DeployError, FlowerMissing
from fedshift.deploy.fleet import Fleet

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(blacklist_categories=["Cs"])),
)


@given(SCALARS)
def test_settings_are_read_back_as_they_were(value: flwr_cli.Scalar) -> None:
    read = tomllib.loads(flwr_cli.pairs({"key-1": value}))["key-1"]
    assert read == value
    assert type(read) is type(value)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="NoneType"):
        flwr_cli.write_run_config(tmp_path / "run.toml", {"a": None})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())


def test_where_flower_is_missing_the_next_step_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(FlowerMissing, match=r"pip install -c constraints\.txt -e '\.\[flower\]'"):
        flwr_cli.find("flwr")
    with pytest.raises(FlowerMissing), Fleet(tmp_path, ["a"]):
        pass


@pytest.mark.parametrize(
    ("version", "plugins", "why"),
    [
        ("1.34.0", ["one"], r"flwr 1\.41 or newer is needed .* got 1\.34\.0"),
        ("1.41.0", [], r"plugin 'fedshift'.* install it again"),
    ],
)
def test_an_installation_that_will_not_do(
    version: str, plugins: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flwr_cli.metadata, "version", lambda name: version)
    monkeypatch.setattr(flwr_cli.metadata, "entry_points", lambda **which: plugins)
    with pytest.raises(DeployError, match=why):
        flwr_cli.check_installation()
    monkeypatch.setattr(flwr_cli.metadata, "version", lambda name: "1.100.1")
    monkeypatch.setattr(flwr_cli.metadata, "entry_points", lambda **which: ["one"])
    flwr_cli.check_installation()


@pytest.mark.flower
def test_the_environment_is_quiet_and_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    monkeypatch.setenv("FLWR_DATABASE", "/elsewhere")
    out = flwr_cli.environment(tmp_path)
    assert out["FLWR_HOME"] == str(tmp_path)
    assert "FLWR_DATABASE" not in out
    assert out["FLWR_TELEMETRY_ENABLED"] == "0"
    assert out["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert out["PATH"].startswith(str(Path(sys.executable).parent))


def test_last_lines() -> None:
    assert flwr_cli.last_lines("a\n\n\x1b[92mb\x1b[0m  \nc\n\n", lines=2) == "b\nc"
