"""Messages between a server and its sites, and the checks that each must pass.

A message is a header, arrays and facts. Facts are named values: numbers, texts, or lists of numbers
or texts. The server (`ExpectedReplies`) and the site (`AnsweredNonces`) check the header, so a
reply counts only for the request that it answers. This module imports only numpy, because the
process that passes messages on should start quickly.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedshift.errors import FedshiftError

#: what a server may request, and what a site then does
PHASES = {
    "query.describe": "return its name, its disclosure level, and statistics of its weights",
    "query.share": "send what its disclosure level allows, or receive what other sites sent",
    "train.ratio": "train the ratio model for one round",
    "train.model": "train the shared model for one round",
    "evaluate.model": "score a model on its own test rows",
}
Array = npt.NDArray[Any]
Fact = bool | int | float | str | list[int] | list[float] | list[str]
#: start of an encoded message: 4 bytes of magic, the length of the JSON table that follows
_START = struct.Struct("<4sI")
_MAGIC = b"fsm1"
#: types that an array in a message may have
DTYPES = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "int8",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)


#: errors that bytes which are no message raise
_NO_MESSAGE = (struct.error, ValueError, LookupError, TypeError, OverflowError, RecursionError)
#: largest number of characters of facts and error together
LONGEST = 100_000


class MessageError(FedshiftError, ValueError):
    """A message is malformed or unexpected. The message is dropped, and its sender is named."""


@dataclass(frozen=True)
class Header:
    """Run, phase and round of a message, and its nonce (a random number used once).

    Attributes
    ----------
    run : str
        Name of the run. It ends with the digest of the run's task. A site refuses tasks that it has
        not agreed to.
    phase : str
        A key of `PHASES`.
    round : int
        Number of the round, from 0.
    nonce : str
        32 hexadecimal digits, drawn anew for every request. The reply repeats them.
    """

    run: str
    phase: str
    round: int
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        if not isinstance(self.run, str):
            raise MessageError(f"run must be text; got {_repr(self.run)}")
        if not isinstance(self.phase, str) or self.phase not in PHASES:
            raise MessageError(f"phase must be one of {', '.join(PHASES)}; got {_repr(self.phase)}")
        if type(self.round) is not int or not 0 <= self.round < 2**63:
            raise MessageError(f"round must be a whole number ≥ 0; got {_repr(self.round)}")
        if not isinstance(self.nonce, str) or not re.fullmatch("[0-9a-f]{32}", self.nonce):
            raise MessageError("nonce must be 32 hexadecimal digits")


@dataclass(frozen=True)
class Message:
    """A request or a reply.

    Attributes
    ----------
    header : Header
    arrays : mapping of name to ndarray
    facts : mapping of name to value
        Named values beside the arrays: numbers, texts, or lists of numbers or texts.
    error : str
        Why a site did not carry out the request; empty if the site did.
    """

    header: Header
    arrays: Mapping[str, Array] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    error: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.error, str) or not isinstance(self.facts, Mapping):
            raise MessageError("facts must be a mapping from names to values, and error a text")
        for name, value in self.facts.items():
            if not isinstance(name, str) or not _is_fact(value):
                raise MessageError(
                    f"fact {_repr(name)} must be a number, a text, a list of numbers or a list of "
                    f"texts; got {_repr(value)}"
                )
        if _length(self.error) + sum(map(_length, self.facts.values())) > LONGEST:
            raise MessageError(f"facts and error together must have at most {LONGEST:,} characters")
        for name, a in self.arrays.items():
            if not isinstance(name, str) or a.dtype.name not in DTYPES:
                raise MessageError(
                    f"array {_repr(name)} must be of type {', '.join(DTYPES)}; got {a.dtype}"
                )

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return sum(a.nbytes for a in self.arrays.values())

    def reply(
        self,
        arrays: Mapping[str, Array] | None = None,
        facts: Mapping[str, Fact] | None = None,
        *,
        error: str = "",
    ) -> Message:
        """Return a reply to this message, with the same header."""
        return Message(self.header, arrays or {}, facts or {}, error)

    def fact(self, name: str, kind: type) -> Any:
        """Return a fact after a check of its type.

        Raises
        ------
        MessageError
            If the fact is missing or of another type.
        """
        value = self.facts.get(name)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise MessageError(f"{name} must be {kind.__name__}; got {_repr(value)}")
        return value

    def array(self, name: str, shape: tuple[int, ...] | None = None, kind: str = "f") -> Array:
        """Check an array's shape and type and that all its values are finite, and return it.

        Parameters
        ----------
        name : str
        shape : tuple of int, optional
        kind : {"f", "i"}
            "f" for floats, "i" for integers.

        Raises
        ------
        MessageError
            If the array is missing, has another shape or type, or holds NaN or infinity.
        """
        if name not in self.arrays:
            raise MessageError(f"array {name} is missing; got {sorted(self.arrays)}")
        a = self.arrays[name]
        if a.dtype.kind not in (kind if kind != "i" else "iu"):
            numbers = "floats" if kind == "f" else "integers"
            raise MessageError(f"array {name} must hold {numbers}; got {a.dtype}")
        if shape is not None and a.shape != shape:
            raise MessageError(f"array {name} must have shape {shape}; got {a.shape}")
        if kind == "f" and not np.isfinite(a).all():
            raise MessageError(f"array {name} holds NaN or infinity")
        return a

    # -- bytes ---------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return bytes for a local socket or a file: a JSON table, then the arrays one by one."""
        parts = {n: plain(a) for n, a in self.arrays.items()}
        table = {
            "header": [self.header.run, self.header.phase, self.header.round, self.header.nonce],
            "facts": dict(self.facts),
            "error": self.error,
            "arrays": {n: [a.dtype.name, list(a.shape)] for n, a in parts.items()},
        }
        text = json.dumps(table).encode()
        return b"".join(
            [_START.pack(_MAGIC, len(text)), text, *(a.tobytes() for a in parts.values())]
        )

    @classmethod
    def decode(cls, data: bytes) -> Message:
        """Return the message that `encode` turned into these bytes.

        Raises
        ------
        MessageError
            If the bytes are not a valid message.
        """
        try:
            magic, length = _START.unpack_from(data)
            if magic != _MAGIC:
                raise MessageError("the first bytes are not those of a message")
            table = json.loads(data[_START.size : _START.size + length])
            header = Header(*table["header"])
            arrays, at = {}, _START.size + length
            for name, (dtype, shape) in dict(table["arrays"]).items():
                if dtype not in DTYPES or any(type(n) is not int or n < 0 for n in shape):
                    raise MessageError(f"array {name} has wrong type {dtype!r} or shape {shape}")
                count = math.prod(shape)
                arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
                at += arrays[name].nbytes
            if at != len(data):
                raise MessageError(f"there are {len(data) - at} bytes too many")
            return cls(header, arrays, table["facts"], table["error"])
        except _NO_MESSAGE as error:
            raise MessageError(f"the bytes are not a valid message: {error}") from error


class ExpectedReplies:
    """The replies that a server waits for in a round, each known by the nonce of its request."""

    def __init__(self, requests: Mapping[str, Message]) -> None:
        self._open = {name: m.header for name, m in requests.items()}

    def accept(self, client: str, reply: Message, *, limit: int) -> Message:
        """Return the reply if it is the client's first reply to the server's request.

        Parameters
        ----------
        limit : int
            Largest number of bytes that the arrays of the reply may have.

        Raises
        ------
        MessageError
            If the reply is old, repeated, too large or a refusal, or is for another run or phase.
        """
        request = self._open.get(client)
        if request is None:
            raise MessageError(f"client {client!r} got no request, or has replied already")
        for name in ("run", "phase", "round", "nonce"):
            got, due = getattr(reply.header, name), getattr(request, name)
            if got != due:
                raise MessageError(
                    f"the reply must have {name} {due!r}; got {got!r}: a stale or replayed message"
                )
        del self._open[client]
        if reply.error:
            raise MessageError(reply.error[:500])
        if reply.size > limit:
            raise MessageError(f"the reply must have at most {limit:,} bytes; got {reply.size:,}")
        return reply


class AnsweredNonces:
    """Nonces of the requests that a site has answered; it answers each request once.

    Parameters
    ----------
    task : str
        Digest of the task that the site has agreed to. Its runs are called ``NAME-DIGEST``.
    nonces : iterable of str
        Nonces of requests that were answered before.
    keep : int
        How many of the latest nonces to remember.
    """

    def __init__(self, task: str, nonces: Iterable[str] = (), *, keep: int = 4096) -> None:
        self.task, self.recent, self._keep = task, list(nonces), keep

    def add(self, request: Message) -> None:
        """Remember a request.

        Raises
        ------
        MessageError
            If the request belongs to another task, or was answered before.
        """
        head = request.header
        task = head.run.rpartition("-")[2]
        if task != self.task:
            raise MessageError(
                f"this site has agreed to task {self.task!r}; the request is for task {task!r}; "
                "compare the task files of server and site; if they are the same, compare the "
                "versions of fedshift"
            )
        if head.nonce in self.recent:
            what = f"{head.phase} of round {head.round}"
            raise MessageError(f"this request, {what}, was answered before: it is a replay")
        self.recent = [*self.recent, head.nonce][-self._keep :]


def plain(array: Array) -> Array:
    """Return an array in row-major order and this machine's byte order, as messages need it."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def digest(value: Any) -> str:
    """Return a short hash of a JSON value."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _is_fact(value: Any) -> bool:
    items = value if type(value) is list else [value]
    kinds = {type(v) for v in items}
    return len(kinds) <= 1 and kinds <= {bool, int, float, str}


def _length(value: Fact) -> int:
    if isinstance(value, list):
        return sum(map(_length, value))
    return len(value) if isinstance(value, str) else 8


def _repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
