"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from fedshift.core.files import atomic_path, write_text
from fedshift.errors import OutputError


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "old")

    def half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    blocked = write_text(tmp_path / "file", "x")
    with pytest.raises(OutputError, match="choose a folder"):
        write_text(blocked / "inside.txt", "y")


def test_content_reaches_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "content")
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        steps.append("name")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_text(tmp_path / "a.txt", "one")
    assert steps == ["content", "name", "folder"]


def test_a_file_system_that_cannot_flush_a_folder_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    code = errno.EINVAL
    write_text(tmp_path / "a.txt", "one")
    code = errno.EIO
    with pytest.raises(OutputError, match=r"the folder of .*b\.txt"):
        write_text(tmp_path / "b.txt", "one")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_says_who_may_read(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        path = write_text(tmp_path / "a.txt", "one")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
