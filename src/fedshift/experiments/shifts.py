"""The [data] table of a recipe: where rows come from and how they are shifted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedshift.core.params import nearest
from fedshift.core.samples import Float64Array
from fedshift.data.federation import Federation
from fedshift.data.shift import (
    ColourFlip,
    CovariateTilt,
    GaussianShift,
    LabelDirichlet,
    Labels,
    LinearOutcome,
    LogisticOutcome,
)
from fedshift.data.shift.labels import Short
from fedshift.data.sources import NAMES, Images, load
from fedshift.errors import InputError
from fedshift.experiments.spelling import (
    Choice,
    Place,
    Table,
    arguments,
    at,
    fields_of,
    make,
    plain,
)


@dataclass(frozen=True)
class PolynomialOutcome:
    """y = Σ_i coef_i s^i + noise · ε, with s the sum of a row's values and ε ~ N(0, 1).

    No linear model is right for it, so the best one depends on where the rows lie: the textbook
    case in which covariate shift matters is −s + s³ (Shimodaira 2000).
    """

    coef: Sequence[float]
    noise: float = 1.0

    def __call__(self, x: Float64Array, rng: np.random.Generator) -> Float64Array:
        """A value for each row."""
        mean = np.polynomial.polynomial.polyval(x.sum(axis=1), np.asarray(self.coef))
        return np.asarray(mean + self.noise * rng.normal(size=len(x)))


def paper_labels(*, table: str, short: Short | None = None) -> Labels:
    """A label table of the paper; `short` says what happens where a class has too few rows."""
    made = Labels.paper(table)
    return made if short is None else replace(made, short=short)


#: builders that deal the rows of a source
DEALT: dict[str, Callable[..., Any]] = {
    "colour-flip": ColourFlip,
    "counts": Labels,
    "dirichlet": LabelDirichlet,
    "labels": paper_labels,
    "one-class-each": Labels.one_class_each,
    "tilt": CovariateTilt,
}
#: builders that draw their own rows
DRAWN: dict[str, Callable[..., Any]] = {
    "gaussian": GaussianShift,
    "mean-shift": GaussianShift.mean_shift,
}
OUTCOMES: dict[str, Callable[..., Any]] = {
    "linear": LinearOutcome,
    "logistic": LogisticOutcome,
    "polynomial": PolynomialOutcome,
}
SHIFTS = (*DEALT, *DRAWN)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Rows and their shift.

    In TOML the builder's own parameters stand beside these.

    Attributes
    ----------
    shift : str
        A name of `SHIFTS`.
    source : str, optional
        A data set (`fedshift.data.load`); builders in `DRAWN` have none.
    share : float
        Take only this share of every class of the source, for a small version of an experiment.
    seed : int, optional
        Of the split; the run's own if left out, so that every seed deals anew.
    options : table
        Parameters of the builder.
    """

    shift: str
    source: str | None = None
    share: float = 1.0
    seed: int | None = None
    options: Table = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", plain(self.options))

    @classmethod
    def read(cls, table: Table, key: str, place: Place) -> Data:
        """From the [data] table."""
        place = place.under(key)
        own = {k: v for k, v in table.items() if k in ("shift", "source", "share", "seed")}
        rest = {k: v for k, v in table.items() if k not in own}
        made: Data = replace(make(cls, own, place, skip=("options",)), options=rest)
        made.check(place)
        return made

    @property
    def spelled(self) -> dict[str, Any]:
        """The [data] table."""
        return {**fields_of(self, skip=("options",)), **self.options}

    def check(self, place: Place) -> None:
        """Raise if something is not as the builder needs it; nothing is read yet."""
        if self.shift not in SHIFTS:
            raise InputError(f"{place}: shift must be {nearest(self.shift, SHIFTS)}")
        self._builder(place)
        if self.shift in DEALT and self.source not in NAMES:
            raise InputError(f"{place}: source must be {nearest(self.source, NAMES)}")
        if self.shift in DRAWN and (self.source is not None or self.share != 1):
            raise InputError(
                f"{place}: shift {self.shift!r} draws its own rows; leave source and share out"
            )
        if not 0 < self.share <= 1:
            raise InputError(f"{place}: share must be in (0, 1]; got {self.share!r}")

    def load(self, data_dir: str | os.PathLike[str] | None = None) -> Images | None:
        """The source, as much of it as asked for; None where there is none."""
        if self.source is None:
            return None
        images = load(self.source, data_dir)
        return images if self.share == 1 else thinned(images, self.share)

    def federation(self, images: Images | None, *, seed: int) -> Federation:
        """Deal or draw the clients' rows.

        Parameters
        ----------
        images : Images or None
            What `load` gave.
        seed : int
            Of the run.
        """
        builder = self._builder(Place("recipe", "data"))
        seed = seed if self.seed is None else self.seed
        made = builder.draw(seed=seed) if images is None else images.split(builder, seed=seed)
        assert isinstance(made, Federation)
        return made

    def _builder(self, place: Place) -> Any:
        maker = (DEALT | DRAWN)[self.shift]
        known = ("shift", "source", "share", "seed")
        given = dict(self.options)
        outcome = given.pop("outcome", None) if self.shift in DRAWN else None
        options = arguments(maker, given, place, also=known)
        if outcome is not None:
            chosen, below = Choice.read(outcome, "outcome", place), place.under("outcome")
            chosen.named(OUTCOMES, "outcome", place)
            options["outcome"] = make(OUTCOMES[chosen.kind], chosen.options, below)
        with at(place):
            return maker(**options)


def thinned(images: Images, share: float) -> Images:
    """The first rows of every class, in both parts; at least one of each."""
    keep = np.zeros(len(images), dtype=bool)
    for part in (slice(0, images.n_train), slice(images.n_train, None)):
        y = images.y[part]
        for c in np.unique(y):
            index = np.flatnonzero(y == c) + (part.start or 0)
            keep[index[: max(1, round(share * len(index)))]] = True
    return replace(
        images, x=images.x[keep], y=images.y[keep], n_train=int(keep[: images.n_train].sum())
    )
