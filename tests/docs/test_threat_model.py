"""The threat model: what it says is refused is refused, and what it names is there."""

from __future__ import annotations

import importlib
import os
import re
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedshift.data.federation import ClientData
from fedshift.errors import InputError
from fedshift.federation import worker
from fedshift.federation.job import Job, RatioPhase
from fedshift.federation.messages import Expected, Header, Message, MessageError
from fedshift.federation.plan import FedAvg
from fedshift.federation.site import Site
from fedshift.federation.worker import check_peer, checked
from fedshift.privacy.policy import Privacy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    rng = np.random.default_rng(0)
    x, test_x = rng.normal(size=(40, 3)), rng.normal(size=(30, 3))
    data = ClientData.of("ward-1", x, (x[:, 0] > 0).astype(int), test_x)
    job = Job(
        clients=("ward-1", "ward-2"),
        shape=(3,),
        classes=2,
        model="linear",
        plan=FedAvg(rounds=1, local_steps=2),
        ratio=RatioPhase(kind="raw"),
    )
    return Site(job, data, tmp_path / "state", privacy=Privacy(rung=2))


def ask(site: Site, phase: str, **facts: Any) -> Message:
    return Message(Header(f"run-{site.job.digest}", phase, 0), facts=facts)


# -- what is defended ------------------------------------------------------------------------------


def test_a_question_is_answered_once_also_after_a_restart(site: Site) -> None:
    question = ask(site, "query.describe")
    assert not site.handle(question).error
    assert "replay" in site.handle(question).error
    again = Site(site.job, site.data, site.folder, privacy=site.privacy)
    assert "replay" in again.handle(question).error


def test_another_task_is_not_answered_and_leaves_no_trace(site: Site) -> None:
    question = Message(Header("run-0123456789abcdef", "query.describe", 0))
    assert "has agreed to" in site.handle(question).error
    assert not site.folder.exists()


def test_rows_are_not_sent_beyond_the_rung_whatever_the_task_says(site: Site) -> None:
    reply = site.handle(ask(site, "query.share", what="rows"))
    assert "needs rung 5" in reply.error
    assert not reply.arrays


@pytest.mark.parametrize("changed", ["run", "phase", "round", "nonce"])
def test_an_answer_counts_for_its_own_question_alone(site: Site, changed: str) -> None:
    question = ask(site, "query.describe")
    others = {"run": "run-0", "phase": "query.share", "round": 1, "nonce": "0" * 32}
    header = Header(**{**question.header.__dict__, changed: others[changed]})
    with pytest.raises(MessageError, match="stale or replayed"):
        Expected({"ward-1": question}).take("ward-1", Message(header), limit=10)


def test_an_answer_is_taken_once_and_from_whom_it_was_asked(site: Site) -> None:
    question = ask(site, "query.describe")
    expected = Expected({"ward-1": question})
    with pytest.raises(MessageError, match="was not asked"):
        expected.take("ward-2", question.answer(), limit=10)
    expected.take("ward-1", question.answer(), limit=10)
    with pytest.raises(MessageError, match="answered already"):
        expected.take("ward-1", question.answer(), limit=10)


def test_no_objects_travel() -> None:
    good = Message(Header("run-0", "train.model", 0), {"a": np.zeros(2)}).encode()
    with pytest.raises(MessageError):
        Message.decode(good.replace(b'"float64"', b'"object"'))


def test_a_worker_s_door_is_closed_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(InputError, match="owner's alone"):
        checked(open_to_all / "s.sock")
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        check_peer(here)
        monkeypatch.setattr(worker.os, "getuid", lambda: os.geteuid() + 1)
        with pytest.raises(PermissionError, match="belongs to user"):
            check_peer(here)


# -- what is named ---------------------------------------------------------------------------------


def test_modules_and_tests_are_there() -> None:
    named = re.findall(r"`((?:tests|[a-z]+)/[\w/]+\.py)`", PAGE)
    assert len(named) > 20
    for name in named:
        home = ROOT if name.startswith("tests/") else ROOT / "src" / "fedshift"
        if not name.startswith("flwr/"):
            assert (home / name).is_file(), name


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
    assert constant.TIMESTAMP_TOLERANCE == 300
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
