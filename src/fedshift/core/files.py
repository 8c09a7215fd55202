"""Atomic writes, locks, and readers of JSON and TOML.

A write is atomic if the file appears under its name only once it is complete.
"""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import secrets
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fedshift.errors import InputError, InUseError, OutputError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path; rename it to `path` when the body ends without an error.

    The content reaches the disk before the rename, and the rename before this function returns.
    After a power cut there is either the old file or the new one. On a solid-state disk, waiting
    for the disk costs about a millisecond.
    """
    path = Path(path)
    with _naming_errors(f"write {path}", "choose a folder you can write to"):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _empty_beside(path)
    advice = "free disk space or choose another folder; an old file of this name is unchanged"
    try:
        with _naming_errors(f"write {path}", advice):
            yield temporary
            _to_disk(temporary)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    advice = "check the disk; the file is written but may be lost in a power cut"
    with _naming_errors(f"sync the folder of {path}", advice):
        try:
            _to_disk(path.parent)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
                raise


@contextmanager
def _naming_errors(action: str, advice: str) -> Iterator[None]:
    """Raise an `OutputError` for an `OSError` in the body: what failed, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot {action}: {error.strerror or error}; {advice}") from error


def _empty_beside(path: Path) -> Path:
    """Create an empty file with a unique name and the permissions that the umask allows."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return temporary


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_folder(folder: Path, replaceable: Sequence[str]) -> None:
    """Raise unless a folder can be replaced as a whole: absent, empty, or with our files only.

    Parameters
    ----------
    replaceable : sequence of str
        Patterns of the files that may be replaced, relative to the folder.
    """
    path = folder.resolve()
    advice = "choose a folder that you can write to, inside another that you can write to"
    with _naming_errors(f"write the folder {folder}", advice):
        if (path.exists() and not path.is_dir()) or path.is_mount():
            raise OSError(errno.EBUSY, "it is a file, or where a disk is mounted")
        inside = (p.relative_to(path).as_posix() for p in path.rglob("*") if not p.is_dir())
        other = next((n for n in inside if not any(fnmatch(n, w) for w in replaceable)), None)
        if other is None:
            _new_beside(path).rmdir()
            return
    raise InputError(
        f"{folder} must be a new folder, or one that the same command wrote, which is then "
        f"replaced as a whole; got one with {other!r}; move this file or choose another folder"
    )


def _new_beside(path: Path) -> Path:
    """Create an empty folder with a unique name beside another, and the folders above it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    temporary.mkdir(parents=True)
    return temporary


@contextmanager
def atomic_folder(folder: Path, replaceable: Sequence[str]) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `folder` when the body ends without an error.

    Nothing of the old folder is left over. See `check_folder`, which is called first, for folders
    that are not replaced.
    """
    check_folder(folder, replaceable)
    path = folder.resolve()
    new = _new_beside(path)
    old = new.with_name(f"{new.name}.old")
    try:
        yield new
        if path.exists():
            path.rename(old)
        new.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def to_json(value: Any) -> str:
    """Return a value as JSON, with null for NaN and infinity."""
    return json.dumps(without_nan(value), ensure_ascii=False, allow_nan=False)


def without_nan(value: Any) -> Any:
    """The value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
    """Write JSON, one key per line. An interrupted write leaves no partial file."""
    lines = ",\n".join(f" {json.dumps(k)}: {to_json(v)}" for k, v in value.items())
    return write_text(path, "{\n" + lines + "\n}\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if the file is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


@contextmanager
def locked(folder: Path, *, patience: float = 0.0, advice: str) -> Iterator[None]:
    """Let one process at a time work in a folder, which is created if needed.

    The file "lock" in the folder names the holder while the body runs. If the process is killed,
    the operating system releases the lock. Windows has no such locks; nothing is locked there.

    Parameters
    ----------
    patience : float
        Seconds to wait for another process to finish.
    advice : str
        What to do if it does not, for the error.

    Raises
    ------
    InUseError
        If another process works in the folder. The error names it.
    OutputError
        If the folder cannot be written.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    path, end = Path(folder) / "lock", time.monotonic() + patience
    with _naming_errors(f"write {path}", "choose a folder you can write to"):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    file.seek(0)
                    holder = file.read() or "another process"
                    raise InUseError(f"{folder} is in use by {holder}; {advice}") from None
                time.sleep(0.1)
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()} since {since}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def read_toml(path: Path, what: str, *, fix: str = "pass a TOML file in UTF-8") -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    InputError
        If the file cannot be read or is not TOML. The message calls the file `what` and ends with
        `fix`.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror or error}; {fix}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {path} must be TOML: {error}; {fix}") from None
