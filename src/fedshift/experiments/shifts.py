"""The [data] table of a recipe: the source of its rows and their shift."""

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
from fedshift.experiments.toml_tables import (
    Location,
    Spec,
    TomlTable,
    arguments,
    at,
    fields_of,
    make,
    plain,
)


@dataclass(frozen=True)
class PolynomialOutcome:
    """y = Σ_i coef_i s^i + noise · ε, with s the sum of a row's values and ε ~ N(0, 1).

    No linear model fits it exactly, so the best linear model depends on where the rows lie. The
    textbook example in which covariate shift matters has the mean −s + s³ (Shimodaira 2000).
    """

    coef: Sequence[float]
    noise: float = 1.0

    def __call__(self, x: Float64Array, rng: np.random.Generator) -> Float64Array:
        """Draw a value for each row."""
        mean = np.polynomial.polynomial.polyval(x.sum(axis=1), np.asarray(self.coef))
        return np.asarray(mean + self.noise * rng.normal(size=len(x)))


def paper_labels(*, table: str, short: Short | None = None) -> Labels:
    """A table of rows per client and class, from Ramezani-Kebrya et al. (TMLR 2023).

    `short` decides what happens to classes with too few rows ("error", "shrink" or "reuse", see
    `Labels`). None keeps the setting of the table.
    """
    labels = Labels.paper(table)
    return labels if short is None else replace(labels, short=short)


#: shifts that split the rows of a source
SPLIT: dict[str, Callable[..., Any]] = {
    "colour-flip": ColourFlip,
    "counts": Labels,
    "dirichlet": LabelDirichlet,
    "labels": paper_labels,
    "one-class-each": Labels.one_class_each,
    "tilt": CovariateTilt,
}
#: shifts that draw their own rows
DRAWN: dict[str, Callable[..., Any]] = {
    "gaussian": GaussianShift,
    "mean-shift": GaussianShift.mean_shift,
}
OUTCOMES: dict[str, Callable[..., Any]] = {
    "linear": LinearOutcome,
    "logistic": LogisticOutcome,
    "polynomial": PolynomialOutcome,
}
SHIFTS = (*SPLIT, *DRAWN)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Rows and their shift. In TOML, parameters of the shift are further keys of the same table.

    Attributes
    ----------
    shift : str
        A name of `SHIFTS`.
    source : str, optional
        A data set (`fedshift.data.load`); shifts in `DRAWN` draw their own rows and need none.
    share : float
        Share of the rows of every class to use, for a small version of an experiment.
    seed : int, optional
        Seed of the split. By default the seed of the run, so that every run has its own split.
    options : table
        Parameters of the shift.
    """

    shift: str
    source: str | None = None
    share: float = 1.0
    seed: int | None = None
    options: TomlTable = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", plain(self.options))

    @classmethod
    def read(cls, table: TomlTable, key: str, place: Location) -> Data:
        """Read a [data] table."""
        place = place.under(key)
        own = {k: v for k, v in table.items() if k in ("shift", "source", "share", "seed")}
        rest = {k: v for k, v in table.items() if k not in own}
        data: Data = replace(make(cls, own, place, skip=("options",)), options=rest)
        data.check(place)
        return data

    @property
    def toml(self) -> dict[str, Any]:
        """The [data] table."""
        return {**fields_of(self, skip=("options",)), **self.options}

    def check(self, place: Location) -> None:
        """Raise unless the shift accepts the table; reads no rows."""
        if self.shift not in SHIFTS:
            raise InputError(f"{place}: shift must be {nearest(self.shift, SHIFTS)}")
        self._builder(place)
        if self.shift in SPLIT and self.source not in NAMES:
            raise InputError(f"{place}: source must be {nearest(self.source, NAMES)}")
        if self.shift in DRAWN and (self.source is not None or self.share != 1):
            raise InputError(
                f"{place}: shift {self.shift!r} draws its own rows; remove source and share"
            )
        if not 0 < self.share <= 1:
            raise InputError(f"{place}: share must be in (0, 1]; got {self.share!r}")

    def load(self, data_dir: str | os.PathLike[str] | None = None) -> Images | None:
        """Load the share of the source; None without a source."""
        if self.source is None:
            return None
        images = load(self.source, data_dir)
        return images if self.share == 1 else thinned(images, self.share)

    def federation(self, images: Images | None, *, seed: int) -> Federation:
        """Split the source, or draw rows, into a federation.

        Parameters
        ----------
        images : Images or None
            The return value of `load`.
        seed : int
            Seed of the run.
        """
        builder = self._builder(Location("recipe", "data"))
        seed = seed if self.seed is None else self.seed
        fed = builder.draw(seed=seed) if images is None else images.split(builder, seed=seed)
        assert isinstance(fed, Federation)
        return fed

    def _builder(self, place: Location) -> Any:
        maker = (SPLIT | DRAWN)[self.shift]
        known = ("shift", "source", "share", "seed")
        table = dict(self.options)
        outcome = table.pop("outcome", None) if self.shift in DRAWN else None
        options = arguments(maker, table, place, also=known)
        if outcome is not None:
            chosen, below = Spec.read(outcome, "outcome", place), place.under("outcome")
            chosen.named(OUTCOMES, "outcome", place)
            options["outcome"] = make(OUTCOMES[chosen.kind], chosen.options, below)
        with at(place):
            return maker(**options)


def thinned(images: Images, share: float) -> Images:
    """A share of the rows of every class, in the training part and in the test part.

    Each part keeps at least one row of each of its classes.
    """
    keep = np.zeros(len(images), dtype=bool)
    for part in (slice(0, images.n_train), slice(images.n_train, None)):
        y = images.y[part]
        for c in np.unique(y):
            index = np.flatnonzero(y == c) + (part.start or 0)
            keep[index[: max(1, round(share * len(index)))]] = True
    return replace(
        images, x=images.x[keep], y=images.y[keep], n_train=int(keep[: images.n_train].sum())
    )
