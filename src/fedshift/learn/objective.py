"""Which test law every client's rows are weighted towards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedshift.core.params import nearest
from fedshift.data.federation import Federation, Goal
from fedshift.errors import InputError


@dataclass(frozen=True)
class Objective:
    """The weight of client k's row x, by name.

    ========================= ===================================================================
    "erm"                     1
    "ftw"                     Σ_l p_l^te(x) / p_k^tr(x): every client's test law counts
    "fitw"                    p_k^te(x) / p_k^tr(x): each client towards its own
    "focus:NAME"              p_l^te(x) / p_k^tr(x), l the client named, with λ_k as the plan says
    ========================= ===================================================================

    The scenarios of the paper's table are special cases of the last: "no-shift:NAME" (the client
    has no shift of its own, so its own rows count 1), "shift-on-one:NAME" and
    "shift-on-both:NAME" (two clients) and "shift-on-many:NAME".

    Attributes
    ----------
    kind : str
    client : str or None
        In focus.
    """

    kind: str
    client: str | None = None

    KINDS: ClassVar[tuple[str, ...]] = ("erm", "ftw", "fitw")
    FOCUSED: ClassVar[tuple[str, ...]] = (
        "focus",
        "no-shift",
        "shift-on-one",
        "shift-on-both",
        "shift-on-many",
    )

    @classmethod
    def of(cls, spelled: str | Objective) -> Objective:
        """An objective from its name, for example "ftw" or "focus:ward-3"."""
        if isinstance(spelled, Objective):
            return spelled
        kind, _, client = str(spelled).partition(":")
        if kind in cls.KINDS and not client:
            return cls(kind)
        if kind in cls.FOCUSED and client:
            return cls(kind, client)
        choices = (*cls.KINDS, *(f"{k}:CLIENT" for k in cls.FOCUSED))
        raise InputError(f"objective must be {nearest(spelled, choices)}")

    def __str__(self) -> str:
        return self.kind if self.client is None else f"{self.kind}:{self.client}"

    def check(self, federation: Federation) -> None:
        """Raise if the objective makes no sense for a federation."""
        if self.client is not None:
            _ = federation[self.client]  # names the clients there are
        if self.kind in ("shift-on-one", "shift-on-both") and len(federation) != 2:
            raise InputError(
                f"objective {self} is for two clients; got {len(federation)}; take "
                f"'shift-on-many:{self.client}'"
            )

    def check_lean(self, lean: Any) -> None:
        """Raise unless clients can lean so far on each other: all must have one target."""
        if isinstance(lean, bool) or not (isinstance(lean, int | float) and 0 <= lean <= 1):
            raise InputError(f"lean must be an exponent in [0, 1]; got {lean!r}")
        if lean and self.kind in ("fitw", "no-shift"):
            raise InputError(
                f"lean needs clients that are all weighted towards one target, objective 'ftw' or "
                f"'focus:CLIENT'; got {str(self)!r} with lean {lean}; leave lean out"
            )

    def goal(self, client: str) -> Goal | None:
        """The goal of a client's ratios; None where every row counts 1."""
        if self.kind == "erm" or (self.kind == "no-shift" and client == self.client):
            return None
        if self.client is not None:
            return self.client
        return "all" if self.kind == "ftw" else "own"

    def laws(self, federation: Federation) -> int:
        """Test laws in the numerator."""
        return len(federation) if self.kind == "ftw" else 1

    def goals(self, federation: Federation) -> Mapping[str, Goal | None]:
        """The goal of every client, by name."""
        self.check(federation)
        return {c.name: self.goal(c.name) for c in federation}
