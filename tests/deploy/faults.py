"""Faults that tests inject into a fleet, and what is left of it."""

from __future__ import annotations

from fedshift.deploy import guard
from fedshift.deploy.fleet import Fleet


def kill_superlink(fleet: Fleet) -> None:
    """`kill -9` the SuperLink."""
    with fleet._lock:
        fleet.superlink.process.kill()


def kill_node(fleet: Fleet, client: str) -> None:
    """`kill -9` the SuperNode of a client."""
    with fleet._lock:
        fleet.nodes[client].process.kill()


def survivors(fleet: Fleet) -> list[int]:
    """Numbers of all processes of a fleet, those included that Flower started."""
    apart = {None if fleet._guard is None else fleet._guard.pid}
    return [pid for pid in guard.members(fleet.tag) if pid not in apart]
