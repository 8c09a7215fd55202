"""Errors of a deployment whose processes run on this machine."""

from __future__ import annotations

from fedshift.errors import FedshiftError, install_hint


class DeployError(FedshiftError, RuntimeError):
    """A deployment did not start, or did not finish."""


class FlowerMissing(DeployError, ImportError):
    """Flower, or a package that comes with it, is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed; {install_hint('flower')}")
