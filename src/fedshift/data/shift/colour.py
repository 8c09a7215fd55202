"""Colored MNIST: colour follows the label, more or less often by client and side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedshift.core.samples import Float64Array, FloatArray, Rows
from fedshift.data.federation import Federation, Goal
from fedshift.data.shift.pool import (
    Index,
    Int64Array,
    Pool,
    assemble,
    class_labels,
    client_names,
)
from fedshift.errors import InputError

#: the ratio of p(x, y) or of p(x)
Kind = Literal["joint", "marginal"]


@dataclass(frozen=True, eq=False)
class ColourLaws:
    """How often the colour differs from the label, by client; the rest of p(x, y) is shared.

    Joint: p(x, y) = p(shape) p(y | shape) p(colour | y), so the ratio at a row whose colour is its
    label is Σ_l (1 − f_l^te) / (1 − f_k^tr), and at any other row Σ_l f_l^te / f_k^tr.
    Marginal: the same with the label before noise, z, for y, and f + η − 2 f η for f.
    −∞ where no target law has such rows.

    Attributes
    ----------
    train, test : ndarray (clients,)
        Flip probabilities f.
    noise : float
        Probability η that a label differs from its shape's.
    clean : mapping of client to ndarray (n,)
        Labels z of its training rows before noise.
    grayscale : bool
        Whether the colour was removed: then all laws are one, and the ratio is their number.
    kind : {"joint", "marginal"}
    """

    names: tuple[str, ...]
    train: Float64Array
    test: Float64Array
    noise: float
    clean: Mapping[str, Int64Array]
    grayscale: bool = False
    kind: Kind = "joint"

    def log_ratio(self, federation: Federation, client: str, goal: Goal) -> Float64Array:
        """Log ratio at every training row of a client."""
        goals = [self.names.index(name) for name in federation.goal_names(client, goal)]
        if self.grayscale:
            return np.full(len(federation[client].x), np.log(len(goals)))
        test = self._flips(self.test)[goals]
        f = self._flips(self.train)[self.names.index(client)]
        with np.errstate(divide="ignore", invalid="ignore"):  # flips that never happen, or always
            same = np.log((1 - test).sum()) - np.log(1 - f)
            other = np.log(test.sum()) - np.log(f)
        return np.asarray(np.where(self._as_labelled(federation, client), same, other))

    def log_laws(self, federation: Federation, client: str) -> Float64Array:
        """Log p_j of all clients' training laws at the training rows of one, (n, K)."""
        if self.grayscale:
            return np.zeros((len(federation[client].x), len(federation)))
        f = self._flips(self.train)[[self.names.index(c.name) for c in federation]]
        with np.errstate(divide="ignore"):
            same, other = np.log(1 - f), np.log(f)
        return np.asarray(np.where(self._as_labelled(federation, client)[:, None], same, other))

    def _flips(self, f: Float64Array) -> Float64Array:
        """Probabilities that the colour differs from the label the ratio is about."""
        return f if self.kind == "joint" else f + self.noise - 2 * f * self.noise

    def _as_labelled(self, federation: Federation, client: str) -> npt.NDArray[np.bool_]:
        """Whether the colour of each training row is its label."""
        rows = federation[client]
        label = rows.y if self.kind == "joint" else self.clean[client]
        if len(label) != len(rows.x):
            raise InputError(
                f"client {client!r} must have the {len(label)} training rows it was built with, "
                f"as the marginal ratio needs their labels before noise; got {len(rows.x)}"
            )
        return np.asarray(colours(rows.x) == label)


def colours(x: FloatArray) -> Int64Array:
    """The channel that holds each image: (n, 2, height, width) to (n,)."""
    ink = x.reshape(len(x), 2, -1).sum(axis=2)
    return np.asarray(ink.argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True)
class ColourFlip:
    """Colored MNIST (Arjovsky et al. 2019) for clients: a JOINT shift, p(y | x) changes.

    An image of digit d has shape label z = [d ≥ 5]; the label y is z, flipped with probability
    `noise`; the image is put into channel c of two, where c is y, flipped with the probability of
    its client and side. Colour then foretells the label well on one side and wrongly on another.
    The paper calls this covariate shift, but p(y | x) depends on the flip probability, so only the
    ratio of p(x, y) turns one risk into another; it is the default. The ratio of p(x) is there to
    show the difference: with it, weighting is no better than none (accuracy .590 against .679).

    Parameters
    ----------
    train_flip, test_flip : sequence of float in [0, 1]
        Colour flip probability, one a client.
    train_share, test_share : sequence of float, optional
        Relative number of rows, one a client; equal by default. All rows are dealt, once.
    noise : float
        Label flip probability.
    grayscale : bool
        Put the image into both channels, so that no colour is left: the paper's upper bound.
        All laws are then the same, and every ratio is the number of target laws.
    kind : {"joint", "marginal"}
        Which ratio the federation tells as exact. `dataclasses.replace(fed.truth, kind=...)` is
        the other one's.

    Examples
    --------
    >>> ColourFlip.paper().train_flip
    (0.5, 0.2)
    """

    train_flip: Sequence[float]
    test_flip: Sequence[float]
    train_share: Sequence[float] | None = None
    test_share: Sequence[float] | None = None
    noise: float = 0.25
    grayscale: bool = False
    kind: Kind = "joint"

    def __post_init__(self) -> None:
        n = len(self.train_flip)
        for name in ("train_flip", "test_flip", "train_share", "test_share"):
            value = getattr(self, name)
            top, low = (1.0, 0.0) if name.endswith("flip") else (np.inf, np.finfo(float).tiny)
            if value is not None and (
                n == 0 or len(value) != n or not all(low <= v <= top for v in value)
            ):
                need = "in [0, 1]" if name.endswith("flip") else "above 0"
                raise InputError(
                    f"{name} must have a number {need} for each client, as many as train_flip "
                    f"({n}); got {value}"
                )
        if not 0 <= self.noise <= 1:
            raise InputError(f"noise must be a probability; got {self.noise}")
        if self.kind not in ("joint", "marginal"):
            raise InputError(f"kind must be 'joint' or 'marginal'; got {self.kind!r}")

    @classmethod
    def paper(cls, *, grayscale: bool = False, kind: Kind = "joint") -> ColourFlip:
        """The paper's two clients; client 1 has 40 times fewer training rows."""
        return cls(
            train_flip=(0.5, 0.2),
            test_flip=(0.2, 0.8),
            train_share=(1, 40),
            grayscale=grayscale,
            kind=kind,
        )

    def split(
        self, x: Rows, y: npt.ArrayLike, test_x: Rows, test_y: npt.ArrayLike, *, seed: int
    ) -> Federation:
        """Deal, label and colour the rows.

        The same seed gives the same rows and labels with and without `grayscale`.

        Parameters
        ----------
        x, test_x : images (n, height, width) or (n, 1, height, width)
            uint8 images become float32 in [0, 1].
        y, test_y : digits 0 to 9

        Returns
        -------
        Federation
            Rows of shape (2, height, width), labels 0 and 1.
        """
        rng = np.random.default_rng(seed)
        names = client_names(len(self.train_flip))
        sides, clean = [], []
        for side, pool in (
            ("train", Pool.of(x, y, "train")),
            ("test", Pool.of(test_x, test_y, "test")),
        ):
            if not (pool.x.ndim == 3 or (pool.x.ndim == 4 and pool.x.shape[1] == 1)):
                raise InputError(
                    f"{side} rows must be images of one channel, (n, height, width) or (n, 1, "
                    f"height, width); got {pool.x.shape}"
                )
            digit_class = (class_labels(pool.y, 10, side) >= 5).astype(np.int64)
            share, flips = getattr(self, f"{side}_share"), getattr(self, f"{side}_flip")
            part = []
            for k, index in enumerate(_shares(len(pool), share or [1.0] * len(names), side, rng)):
                z = digit_class[index]
                label = z ^ (rng.random(len(z)) < self.noise)
                colour = label ^ (rng.random(len(z)) < flips[k])
                part.append((self._painted(pool, index, colour), label))
                if side == "train":
                    clean.append(z)
            sides.append(part)
        truth = ColourLaws(
            names,
            np.asarray(self.train_flip, dtype=np.float64),
            np.asarray(self.test_flip, dtype=np.float64),
            self.noise,
            dict(zip(names, clean, strict=True)),
            self.grayscale,
            self.kind,
        )
        return Federation(assemble(names, *sides), truth)

    def _painted(self, pool: Pool, index: Index, colour: Int64Array) -> FloatArray:
        images = pool.take(index).reshape(len(index), *pool.x.shape[-2:])
        if not self.grayscale and not images.reshape(len(index), -1).any(axis=1).all():
            raise InputError(
                "every image must have a pixel above zero, or it has no colour; got a blank one; "
                "drop blank images"
            )
        out = np.zeros((len(index), 2, *images.shape[1:]), dtype=images.dtype)
        if self.grayscale:
            out[:] = images[:, None]
        else:
            out[np.arange(len(index)), colour] = images
        return out


def _shares(n: int, share: Sequence[float], side: str, rng: np.random.Generator) -> Sequence[Index]:
    """All of n rows, dealt in proportion to `share`."""
    ends = np.rint(np.cumsum(share) / np.sum(share) * n).astype(np.int64)
    sizes = np.diff(ends, prepend=0)
    if not sizes.all():
        raise InputError(
            f"{n} {side} rows leave none for client {int(sizes.argmin()) + 1} of shares "
            f"{list(share)}; give more rows"
        )
    return np.split(rng.permutation(n), ends[:-1])
