"""What may leave a site, and what it costs: the ladder, disclosure control, noise, accounting."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift.privacy.accountant import Accountant, Spent
    from fedshift.privacy.counts import Released, Releases, release_counts
    from fedshift.privacy.policy import NEEDS, RUNGS, Privacy, Refused, describe

#: where each name lives; loaded on first use, so that a site without torch can import this
_HOME = {
    "NEEDS": "policy",
    "RUNGS": "policy",
    "Accountant": "accountant",
    "Privacy": "policy",
    "Refused": "policy",
    "Released": "counts",
    "Releases": "counts",
    "Spent": "accountant",
    "describe": "policy",
    "release_counts": "counts",
}

__all__ = [
    "NEEDS",
    "RUNGS",
    "Accountant",
    "Privacy",
    "Refused",
    "Released",
    "Releases",
    "Spent",
    "describe",
    "release_counts",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
