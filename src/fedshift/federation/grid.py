"""Whoever carries messages between a server and its sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from fedshift.federation.messages import Message


class Grid(Protocol):
    """Whoever carries messages."""

    def exchange(
        self, questions: Mapping[str, Message], *, deadline: float, limit: int
    ) -> Iterable[Answered]:
        """Send each client its question; give answers back as they come, until the deadline.

        Answers of more than `limit` bytes need not be read: the reason takes their place.
        """

    def wait_for(self, clients: Iterable[str], seconds: float) -> None:
        """Wait until all of these can be reached, or the time is over."""


#: a client and its answer, or why there is none
Answered = tuple[str, Message | str]


class InProcess:
    """Sites in this process, asked one after the other; messages go through bytes.

    Parameters
    ----------
    sites : mapping of client to anything with ``handle(message)``
    """

    def __init__(self, sites: Mapping[str, Any]) -> None:
        self.sites = sites

    def wait_for(self, clients: Iterable[str], seconds: float) -> None:
        """Who is not here will not come."""

    def exchange(
        self, questions: Mapping[str, Message], *, deadline: float, limit: int
    ) -> Iterable[Answered]:
        """Ask sites by turns."""
        for name, question in questions.items():
            if name not in self.sites:
                yield name, "not connected"
                continue
            try:
                answer = self.sites[name].handle(Message.decode(question.encode()))
                yield name, Message.decode(answer.encode())
            except Exception as error:  # a site that fails is a site that does not answer
                yield name, f"{type(error).__name__}: {error}"
