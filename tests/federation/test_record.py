"""A server's folder: one run at a time, and lines that survive a kill."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from fedshift.errors import FedshiftError
from fedshift.federation import record
from fedshift.federation.ledger import Ledger
from fedshift.federation.record import ServerRecord

TASK = "0123456789abcdef"


def test_a_run_keeps_its_name_and_its_folder_is_its_owner_s(tmp_path: Path) -> None:
    one = ServerRecord(tmp_path / "r", TASK)
    assert one.run.endswith(f"-{TASK}")
    assert ServerRecord(tmp_path / "r", TASK).run == one.run
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o700
    with pytest.raises(FedshiftError, match="holds a run of task 0123456789abcdef; got task x"):
        ServerRecord(tmp_path / "r", "x")


def test_half_a_line_is_not_kept(tmp_path: Path) -> None:
    one = ServerRecord(tmp_path, TASK)
    assert one.past("events") == []
    for number in range(3):
        one.append("events", {"n": number})
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"n": 3, "wh')  # killed here
    assert one.past("events") == [{"n": 0}, {"n": 1}, {"n": 2}]
    one.append("events", {"n": 4})
    assert [e["n"] for e in one.past("events")] == [0, 1, 2, 4]
    one.rewrite("events", [{"n": 9}])
    assert one.past("events") == [{"n": 9}]


def test_the_ledger_comes_back(tmp_path: Path) -> None:
    one = ServerRecord(tmp_path, TASK)
    assert len(one.ledger()) == 0
    ledger = Ledger()
    ledger.add("ash", "query.share", up=3, down=4, rows=5)
    one.save_ledger(ledger)
    assert ServerRecord(tmp_path, TASK).ledger().to_records() == ledger.to_records()


def test_who_comes_second_is_refused_unless_the_first_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = ServerRecord(tmp_path, TASK), ServerRecord(tmp_path, TASK)
    monkeypatch.setattr(record, "PATIENCE", 0.3)
    with one.locked(), pytest.raises(FedshiftError, match="in use by process"), two.locked():
        pass
    monkeypatch.setattr(record, "PATIENCE", 30.0)
    held, ended = threading.Event(), []

    def first() -> None:
        with one.locked():
            held.set()
            time.sleep(0.4)
            ended.append(True)

    thread = threading.Thread(target=first)
    thread.start()
    assert held.wait(10)
    with two.locked():
        assert ended
    thread.join()
