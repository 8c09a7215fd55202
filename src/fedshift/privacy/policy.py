"""What a site lets go: a rung of the ladder, thresholds and noise, set by the site itself."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedshift.core.params import nearest, positive, whole
from fedshift.errors import FedshiftError, InputError


class Refused(FedshiftError, PermissionError):
    """A site does not answer: its policy does not allow what was asked."""


class Rung(NamedTuple):
    """One step of the ladder, in words."""

    name: str
    leaves: str
    learnt: str


#: the ladder; a rung allows what the rungs below it allow
RUNGS: tuple[Rung, ...] = (
    Rung(
        "nothing",
        "updates of the model being trained, the mean of the weights of its rows, and, where test "
        "rows have labels, scores of one model of the server's choice a run",
        "how well that model does on the test rows (one made for it tells whether a row and its "
        "label are among them; scores = false keeps this), and what the mean weight says; updates "
        "may show much of the training rows to a server that tries",
    ),
    Rung(
        "label marginals",
        "how often each label occurs, small cells suppressed, with noise if asked for",
        "the mix of labels at each site, that of its test rows included",
    ),
    Rung(
        "ratio gradients",
        "updates of a classifier that tells the sites' laws apart",
        "by how much any row is likelier at one site than at another; with noise, any one row "
        "changes this little, and the epsilon is reported",
    ),
    Rung(
        "bin counts",
        "how many rows lie in each of a few cells that the server proposed",
        "a coarse histogram of the site's test rows",
    ),
    Rung(
        "generated samples",
        "rows drawn from a model that was fitted to the site's test rows",
        "the law of the test rows as well as the model has it; rows that the model learnt by "
        "heart may come back, so read the membership audit first",
    ),
    Rung(
        "raw samples",
        "unlabelled test rows as they are, mixed by the server",
        "the rows themselves: whoever runs the server, or sees what it hands on, can read them",
    ),
)

#: the rung that each thing a server may ask for needs; what is not here is refused
NEEDS: dict[str, int] = {
    "train.model": 0,
    "evaluate.model": 0,
    "label_marginals": 1,
    "train.ratio": 2,
    "bin_counts": 3,
    "generated_samples": 4,
    "raw_samples": 5,
}


def describe(rung: int) -> str:
    """A rung in a few words, for people.

    Examples
    --------
    >>> print(describe(3))
    Rung 3, bin counts.
    Leaves a site: how many rows lie in each of a few cells that the server proposed.
    Others learn: a coarse histogram of the site's test rows.
    """
    _check_rung(rung, "describe: rung")
    name, leaves, learnt = RUNGS[rung]
    return f"Rung {rung}, {name}.\nLeaves a site: {leaves}.\nOthers learn: {learnt}."


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """A site's own settings of disclosure control. The server cannot change them.

    It fails closed: what is not known to be allowed is refused, and said to be.

    Thresholds are disclosure control, not differential privacy: that a site refused tells that
    its count was low. The numbers of rows of a site's laws are taken as public.

    Parameters
    ----------
    rung : int
        0 nothing, 1 label marginals, 2 ratio gradients, 3 bin counts, 4 generated samples,
        5 raw samples; see `describe`.
    min_rows : int
        With fewer rows in a law, the site answers nothing about it.
    min_count : int
        A cell of a table with fewer rows is not shown; 0 shows all.
    noise : float
        Standard deviation of the noise on a sum of ratio gradients, in units of `clip`;
        0 is none.
    clip : float
        Longest gradient that one row may add; used where `noise` > 0.
    epsilon_counts : float, optional
        Differential privacy of every release of counts; None is none.
    delta : float
        At which ε is reported; much less than one over the number of rows.
    raw : bool
        Rung 5 needs it said twice.
    scores : bool
        Whether to score a model of the server's choice, once a run, on test rows that have
        labels; if not, the site answers as if they had none.

    Examples
    --------
    >>> policy = Privacy()
    >>> policy
    Privacy(rung 2: ratio gradients; laws of ≥ 20 rows, cells of ≥ 5; no noise)
    >>> policy.allows("train.ratio"), policy.allows("raw_samples"), policy.allows("anything")
    (True, False, False)
    """

    rung: int = 2
    min_rows: int = 20
    min_count: int = 5
    noise: float = 0.0
    clip: float = 1.0
    epsilon_counts: float | None = None
    delta: float = 1e-5
    raw: bool = False
    scores: bool = True

    def __post_init__(self) -> None:
        _check_rung(self.rung, "Privacy: rung")
        whole(self, "min_rows")
        whole(self, "min_count", least=0)
        positive(self, "clip")
        if not (_number(self.noise) and 0 <= self.noise < math.inf):
            raise InputError(f"Privacy: noise must be a number ≥ 0; got {self.noise!r}")
        if self.epsilon_counts is not None:
            positive(self, "epsilon_counts")
        if not (_number(self.delta) and 0 < self.delta < 1):
            raise InputError(f"Privacy: delta must lie between 0 and 1; got {self.delta!r}")
        for name in ("raw", "scores"):
            if not isinstance(getattr(self, name), bool):
                got = getattr(self, name)
                raise InputError(f"Privacy: {name} must be true or false; got {got!r}")
        if self.rung == 5 and not self.raw:
            raise InputError(
                "Privacy: rung 5 sends this site's unlabelled test rows as they are, and others "
                "will be able to read them; set raw = true as well if that is meant, or take "
                "rung 2, which sends none"
            )

    def allows(self, asked: str | int) -> bool:
        """Whether a thing (a key of `NEEDS`) or all of a rung may leave; False if unknown."""
        need = _needed(asked)
        return need is not None and need <= self.rung

    def check(self, asked: str | int, *, rows: int | None = None) -> None:
        """Refuse what the policy does not allow.

        Parameters
        ----------
        asked : str or int
            A key of `NEEDS`, or a rung.
        rows : int, optional
            Rows of the law that the answer would tell about.

        Raises
        ------
        Refused
            Naming what was asked, what is allowed and what to do.
        """
        need = _needed(asked)
        if need is None:
            raise Refused(f"a site answers only what it knows: {nearest(asked, NEEDS)}")
        allowed = f"this site allows rung {self.rung} ({RUNGS[self.rung].name})"
        if need > self.rung:
            raise Refused(
                f"{asked!r} needs rung {need} ({RUNGS[need].name}); {allowed}; ask for less, or "
                "have the site's owner raise its rung"
            )
        if rows is not None and not (_whole(rows) and rows >= self.min_rows):
            # how many there were is what must not be told
            raise Refused(
                f"{asked!r} was asked of a law with fewer rows than the {self.min_rows} this "
                "site needs to answer; leave the site out, or have its owner lower min_rows"
            )

    def __repr__(self) -> str:
        noise = [f"gradient noise {self.noise:g} at clip {self.clip:g}"] * (self.noise > 0)
        if self.epsilon_counts is not None:
            noise.append(f"counts at ε = {self.epsilon_counts:g}")
        return (
            f"Privacy(rung {self.rung}: {RUNGS[self.rung].name}; laws of ≥ {self.min_rows} rows, "
            f"cells of ≥ {self.min_count}; {', '.join(noise) or 'no noise'}"
            f"{'' if self.scores else '; no scores'})"
        )


def _needed(asked: object) -> int | None:
    if isinstance(asked, str):
        return NEEDS.get(asked)
    return int(asked) if _whole(asked) and 0 <= asked < len(RUNGS) else None  # type: ignore


def _check_rung(rung: Any, name: str) -> None:
    if _needed(rung) is None or isinstance(rung, str):
        raise InputError(f"{name} must be a whole number from 0 to 5; got {rung!r}")


def _whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


__all__ = ["NEEDS", "RUNGS", "Privacy", "Refused", "Rung", "describe"]
