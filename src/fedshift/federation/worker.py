"""A worker: a process that keeps a site's data and models loaded, and answers at a local socket.

Flower starts a process for every message. If a worker runs beside the SuperNode (Flower's process
at a site), the process for a message only passes bytes on. Torch is imported and rows are read only
once, in the worker. The socket lies in a folder that only its owner can enter. The worker serves
only processes of its own user; the kernel reports which user a process belongs to.
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

from fedshift.errors import FedshiftError, InputError
from fedshift.federation.messages import Message, MessageError
from fedshift.federation.transport import Handler

_LOG = logging.getLogger(__name__)
_LENGTH = struct.Struct("<Q")
_PEER = struct.Struct("3i")
#: largest number of bytes of a request or a reply
LARGEST = 4 << 30
#: longest path of a socket on Linux, in bytes
_PATH = 107


class WorkerGone(FedshiftError, ConnectionError):
    """No worker listens at the socket."""


class WorkerLate(FedshiftError, TimeoutError):
    """A worker listens at the socket but has not replied in time."""


def serve(handler: Handler, path: Path | str, *, ready: Callable[[], None] | None = None) -> None:
    """Reply to requests at a socket, one after the other, until the process ends.

    Parameters
    ----------
    handler : Handler
        Usually a `fedshift.federation.site.Site`.
    path : path
        The socket. Its folder is created if missing. The folder must be closed to all users but its
        owner.
    ready : callable, optional
        Called once the socket listens.

    Raises
    ------
    InputError
        If the folder is open to other users, or another worker listens at the socket.
    """
    path = check_socket(path, make=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _bind(listener, path)
        path.chmod(0o600)
        listener.listen(8)
        lock = threading.Lock()  # a site has state, which two requests at once would break
        if ready is not None:
            ready()
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(connection, handler, lock), daemon=True).start()


class RemoteSite:
    """A site in another process, reached over a socket.

    Parameters
    ----------
    path : path
        The socket.
    timeout : float
        Seconds to wait for a reply.
    """

    def __init__(self, path: Path | str, *, timeout: float = 3600.0) -> None:
        self.path, self._timeout = check_socket(path), timeout

    def handle(self, message: Message) -> Message:
        """Send a request to the worker and return its reply.

        Raises
        ------
        WorkerGone
            If no worker listens, or the worker dies before it replies.
        WorkerLate
            If the worker does not reply in time. It may still be working on the request, so no
            other process should handle the request.
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
                f"the worker at {self.path} has not replied within {self._timeout:g} s; see its log"
            ) from None
        except OSError as error:
            raise WorkerGone(f"no worker listens at {self.path}: {error}; start it again") from None


def check_socket(path: Path | str, *, make: bool = False) -> Path:
    """Return the absolute path of a socket after a check that only its owner can reach it.

    Raises
    ------
    InputError
        If the path is too long for a socket, or if its folder belongs to another user or can be
        entered by other users.
    """
    path = Path(path).absolute()
    if len(os.fsencode(path)) > _PATH:
        raise InputError(
            f"a socket's path must be at most {_PATH} bytes; got {len(os.fsencode(path))}: {path}; "
            "choose a shorter folder, such as one below $XDG_RUNTIME_DIR"
        )
    folder = path.parent
    if make:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.exists():
        info = folder.stat()
        if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
            raise InputError(
                "the folder of a socket must belong to you and be closed to others (chmod 700); "
                f"got {folder} with mode {stat.S_IMODE(info.st_mode):o} of user {info.st_uid}"
            )
    return path


def check_peer(connection: socket.socket) -> None:
    """Raise if the process at the other end belongs to another user, according to the kernel."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(peer)
    if uid != os.getuid():
        why = f"the process at the other end belongs to user {uid}, not to you ({os.getuid()})"
        raise PermissionError(f"{why}; stop that process, or choose another socket path")


def _bind(listener: socket.socket, path: Path) -> None:
    if path.exists():  # of a worker that was killed, or of one that runs
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise InputError(f"{path} exists and is not a socket; choose another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            try:
                other.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
            else:
                raise InputError(f"another worker listens at {path}; stop it first")
    listener.bind(str(path))


def _serve(connection: socket.socket, handler: Handler, lock: threading.Lock) -> None:
    with connection:
        try:
            check_peer(connection)
            message = Message.decode(_receive(connection))
            with lock:
                reply = _reply(handler, message)
            _send(connection, reply.encode())
        except (OSError, MessageError):
            return  # no reply to a bad request


def _reply(handler: Handler, message: Message) -> Message:
    try:
        return handler.handle(message)
    except Exception as error:  # its text may contain rows, so only its type leaves
        _LOG.exception("the worker failed at %s", message.header)
        return message.reply(error=f"SiteFailed: {type(error).__name__}; see the worker's log")


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def _receive(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > LARGEST:
        raise OSError(f"a message must have at most {LARGEST:,} bytes; got {length:,}")
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
