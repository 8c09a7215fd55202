"""A warm site behind a socket: who may call, and what calls it survives."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedshift.errors import InputError
from fedshift.federation import worker
from fedshift.federation.messages import Header, Message
from fedshift.federation.worker import RemoteSite, WorkerGone, check_peer, check_socket, serve


class Echo:
    """Answers with what it was sent, and how often it was asked."""

    def __init__(self) -> None:
        self.count = 0

    def handle(self, message: Message) -> Message:
        self.count += 1
        if message.facts.get("what") == "raise":
            raise RuntimeError("inside")
        time.sleep(0.05 if message.facts.get("what") == "slow" else 0)
        return message.reply(message.arrays, {"count": self.count})


def asked(**facts: Any) -> Message:
    head = Header("run-x", "query.share", 0)
    return Message(head, {"a": np.arange(40_000, dtype=np.float32)}, facts)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: a socket's path has little room."""
    with tempfile.TemporaryDirectory(prefix="fs-") as name:
        yield Path(name)


@pytest.fixture
def path(folder: Path) -> Path:
    """Of a socket where a worker listens, in a thread of this process."""
    out, ready = folder / "run" / "site.sock", threading.Event()
    threading.Thread(
        target=serve, args=(Echo(), out), kwargs={"ready": ready.set}, daemon=True
    ).start()
    assert ready.wait(10)
    return out


def test_questions_go_there_and_answers_come_back(path: Path) -> None:
    for i in range(3):
        sent = asked(n=i)
        got = RemoteSite(path).handle(sent)
        assert got.header == sent.header
        assert got.facts == {"count": i + 1}
        np.testing.assert_array_equal(got.arrays["a"], sent.arrays["a"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_two_at_once_are_answered_one_after_the_other(path: Path) -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(RemoteSite(path).handle(asked(what="slow")).facts["count"])
        )
        for _ in range(5)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(found) == [1, 2, 3, 4, 5]


def connected(path: Path) -> socket.socket:
    out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    out.settimeout(5)
    out.connect(str(path))
    return out


def test_garbage_and_half_messages_do_not_end_it(path: Path) -> None:
    whole = asked().encode()
    length = struct.pack("<Q", len(whole))
    for data in (
        b"",
        b"x",
        length,
        length + whole[:100],
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 7) + b"garbage",
        struct.pack("<Q", 0),
    ):
        with connected(path) as c:
            c.sendall(data)
            c.shutdown(socket.SHUT_WR)
            assert c.recv(10) == b"", data[:20]  # no answer, and the line is closed
    waiting = [connected(path) for _ in range(3)]  # who says nothing holds nobody up
    assert RemoteSite(path).handle(asked()).facts == {"count": 1}
    for c in waiting:
        c.close()
    with connected(path) as c:
        c.sendall(length + whole)  # and leaves before the answer
    assert RemoteSite(path, timeout=5).handle(asked()).error == ""


def test_what_raises_inside_is_told_by_its_kind_only(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = RemoteSite(path, timeout=5).handle(asked(what="raise"))
    assert answer.error == "SiteFailed: RuntimeError; see the worker's log"
    assert "inside" in caplog.text
    assert RemoteSite(path, timeout=5).handle(asked()).facts == {"count": 2}


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o777])
def test_a_folder_open_to_others_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    for call in (lambda p: serve(Echo(), p), RemoteSite, check_socket):
        with pytest.raises(InputError, match="chmod 700"):
            call(folder / "a.sock")  # type: ignore[operator]
    assert not (folder / "a.sock").exists()


def test_a_path_that_is_too_long_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="at most 107 bytes; got"):
        check_socket(folder / ("a" * 120))
    longest = folder / ("a" * (106 - len(str(folder))))
    assert len(str(longest)) == 107
    ready = threading.Event()
    threading.Thread(
        target=serve, args=(Echo(), longest), kwargs={"ready": ready.set}, daemon=True
    ).start()
    assert ready.wait(10)


def test_a_second_worker_is_refused(path: Path) -> None:
    with pytest.raises(InputError, match="another worker listens"):
        serve(Echo(), path)
    assert RemoteSite(path).handle(asked()).facts == {"count": 1}


def test_a_file_that_is_no_socket_stays(folder: Path) -> None:
    (folder / "site.sock").write_text("mine")
    with pytest.raises(InputError, match="is not a socket"):
        serve(Echo(), folder / "site.sock")
    assert (folder / "site.sock").read_text() == "mine"


def test_somebody_else_is_not_answered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getuid()
    monkeypatch.setattr(worker.os, "getuid", lambda: mine + 1)
    with connected(path) as c, pytest.raises(PermissionError, match=f"user {mine}"):
        check_peer(c)
    with connected(path) as c:
        data = asked().encode()
        with contextlib.suppress(BrokenPipeError):  # it may have hung up already
            c.sendall(struct.pack("<Q", len(data)) + data)
        with contextlib.suppress(ConnectionResetError):  # closed with our question unread
            assert c.recv(10) == b""


#: a worker in a process of its own; it can be told to die
ALONE = """
import os, sys
from fedshift.federation.worker import serve

class Mortal:
    def handle(self, message):
        if message.facts.get("what") == "die":
            os._exit(3)
        return message.reply(message.arrays, {"count": 1})

serve(Mortal(), sys.argv[1])
"""


def test_a_killed_worker_is_gone_and_can_be_started_again(folder: Path) -> None:
    path = folder / "site.sock"
    with pytest.raises(WorkerGone, match="no worker listens"):
        RemoteSite(path).handle(asked())
    for ending in ("kill", "die"):
        alone = subprocess.Popen([sys.executable, "-c", ALONE, str(path)])
        end = time.monotonic() + 60
        while True:
            try:
                assert RemoteSite(path).handle(asked()).facts == {"count": 1}
                break
            except WorkerGone:
                assert alone.poll() is None, "the worker ended before it listened"
                assert time.monotonic() < end
                time.sleep(0.1)
        if ending == "kill":
            alone.kill()
        else:
            with pytest.raises(WorkerGone, match=r"closed|reset"):
                RemoteSite(path).handle(asked(what="die"))
        alone.wait(20)
        assert path.exists()  # the socket of the dead one
        with pytest.raises(WorkerGone):
            RemoteSite(path).handle(asked())
