"""Files appear whole or not at all."""

from __future__ import annotations

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
