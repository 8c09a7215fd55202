"""The objective: which test distribution the weighted rows of each client represent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedshift.core.params import nearest
from fedshift.data.federation import Federation, Goal
from fedshift.errors import InputError


@dataclass(frozen=True)
class Objective:
    """A training objective, which defines the weight of a row x of client k.

    p_k^tr is the training distribution of client k, and p_l^te the test distribution of client l.

    ============  ================================  ==============================================
    name          weight                            target
    ============  ================================  ==============================================
    "erm"         1                                 none: unweighted training
    "ftw"         Σ_l p_l^te(x) / p_k^tr(x)         the test distributions of all clients
    "fitw"        p_k^te(x) / p_k^tr(x)             each client's own test distribution
    "focus:NAME"  p_l^te(x) / p_k^tr(x)             the test distribution of client l = NAME
    ============  ================================  ==============================================

    Clients are combined as Σ_k λ_k F_k, where F_k is the weighted mean loss of client k. The plan
    sets the coefficients λ_k, also for "focus:NAME".

    The scenarios of Ramezani-Kebrya et al. (TMLR 2023) are special cases of "focus:NAME":

    - "no-shift:NAME": the client NAME has equal training and test distributions, so its own rows
      have weight 1,
    - "shift-on-one:NAME": two clients; for one of them, training and test distribution differ,
    - "shift-on-both:NAME": two clients; for each, training and test distribution differ,
    - "shift-on-many:NAME": any number of clients.

    The last three give the same weights as "focus:NAME".

    Attributes
    ----------
    kind : str
        Name of the objective, without the client.
    client : str or None
        The client NAME; None for an objective without one.
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
    def of(cls, text: str | Objective) -> Objective:
        """Return the objective with a given name, for example "ftw" or "focus:ward-3"."""
        if isinstance(text, Objective):
            return text
        kind, _, client = str(text).partition(":")
        if kind in cls.KINDS and not client:
            return cls(kind)
        if kind in cls.FOCUSED and client:
            return cls(kind, client)
        choices = (*cls.KINDS, *(f"{k}:CLIENT" for k in cls.FOCUSED))
        raise InputError(f"objective must be {nearest(text, choices)}")

    def __str__(self) -> str:
        return self.kind if self.client is None else f"{self.kind}:{self.client}"

    def check(self, federation: Federation) -> None:
        """Raise an error if a federation does not suit the objective."""
        if self.client is not None:
            _ = federation[self.client]  # an unknown client raises an error with all names
        if self.kind in ("shift-on-one", "shift-on-both") and len(federation) != 2:
            raise InputError(
                f"objective {self} needs two clients; got {len(federation)}; use "
                f"'shift-on-many:{self.client}'"
            )

    def check_pooling(self, pooling: Any) -> None:
        """Raise an error if `pooling` is not in [0, 1], or above 0 and clients' targets differ.

        The exponent `pooling` says how far a client's weights use the mixture of all training
        distributions (`fedshift.Settings`).
        """
        if isinstance(pooling, bool) or not (
            isinstance(pooling, int | float) and 0 <= pooling <= 1
        ):
            raise InputError(f"pooling must be an exponent in [0, 1]; got {pooling!r}")
        if pooling and self.kind in ("fitw", "no-shift"):
            raise InputError(
                "pooling needs objective 'ftw' or 'focus:CLIENT', in which all clients have the "
                f"same target; got {str(self)!r} with pooling {pooling}; leave pooling out"
            )

    def goal(self, client: str) -> Goal | None:
        """Return the target of a client's ratios; None if every row has weight 1."""
        if self.kind == "erm" or (self.kind == "no-shift" and client == self.client):
            return None
        if self.client is not None:
            return self.client
        return "all" if self.kind == "ftw" else "own"

    def n_targets(self, federation: Federation) -> int:
        """Return the number of test distributions in the numerator."""
        return len(federation) if self.kind == "ftw" else 1

    def goals(self, federation: Federation) -> Mapping[str, Goal | None]:
        """Return the target of every client's ratios, by client."""
        self.check(federation)
        return {c.name: self.goal(c.name) for c in federation}
