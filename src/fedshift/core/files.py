"""Nothing half-written: files appear under their name only when they are whole."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedshift.errors import OutputError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name when the body ends without an error.

    Content reaches the disk before its name does, and the name before this returns: a power cut
    leaves the old file or the new one. On a solid-state disk that costs about a millisecond.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _empty_beside(path)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; choose a folder you can write to"
        ) from error
    try:
        yield temporary
        _to_disk(temporary)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; free some room or choose another "
            "folder; the old file, if any, is untouched"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    try:
        _to_disk(path.parent)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise OutputError(
                f"cannot bring the name of {path} to the disk: {error.strerror or error}; look at "
                "the disk; the file is there, and may be gone after a power cut"
            ) from error


def _empty_beside(path: Path) -> Path:
    """A new file under a name of its own, open to whom the umask lets in."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return temporary


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> Path:
    """Write a text file whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
