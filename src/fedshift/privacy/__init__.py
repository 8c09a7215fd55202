"""What may leave a site, and its privacy cost: disclosure levels, noise, accounting."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedshift.privacy.accountant import Accountant as Accountant
    from fedshift.privacy.policy import DISCLOSURE_LEVELS as DISCLOSURE_LEVELS
    from fedshift.privacy.policy import Privacy as Privacy
else:
    from fedshift.core.lazy import attach

    __getattr__, __dir__, __all__ = attach(
        __name__, {"policy": ("DISCLOSURE_LEVELS", "Privacy"), "accountant": ("Accountant",)}
    )
