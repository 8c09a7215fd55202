"""All that may travel between a server and its sites, and the checks it has to pass.

A message is a header, arrays and facts. Both ends check the header, so that an answer counts for
the question it was asked and for no other: `Expected` on the server, `Seen` at a site. Numpy only,
as the process that hands messages on should start quickly.
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

#: what a server may ask, and what a site then does
PHASES = {
    "query.describe": "say who it is, how many rows it has, and what its policy lets it tell",
    "query.share": "send what its rung of the privacy ladder allows; take what others sent",
    "train.ratio": "do a round of the ratio model",
    "train.model": "do a round of the shared model",
    "evaluate.model": "score a model on its own rows",
}
Array = npt.NDArray[Any]
Fact = bool | int | float | str | list[int] | list[float] | list[str]
#: bytes, 4 of length and a JSON table, before the arrays of an encoded message
_START = struct.Struct("<4sI")
_MAGIC = b"fsm1"
#: types an array may have on the wire
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


#: what bytes that are no message lead to
_NO_MESSAGE = (
    struct.error,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    RecursionError,
)
#: most characters of facts and an error together
LONGEST = 100_000


class MessageError(FedshiftError, ValueError):
    """A message is not what it should be; it is put aside and its sender named."""


@dataclass(frozen=True)
class Header:
    """What a message belongs to.

    Attributes
    ----------
    run : str
        The run, with a digest of its task: sites refuse a task they have not agreed to.
    phase : str
        A key of `PHASES`.
    round : int
    nonce : str
        Drawn anew for every question; its answer repeats it.
    """

    run: str
    phase: str
    round: int
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        if not isinstance(self.run, str):
            raise MessageError(f"run must be text; got {_shown(self.run)}")
        if not isinstance(self.phase, str) or self.phase not in PHASES:
            raise MessageError(
                f"phase must be one of {', '.join(PHASES)}; got {_shown(self.phase)}"
            )
        if type(self.round) is not int or not 0 <= self.round < 2**63:
            raise MessageError(f"round must be a whole number ≥ 0; got {_shown(self.round)}")
        if not isinstance(self.nonce, str) or not re.fullmatch("[0-9a-f]{32}", self.nonce):
            raise MessageError("nonce must be 32 hexadecimal digits")


@dataclass(frozen=True)
class Message:
    """A question or an answer.

    Attributes
    ----------
    header : Header
    arrays : mapping of name to ndarray
    facts : mapping of name to number, text or a list of them
    error : str
        Why a site did not do what it was asked; empty if it did.
    """

    header: Header
    arrays: Mapping[str, Array] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    error: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.error, str) or not isinstance(self.facts, Mapping):
            raise MessageError("a message needs facts by name and a text for an error")
        for name, value in self.facts.items():
            if not isinstance(name, str) or not _is_fact(value):
                raise MessageError(
                    f"fact {_shown(name)} must be a number, text or a list of one kind of them; "
                    f"got {_shown(value)}"
                )
        if _length(self.error) + sum(map(_length, self.facts.values())) > LONGEST:
            raise MessageError(f"facts and error must have at most {LONGEST:,} characters")
        for name, a in self.arrays.items():
            if not isinstance(name, str) or a.dtype.name not in DTYPES:
                raise MessageError(f"array {_shown(name)} must be of a plain type; got {a.dtype}")

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return sum(a.nbytes for a in self.arrays.values())

    def answer(
        self,
        arrays: Mapping[str, Array] | None = None,
        facts: Mapping[str, Fact] | None = None,
        *,
        error: str = "",
    ) -> Message:
        """A reply to this message, under its header."""
        return Message(self.header, arrays or {}, facts or {}, error)

    def fact(self, name: str, kind: type) -> Any:
        """A fact of a certain type.

        Raises
        ------
        MessageError
            If it is missing or of another type.
        """
        value = self.facts.get(name)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise MessageError(f"{name} must be {kind.__name__}; got {_shown(value)}")
        return value

    def array(self, name: str, shape: tuple[int, ...] | None = None, kind: str = "f") -> Array:
        """An array of a certain shape and kind of number ("f": float, "i": integer), all finite.

        Raises
        ------
        MessageError
            If it is missing, of another shape or type, or holds NaN or infinity.
        """
        if name not in self.arrays:
            raise MessageError(f"array {name} is missing; got {sorted(self.arrays)}")
        a = self.arrays[name]
        if a.dtype.kind not in (kind if kind != "i" else "iu"):
            raise MessageError(f"array {name} must be of kind {kind!r}; got {a.dtype}")
        if shape is not None and a.shape != shape:
            raise MessageError(f"array {name} must have shape {shape}; got {a.shape}")
        if kind == "f" and not np.isfinite(a).all():
            raise MessageError(f"array {name} holds NaN or infinity")
        return a

    # -- bytes ---------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Bytes for a local socket or a file: a JSON table and the arrays behind one another."""
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
        """The message of `encode`.

        Raises
        ------
        MessageError
            If the bytes are anything else.
        """
        try:
            magic, length = _START.unpack_from(data)
            if magic != _MAGIC:
                raise MessageError("they do not begin as one")
            table = json.loads(data[_START.size : _START.size + length])
            header = Header(*table["header"])
            arrays, at = {}, _START.size + length
            for name, (dtype, shape) in dict(table["arrays"]).items():
                if dtype not in DTYPES or any(type(n) is not int or n < 0 for n in shape):
                    raise MessageError(f"array {name} has type {dtype!r} and shape {shape}")
                count = math.prod(shape)
                arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
                at += arrays[name].nbytes
            if at != len(data):
                raise MessageError(f"{len(data) - at} bytes too many")
            return cls(header, arrays, table["facts"], table["error"])
        except _NO_MESSAGE as error:
            raise MessageError(f"the bytes are no message: {error}") from error


class Expected:
    """A server's questions of a round, each with the nonce its answer must bear."""

    def __init__(self, questions: Mapping[str, Message]) -> None:
        self._open = {name: m.header for name, m in questions.items()}

    def take(self, client: str, reply: Message, *, limit: int) -> Message:
        """The reply, if it is the first answer to what this client was asked.

        Parameters
        ----------
        limit : int
            Most bytes its arrays may have.

        Raises
        ------
        MessageError
            If it is stale, a replay, of another run or phase, too large, or a refusal.
        """
        asked = self._open.get(client)
        if asked is None:
            raise MessageError(f"client {client!r} was not asked, or has answered already")
        got = reply.header
        for name in ("run", "phase", "round", "nonce"):
            if getattr(got, name) != getattr(asked, name):
                raise MessageError(
                    f"the answer has {name} {getattr(got, name)!r}, asked was "
                    f"{getattr(asked, name)!r}: a stale or replayed message"
                )
        del self._open[client]
        if reply.error:
            raise MessageError(reply.error[:500])
        if reply.size > limit:
            raise MessageError(f"the answer has {reply.size:,} bytes; at most {limit:,} were due")
        return reply


class Seen:
    """Nonces a site has answered; a question is answered once.

    Parameters
    ----------
    task : str
        Digest of the task the site has agreed to; runs of it are called ``NAME-DIGEST``.
    """

    def __init__(self, task: str, nonces: Iterable[str] = (), *, keep: int = 4096) -> None:
        self.task, self.nonces, self._keep = task, list(nonces), keep

    def take(self, message: Message) -> None:
        """Remember a question.

        Raises
        ------
        MessageError
            If it belongs to another task, or was asked before.
        """
        head = message.header
        task = head.run.rpartition("-")[2]
        if task != self.task:
            raise MessageError(
                f"the question is for task {task!r}; this site has agreed to {self.task!r}; "
                "compare the task files of server and site and, if they are the same, the versions "
                "of fedshift"
            )
        if head.nonce in self.nonces:
            raise MessageError(f"{head.phase} of round {head.round} was asked before: a replay")
        self.nonces = [*self.nonces, head.nonce][-self._keep :]


def plain(array: Array) -> Array:
    """An array as it travels: row after row, in this machine's order of bytes."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def digest(value: Any) -> str:
    """A short hash of a JSON value."""
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


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
