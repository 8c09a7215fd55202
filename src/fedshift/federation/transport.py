"""What moves messages between a server and its sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from fedshift.federation.messages import Message


class Handler(Protocol):
    """An object that replies to requests: a `fedshift.federation.site.Site`, or its worker."""

    def handle(self, message: Message) -> Message:
        """Return the reply to a request."""


class Transport(Protocol):
    """What moves messages between a server and its sites."""

    def exchange(
        self, requests: Mapping[str, Message], *, deadline: float, limit: int
    ) -> Iterable[NamedReply]:
        """Send each client its request, and yield replies as they arrive until the deadline.

        A transport need not read a reply of more than `limit` bytes. If a reply is not read, the
        reason is yielded in its place.
        """

    def wait_for(self, clients: Iterable[str], seconds: float) -> None:
        """Wait until all of these clients can be reached, or `seconds` have passed."""


#: a client, and its reply or the reason why there is none
NamedReply = tuple[str, Message | str]


class InProcess:
    """A transport to sites in this process, called one after the other.

    Messages are encoded and decoded, as in a deployment.

    Parameters
    ----------
    sites : mapping of client to Handler
    """

    def __init__(self, sites: Mapping[str, Handler]) -> None:
        self.sites = sites

    def wait_for(self, clients: Iterable[str], seconds: float) -> None:
        """Return at once: a site that is not in this process will not join later."""

    def exchange(
        self, requests: Mapping[str, Message], *, deadline: float, limit: int
    ) -> Iterable[NamedReply]:
        """Call the sites one after the other."""
        for name, request in requests.items():
            if name not in self.sites:
                yield name, "not connected"
                continue
            try:
                reply = self.sites[name].handle(Message.decode(request.encode()))
                yield name, Message.decode(reply.encode())
            except Exception as error:  # a site that fails counts as one that does not reply
                yield name, f"{type(error).__name__}: {error}"
