"""A warm site: a process that keeps data and model loaded, reached over a socket on this machine.

Flower starts a process for every message. With a worker beside the SuperNode that process only
hands bytes on; torch is imported and rows are read once. The socket lies in a folder that only its
owner may enter, and the worker asks the kernel who is calling: nobody but its own user is answered.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fedshift.errors import FedshiftError, InputError
from fedshift.federation.messages import Message, MessageError

_LOG = logging.getLogger(__name__)
_LENGTH = struct.Struct("<Q")
_PEER = struct.Struct("3i")
#: most bytes of a message, either way
LARGEST = 4 << 30
#: longest path a socket may have on Linux
_PATH = 107


class WorkerGone(FedshiftError, ConnectionError):
    """Nobody answers at the socket."""


class WorkerLate(FedshiftError, TimeoutError):
    """Somebody is there, and has not answered in time."""


class Handler(Protocol):
    """Whatever answers."""

    def handle(self, message: Message) -> Message:
        """Answer a question."""


def serve(handler: Handler, path: Path | str, *, ready: Callable[[], None] | None = None) -> None:
    """Answer at a socket, one question after the other, until the process ends.

    Parameters
    ----------
    handler : Site
    path : path of the socket
        Its folder is made, or must be, one that only its owner can enter.
    ready : callable, optional
        Is called once the socket listens.

    Raises
    ------
    InputError
        If the folder is open to others, or another worker listens there.
    """
    path = checked(path, make=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _bind(listener, path)
        path.chmod(0o600)
        listener.listen(8)
        lock = threading.Lock()  # a site remembers; two questions at once would tear its memory
        if ready is not None:
            ready()
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, handler, lock), daemon=True).start()


class Remote:
    """A site behind a socket.

    Parameters
    ----------
    path : path of the socket
    timeout : float
        Seconds to wait for an answer.
    """

    def __init__(self, path: Path | str, *, timeout: float = 3600.0) -> None:
        self.path, self._timeout = checked(path), timeout

    def handle(self, message: Message) -> Message:
        """Have a question answered there.

        Raises
        ------
        WorkerGone
            If nobody listens, or the worker dies before it has answered.
        WorkerLate
            If it does not answer in time. It may still be at work, so nobody else should be.
        """
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._timeout)
                connection.connect(str(self.path))
                check_peer(connection)
                _send(connection, message.encode())
                return Message.decode(_receive(connection))
        except TimeoutError:
            raise WorkerLate(
                f"the worker at {self.path} has not answered within {self._timeout:g} s"
            ) from None
        except OSError as error:
            raise WorkerGone(f"no worker answers at {self.path}: {error}; start it again") from None


def checked(path: Path | str, *, make: bool = False) -> Path:
    """The path of a socket, in a folder that nobody else can enter.

    Raises
    ------
    InputError
        If it is too long for a socket, or its folder is open to others or somebody else's.
    """
    path = Path(path).absolute()
    if len(os.fsencode(path)) > _PATH:
        raise InputError(
            f"a socket's path must be at most {_PATH} bytes; got {len(os.fsencode(path))}: {path}; "
            "take a shorter folder, such as one below $XDG_RUNTIME_DIR"
        )
    folder = path.parent
    if make:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.exists():
        said = folder.stat()
        if said.st_uid != os.getuid() or stat.S_IMODE(said.st_mode) & 0o077:
            raise InputError(
                f"the folder of a socket must be its owner's alone (chmod 700); got {folder} with "
                f"mode {stat.S_IMODE(said.st_mode):o}"
            )
    return path


def check_peer(connection: socket.socket) -> None:
    """Refuse a caller of another user; the kernel says whose process it is."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(found)
    if uid != os.getuid():
        raise PermissionError(f"the process at the other end belongs to user {uid}")


def _bind(listener: socket.socket, path: Path) -> None:
    if path.exists():  # of a worker that was killed, or of one that lives
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise InputError(f"{path} is no socket; give a worker a path of its own")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            try:
                other.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
            else:
                raise InputError(f"another worker listens at {path}; stop it first")
    listener.bind(str(path))


def _answer(connection: socket.socket, handler: Handler, lock: threading.Lock) -> None:
    with connection:
        try:
            check_peer(connection)
            message = Message.decode(_receive(connection))
            with lock:
                reply = _handled(handler, message)
            _send(connection, reply.encode())
        except (OSError, MessageError):
            return  # who asks so gets no answer


def _handled(handler: Handler, message: Message) -> Message:
    try:
        return handler.handle(message)
    except Exception as error:  # what it says may show rows, so only its kind leaves
        _LOG.exception("the worker could not answer %s", message.header)
        return message.answer(error=f"SiteFailed: {type(error).__name__}; see the worker's log")


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def _receive(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > LARGEST:
        raise OSError(f"a message of {length:,} bytes")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = connection.recv(min(left, 1 << 20))
        if not part:
            raise OSError("the other end closed the connection")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
