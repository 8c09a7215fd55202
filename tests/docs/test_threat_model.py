"""The threat model: what it names is there, and Flower is as it says."""

from __future__ import annotations

import importlib
import os
import re
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedshift.errors import InputError
from fedshift.federation import worker
from fedshift.federation.worker import check_peer, check_socket

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")


def test_a_worker_s_socket_is_closed_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(InputError, match="closed to others"):
        check_socket(open_to_all / "s.sock")
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        check_peer(here)
        monkeypatch.setattr(worker.os, "getuid", lambda: os.geteuid() + 1)
        with pytest.raises(PermissionError, match="belongs to user"):
            check_peer(here)


def test_modules_and_tests_are_there() -> None:
    named = re.findall(r"`((?:tests|[a-z]+)/[\w/]+\.py)`", PAGE)
    assert len(named) > 20
    for name in named:
        home = ROOT if name.startswith("tests/") else ROOT / "src" / "fedshift"
        if not name.startswith("flwr/"):
            assert (home / name).is_file(), name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Flower imports
def test_flower_is_as_described() -> None:
    if find_spec("flwr") is None or not importlib.import_module("flwr").__version__.startswith(
        "1.41"
    ):
        pytest.skip("flwr 1.41 is not installed")
    home = Path(str(importlib.import_module("flwr").__file__)).parent
    text = {
        name: (home.parent / name).read_text(encoding="utf-8")
        for name in re.findall(r"`(flwr/[\w/]+\.py)`", PAGE)
    }
    auth, node = (
        next(t for n, t in text.items() if n.endswith(e))
        for e in ("noop_auth_plugin.py", "node_auth.py")
    )
    assert "return True, _create_noop_account_info()" in auth
    assert "timestamp.encode" in node
    assert "TIMESTAMP_TOLERANCE" in node
    constant = importlib.import_module("flwr.common.constant")
    assert constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE == 305
    assert constant.SYSTEM_TIME_TOLERANCE == 5
    secret = text["flwr/supercore/dependencies/superexec.py"]
    assert "superexec_auth_secret" in secret
    verify = text["flwr/supernode/start_client_internal.py"]
    assert 'if not fab.verifications.get("valid_license", "")' in verify
    assert hasattr(importlib.import_module("flwr.server.workflow"), "SecAggPlusWorkflow")
    assert hasattr(importlib.import_module("flwr.client.mod"), "secaggplus_mod")
    for new in (
        "flwr.clientapp",
        "flwr.clientapp.mod",
        "flwr.serverapp",
        "flwr.serverapp.strategy",
    ):
        assert not [n for n in dir(importlib.import_module(new)) if "secagg" in n.lower()]
