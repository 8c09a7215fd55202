"""What can go wrong when processes are started on this machine."""

from __future__ import annotations

from fedshift.errors import FedshiftError


class DeployError(FedshiftError, RuntimeError):
    """A deployment could not be started or did not come to its end."""


class FlowerMissing(DeployError, ImportError):
    """Flower, or a package that comes with it, is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed; run: pip install 'fedshift[flower]'")
